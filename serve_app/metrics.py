"""The numbers of `/metrics`. Names are a public interface (design 8).

They are counted where things happen, in shards and supervisor, and asked for at each scrape: the scrape reaches any one
of several replicas, and a counter must not depend on which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

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
        if self._supervisor is not None:
            takeovers = float(self._supervisor.get("takeovers", 0))
            yield CounterMetricFamily("outlast_takeovers", "Takeovers that were begun.", value=takeovers)
            yield SummaryMetricFamily(
                "outlast_takeover_seconds",
                "From finding a driver gone to its successor's claim.",
                count_value=takeovers,  # type: ignore[arg-type]  # a float in every sample
                sum_value=float(self._supervisor.get("takeoverSeconds", 0.0)),
            )


def _sum(shards: Iterable[Mapping[str, Any]], key: str) -> float:
    return float(sum(facts.get(key, 0) for facts in shards))
