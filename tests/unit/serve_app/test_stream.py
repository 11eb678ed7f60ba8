"""What a viewer sees: everything once and in order, from any offset, whatever the shard and other viewers do."""

from __future__ import annotations

import json

from unit.serve_app.asgi_client import attach, chat_body, offset, post
from unit.serve_app.local_cluster import text, world
from waiting import until

from runtime.core import chunk
from runtime.core.record import Status


async def test_a_post_streams_the_run_from_its_first_chunk_to_its_clean_end() -> None:
    async with world() as w:
        call = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.begin()
        await driver.say("one", "two")
        await call.has(b'"two"')
        assert call.task is not None
        assert not call.task.done()
        await driver.finish()
        await call.done()
    assert call.ended
    assert call.status == 200
    assert call.ids() == [offset(n) for n in range(1, 6)]
    assert [each["type"] for each in call.chunks()] == [
        "CUSTOM",
        "RUN_STARTED",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "RUN_FINISHED",
    ]


async def test_a_stream_has_the_headers_that_keep_caches_and_proxies_away() -> None:
    async with world() as w:
        call = await post(w.app).has(b"run.accepted")
        call.leave()
        await call.done()
    assert call.headers["content-type"].startswith("text/event-stream")
    assert call.headers["cache-control"] == "no-store"
    assert call.headers["x-accel-buffering"] == "no"
    assert call.headers["x-run-id"] == "r-1"
    assert "content-length" not in call.headers


async def test_the_bytes_on_the_wire_are_the_stored_bytes() -> None:
    odd = chunk.encode({"type": "CUSTOM", "name": "ü", "value": {"b": 1, "a": [2**70, "é  ", None]}})
    async with world() as w:
        call = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.append(odd)
        await driver.finish()
        await call.done()
    assert b"id: " + offset(2).encode() + b"\ndata: " + odd + b"\n\n" in call.body


async def test_ndjson_holds_the_same_offsets_and_chunks() -> None:
    async with world() as w:
        sse = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.begin()
        await driver.finish()
        await sse.done()
        by_path = await attach(w.app, path="/api/chat/ndjson").done()
        by_accept = await attach(w.app, headers={"Accept": "application/x-ndjson, */*;q=0.1"}).done()
    assert by_path.headers["content-type"].startswith("application/x-ndjson")
    assert by_path.body == by_accept.body
    assert by_path.ids() == sse.ids()
    assert by_path.chunks() == sse.chunks()
    assert json.loads(by_path.body.split(b"\n")[0]) == {"id": offset(1), "chunk": sse.chunks()[0]}


async def test_every_offset_gets_exactly_what_follows() -> None:
    async with world() as w:
        whole = post(w.app)
        await whole.has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.begin()
        await driver.say("a", "b", "c")
        await driver.finish()
        await whole.done()
        for position in range(6):
            call = await attach(w.app, offset=offset(position)).done()
            assert call.ids() == whole.ids()[position:]
            assert call.chunks() == whole.chunks()[position:]


async def test_last_event_id_beats_the_offset_of_the_url() -> None:
    async with world() as w:
        await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.begin()
        await driver.finish()
        call = await attach(w.app, offset="-1", headers={"Last-Event-ID": offset(2)}).done()
    assert call.ids() == [offset(3)]


async def test_now_shows_only_what_comes_after() -> None:
    async with world() as w:
        await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.begin()
        call = attach(w.app, offset="now")
        await until(lambda: call.status == 200, "headers")
        await call.has(b": \n\n")
        await driver.say("later")
        await driver.finish()
        await call.done()
    assert call.ids() == [offset(3), offset(4)]


async def test_at_the_end_of_a_closed_log_an_event_source_is_told_to_stop() -> None:
    async with world() as w:
        first = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.finish(Status.FAILED)
        await first.done()
        end = first.ids()[-1]
        stop = await attach(w.app, offset="-1", headers={"Accept": "text/event-stream", "Last-Event-ID": end}).done()
        again = await attach(w.app, offset=end).done()
        lines = await attach(
            w.app, offset="now", path="/api/chat/ndjson", headers={"Accept": "text/event-stream"}
        ).done()
        by_post = await post(w.app, headers={"Accept": "text/event-stream", "Last-Event-ID": end}).done()
    assert (stop.status, stop.body) == (204, b"")
    for call in (again, lines, by_post):
        assert call.status == 200
        assert call.ended
        assert call.ids() == [end]
        # Once under its id, and once without: TanStack's client drops an id it has seen.
        assert [event["type"] for event in call.chunks()] == ["RUN_ERROR", "RUN_ERROR"]


