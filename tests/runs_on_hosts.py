"""Runs that begin on a host of the test's choice: wherever the spread puts them, until one is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from host import Host
from many_hosts import ManyHosts
from shell_runs import unique
from watching import Watch

TRIES = 20


@contextmanager
def start_on(many: ManyHosts, host: Host, script: str) -> Iterator[Watch]:
    """Start a run whose driver and sandbox are on `host`; yield who watches it. Others are cancelled."""
    for _ in range(TRIES):
        with ExitStack() as stack:
            watch = stack.enter_context(Watch(many, unique(f"on-{host.number}"), script))
            watch.until_lines(1)
            if many.driver(watch.run_id)[0] is host:
                yield watch
                return
            many.ask("POST", "/api/chat/cancel", json={"runId": watch.run_id})
            watch.until_end()
    raise AssertionError(f"of {TRIES} runs none began on host {host.number}")
