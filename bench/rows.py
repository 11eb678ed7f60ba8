"""The rows of the benchmark: what is measured, what has to be reached, what the peer reaches.

Targets are those of the project's plan. The peer is TanStack AI's sandbox runs, measured on two shared cores of the
same kind of machine, in the best setting that its documents allow, its log on disk or on its reference server.
Its figures are of another day: compare orders of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """One figure. `peer` is None where the peer has no such thing or was not measured."""

    name: str
    unit: str
    better: Literal["lower", "higher"]
    target: float
    peer: float | None

    def met(self, value: float) -> bool:
        """Return whether `value` reaches the target."""
        return value <= self.target if self.better == "lower" else value >= self.target


def _lower(name: str, unit: str, target: float, peer: float | None = None) -> Row:
    return Row(name, unit, "lower", target, peer)


def _higher(name: str, unit: str, target: float, peer: float | None = None) -> Row:
    return Row(name, unit, "higher", target, peer)


ROWS = (
    _lower("post_first_byte_p50_ms", "ms", 15, 200),  # the peer: 200-250 to its first event
    _lower("post_first_text_p50_ms", "ms", 150),
    _lower("delivery_20_p50_ms", "ms", 6, 3.3),  # the peer: one chunk a batch; by default 755 and 1,555
    _lower("delivery_20_p99_ms", "ms", 30, 30),
    _lower("delivery_200_p50_ms", "ms", 5, 1.3),
    _lower("delivery_200_p99_ms", "ms", 30, 67),
    _lower("takeover_p50_ms", "ms", 200, 383),  # the peer at its allowed floor; by default 5,163
    _lower("takeover_p99_ms", "ms", 800, 1697),  # its maximum of 20
    _lower("takeover_cold_p50_ms", "ms", 500),
    _lower("takeover_cold_p99_ms", "ms", 1500),
    _lower("takeover_66k_ms", "ms", 600, 4040),
    _lower("takeover_200_files_ms", "ms", 300),  # told of in the log; the peer fails 5 of 5
    _lower("docker_first_chunk_ms", "ms", 1500),
    _lower("docker_follow_p50_ms", "ms", 5),
    _lower("docker_follow_p99_ms", "ms", 25),
    _lower("docker_takeover_p50_ms", "ms", 500),
    _lower("docker_cancel_ms", "ms", 1000),  # to the engine's word that nothing is left
    _lower("claude_first_chunk_ms", "ms", 2500),  # the agent's own start is nearly all of it
    _lower("cluster_replace_per_run_ms", "ms", 1000),  # of 20: 10 s for serve to start, 8 s for 20 cold drivers
    _lower("takeover_frozen_p50_ms", "ms", 3500, 7700),  # the peer: a lease of 3 s too, then its quiet time
    _lower("takeover_frozen_p99_ms", "ms", 4000, 8500),  # its maximum; our lease's time and one second more
    _lower("takeover_node_p50_ms", "ms", 3500),
    _lower("takeover_node_p99_ms", "ms", 4000),  # a lease and one second
    _lower("takeover_cut_p50_ms", "ms", 3500),
    _lower("takeover_cut_p99_ms", "ms", 4000),
    _lower("takeover_20_at_once_ms", "ms", 8000),  # cold drivers start at about 2.5 a second on two cores
    _lower("takeover_stored_1k_ms", "ms", 200, 153),  # the peer without its quiet time, which it does not allow
    _lower("takeover_stored_10k_ms", "ms", 200, 1150),  # at 15,000 chunks
    _lower("takeover_stored_100k_ms", "ms", 200, 4040),  # at 72,000 chunks
    _lower("takeover_stored_growth", "100k by 1k", 1.2, 26),
    _lower("takeover_cpu_s", "CPU s", 1.0),
    _higher("one_run_chunks_per_s", "chunks/s", 60_000, 6_000),
    _higher("twenty_runs_chunks_per_s", "chunks/s", 60_000, 6_500),
    _higher("translate_lines_per_s", "lines/s", 400_000, 100_000),
    _higher("align_chunks_per_s", "chunks/s", 5_000_000, 230_000),
    _higher("align_fingerprint_chunks_per_s", "chunks/s", 300_000),
    _higher("append_per_s_sqlite_1", "appends/s", 500),
    _higher("append_per_s_sqlite_10", "appends/s", 4_000),
    _higher("append_per_s_sqlite_100", "appends/s", 8_000),
    _higher("append_per_s_postgres_1", "appends/s", 300),
    _higher("append_per_s_postgres_10", "appends/s", 2_000),
    _higher("append_per_s_postgres_100", "appends/s", 5_000),
    _lower("run_actor_uss_mb", "MB", 60),
    _lower("viewers200_p99_ms", "ms", 100),
    _lower("stale_appends", "trials of 40", 0, 38),  # the peer: 81 of 85 trials
)


@dataclass(frozen=True)
class Figure:
    """What a measurement brought for one row. Its module says why `left_out` trials were made and do not count."""

    value: float
    trials: int
    left_out: int = 0


Figures = dict[str, Figure]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(name: str, values: Sequence[float], left_out: int = 0) -> Figures:
    """Return the `_p50_ms` and `_p99_ms` figures of `values` in ms."""
    return {
        f"{name}_p50_ms": Figure(quantile(values, 0.5), len(values), left_out),
        f"{name}_p99_ms": Figure(quantile(values, 0.99), len(values), left_out),
    }


def as_json(chosen: Sequence[Row], figures: Figures) -> list[dict[str, Any]]:
    """Return the content of `bench.json`. A row that could not be measured has the value null and no trials."""
    made = []
    for row in chosen:
        figure = figures.get(row.name)
        made.append(
            {
                "name": row.name,
                "value": None if figure is None else round(figure.value, 3),
                "unit": row.unit,
                "better": row.better,
                "target": row.target,
                "peer": row.peer,
                "trials": 0 if figure is None else figure.trials,
                "left_out": 0 if figure is None else figure.left_out,
            }
        )
    return made


def as_text(chosen: Sequence[Row], figures: Figures) -> str:
    """Return the table for people."""
    lines = [f"{'row':<32}{'value':>14}{'target':>14}{'peer':>12}{'trials':>8}{'left out':>10}  "]
    for row in chosen:
        figure = figures.get(row.name)
        value = "-" if figure is None else _shown(figure.value)
        verdict = "not measured" if figure is None else "met" if row.met(figure.value) else "MISSED"
        peer = "-" if row.peer is None else _shown(row.peer)
        counts = f"{figure.trials:>8}{figure.left_out:>10}" if figure is not None else " " * 18
        lines.append(f"{row.name:<32}{value:>14}{_shown(row.target):>14}{peer:>12}{counts}  {verdict}")
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.1f}"
