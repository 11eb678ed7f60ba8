"""What chaos is made on: an instance, the faults that can be made there, and what is read of it afterwards."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
from afterwards import stored_rows
from faults import PROCESS_KINDS, Fault, Met, ProcessFaults, Site
from host_faults import HOST_KINDS, STORE_KINDS, Guard, HostFaults
from host_postgres import HostPostgres, programs
from lan import Lan, missing
from load import Load
from many_hosts import ManyHosts
from one_host import OneHost
from plan import Kind, Planned

# Longer than a host stays away with all of twenty runs on two cores: cut, then its Ray killed, then the head's started
# anew, after which each host joins it in turn.
RETURN_S = 240
SETTINGS = {
    "OUTLAST_HEARTBEAT_S": "1",
    "OUTLAST_WARM_WORKERS": "2",
    "OUTLAST_SANDBOX_RETURN_S": str(RETURN_S),
    "OUTLAST_MAX_RUNS": "200",
    "OUTLAST_LOG_LEVEL": "info",
}
DISK_BYTES = 600 << 20
ALL_KINDS = {"kill_everything": Kind(0.7, (), 40.0, "everything")}


class ChaosSite(Site, Protocol):
    """An instance that can be broken and mended."""

    @property
    def url(self) -> str:
        """Return where it is served."""

    def enter_network(self) -> None:
        """Let the calling OS thread reach that."""

    def mend(self) -> None:
        """Bring back whatever was taken; return once all answers."""

    def launches(self, file: str) -> list[str]:
        """Return the lines of this file of every workspace: `<workspace> <line>`."""

    def run_beside(self, program: list[str], input: str) -> str:
        """Run a program of this Python that can open the instance's store; return what it printed."""


@dataclass
class Ground:
    """One instance under chaos."""

    site: ChaosSite
    kinds: Mapping[str, Kind]
    more: Mapping[str, Fault] = field(default_factory=dict)

    def faults(self, load: Load) -> dict[str, Fault]:
        """Return the faults that can be made here."""
        return {**ProcessFaults(self.site, load).table(), **self.more}

    def mend(self) -> None:
        """Bring back whatever was taken; return once all answers."""
        self.site.mend()

    def record(self, run_id: str) -> dict[str, Any]:
        """Return a run's record; asked again while nobody answers."""
        for _ in range(60):
            try:
                response = self.site.ask("GET", f"/api/runs/{run_id}")
            except httpx.TransportError:
                time.sleep(0.5)
                continue
            if response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                found: dict[str, Any] = response.raise_for_status().json()
                return found
            time.sleep(0.5)
        raise TimeoutError(f"the record of {run_id} cannot be had")

    def excuses(self, record: Mapping[str, Any]) -> Sequence[str]:
        """Return the codes by which the run may have ended, by what happened to its host."""
        del record
        return ()

    def stored(self, run_ids: Sequence[str]) -> dict[str, list[list[int]]]:
        """Return `[seq, count, epoch]` of each run's stored batches."""
        return stored_rows(self.site, run_ids)

    def launches(self, file: str) -> list[str]:
        """Return the lines of `file` of every workspace on every host."""
        return self.site.launches(file)


@contextmanager
def ground(nodes: int, build: Path, store: str) -> Iterator[Ground]:
    """Start an instance on one host or on three; nothing of it is left at the end."""
    name = f"chaos-{os.getpid()}"
    with _one(build / name) if nodes == 1 else _three(build / f"{name}.log", store) as made:
        yield made


@contextmanager
def _one(folder: Path) -> Iterator[Ground]:
    host = OneHost(folder, SETTINGS)
    try:
        host.start()

        @contextmanager
        def kill_everything(planned: Planned) -> Iterator[Met | None]:
            del planned
            host.kill_everything()
            yield Met("every process of the instance")
            host.start()

        yield Ground(host, {**PROCESS_KINDS, **ALL_KINDS}, {"kill_everything": kill_everything})
    finally:
        shutil.copy(folder / "serve.out", folder.with_suffix(".log"))
        host.close()


@contextmanager
def _three(log: Path, store: str) -> Iterator[Ground]:
    if (why := missing()) is not None:
        raise SystemExit(f"Three hosts need root, iproute2 and util-linux: {why}. NODES=1 needs none of them.")
    if store == "postgres" and programs() is None:
        raise SystemExit(
            "PostgreSQL is not found: install it, name its folder in OUTLAST_TEST_POSTGRES, or --store sqlite."
        )
    # Socket paths are bounded by 107 bytes, and the store's user must get there: not below the checkout.
    folder = Path(tempfile.gettempdir()) / f"outlast-chaos-{os.getpid()}"
    with Lan(folder, disk_bytes=DISK_BYTES) as lan:
        settings = dict(SETTINGS)
        server = None
        if store == "postgres":
            server = HostPostgres(lan.hosts[0])
            server.make()
            settings |= {"OUTLAST_STORE": server.url, "OUTLAST_SHARDS": "3"}
        many = ManyHosts(lan, settings)
        guard = Guard(many, server)
        try:
            many.start()
            guard.start()
            faults = HostFaults(many, server, guard)
            kinds = {**PROCESS_KINDS, **HOST_KINDS, **(STORE_KINDS if server is not None else {})}
            yield HostsGround(many, kinds, faults.table(), hosts=faults, guard=guard)
        finally:
            guard.close()
            many.close()
            keep_logs(lan, log)


@dataclass
class HostsGround(Ground):
    """An instance over hosts."""

    hosts: HostFaults | None = None
    guard: Guard | None = None

    def mend(self) -> None:
        """Bring back whatever was taken, with the guard out of the way; return once all answers."""
        assert self.guard is not None
        with self.guard.resting():
            self.site.mend()

    def excuses(self, record: Mapping[str, Any]) -> Sequence[str]:
        """A host that was killed took the agents with it: those whose sandboxes were there, and that ran then. On a
        full disk no sandbox can be made, which the run says."""
        assert self.hosts is not None
        key = record["sandboxKey"] or ""
        ended = record["finishedAt"] or sys.maxsize
        for machine, at_ms in self.hosts.killed:
            if f"/{machine}/" in key and record["createdAt"] <= at_ms <= ended:
                return ("agent_lost",)
        no_space = "No space left" in (record["error"] or {}).get("message", "")
        return ("launch_failed",) if no_space and any(f"/{machine}/" in key for machine in self.hosts.filled) else ()


def keep_logs(lan: Lan, log: Path) -> None:
    """Keep what `serve` and the actors said: disks and temp folders go with their hosts."""
    for host in lan.hosts:
        target = log.with_suffix(f".host{host.number}")
        target.mkdir(parents=True, exist_ok=True)
        for file in [*host.disk.glob("*.out"), *host.temp.glob("ray/session_2*/logs/*")]:
            with suppress(OSError):
                shutil.copy(file, target / file.name)