async def test_a_plain_agui_client_sees_nothing_before_run_started() -> None:
    async with world() as w:
        call = post(w.app, None, json_body=chat_body(runId="r-1"))
        await call.has(b": \n\n")
        driver = await w.driver("r-1")
        await driver.append(chunk.custom("sandbox.progress", {"done": 1}))
        await driver.begin()
        await driver.say("hi")
        await driver.finish()
        await call.done()
        assert call.headers["x-run-id"] == "r-1"
        assert call.ids() == [offset(3), offset(4), offset(5)]
        # What was hidden is hidden from whatever offset the same kind of client comes back with.
        for position, ids in ((0, [3, 4, 5]), (1, [3, 4, 5]), (2, [3, 4, 5]), (3, [4, 5]), (5, [5])):
            again = await post(
                w.app, None, json_body=chat_body(runId="r-1"), headers={"Last-Event-ID": offset(position)}
            ).done()
            assert again.ids() == [offset(each) for each in ids]


async def test_a_plain_agui_client_sees_the_error_of_a_run_that_never_started() -> None:
    async with world() as w:
        call = post(w.app, None, json_body=chat_body(runId="r-1"))
        await until(lambda: call.status == 200, "headers")
        driver = await w.driver("r-1")
        await driver.finish(Status.FAILED)
        await call.done()
    assert [each["type"] for each in call.chunks()] == ["RUN_ERROR"]
    assert call.ids() == [offset(2)]


async def test_two_hundred_viewers_share_one_read() -> None:
    async with world() as w:
        first = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        await driver.begin()
        calls = [attach(w.app) for _ in range(200)]
        for call in calls:
            await call.has(b"RUN_STARTED")
        before = w.shard.calls["read"]
        for word in ("a", "b", "c"):
            await driver.say(word)
            for call in calls:
                await call.has(b'"%b"' % word.encode())
        assert w.shard.calls["read"] - before <= 3
        assert w.shard.running["read"] == 1
        await driver.finish()
        for call in [first, *calls]:
            await call.done()
            assert call.ids() == [offset(n) for n in range(1, 7)]


async def test_a_leaving_viewer_takes_nothing_from_the_others_and_the_last_one_ends_the_read() -> None:
    async with world() as w:
        one, two = await post(w.app).has(b"run.accepted"), await attach(w.app).has(b"run.accepted")
        await until(lambda: w.shard.running["read"] == 1, "one shared read")
        one.leave()
        await one.done()
        driver = await w.driver("r-1")
        await driver.say("still here")
        await two.has(b"still here")
        two.leave()
        await two.done()
        await until(lambda: w.shard.running["read"] == 0, "no read without a viewer")
        assert (await w.head("r-1")).cancel_requested is False
    assert not one.ended
    assert not one.cut


async def test_a_slow_viewer_gets_everything_and_holds_nobody_up() -> None:
    big = "x" * 100_000
    async with world() as w:
        slow, quick = await post(w.app).has(b"run.accepted"), await attach(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        slow.stall()
        for number in range(40):  # four times what the ring holds
            await driver.say(f"{number}:{big}")
            await quick.has(b'"%d:x' % number)
        await driver.finish()
        await quick.done()
        slow.resume()
        await slow.done()
    assert slow.ids() == quick.ids() == [offset(n) for n in range(1, 43)]
    assert slow.body.replace(b": \n\n", b"") == quick.body.replace(b": \n\n", b"")


async def test_a_viewer_from_far_back_meets_the_shared_tail() -> None:
    async with world() as w:
        first = await post(w.app).has(b"run.accepted")
        driver = await w.driver("r-1")
        for number in range(30):
            await driver.append(*(text(f"{number}.{index}" + "y" * 1000) for index in range(100)))
        late = attach(w.app)
        await late.has(b'"29.99y')
        await until(lambda: w.shard.running["read"] == 1, "both on one read")
        await driver.say("after")
        await late.has(b'"after"')
        await driver.finish()
        await late.done()
        await first.done()
    assert late.ids() == first.ids() == [offset(n) for n in range(1, 3004)]
