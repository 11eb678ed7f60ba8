"""A shard that dies, hangs or is replaced is a pause for viewers, and an honest answer for everybody else."""

from __future__ import annotations

from typing import Any

import pytest
from unit.serve_app.asgi_client import attach, chat_body, fetch, offset, post
from unit.serve_app.local_cluster import World, text, world
from waiting import until

import serve_app.stream
from runtime.errors import StoreUnavailable
from runtime.ports import ReadReply
from serve_app import asking
from serve_app.log_reader import LogReader, NoSegments


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what would make these tests wait for seconds; what is tested is what happens after it."""
    monkeypatch.setattr(asking, "ANSWER_S", 0.2)
    monkeypatch.setattr(serve_app.stream, "PATIENCE_S", 0.1)
    monkeypatch.setattr("serve_app.gateway.PATIENCE_S", 0.1)


async def started(w: World) -> None:
    call = await post(w.app).has(b"run.accepted")
    driver = await w.driver("r-1")
    await driver.begin()
    call.leave()
    await call.done()


async def test_viewers_see_a_pause_while_the_shard_is_replaced() -> None:
    async with world(heartbeat_s=0.05) as w:
        call = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        w.shard.down = True
        await driver.begin()  # releases the parked read, whose answer is lost
        await until(lambda: call.body.count(b": \n\n") >= 3, "heartbeats meanwhile")
        assert b"RUN_STARTED" not in call.body
        w.shard.down = False
        await driver.finish()
        await call.done()
    assert call.ended
    assert call.ids() == [offset(1), offset(2), offset(3)]


async def test_a_stream_that_is_cut_before_its_headers_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_app.stream, "PATIENCE_S", 10.0)
    async with world(heartbeat_s=0.05) as w:
        await started(w)
        w.shard.hung.add("all")
        call = attach(w.app, offset=offset(1))
        await until(lambda: w.gateway._streams, "a stream without headers")
        w.replica.draining.set()
        await call.done()
    assert (call.status, call.cut, call.body) == (200, True, b":")


async def test_a_connection_that_is_lost_with_an_error_is_cut_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_app.stream, "PATIENCE_S", 10.0)
    async with world(heartbeat_s=0.05) as w:
        await started(w)
        w.shard.hung.add("all")
        call = attach(w.app, offset=offset(1))
        await until(lambda: w.gateway._streams, "a stream without headers")
        call.leave(RuntimeError("the proxy's task was cancelled"))
        await call.done()
        await until(lambda: not w.gateway._streams, "nothing left of it")
    assert (call.status, call.cut, call.body) == (200, True, b":")


@pytest.mark.parametrize("trouble", ["down", "hung"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_who_comes_back_gets_200_and_heartbeats_until_the_shard_answers(trouble: str, method: str) -> None:
    async with world(heartbeat_s=0.05) as w:
        await started(w)
        if trouble == "down":
            w.shard.down = True
        else:
            w.shard.hung.add("all")
        last = {"Last-Event-ID": offset(1)}
        call = attach(w.app, offset=offset(1)) if method == "GET" else post(w.app, headers=last)
        await until(lambda: call.body.count(b": \n\n") >= 3, "heartbeats")
        assert call.status == 200
        w.shard.down = False
        w.shard.release()
        await call.has(b"RUN_STARTED")
        assert call.ids() == [offset(2)]
        call.leave()
        await call.done()


@pytest.mark.parametrize("hung", ["attach", "read"])
async def test_no_call_that_hangs_keeps_a_viewer_without_a_sign_of_life(hung: str) -> None:
    async with world(heartbeat_s=0.05) as w:
        await started(w)
        w.shard.hung.add(hung)
        call = attach(w.app)
        await until(lambda: call.body.count(b": \n\n") >= 3, "heartbeats")
        w.shard.release()
        await call.has(b"RUN_STARTED")
        call.leave()
        await call.done()


async def test_a_late_answer_that_the_run_is_unknown_breaks_the_stream_so_that_the_client_asks_again() -> None:
    async with world(heartbeat_s=0.05) as w:
        w.shard.down = True
        call = attach(w.app, "never")
        await until(lambda: b": \n\n" in call.body, "a heartbeat")
        w.shard.down = False
        await call.done()
        assert call.cut
        assert not call.ended
        again = await attach(w.app, "never").done()
    assert (again.status, again.code) == (404, "run_not_found")


async def test_a_late_answer_to_an_event_source_at_the_end_breaks_the_stream_and_then_says_stop() -> None:
    async with world(heartbeat_s=0.05) as w:
        await started(w)
        await (await w.driver("r-1")).finish()
        w.shard.down = True
        call = attach(w.app, offset=offset(3), headers={"Accept": "text/event-stream"})
        await until(lambda: b": \n\n" in call.body, "a heartbeat")
        w.shard.down = False
        await call.done()
        again = await attach(w.app, offset=offset(3), headers={"Accept": "text/event-stream"}).done()
    assert call.cut
    assert again.status == 204


@pytest.mark.parametrize(
    ("method", "path", "request_"),
    [
        ("POST", "/api/chat", {"json_body": chat_body(runId="r-1")}),
        ("GET", "/api/chat", {"query": {"threadId": "t-1"}}),
        ("GET", "/api/chat/active", {"query": {"threadId": "t-1"}}),
        ("POST", "/api/chat/cancel", {"json_body": {"threadId": "t-1"}}),
        ("GET", "/api/runs", {}),
        ("GET", "/api/runs/r-1", {}),
        ("GET", "/api/threads/t-1", {}),
    ],
)
@pytest.mark.parametrize("trouble", ["down", "hung"])
async def test_plain_requests_are_answered_503_with_retry_after(
    method: str, path: str, request_: dict[str, Any], trouble: str
) -> None:
    async with world() as w:
        w.shard.down = trouble == "down"
        if trouble == "hung":
            w.shard.hung.add("all")
        call = await fetch(w.app, method, path, **request_)
    assert (call.status, call.code) == (503, "store_unavailable")
    assert int(call.headers["retry-after"]) > 0


async def test_a_post_outlasts_a_short_absence_of_the_shard() -> None:
    async with world() as w:
        w.shard.down = True
        call = post(w.app)
        await until(lambda: w.shard.calls["submit"] >= 2, "another attempt")
        w.shard.down = False
        await call.has(b"run.accepted")
        await until(lambda: w.supervisor.told == [("start", "r-1")], "the start")
        call.leave()
        await call.done()


async def test_a_silent_supervisor_disturbs_nobody() -> None:
    async with world() as w:
        w.supervisor.down = True
        call = await post(w.app).has(b"run.accepted")
        again = await attach(w.app).has(b"run.accepted")
        for each in (call, again):
            each.leave()
            await each.done()


async def test_a_silent_run_keeps_nothing_in_memory_and_who_was_behind_gets_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve_app.shared_read.WAIT_S", 0.05)
    async with world() as w:
        slow = await post(w.app).has(b"run.accepted")
        quick = await attach(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        slow.stall()
        await driver.say("one")
        await driver.say("two")
        await quick.has(b'"two"')
        channel = w.gateway.channels._channels["r-1"]
        await until(lambda: not channel._ring, "an empty ring")
        slow.resume()
        await slow.has(b'"two"')
        await driver.finish()
        for call in (slow, quick):
            await call.done()
            assert call.ids() == [offset(n) for n in range(1, 5)]


class Shelf:
    """Segments in a dict: the shard's side and the reader's. `lost`: every get fails; `stuck`: none returns."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self.lost = False
        self.gets = 0

    def put(self, data: bytes) -> Any:
        self.kept[len(self.kept)] = data
        return len(self.kept) - 1

    async def get(self, ref: Any) -> bytes | None:
        self.gets += 1
        if self.lost:
            raise OSError("the object is gone")
        return self.kept[ref]


