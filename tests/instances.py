"""Fixtures of real instances, for every lane that needs one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from instance import Instance


@contextmanager
def running(instance: Instance) -> Iterator[Instance]:
    """Start an instance, and stop it afterwards: nothing of it may be left."""
    try:
        instance.start()
        yield instance
        assert instance.stop() == 0, instance.said
        assert not instance.processes(), "serve left processes behind"
        assert not instance.sandboxes(), "runs left sandboxes behind"
    finally:
        instance.close()


@contextmanager
def answering(instance: Instance) -> Iterator[Instance]:
    """Wait until every part of an instance answers, before and after."""
    instance.wait_ready()
    yield instance
    instance.wait_ready()


@pytest.fixture(scope="session")
def shared_instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Yield one instance for the whole session; a test may kill any part of it that comes back by itself."""
    with running(Instance(tmp_path_factory.mktemp("shared"))) as shared:
        yield shared


@pytest.fixture
def instance(shared_instance: Instance) -> Iterator[Instance]:
    """Yield the shared instance, with every part of it answering before and after."""
    with answering(shared_instance) as instance:
        yield instance


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Yield an instance that the tests of one module start, kill and start again."""
    mortal = Instance(tmp_path_factory.mktemp("mortal"))
    try:
        yield mortal
    finally:
        mortal.close()
