"""Fixtures of real instances, for every lane that needs one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from instance import Instance


@pytest.fixture(scope="session")
def shared_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Yield one instance for the whole session; a test may kill any part of it that comes back by itself."""
    shared = Instance(tmp_path_factory.mktemp("shared"))
    try:
        shared.start()
        yield shared
        assert shared.stop() == 0, shared.said
        assert not shared.processes(), "serve left processes behind"
        assert not shared.sandboxes(), "runs left sandboxes behind"
    finally:
        shared.close()


@pytest.fixture
def instance(shared_instance: Instance) -> Iterator[Instance]:
    """Yield the shared instance, with every part of it answering before and after."""
    shared_instance.wait_ready()
    yield shared_instance
    shared_instance.wait_ready()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Yield an instance that the tests of one module start, kill and start again."""
    mortal = Instance(tmp_path_factory.mktemp("mortal"))
    try:
        yield mortal
    finally:
        mortal.close()