@pytest.mark.parametrize("lost", [False, True])
async def test_sealed_segments_are_read_through_their_refs_or_from_the_store(lost: bool) -> None:
    shelf = Shelf()
    shelf.lost = lost
    async with world(shelf, shard_segments=shelf) as w:
        first = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        for number in range(40):
            await driver.append(*(text(f"{number}.{index}" + "z" * 500) for index in range(100)))
        await until(lambda: len(shelf.kept) >= 4, "sealed segments")
        late = attach(w.app, offset=offset(150))
        await late.has(b'"39.99z')
        await driver.finish()
        await first.done()
        await late.done()
    assert shelf.gets > 0
    assert first.ids() == [offset(n) for n in range(1, 4003)]
    assert late.ids() == first.ids()[150:]
    assert late.chunks() == first.chunks()[150:]


class Scripted:
    """A shard that answers reads from a list, and the cluster around it."""

    def __init__(self, *replies: ReadReply) -> None:
        self._replies = list(replies)

    async def read(self, *_: object, **__: object) -> ReadReply:
        return self._replies.pop(0)

    def shard(self, _: str) -> Any:
        return self

    def reader(self) -> LogReader:
        return LogReader(self, NoSegments(), "r-1")  # type: ignore[arg-type]


async def test_the_answer_of_an_older_incarnation_is_dropped() -> None:
    reader = Scripted(
        ReadReply(shard_epoch=2, known=True, start=0, next=1, closed=False, tail_start=0, tail_count=1, tail=b"{}"),
        ReadReply(shard_epoch=1, known=True, start=1, next=1, closed=True),
        ReadReply(shard_epoch=2, known=True, start=1, next=2, closed=True, tail_start=1, tail_count=1, tail=b"[]"),
    ).reader()
    first = await reader.read(0, 0)
    assert (first.next, first.closed) == (1, False)
    second = await reader.read(1, 0)
    assert (second.next, second.closed) == (2, True)
    assert [piece.data for piece in second.pieces] == [b"[]"]


@pytest.mark.parametrize(("start", "count"), [(1, 2), (0, 2), (0, 0)])
async def test_an_answer_with_a_gap_is_not_believed(start: int, count: int) -> None:
    reply = ReadReply(
        shard_epoch=1, known=True, start=0, next=3, closed=False, tail_start=start, tail_count=count, tail=b"1\n2"
    )
    with pytest.raises(StoreUnavailable):
        await Scripted(reply).reader()._read_once(0, 0)
