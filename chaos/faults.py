"""The faults: each is a context manager that does it at its begin, and undoes it at its end if it holds.

A fault that meets nobody (the process is being made anew, no run is there yet) yields None, and is tried again for a
while. Else it yields who was met, in words, and which run it concerns: None means all of them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import httpx
from load import Load, Run
from plan import LEASE_S, LONG_S, SHORT_S, Kind, Planned

from runtime import process
from runtime.process import ProcessIdentity

T = TypeVar("T")
DRIVER, SHARD, SUPERVISOR, REPLICA = "ray::RunActor", "ray::LogShard", "ray::SupervisorActor", "ray::ServeReplica"


class Met(NamedTuple):
    """What a fault met: in words; the run that it concerns, None: all."""

    what: str
    run_id: str | None = None


Fault = Callable[[Planned], AbstractContextManager[Met | None]]


class Site(Protocol):
    """Where an instance runs, as the faults of processes need it."""

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request. Raises httpx.TransportError."""

    def processes(self, title: str = "") -> list[ProcessIdentity]:
        """Return the living processes of the instance whose command line contains `title`."""

    def process_of(self, claim: Mapping[str, Any]) -> ProcessIdentity | None:
        """Return the living process that a claim names."""


PROCESS_KINDS = {
    "kill_driver": Kind(6),
    "freeze_driver": Kind(4, (SHORT_S, LEASE_S, LONG_S)),
    "kill_shard": Kind(2),
    "freeze_shard": Kind(1, (SHORT_S, LEASE_S, LONG_S), 5.0, "shard"),
    "kill_supervisor": Kind(2),
    "freeze_supervisor": Kind(1, (SHORT_S, LEASE_S, LONG_S), 5.0, "supervisor"),
    "kill_replica": Kind(2, (), 6.0, "replica"),
    "freeze_replica": Kind(1, (SHORT_S, LEASE_S), 6.0, "replica"),
}


class ProcessFaults:
    """Signals to single processes of an instance."""

    def __init__(self, site: Site, load: Load) -> None:
        self._site = site
        self._load = load

    def table(self) -> dict[str, Fault]:
        """Return the faults by name."""
        return {
            "kill_driver": lambda planned: self._driver(planned, hold=False),
            "freeze_driver": lambda planned: self._driver(planned, hold=True),
            "kill_shard": lambda planned: self._titled(planned, SHARD, hold=False),
            "freeze_shard": lambda planned: self._titled(planned, SHARD, hold=True),
            "kill_supervisor": lambda planned: self._titled(planned, SUPERVISOR, hold=False),
            "freeze_supervisor": lambda planned: self._titled(planned, SUPERVISOR, hold=True),
            "kill_replica": lambda planned: self._titled(planned, REPLICA, hold=False),
            "freeze_replica": lambda planned: self._titled(planned, REPLICA, hold=True),
        }

    @contextmanager
    def _driver(self, planned: Planned, *, hold: bool) -> Iterator[Met | None]:
        run = pick(self._load.active(), planned.choice)
        who = self._driver_of(run) if run is not None else None
        if run is None or who is None:
            yield None
            return
        with signalled(who, hold=hold):
            yield Met(f"the driver of {run.run_id}", run.run_id)

    def _driver_of(self, run: Run) -> ProcessIdentity | None:
        try:
            response = self._site.ask("GET", f"/api/runs/{run.run_id}")
            claims = response.json()["claims"] if response.status_code == httpx.codes.OK else []
        except (httpx.TransportError, ValueError):
            return None
        return self._site.process_of(claims[-1]) if claims else None

    @contextmanager
    def _titled(self, planned: Planned, title: str, *, hold: bool) -> Iterator[Met | None]:
        who = pick(sorted(self._site.processes(title), key=lambda found: found.pid), planned.choice)
        if who is None:
            yield None
            return
        with signalled(who, hold=hold):
            yield Met(f"{title} {who.pid}")


def pick(found: list[T], choice: float) -> T | None:
    """Return the one of `found` that `choice` (0 to 1) falls on."""
    return found[int(choice * len(found))] if found else None


@contextmanager
def signalled(who: ProcessIdentity, *, hold: bool) -> Iterator[None]:
    """Stop that very process until the end of the context, or kill it at its begin."""
    process.send(who, signal.SIGSTOP if hold else signal.SIGKILL)
    try:
        yield
    finally:
        if hold:
            process.send(who, signal.SIGCONT)
