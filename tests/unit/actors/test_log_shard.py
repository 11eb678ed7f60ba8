"""A log shard serves its own deployment's store and no other (P12)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from actors import log_shard
from actors.compose import store_path
from runtime.errors import StoreRefused
from runtime.settings import Settings
from runtime.stores.sqlite_setup import create_store


async def test_a_shard_refuses_the_store_of_another_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SimpleNamespace(get_actor_id=lambda: "actor", get_node_id=lambda: "node")
    monkeypatch.setattr("ray.get_runtime_context", lambda: ray)
    settings = Settings(data_dir=str(tmp_path))
    create_store(store_path(settings), "swapped-in")
    shard = log_shard.LogShard(0, settings, "ours")
    with pytest.raises(StoreRefused, match="belongs to deployment swapped-in, not ours"):
        await shard.ping()
    assert (await log_shard.LogShard(0, settings, "swapped-in").ping())["epoch"] == 1
