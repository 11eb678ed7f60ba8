"""Three hosts and an instance over them, for the whole session; each test gets them whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_postgres import HostPostgres, programs
from lan import Lan
from many_hosts import ManyHosts

# Socket paths are bounded by 107 bytes, so the hosts' folder lies nearer to the root than pytest's.
FOLDER = Path("/tmp") / f"outlast-hosts-{os.getpid()}"
SETTINGS = {"OUTLAST_HEARTBEAT_S": "0.5", "OUTLAST_WARM_WORKERS": "1", "OUTLAST_SANDBOX_RETURN_S": "60"}


@pytest.fixture(scope="session")
def shared_hosts() -> Iterator[ManyHosts]:
    """Yield one instance over three hosts; whatever a test does to them is mended after it."""
    with Lan(FOLDER) as lan:
        settings = dict(SETTINGS)
        if programs() is not None:  # else its store is a file of the head's host
            server = HostPostgres(lan.hosts[0])
            server.make()
            settings |= {"OUTLAST_STORE": server.url, "OUTLAST_SHARDS": "3"}
        many = ManyHosts(lan, settings)
        try:
            many.start()
            yield many
        finally:
            many.close()


@pytest.fixture
def many(shared_hosts: ManyHosts) -> Iterator[ManyHosts]:
    """Yield the shared hosts, all of them up, connected and answering before and after."""
    shared_hosts.mend()
    yield shared_hosts
    shared_hosts.mend()
