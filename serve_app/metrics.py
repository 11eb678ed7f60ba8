"""The numbers of `/metrics`. Names are a public interface (design 8).

They are counted where things happen, in shards and supervisor, and asked for at each scrape: the scrape reaches any one
of several replicas, and a counter must not depend on which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from runtime.engine.story import PAUSE_BOUNDS_S

# (name without `_total`, key of a shard's `stats`, help)
_COUNTERS = (
    ("outlast_appends", "appends", "Appends that were stored."),
    ("outlast_appends_refused", "appends_refused", "Appends of superseded drivers, which changed nothing."),
    ("outlast_shard_reads", "reads", "Reads of logs by gateway replicas and drivers."),
    ("outlast_segment_reads", "segment_reads", "Sealed segments that readers were pointed to."),
)
_GAUGES = (
    ("outlast_runs", "runs", "Runs that are not terminal."),
    ("outlast_viewers", "viewers", "Open streams, over all replicas."),
)


class Metrics:
    """A registry of its own, so that nothing of Ray or Python is in it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._shards: Sequence[Mapping[str, Any]] = ()
        self._supervisor: Mapping[str, Any] | None = None

    def render(self, shards: Sequence[Mapping[str, Any]], supervisor: Mapping[str, Any] | None) -> bytes:
        """Return the text for these facts. Without a shard or the supervisor its metrics are absent, not 0."""
        self._shards, self._supervisor = shards, supervisor
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families; the registry calls it."""
        if self._shards:
            for name, key, text in _COUNTERS:
                yield CounterMetricFamily(name, text, value=_sum(self._shards, key))
            for name, key, text in _GAUGES:
                yield GaugeMetricFamily(name, text, value=_sum(self._shards, key))
            yield self._refusals()
            yield self._pauses()
        if self._supervisor is not None:
            takeovers = float(self._supervisor.get("takeovers", 0))
            yield CounterMetricFamily("outlast_takeovers", "Takeovers that were begun.", value=takeovers)
            made = CounterMetricFamily("outlast_drivers_made", "Drivers, by why they were made.", labels=["reason"])
            for reason, count in sorted(self._supervisor.get("reasons", {}).items()):
                made.add_metric([reason], float(count))
            yield made
            reaped = CounterMetricFamily(
                "outlast_reaped", "Detached runs, by what the reaper made of them.", labels=["outcome"]
            )
            for outcome, count in sorted(self._supervisor.get("reaped", {}).items()):
                reaped.add_metric([outcome], float(count))
            yield reaped
            pruned = CounterMetricFamily("outlast_pruned", "What was removed as too old to be kept.", labels=["what"])
            for what, count in sorted(self._supervisor.get("pruned", {}).items()):
                pruned.add_metric([what], float(count))
            yield pruned
            yield from self._told(self._supervisor)
            yield SummaryMetricFamily(
                "outlast_takeover_seconds",
                "From finding a driver gone to its successor's claim.",
                count_value=takeovers,  # type: ignore[arg-type]  # a float in every sample
                sum_value=float(self._supervisor.get("takeoverSeconds", 0.0)),
            )

    def _told(self, supervisor: Mapping[str, Any]) -> Iterator[Metric]:
        """The process of hooks counts anew when it is made anew."""
        hooks = supervisor.get("hooks", {})
        families = (
            ("outlast_hook_calls", "Calls of hooks, by what came of them.", "hook", hooks.get("calls", [])),
            (
                "outlast_webhook_posts",
                "Posts of ends of runs, by what came of them.",
                "webhook",
                hooks.get("posts", []),
            ),
        )
        for name, text, label, counts in families:
            family = CounterMetricFamily(name, text, labels=[label, "result"])
            for told, result, count in counts:
                family.add_metric([told, result], float(count))
            yield family
        given_up = float(supervisor.get("notices", {}).get("given_up", 0))
        yield CounterMetricFamily(
            "outlast_notices_given_up", "Ends of runs that somebody was never told.", value=given_up
        )
        dropped = _sum(self._shards, "hook_events_dropped") + hooks.get("dropped", 0)
        yield CounterMetricFamily("outlast_hook_events_dropped", "Events that no hook was called for.", value=dropped)

    def _refusals(self) -> Metric:
        family = CounterMetricFamily("outlast_refusals", "What superseded drivers tried, in vain.", labels=["tried"])
        for tried, count in sorted(_added(facts.get("refusals", {}) for facts in self._shards).items()):
            family.add_metric([tried], count)
        return family

    def _pauses(self) -> Metric:
        """The sum is in seconds, the buckets grow: Prometheus wants each to hold those below it."""
        text = "Takeovers: from the last chunk stored before to the first after, by why."
        family = HistogramMetricFamily("outlast_takeover_pause_seconds", text, labels=["reason"])
        for reason in sorted({reason for facts in self._shards for reason in facts.get("pauses", {})}):
            of_shards = [facts["pauses"][reason] for facts in self._shards if reason in facts.get("pauses", {})]
            *counts, seconds = map(sum, zip(*of_shards, strict=True))
            bounds = [*map(str, PAUSE_BOUNDS_S), "+Inf"]
            family.add_metric([reason], list(zip(bounds, accumulate(counts), strict=True)), sum_value=seconds)
        return family


def _added(of_shards: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in of_shards:
        total.update(counts)
    return total


def _sum(shards: Iterable[Mapping[str, Any]], key: str) -> float:
    return float(sum(facts.get(key, 0) for facts in shards))
