"""Who watches is told as a level; leaving is never a cancel (I6, P20)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from unit.serve_app.asgi_client import attach, fetch, offset, post
from unit.serve_app.local_cluster import world
from waiting import until

from actors import viewers
from actors.viewers import Viewers
from runtime.core.ops import Detach
from runtime.errors import StoreUnavailable


class Ear:
    """A shard that only hears of viewers, and a cluster of two of it."""

    def __init__(self) -> None:
        self.sets: list[tuple[str, int, dict[str, int]]] = []
        self.attached: list[tuple[str, str, int]] = []
        self.deaf = False

    async def set_viewers(self, viewer: str, number: int, counts: Mapping[str, int]) -> None:
        if self.deaf:
            raise StoreUnavailable("deaf")
        self.sets.append((viewer, number, dict(counts)))

    async def attach(self, run_id: str, viewer: str, number: int) -> bool:
        self.attached.append((run_id, viewer, number))
        return True


class Ears:
    """A cluster of two ears."""

    def __init__(self) -> None:
        self.all = [Ear(), Ear()]

    def shard(self, run_id: str) -> Any:
        return self.all[len(run_id) % 2]

    def shards(self) -> list[Any]:
        return list(self.all)


def made() -> tuple[Ears, Viewers]:
    ears = Ears()
    return ears, Viewers(ears, "replica-1", asyncio.Event())  # type: ignore[arg-type]


async def test_every_shard_gets_the_whole_set_with_a_growing_number() -> None:
    ears, who = made()
    with who.watching("a"), who.watching("a"), who.watching("bb"):
        await who.push()
        await who.attach("a")
        await who.push()
    await who.push()
    for ear in ears.all:
        assert [(name, counts) for name, _, counts in ear.sets] == [
            ("replica-1", {"a": 2, "bb": 1}),
            ("replica-1", {"a": 2, "bb": 1}),
            ("replica-1", {}),
        ]
    numbers = [ears.all[1].sets[0][1], ears.all[1].attached[0][2], *(each[1] for each in ears.all[1].sets[1:])]
    assert numbers == sorted(set(numbers))
    assert who.total == 0


async def test_a_deaf_shard_does_not_keep_the_set_from_the_others() -> None:
    ears, who = made()
    ears.all[0].deaf = True
    await who.push()
    assert ears.all[0].sets == []
    assert len(ears.all[1].sets) == 1


async def test_the_attach_is_stored_before_the_first_byte() -> None:
    async with world() as w:
        starts = await post(w.app).has(b"run.accepted")  # which need not wait: nobody has left the run yet

        async def stored() -> bool:
            return (await w.head("r-1")).detached_since is None

        await until(stored, "the attach of the start")
        await w.shard.real.submit(Detach(run_id="r-1", since=1))
        comes = await attach(w.app).has(b"run.accepted")
        assert await stored()
        for call in (starts, comes):
            call.leave()
            await call.done()


async def test_post_get_and_ndjson_all_count_and_leaving_is_told_by_the_next_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(viewers, "PERIOD_S", 0.02)
    async with world() as w:
        calls = [
            await post(w.app).has(b"run.accepted"),
            await attach(w.app).has(b"run.accepted"),
            await attach(w.app, path="/api/chat/ndjson").has(b"run.accepted"),
        ]

        async def told() -> int:
            level: int = (await w.shard.real.stats())["viewers"]
            return level

        async def is_three() -> bool:
            return await told() == 3

        async def is_zero() -> bool:
            return await told() == 0

        await until(is_three, "three viewers at the shard")
        for call in calls:
            call.leave()
            await call.done()
        await until(is_zero, "no viewer at the shard")
        head = await w.head("r-1")
        assert (head.status.value, head.cancel_requested) == ("running", False)


async def test_a_refused_or_finished_request_leaves_no_viewer_behind() -> None:
    async with world() as w:
        call = await post(w.app).has(b"run.accepted")
        await (await w.driver("r-1")).finish()
        await call.done()
        await attach(w.app, "none").done()
        await attach(w.app, offset=offset(9)).done()
        await attach(w.app, offset=offset(2), headers={"Accept": "text/event-stream"}).done()
        metrics = await fetch(w.app, "GET", "/metrics")
        assert b"outlast_viewers 1.0" in metrics.body or b"outlast_viewers 0.0" in metrics.body
        call = await attach(w.app).done()
        assert call.ended


async def test_nothing_is_pushed_any_more_once_the_replica_is_being_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "PERIOD_S", 0.01)
    async with world() as w:
        call = await post(w.app).has(b"run.accepted")
        await until(lambda: w.shard.calls["set_viewers"] >= 2, "sets")
        w.replica.draining.set()
        await call.done()
        pushed = w.shard.calls["set_viewers"]
        assert (await fetch(w.app, "GET", "/healthz")).status == 200
        assert w.shard.calls["set_viewers"] <= pushed + 1
    assert call.cut
