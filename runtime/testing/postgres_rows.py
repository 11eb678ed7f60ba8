"""What the modelled PostgreSQL of `postgres_tables.py` is made of: a row, a statement, and what it locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Values = Any  # of one statement: a tuple, or a mapping by name
Rows = list[tuple[Any, ...]]
Thread = tuple[str, str]

FIRST_HISTORY = "model 1"


@dataclass(slots=True)
class Row:
    """One row of `run`."""

    ordinal: int
    run_id: str
    owner: str
    thread_id: str
    shard: int
    status: str
    terminal: bool
    queued: bool
    to_destroy: bool
    reap: tuple[str | None, int | None]  # stage, due
    version: int
    head: bytes

    @property
    def thread(self) -> Thread:
        """Return whose run it is, and in which thread."""
        return self.owner, self.thread_id

    @property
    def active(self) -> bool:
        """Return whether it is in the unique index `run_active`."""
        return not self.terminal and not self.queued


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """One statement of one session. `between` is called where others may come; it raises if the session is ended."""

    statement: str
    values: Values
    by: object
    between: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Locks:
    """Rows that nobody else may lock at all (`mine`), or only as `shared` ones too."""

    mine: set[str]
    shared: set[str] = field(default_factory=set)

    def conflict(self, other: Locks) -> bool:
        """Return whether one of the two has to wait for the other."""
        return bool(self.mine & (other.mine | other.shared) or self.shared & other.mine)
