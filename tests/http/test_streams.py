"""Streams through the real proxy: heartbeats, reconnects, native EventSource, and viewers that are counted."""

from __future__ import annotations

import io
import socket
import tarfile
from contextlib import ExitStack

import httpx
from instance import Instance
from processes import kill
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

SSE = {"Accept": "text/event-stream"}


def test_a_silent_run_is_heard_of_by_heartbeats_of_both_formats(instance: Instance) -> None:
    run = unique("silent")
    with Watch(instance, run, "echo 1; sleep 300") as watch:
        wait_until(lambda: watch.heartbeats >= 2, "two heartbeats")
        params = {"runId": run, "offset": "now"}
        with instance.http.stream("GET", "/api/chat/ndjson", params=params) as response:
            assert next(response.iter_raw()) == b"\n"
        instance.http.post("/api/chat/cancel", json={"runId": run})
        watch.until_end()
    instance.ended(run)


def test_stream_headers_tell_every_proxy_in_between_not_to_keep_anything(instance: Instance) -> None:
    run = unique("headers")
    with Watch(instance, run, "echo 1") as watch:
        watch.until_end()
    with instance.http.stream("GET", "/api/chat", params={"runId": run, "offset": "-1"}, headers=SSE) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["X-Run-Id"] == run


def test_every_offset_that_was_given_leads_to_precisely_what_follows(instance: Instance) -> None:
    run = unique("offsets")
    with Watch(instance, run, numbered(10, per_second=1000)) as watch:
        watch.until_end()
    for place, id in enumerate(watch.ids[:-1]):
        answer = instance.http.get("/api/chat", params={"runId": run, "offset": "-1"}, headers={"Last-Event-ID": id})
        ids = [line[4:] for line in answer.text.splitlines() if line.startswith("id: ")]
        assert ids == watch.ids[place + 1 :]


def test_an_event_source_at_the_end_of_a_closed_log_is_told_to_stop_by_204(instance: Instance) -> None:
    run = unique("event-source")
    with Watch(instance, run, "echo 1") as watch:
        watch.until_end()
    params = {"runId": run, "offset": "-1"}
    headers = {**SSE, "Last-Event-ID": watch.ids[-1]}
    assert instance.http.get("/api/chat", params=params, headers=headers).status_code == 204
    again = instance.http.get("/api/chat", params=params, headers={"Last-Event-ID": watch.ids[-1]})
    assert again.status_code == 200
    assert [line[4:] for line in again.text.splitlines() if line.startswith("id: ")] == watch.ids[-1:]


def test_last_event_id_beats_the_offset_of_the_address(instance: Instance) -> None:
    run = unique("beats")
    with Watch(instance, run, "echo 1") as watch:
        watch.until_end()
    answer = instance.http.get(
        "/api/chat", params={"runId": run, "offset": "-1"}, headers={"Last-Event-ID": watch.ids[-2]}
    )
    assert [line[4:] for line in answer.text.splitlines() if line.startswith("id: ")] == watch.ids[-1:]


def test_a_viewer_that_leaves_or_is_reset_is_noticed_and_one_that_comes_back_is_seen_first(instance: Instance) -> None:
    run = unique("viewer")
    instance.begin(run, numbered(6000))
    request = (
        f"GET /api/chat?runId={run}&offset=-1 HTTP/1.1\r\nHost: 127.0.0.1:{instance.port}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    )
    for _ in range(2):
        wait_until(lambda: instance.record(run)["detachedSince"] is not None, "a run without viewers", 20.0)
        with socket.create_connection(("127.0.0.1", instance.port), timeout=10) as viewer:
            viewer.sendall(request.encode())
            assert viewer.recv(1024).startswith(b"HTTP/1.1 200")
            assert instance.record(run)["detachedSince"] is None, "the first byte came before the attach"
            viewer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closes with a reset
    wait_until(lambda: instance.record(run)["detachedSince"] is not None, "a run without viewers", 20.0)
    assert instance.record(run)["status"] == "running"
    instance.http.post("/api/chat/cancel", json={"runId": run})
    instance.ended(run)


def test_twelve_viewers_of_one_run_see_the_same(instance: Instance) -> None:
    run = unique("twelve")
    watches = [Watch(instance, run, numbered(60, per_second=30))] + [Watch(instance, run) for _ in range(11)]
    with ExitStack() as stack:
        for watch in watches:
            stack.enter_context(watch)
            watches[0].until_lines(1)
        wait_until(lambda: instance.metric("outlast_viewers") >= len(watches), "all viewers, counted")
        for watch in watches:
            watch.until_end(within_s=40)
    for watch in watches:
        check_whole(watch, 60)


def test_a_bigger_log_than_one_segment_arrives_whole(instance: Instance) -> None:
    run = unique("big")
    with Watch(instance, run, "seq 1 20000") as watch:
        watch.until_end(within_s=40)
    check_whole(watch, 20000)
    with Watch(instance, run) as late:
        late.until_end(within_s=40)
    assert late.ids == watch.ids
    kill(instance.the_process("ray::LogShard"))
    with Watch(instance, run) as cold:
        cold.until_end(within_s=40)
    assert cold.ids == watch.ids
    assert cold.events == watch.events


def test_the_ids_and_data_of_ndjson_are_those_of_sse(instance: Instance) -> None:
    run = unique("formats")
    with Watch(instance, run, "echo 1; echo 2") as watch:
        watch.until_end()
    lines = instance.http.get("/api/chat/ndjson", params={"runId": run, "offset": "-1"}).text.splitlines()
    envelopes = [httpx.Response(200, text=line).json() for line in lines if line]
    assert [envelope["id"] for envelope in envelopes] == watch.ids
    assert [envelope["chunk"] for envelope in envelopes] == watch.events


def test_a_runs_result_is_sent_while_it_runs_and_after_its_end(instance: Instance) -> None:
    """Through the real proxy, from an actor on the node that reaches the workspace."""
    run = unique("result")
    path = f"/api/runs/{run}/workspace"
    with Watch(instance, run, "printf 'one\\n' > made; mkfifo fifo; echo 1; read line < fifo") as watch:
        watch.until_lines(1)
        files = instance.http.get(path, params={"as": "files"})
        assert files.json() == [{"path": "made", "change": "created", "bytes": 4}], files.text
        instance.http.post("/api/chat/cancel", json={"runId": run})
        watch.until_end()
    instance.ended(run)
    diff = instance.http.get(path, params={"as": "diff"})
    assert diff.text.endswith("--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+one\n")
    archive = instance.http.get(path, params={"as": "archive"})
    assert archive.headers["Content-Disposition"] == f'attachment; filename="{run}.tar.gz"'
    with tarfile.open(fileobj=io.BytesIO(archive.content), mode="r:gz") as packed:
        assert packed.getnames() == ["made"]
    assert instance.http.get(f"/api/runs/{run}-other/workspace", params={"as": "files"}).status_code == 404
