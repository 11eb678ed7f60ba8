"""What a client of a shard does when the incarnation that it knows does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime.engine import remote_shard
from runtime.engine.remote_shard import RemoteShard
from runtime.errors import StoreUnavailable


class Client(RemoteShard):
    """A client whose first incarnation is frozen, and whose next one answers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = True
        self.taken: list[tuple[Any, ...]] = []

    async def _call(self, method: str, *args: Any) -> Any:
        if self.frozen:
            await asyncio.Event().wait()
        self.taken.append((method, *args))

    def _forget(self) -> None:
        self.frozen = False


async def test_a_set_of_viewers_that_a_frozen_incarnation_does_not_take_goes_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_shard, "TAKEN_S", 0.01)
    client = Client()
    with pytest.raises(StoreUnavailable):
        await client.set_viewers("replica-1", 1, {"run-1": 1})
    await client.set_viewers("replica-1", 2, {"run-1": 1})
    assert client.taken == [("set_viewers", "replica-1", 2, {"run-1": 1})]
