"""A log shard serves its own deployment's store and no other (P12)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import log_shard
from actors.compose import store_path
from runtime.core.ops import Create, Op
from runtime.errors import StoreRefused
from runtime.settings import Settings
from runtime.stores.sqlite_setup import create_store
from runtime.testing.sample_ops import create, finish


async def test_a_shard_refuses_the_store_of_another_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SimpleNamespace(get_actor_id=lambda: "actor", get_node_id=lambda: "node")
    monkeypatch.setattr("ray.get_runtime_context", lambda: ray)
    settings = Settings(data_dir=str(tmp_path))
    create_store(store_path(settings), "swapped-in")
    shard = log_shard.LogShard(0, settings, "ours")
    with pytest.raises(StoreRefused, match="belongs to deployment swapped-in, not ours"):
        await shard.ping()
    assert (await log_shard.LogShard(0, settings, "swapped-in").ping())["epoch"] == 1


@pytest.mark.parametrize("tells", [True, False])
async def test_whatever_ends_a_run_says_whether_that_is_to_be_told(
    tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[Any] = []

    async def forward(_method: str, op: Op) -> None:
        passed.append(op)

    shard = log_shard.LogShard(0, Settings(hooks="hook_classes:Noting" if tells else ""), "ours")
    monkeypatch.setattr(shard, "_forward", forward)
    resuming: Create = msgspec.structs.replace(create("run-2"), resumes=True)
    for op in (finish(1, 1), resuming, msgspec.structs.replace(create("run-3"), max_runs=1)):
        await shard.submit(op)
    assert [op.tell for op in passed] == [tells, tells, False]
