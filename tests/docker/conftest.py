"""One engine for all tests that do it no harm; one of its own for each that does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from docker_engine import IMAGE, DockerEngine

from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.hardening import Limits
from runtime.testing.provider_kit import MakeProvider

LIMITS = Limits(memory_bytes=512 << 20, pids=128)


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    """Yield the engine that is only ever asked."""
    engine = DockerEngine()
    engine.import_image()
    yield engine
    engine.close()


@pytest.fixture
def make_docker(engine: DockerEngine, tmp_path: Path) -> MakeProvider:
    """Return what makes a provider on that engine, of a deployment of the test's own."""
    return partial(DockerProvider, tmp_path.name, IMAGE, LIMITS, engine.address)


@pytest.fixture(scope="module")
def lasting() -> Iterator[DockerEngine]:
    """Yield an engine whose containers outlive it."""
    engine = DockerEngine(live_restore=True)
    engine.import_image()
    yield engine
    engine.close()
