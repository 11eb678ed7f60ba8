"""What happens when: a schedule of faults that is a function of the seed alone.

Which process a fault meets is decided when it happens, by its `choice` among those that are there then.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SPACING_S = (0.6, 2.0)  # from one fault's begin to the next one's; a fault that holds overlaps those after it
SHORT_S, LEASE_S, LONG_S = (0.2, 2.0), (3.5, 9.0), (12.0, 25.0)  # below the lease, above it, above Ray's health check


@dataclass(frozen=True)
class Kind:
    """One kind of fault: how often it comes in relation to others, how long it holds, and after what rest."""

    weight: float
    holds: Sequence[tuple[float, float]] = ()  # one of these ranges, in seconds
    rest_s: float = 0.0  # another one of this group comes this long after the end of the last
    group: str = ""


@dataclass(frozen=True)
class Planned:
    """One fault: when it begins (seconds from the start), what it meets (0 to 1), and how long it holds."""

    number: int
    kind: str
    at_s: float
    choice: float
    hold_s: float


def plan(seed: int, faults: int, kinds: Mapping[str, Kind]) -> list[Planned]:
    """Return `faults` faults in order."""
    dice = random.Random(f"chaos {seed}")  # noqa: S311 - to be repeated
    made: list[Planned] = []
    at_s = 2.0
    free_at: dict[str, float] = {}
    for number in range(faults):
        open_kinds = [name for name, kind in kinds.items() if free_at.get(kind.group, 0.0) <= at_s or not kind.group]
        (name,) = dice.choices(open_kinds, [kinds[each].weight for each in open_kinds])
        kind = kinds[name]
        hold_s = round(dice.uniform(*dice.choice(kind.holds)), 2) if kind.holds else 0.0
        made.append(Planned(number, name, round(at_s, 2), dice.random(), hold_s))
        if kind.group:
            free_at[kind.group] = at_s + hold_s + kind.rest_s
        at_s += dice.uniform(*SPACING_S)
    return made
