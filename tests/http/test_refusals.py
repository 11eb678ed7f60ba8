"""Bad input through the real proxy: each the error of design 8, nothing half-created, no stack trace to the client."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from instance import Instance
from shell_runs import body, numbered, unique
from waiting import wait_until
from watching import Watch

JSON = {"Content-Type": "application/json"}


def error(response: httpx.Response, status: int, code: str) -> str:
    """Check the form of an error and return its message."""
    assert (response.status_code, response.headers["Content-Type"]) == (status, "application/json"), response.text
    assert set(response.json()) == {"error"}
    said = response.json()["error"]
    assert said["code"] == code, said
    assert "Traceback" not in response.text
    assert 'File "' not in response.text
    return str(said["message"])


def no_run(instance: Instance, run: str) -> None:
    error(instance.http.get(f"/api/runs/{run}"), 404, "run_not_found")


@pytest.mark.parametrize("path", ["/api/chat", "/api/chat/ndjson"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"threadId":', b"\xff\xfe", b'{"a":NaN}'])
def test_a_body_that_is_no_json_object_is_400(instance: Instance, path: str, content: bytes) -> None:
    run = unique("bad")
    response = instance.http.post(path, content=content, headers={**JSON, "X-Run-Id": run})
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    no_run(instance, run)


@pytest.mark.parametrize("run", ["", "a b", "a/b", "ü", "x" * 129, "a%20b"])
def test_an_odd_or_overlong_run_id_is_400(instance: Instance, run: str) -> None:
    headers = [(b"Content-Type", b"application/json"), (b"X-Run-Id", run.encode())]
    response = instance.http.post("/api/chat", content=json.dumps(body("x", "echo 1")), headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"].startswith("run_id")


def test_a_post_without_a_run_id_names_both_places(instance: Instance) -> None:
    message = error(instance.http.post("/api/chat", json=body("x", "echo 1")), 400, "run_id_missing")
    assert "X-Run-Id" in message
    assert "runId" in message


def test_two_different_run_ids_are_400(instance: Instance) -> None:
    run = unique("two")
    sent = {**body(run, "echo 1"), "runId": f"{run}-other"}
    assert instance.http.post("/api/chat", json=sent, headers={"X-Run-Id": run}).status_code == 400
    no_run(instance, run)


@pytest.mark.parametrize(
    "forwarded",
    [{"harness": "none"}, {"onBusy": "perhaps"}, {"onDisconnect": "explode"}, {"runLimitS": -1}, {"runLimitS": "x"}],
)
def test_an_unknown_harness_or_option_value_is_400(instance: Instance, forwarded: dict[str, Any]) -> None:
    run = unique("option")
    response = instance.http.post("/api/chat", json=body(run, "echo 1", **forwarded), headers={"X-Run-Id": run})
    assert response.status_code == 400, response.text
    no_run(instance, run)


def test_a_body_over_the_limit_is_413_and_creates_nothing(instance: Instance) -> None:
    run = unique("large")
    sent = body(run, "#" * 70_000)
    error(instance.http.post("/api/chat", json=sent, headers={"X-Run-Id": run}), 413, "body_too_large")
    no_run(instance, run)


def test_an_endless_chunked_body_is_cut_off_with_413(instance: Instance) -> None:
    run = unique("endless")
    head = (
        f"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1:{instance.port}\r\nContent-Type: application/json\r\n"
        f"X-Run-Id: {run}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", instance.port), timeout=10) as sender:
        sender.sendall(head.encode())
        answer = _send_until_answered(sender, b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    no_run(instance, run)


def _send_until_answered(sender: socket.socket, piece: bytes) -> bytes:
    for _ in range(1000):
        try:
            sender.sendall(piece)
            sender.settimeout(0.01)
            return sender.recv(4096)
        except TimeoutError:
            sender.settimeout(10)
        except (BrokenPipeError, ConnectionResetError):
            break
    sender.settimeout(10)
    return sender.recv(4096)


def test_a_form_post_is_415_and_creates_nothing(instance: Instance) -> None:
    run = unique("form")
    response = instance.http.post("/api/chat", data={"threadId": "t"}, headers={"X-Run-Id": run})
    error(response, 415, "media_type_unsupported")
    no_run(instance, run)


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "null"])
def test_a_page_of_another_site_is_403_and_starts_nothing(instance: Instance, origin: str) -> None:
    run = unique("cross")
    headers = {"X-Run-Id": run, "Origin": origin}
    error(instance.http.post("/api/chat", json=body(run, "echo 1"), headers=headers), 403, "origin_refused")
    no_run(instance, run)


@pytest.mark.parametrize("path", ["/api/chat", "/api/runs", "/readyz"])
def test_a_foreign_host_is_403_whatever_is_asked(instance: Instance, path: str) -> None:
    response = instance.http.get(path, headers={"Host": "rebound.example"})
    assert response.status_code == 403, response.text


def test_a_get_without_an_offset_is_400(instance: Instance) -> None:
    run = ended_run(instance)
    error(instance.http.get("/api/chat", params={"runId": run}), 400, "offset_missing")


@pytest.mark.parametrize(
    "offset", ["x", "1", "0000000000000000_000000000000000x", "-2", "0000000000000000-0000000000000001"]
)
def test_a_malformed_offset_is_400(instance: Instance, offset: str) -> None:
    run = ended_run(instance)
    error(instance.http.get("/api/chat", params={"runId": run, "offset": offset}), 400, "offset_invalid")


@pytest.mark.parametrize("offset", ["0000000000000000_0000000000000999", "0000000000000001_0000000000000001"])
def test_an_offset_past_the_end_or_of_another_generation_is_410(instance: Instance, offset: str) -> None:
    run = ended_run(instance)
    error(instance.http.get("/api/chat", params={"runId": run, "offset": offset}), 410, "offset_gone")


def ended_run(instance: Instance) -> str:
    """Return a run of one line that has ended."""
    if not hasattr(instance, "a_run"):
        run = unique("ended")
        with Watch(instance, run, "echo 1") as watch:
            watch.until_end()
        instance.ended(run)
        vars(instance)["a_run"] = run
    return str(vars(instance)["a_run"])


@pytest.mark.parametrize("path", ["/api/runs/unknown-run", "/api/runs/unknown-run/stderr"])
def test_an_unknown_run_is_404(instance: Instance, path: str) -> None:
    error(instance.http.get(path), 404, "run_not_found")


def test_an_attach_to_an_unknown_run_is_404(instance: Instance) -> None:
    error(instance.http.get("/api/chat", params={"runId": "unknown", "offset": "-1"}), 404, "run_not_found")


def test_a_reconnect_of_an_unknown_run_is_404_and_starts_nothing(instance: Instance) -> None:
    run = unique("unknown")
    headers = {"X-Run-Id": run, "Last-Event-ID": "0000000000000000_0000000000000001"}
    error(instance.http.post("/api/chat", json=body(run, "echo 1"), headers=headers), 404, "run_not_found")
    no_run(instance, run)


def test_a_run_id_with_another_body_is_409_and_changes_nothing(instance: Instance) -> None:
    run = ended_run(instance)
    before = instance.record(run)
    response = instance.http.post("/api/chat", json=body(run, "echo other"), headers={"X-Run-Id": run})
    error(response, 409, "run_exists")
    assert instance.record(run) == before


def test_a_second_run_on_a_busy_thread_is_409_and_names_the_first(instance: Instance) -> None:
    first, second = unique("busy"), unique("busy")
    with Watch(instance, first, numbered(3000)) as watch:
        watch.until_lines(1)
        sent = body(second, "echo 1", thread_id=f"thread-{first}")
        response = instance.http.post("/api/chat", json=sent, headers={"X-Run-Id": second})
        assert first in error(response, 409, "thread_active")
        no_run(instance, second)
        instance.http.post("/api/chat/cancel", json={"runId": first})
        watch.until_end()
    instance.ended(first)


def test_more_runs_than_allowed_are_429_with_retry_after_and_a_known_one_is_still_served(instance: Instance) -> None:
    runs = [unique(f"many-{number}") for number in range(12)]
    thread = "thread-of-many"  # all but one wait in a queue: no agents, but runs that are not over
    try:
        for run in runs:
            instance.begin(run, "sleep 300", thread_id=thread, onBusy="enqueue")
        over = unique("over")
        response = instance.http.post("/api/chat", json=body(over, "echo 1"), headers={"X-Run-Id": over})
        error(response, 429, "too_many_runs")
        assert int(response.headers["Retry-After"]) > 0
        no_run(instance, over)
        with Watch(instance, runs[0]) as watch:
            wait_until(lambda: watch.events, "the log of a run that is there")
    finally:
        for run in reversed(runs):
            instance.http.post("/api/chat/cancel", json={"runId": run})
    for run in runs:
        assert instance.ended(run)["status"] == "aborted"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("DELETE", "/api/chat", 405)])
def test_the_framework_s_own_errors_have_the_same_form(instance: Instance, method: str, path: str, status: int) -> None:
    response = instance.http.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"code", "message"}


@pytest.mark.parametrize(
    "raw", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"\x16\x03\x01\x02\x00"]
)
def test_what_is_no_http_is_answered_or_dropped_and_harms_nobody(instance: Instance, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", instance.port), timeout=10) as sender:
        sender.sendall(raw)
        answer = sender.recv(4096)
    assert answer == b"" or answer.split()[1].startswith(b"4")
    assert instance.ready


@pytest.mark.long
@pytest.mark.timeout(150)
def test_bodies_that_come_a_byte_at_a_time_are_408_and_hold_no_connection(instance: Instance) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 65000\r\n"
    with ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", instance.port))) for _ in range(20)]
        for line in lines:
            line.sendall(head + f"X-Run-Id: {unique('slow')}\r\n\r\n".encode())
            line.settimeout(0.05)
        answers = dict.fromkeys(lines, b"")
        open_lines = set(lines)

        def all_closed() -> bool:
            for line in list(open_lines):
                try:
                    line.send(b" ")
                    answers[line] += (came := line.recv(65536))
                except TimeoutError:
                    continue
                except OSError:
                    came = b""
                if not came:
                    open_lines.discard(line)
            return not open_lines

        wait_until(all_closed, "the end of every connection", 90)
        for answer in answers.values():
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert b'"body_too_slow"' in answer
    with Watch(instance, unique("after"), numbered(3)) as watch:
        watch.until_end()
