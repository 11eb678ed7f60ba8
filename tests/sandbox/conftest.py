"""A local provider in a folder of the test's own, and the end of every process that carries one of its keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from leftovers import end
from own_deployment import DEPLOYMENT

from runtime.sandboxes.local import LocalProvider, LocalSandbox

RUNS = tuple(f"run-{number}" for number in range(1, 5))


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[LocalProvider]:
    provider = LocalProvider(
        tmp_path / "sandboxes", DEPLOYMENT, tmp_path / "workspaces", baselines=tmp_path / "baselines"
    )
    yield provider
    for run_id in RUNS:
        end("AGENT_SANDBOX", provider.key(run_id))


@pytest.fixture
async def sandbox(provider: LocalProvider) -> AsyncIterator[LocalSandbox]:
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    yield sandbox
    await provider.destroy(sandbox.key)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Return the one folder that is allowed."""
    made = tmp_path / "sources"
    made.mkdir()
    return made
