"""Outlast's own runs and threads behind the contract's ports: they pass the kits, and keep what is a driver's (P3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pytest
from unit.delivery.hosts import played
from unit.engine.stage import RUN, THREAD, Stage, claim, create, finish

from runtime.core.batch import Band, Batch
from runtime.core.chunk import encode
from runtime.core.ids import LOCAL_OWNER, run_key
from runtime.core.messages import Message, to_agui
from runtime.core.ops import Append, Attach, Detach, Note, Op, Refusal, RequestCancel
from runtime.core.record import CancelReason, Limits, Status
from runtime.delivery.own_runs import OwnRunStore
from runtime.delivery.records import RunPatch, RunRow, RunStore
from runtime.delivery.threads import MemoryMessageStore, MessageStore, OwnMessageStore
from runtime.engine.shard import Shard
from runtime.errors import InputInvalid
from runtime.ports import Cluster
from runtime.testing.message_store_kit import MessageStoreKit
from runtime.testing.run_store_kit import RunStoreKit
from runtime.testing.sim_loop import play

T = TypeVar("T")

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "delivery-logs.md").read_text()


class OneShard:
    """A cluster of one shard, and a supervisor that takes notes."""

    def __init__(self, shard: Shard) -> None:
        self.only = shard
        self.cancelled: list[str] = []

    def shard(self, _run_id: str) -> Shard:
        return self.only

    def shards(self) -> list[Shard]:
        return [self.only]

    def supervisor(self) -> OneShard:
        return self

    async def cancel(self, run_id: str) -> None:
        self.cancelled.append(run_id)


async def opened() -> tuple[OneShard, Cluster]:
    place = OneShard(await Stage().open())
    return place, cast("Cluster", place)


async def do(place: OneShard, *ops: Op) -> None:
    for op in ops:
        outcome = await place.only.submit(op)
        assert not isinstance(outcome, Refusal), outcome


async def seeded(place: OneShard, row: RunRow, owner: str = LOCAL_OWNER) -> None:
    """Make a run of ours by what its request, its viewers and its driver do."""
    run_id = run_key(owner, row.run_id)
    made = msgspec.structs.replace(create(run_id, row.thread_id), owner=owner)
    await do(place, made, Attach(run_id=run_id), claim(run_id=run_id))
    if row.sandbox_key is not None:
        await do(place, Note(run_id=run_id, epoch=1, sandbox_key=row.sandbox_key))
    if row.detached_since is not None:
        await do(place, Detach(run_id=run_id, since=row.detached_since))
    if row.cancel_requested or row.status is Status.ABORTED:
        await do(place, RequestCancel(run_id=run_id, reason=CancelReason.USER))
    if row.status is not Status.RUNNING:
        await do(place, finish(1, status=row.status, run_id=run_id))


class TestOwnRunStore(RunStoreKit):
    async def make(self) -> Callable[[], RunStore]:
        self.place, cluster = await opened()
        return lambda: OwnRunStore(cluster)

    async def seed(self, _store: RunStore, row: RunRow) -> None:
        await seeded(self.place, row)

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        return play(9, work)


class TestOwnMessageStore(MessageStoreKit):
    replaces = False

    async def make(self) -> MessageStore:
        self.place, cluster = await opened()
        return OwnMessageStore(cluster)

    async def seed(self, _store: MessageStore, thread_id: str, messages: Sequence[Message]) -> None:
        asked = create(f"run-of-{thread_id}", thread_id, limits=Limits())
        spec = msgspec.structs.replace(asked.spec, input={"threadId": thread_id, "messages": to_agui(messages)})
        await do(self.place, msgspec.structs.replace(asked, spec=spec, owner=LOCAL_OWNER))

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        return play(9, work)


class TestMemoryMessageStore(MessageStoreKit):
    async def make(self) -> MessageStore:
        return MemoryMessageStore()


def test_what_is_a_drivers_is_refused_and_nothing_of_the_patch_is_done() -> None:
    async def case() -> None:
        place, cluster = await opened()
        store = OwnRunStore(cluster)
        await seeded(place, RunRow(run_id=RUN, thread_id=THREAD, started_at=7, detached_since=100))
        before = await store.get(RUN)
        refused: list[dict[str, Any]] = [
            {"status": Status.COMPLETED},
            {"finished_at": 9},
            {"sandbox_key": "another"},
            {"usage": {}},
            {"detached_since": 101},
            {"cancel_requested": True, "status": Status.FAILED},
        ]
        for patch in refused:
            with pytest.raises(InputInvalid, match="under its claim"):
                await store.update(RUN, RunPatch(**patch))
        assert await store.get(RUN) == before
        assert await store.update(RUN, RunPatch(status=Status.RUNNING, detached_since=100, cancel_requested=False))
        assert await store.get(RUN) == before
        assert not place.cancelled

    played(case())


def test_nobody_left_before_the_run_began_which_would_end_it_at_the_next_sweep() -> None:
    async def case() -> None:
        place, cluster = await opened()
        store = OwnRunStore(cluster)
        await seeded(place, RunRow(run_id=RUN, thread_id=THREAD, started_at=7))
        before = await store.get(RUN)
        assert before is not None
        for since in (0, before.started_at // 1000, before.started_at - 1):
            with pytest.raises(InputInvalid, match="milliseconds"):
                await store.update(RUN, RunPatch(detached_since=since))
        assert await store.get(RUN) == before
        assert await store.update(RUN, RunPatch(detached_since=before.started_at))
        assert await store.list_reclaimable(before.started_at + 5, 5) == [await store.get(RUN)]

    played(case())


def test_who_comes_after_the_end_does_not_hide_that_nobody_was_there() -> None:
    async def case() -> None:
        place, cluster = await opened()
        store = OwnRunStore(cluster)
        await seeded(
            place, RunRow(run_id=RUN, thread_id=THREAD, started_at=7, detached_since=100, status=Status.COMPLETED)
        )
        assert await store.update(RUN, RunPatch(detached_since=None))
        row = await store.get(RUN)
        assert row is not None
        assert row.detached_since == 100

    played(case())


def test_a_cancel_is_told_to_the_supervisor_and_never_taken_back() -> None:
    async def case() -> None:
        place, cluster = await opened()
        store = OwnRunStore(cluster)
        await seeded(place, RunRow(run_id=RUN, thread_id=THREAD, started_at=7))
        await store.update(RUN, RunPatch(cancel_requested=True))
        assert place.cancelled == [RUN]
        for taken_back in (False, None):
            with pytest.raises(InputInvalid):
                await store.update(RUN, RunPatch(cancel_requested=taken_back))

    played(case())


def test_the_example_of_the_page_works() -> None:
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "run_store" in text]
    body = "".join(f"    {line}\n" for line in example.strip().split("\n")[1:])
    names: dict[str, Any] = {"RunPatch": RunPatch}
    exec(f"async def page(client):\n{body}    return row, messages\n", names)  # noqa: S102 - our own page

    async def case() -> None:
        place, cluster = await opened()
        await seeded(place, RunRow(run_id=RUN, thread_id=THREAD, started_at=7))
        client = SimpleNamespace(run_store=OwnRunStore(cluster), message_store=OwnMessageStore(cluster))
        row, messages = await names["page"](client)
        assert (row.run_id, messages, place.cancelled) == (RUN, [], [RUN])

    played(case())


def test_a_run_is_not_made_by_a_row() -> None:
    async def case() -> None:
        _, cluster = await opened()
        store = OwnRunStore(cluster)
        with pytest.raises(InputInvalid, match=r"Client\.start"):
            await store.create_or_resume(RUN, THREAD, 7)
        assert await store.get(RUN) is None

    played(case())


def test_an_owners_store_knows_no_other_owners_runs() -> None:
    async def case() -> None:
        place, cluster = await opened()
        row = RunRow(run_id=RUN, thread_id=THREAD, started_at=7, detached_since=1)
        await seeded(place, row, "ada")
        await seeded(place, row, "bob")
        await seeded(place, msgspec.structs.replace(row, run_id="run-2", thread_id="thread-2"), "ada")
        ada, eve = OwnRunStore(cluster, "ada"), OwnRunStore(cluster, "eve")
        assert [row.run_id for row in await ada.list_reclaimable(10**15, 0)] == [RUN, "run-2"]
        assert await ada.find_active(THREAD) == await ada.get(RUN)
        assert await eve.get(RUN) is None
        assert not await eve.update(RUN, RunPatch(cancel_requested=True))
        assert await eve.list_by_thread(THREAD) == await eve.list_reclaimable(10**15, 0) == []
        assert await OwnMessageStore(cluster, "eve").load_thread(THREAD) == []
        assert not place.cancelled

    played(case())


def test_a_thread_tells_what_its_runs_have_said_also_the_one_at_work() -> None:
    async def case() -> None:
        place, cluster = await opened()
        store = OwnMessageStore(cluster)
        said = [
            {"type": "RUN_STARTED", "runId": RUN, "threadId": THREAD},
            {"type": "TEXT_MESSAGE_START", "messageId": "m-1", "role": "assistant"},
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m-1", "delta": "so far"},
        ]
        data = b"\n".join(map(encode, said))
        spoken = Batch(run_id=RUN, seq=1, count=3, epoch=1, band=Band.LIVE, data=data)
        await do(place, msgspec.structs.replace(create(), owner=LOCAL_OWNER), claim(), Append(batch=spoken))
        told = [{"id": "m-1", "role": "assistant", "parts": [{"type": "text", "content": "so far"}]}]
        assert await store.load_thread(THREAD) == told
        await do(place, finish(4))
        assert await store.load_thread(THREAD) == told

    played(case())
