"""The faults of hosts: cables, whole hosts, Ray's nodes, drains, full disks, the store's server, the head.

Host 0 has the head, `serve`, the clients and the store, so only its cable, its disk and its Ray are touched; hosts 1
and 2 also end, stand still and are drained. One fault at a time on each host: it is the schedule's `group` that keeps
the next one away.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faults import Fault, Met, signalled
from host import Host
from host_postgres import HostPostgres
from many_hosts import ManyHosts
from plan import LEASE_S, LONG_S, SHORT_S, Kind, Planned

from runtime import process

REST_S = 12.0  # after a host came back, before the next of its kind: its node joins, its actors come
DRAIN_S = 15
GUARD_S = 1.0

HOST_KINDS = {
    "cut_host": Kind(3, (SHORT_S, LEASE_S, LONG_S), REST_S, "host"),
    "cut_towards_host": Kind(1, (SHORT_S, LEASE_S), REST_S, "host"),
    "cut_from_host": Kind(1, (SHORT_S, LEASE_S), REST_S, "host"),
    "cut_head": Kind(0.5, (SHORT_S, LEASE_S), 20.0, "head"),
    "freeze_host": Kind(1, (SHORT_S, LEASE_S, LONG_S), REST_S, "host"),
    "kill_host": Kind(0.7, ((1.0, 8.0),), 20.0, "host"),
    "kill_node": Kind(1, (), REST_S, "host"),
    "kill_raylet": Kind(1, (), REST_S, "host"),
    "freeze_raylet": Kind(1, (LEASE_S, LONG_S), REST_S, "host"),
    "drain_node": Kind(1, ((float(DRAIN_S), DRAIN_S + 1.0),), REST_S, "host"),
    "disk_full": Kind(1, (SHORT_S, LEASE_S), 5.0, "disk"),
    "store_disk_full": Kind(0.7, (SHORT_S,), 15.0, "store"),
    "restart_head": Kind(0.3, (), 60.0, "head"),
}
STORE_KINDS = {
    "kill_store": Kind(1, (SHORT_S,), 10.0, "store"),
    "freeze_store": Kind(0.7, (SHORT_S, LEASE_S), 10.0, "store"),
}


class HostFaults:
    """Faults on the hosts of one instance; knows which hosts were killed when, and whose disk was full."""

    def __init__(self, many: ManyHosts, store: HostPostgres | None, guard: Guard) -> None:
        self._many = many
        self._lan = many.lan
        self._store = store
        self._guard = guard
        self.killed: list[tuple[str, int]] = []  # machine id, wall clock in ms
        self.filled: list[str] = []  # machine ids

    def table(self) -> dict[str, Fault]:
        """Return the faults by name."""
        return {
            "cut_host": self._cut,
            "cut_towards_host": self._cut_towards,
            "cut_from_host": self._cut_from,
            "cut_head": self._cut_head,
            "freeze_host": self._freeze,
            "kill_host": self._kill,
            "kill_node": self._kill_node,
            "kill_raylet": lambda planned: self._raylet(planned, hold=False),
            "freeze_raylet": lambda planned: self._raylet(planned, hold=True),
            "drain_node": self._drain,
            "disk_full": self._fill,
            "store_disk_full": self._fill_store,
            "restart_head": self._restart_head,
            "kill_store": self._kill_store,
            "freeze_store": self._freeze_store,
        }

    def _host(self, planned: Planned) -> Host:
        """Return the host that is met: never the head's."""
        others = self._lan.hosts[1:]
        return others[int(planned.choice * len(others))]

    # --- cables ---

    @contextmanager
    def _cut(self, planned: Planned) -> Iterator[Met]:
        host = self._host(planned)
        self._lan.cut(host.number)
        try:
            yield Met(f"the cable of host {host.number}")
        finally:
            self._lan.heal(host.number)

    @contextmanager
    def _cut_towards(self, planned: Planned) -> Iterator[Met]:
        host = self._host(planned)
        self._lan.cut_towards(host.number)
        try:
            yield Met(f"what goes to host {host.number}")
        finally:
            self._lan.heal(host.number)

    @contextmanager
    def _cut_from(self, planned: Planned) -> Iterator[Met]:
        host = self._host(planned)
        self._lan.cut_from(host.number)
        try:
            yield Met(f"what comes from host {host.number}")
        finally:
            self._lan.heal(host.number)

    @contextmanager
    def _cut_head(self, planned: Planned) -> Iterator[Met]:
        del planned
        self._lan.cut(0)
        try:
            yield Met("the cable of the head's host")
        finally:
            self._lan.heal(0)

    # --- hosts and nodes ---

    @contextmanager
    def _freeze(self, planned: Planned) -> Iterator[Met]:
        host = self._host(planned)
        host.freeze()
        try:
            yield Met(f"host {host.number}")
        finally:
            host.thaw()

    @contextmanager
    def _kill(self, planned: Planned) -> Iterator[Met]:
        host = self._host(planned)
        with self._guard.away(host):  # the guard may be at it: that takes its time
            host.kill()
            self.killed.append((host.machine_id, time.time_ns() // 1_000_000))
            yield Met(f"host {host.number}")
            host.boot()

    @contextmanager
    def _kill_node(self, planned: Planned) -> Iterator[Met]:
        host = self._host(planned)
        self._many.nodes.kill_node(host)
        yield Met(f"all of Ray on host {host.number}")

    @contextmanager
    def _raylet(self, planned: Planned, *, hold: bool) -> Iterator[Met | None]:
        host = self._host(planned)
        who = next(iter(self._many.nodes.raylets(host)), None)
        if who is None:
            yield None
            return
        with signalled(who, hold=hold):
            yield Met(f"the raylet of host {host.number}")

    @contextmanager
    def _drain(self, planned: Planned) -> Iterator[Met | None]:
        host = self._host(planned)
        if not self._many.nodes.drain(host, DRAIN_S):
            yield None
            return
        yield Met(f"the node of host {host.number}, in {DRAIN_S} s")
        self._many.nodes.kill_node(host)  # what a cloud does at the deadline

    @contextmanager
    def _restart_head(self, planned: Planned) -> Iterator[Met]:
        del planned
        with self._guard.away(self._lan.hosts[0]):
            self._many.nodes.kill_node(self._lan.hosts[0])
            yield Met("all of Ray on the head's host")
            self._many.restart_head()

    # --- disks and the store ---

    @contextmanager
    def _fill(self, planned: Planned) -> Iterator[Met]:
        host = self._host(planned)
        self.filled.append(host.machine_id)
        with filled(host.disk):
            yield Met(f"the disk of host {host.number}")

    @contextmanager
    def _fill_store(self, planned: Planned) -> Iterator[Met]:
        del planned
        self.filled.append(self._lan.hosts[0].machine_id)
        with filled(self._lan.hosts[0].disk):
            yield Met("the disk of the store's host")

    @contextmanager
    def _kill_store(self, planned: Planned) -> Iterator[Met]:
        del planned
        assert self._store is not None
        with self._guard.store_away():
            self._store.crash()
            yield Met("every process of the store's server")
            self._store.start()

    @contextmanager
    def _freeze_store(self, planned: Planned) -> Iterator[Met]:
        del planned
        assert self._store is not None
        found = self._store.processes()
        with self._guard.store_away():
            try:
                for who in found:
                    process.send(who, signal.SIGSTOP)
                yield Met("every process of the store's server")
            finally:
                for who in found:
                    process.send(who, signal.SIGCONT)


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Leave no byte free on a disk until the end of the context."""
    filler = disk / "filler"
    try:
        with filler.open("wb") as file:
            facts = os.statvfs(disk)
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, facts.f_bavail * facts.f_frsize)
        yield
    finally:
        filler.unlink(missing_ok=True)


class Guard:
    """What an operator's service manager does: starts a host's Ray again when it is gone, and the store's server."""

    def __init__(self, many: ManyHosts, store: HostPostgres | None) -> None:
        self._many = many
        self._store = store
        self._away: set[int] = set()
        self._store_away = threading.Event()
        self._closed = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; whoever is being started is waited for."""
        self._closed.set()
        self._thread.join()

    @contextmanager
    def away(self, host: Host) -> Iterator[None]:
        """Leave a host to the caller."""
        with self._turn:
            self._away.add(host.number)
        try:
            yield
        finally:
            self._away.discard(host.number)

    @contextmanager
    def store_away(self) -> Iterator[None]:
        """Leave the store to the caller."""
        with self._turn:
            self._store_away.set()
        try:
            yield
        finally:
            self._store_away.clear()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Start nothing meanwhile: what the caller starts would be taken for something half-dead, and ended."""
        with self._turn:
            yield

    def _watch(self) -> None:
        while not self._closed.wait(GUARD_S):
            with self._turn, suppress(Exception):  # next time, then
                self._look()

    def _look(self) -> None:
        if self._store is not None and not self._store_away.is_set() and not self._store.runs:
            self._store.start()
        if 0 in self._away:
            return  # a node without a head would only wait
        for host in self._many.lan.hosts[1:]:
            if host.number not in self._away and host.up and not self._many.nodes.raylets(host):
                self._many.nodes.kill_node(host)
                self._many.nodes.start_node(host)
