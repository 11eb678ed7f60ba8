"""One instance for the whole lane, and scripts on Node that use it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import setup_node
from cutting_proxy import Cut, CuttingProxy, StartProxy
from instance import Instance
from npm_client import NpmClient, StartScript
from recorded import FOLDER as RECORDINGS
from tanstack import Tanstack

# Plays the recording that its prompt names, line by line, and exits as the real one did.
FAKE_CLAUDE = f"""#!{sys.executable} -SE
import json, pathlib, sys, time
name = sys.stdin.read().strip()
for line in pathlib.Path({str(RECORDINGS)!r}, name + ".ndjson").read_bytes().splitlines(keepends=True):
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    time.sleep(0.004)
meta = pathlib.Path({str(RECORDINGS)!r}, name + ".meta.json")
sys.exit(json.loads(meta.read_bytes()).get("rc", 0) if meta.exists() else 0)
"""


@pytest.fixture(scope="session")
def clients_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Yield an instance on whose PATH a `claude` is."""
    programs = tmp_path_factory.mktemp("programs")
    (programs / "claude").write_text(FAKE_CLAUDE)
    (programs / "claude").chmod(0o755)
    served = Instance(tmp_path_factory.mktemp("clients"), {"PATH": f"{programs}:{os.environ['PATH']}"})
    try:
        served.start()
        yield served
        assert served.stop() == 0
    finally:
        served.close()


@pytest.fixture
def instance(clients_instance: Instance) -> Instance:
    """Return the instance, with every part of it answering."""
    clients_instance.wait_ready()
    return clients_instance


@pytest.fixture(scope="session")
def scripts() -> Path:
    return setup_node.prepare()


@pytest.fixture
def start(scripts: Path) -> Iterator[StartScript]:
    """Start scripts, which end with the test."""
    started: list[NpmClient] = []

    def begin(script: str, /, **asked: Any) -> NpmClient:
        started.append(NpmClient(scripts, script, asked))
        return started[-1]

    yield begin
    for client in started:
        client.close()


@pytest.fixture
def proxy(instance: Instance) -> Iterator[StartProxy]:
    """Start proxies in front of the instance."""
    started: list[CuttingProxy] = []

    def begin(cuts: Iterable[Cut]) -> CuttingProxy:
        started.append(CuttingProxy(instance.url, cuts))
        return started[-1]

    yield begin
    for one in started:
        one.close()


@pytest.fixture
def fresh() -> str:
    """An id that no other test uses."""
    return uuid.uuid4().hex[:12]


@pytest.fixture
def tanstack(start: StartScript, instance: Instance, fresh: str) -> Tanstack:
    """Return the adapters, with ids of this test's own."""
    return Tanstack(start, instance, fresh)
