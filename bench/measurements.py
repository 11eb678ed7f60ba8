"""Which measurement brings which rows, in the order in which they are made."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import appends
import containers
import delivery
import losses
import lost_nodes
import memory
import pure
import real_agent
import replacing
import stale
import starting
import takeovers
import throughput
from rows import ROWS, Figures
from served import Measure


@dataclass(frozen=True)
class Group:
    """Rows that one measurement brings; `served` is the kind of instance that it needs."""

    rows: tuple[str, ...]
    measure: Measure | None = None
    alone: Callable[[bool], Awaitable[Figures]] | None = None
    cold: bool = False
    missing: Callable[[], str | None] = lambda: None  # why it cannot be made on this machine


GROUPS = (
    Group(("post_first_byte_p50_ms", "post_first_text_p50_ms"), starting.starting),
    Group(("delivery_20_p50_ms", "delivery_20_p99_ms"), delivery.deliver(20)),
    Group(("delivery_200_p50_ms", "delivery_200_p99_ms"), delivery.deliver(200)),
    Group(("run_actor_uss_mb",), memory.run_actor),
    Group(("takeover_p50_ms", "takeover_p99_ms"), takeovers.warm),
    Group(("takeover_66k_ms",), takeovers.long_log),
    Group(("takeover_200_files_ms",), takeovers.files),
    Group(("takeover_frozen_p50_ms", "takeover_frozen_p99_ms"), losses.frozen),
    Group(("takeover_20_at_once_ms",), losses.twenty),
    Group(
        ("takeover_stored_1k_ms", "takeover_stored_10k_ms", "takeover_stored_100k_ms", "takeover_stored_growth"),
        losses.stored,
    ),
    Group(("takeover_cpu_s",), losses.cost),
    Group(("one_run_chunks_per_s",), throughput.one_run),
    Group(("twenty_runs_chunks_per_s",), throughput.twenty_runs),
    Group(("viewers200_p99_ms",), delivery.viewers),
    Group(("stale_appends",), stale.stale),
    Group(("takeover_cold_p50_ms", "takeover_cold_p99_ms"), takeovers.cold, cold=True),
    Group(
        ("takeover_node_p50_ms", "takeover_node_p99_ms", "takeover_cut_p50_ms", "takeover_cut_p99_ms"),
        alone=lost_nodes.lost_nodes,
        missing=lost_nodes.missing,
    ),
    Group(containers.ROWS, alone=containers.containers, missing=containers.missing),
    Group(real_agent.ROWS, alone=real_agent.claude, missing=real_agent.missing),
    Group(("cluster_replace_per_run_ms",), alone=replacing.replace_cluster),
    Group(("translate_lines_per_s",), alone=pure.translate),
    Group(appends.rows_of("sqlite"), alone=appends.sqlite),
    Group(appends.rows_of("postgres"), alone=appends.postgres, missing=appends.no_postgres),
    Group(("align_chunks_per_s", "align_fingerprint_chunks_per_s"), alone=pure.align),
)


def choose(names: Sequence[str]) -> list[Group]:
    """Return the groups that bring `names`; all of them if there are none. Ends the program on an unknown name."""
    known = {row.name for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"bench: no row {', '.join(unknown)}; the rows are: {', '.join(row.name for row in ROWS)}")
    return [group for group in GROUPS if not names or set(names) & set(group.rows)]
