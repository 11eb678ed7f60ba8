"""`run` and `tail` show every chunk once, in order, whatever happens to their connections."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cli_program import PATIENCE, Outlast
from fake_instance import Beats, Cut, FakeInstance, Fault, Refuse, text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import wait_until

from serve_app.stream_client import LineBuffer
from serve_app.trials import Patience

LINES = [f"line {number}\n" for number in range(12)]
ALL = "".join(LINES)


def script() -> list[dict[str, object]]:
    return [text(line) for line in LINES]


def ended(fake: FakeInstance, run_id: str = "r") -> None:
    run = fake.start(run_id)
    run.add(*script())
    run.finish()


def test_run_starts_a_run_and_shows_its_text(fake: FakeInstance, outlast: Outlast) -> None:
    fake.script = script()
    result = outlast("run", "--run", "r", "--thread", "t", "--harness", "agui", "--option", "n=1", "do it")
    assert (result.exit_code, result.stdout) == (0, ALL)
    assert result.stderr == "run r in thread t\nrun r completed\n"
    (start,) = fake.streams()
    assert (start.method, start.headers["X-Run-Id"], start.headers["Content-Type"]) == ("POST", "r", "application/json")
    assert start.body["messages"] == [{"id": "msg-r", "role": "user", "content": "do it"}]
    assert (start.body["runId"], start.body["threadId"]) == ("r", "t")
    assert start.body["forwardedProps"] == {"n": 1, "harness": "agui"}


def test_ids_that_are_not_given_are_minted(fake: FakeInstance, outlast: Outlast) -> None:
    assert outlast("run", "x").exit_code == 0
    assert outlast("run", "x").exit_code == 0
    one, other = (asked.body for asked in fake.streams())
    assert one["runId"].startswith("run-")
    assert one["threadId"].startswith("thread-")
    assert one["runId"] != other["runId"]
    assert one["threadId"] != other["threadId"]


def test_the_same_command_with_the_same_run_is_the_same_request(fake: FakeInstance, outlast: Outlast) -> None:
    assert [outlast("run", "--run", "r", "x").stdout for _ in range(2)] == ["hello\n", "hello\n"]
    one, other = fake.streams()
    assert one.body == other.body


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("command", ["run", "tail"])
def test_a_cut_after_every_chunk_loses_and_doubles_nothing(
    fake: FakeInstance, outlast: Outlast, command: str, torn: bool
) -> None:
    fake.script = script()
    if command == "tail":
        ended(fake)
    fake.faults.extend(Cut(after=1, torn=torn) for _ in range(len(LINES) + 2))
    result = outlast(*(["run", "--run", "r", "x"] if command == "run" else ["tail", "r"]))
    assert (result.exit_code, result.stdout) == (0, ALL)
    assert not fake.faults
    follow_up = fake.streams()[1:]
    assert {asked.method for asked in follow_up} == {"GET"}
    assert all(asked.headers["Last-Event-ID"] == asked.query["offset"] for asked in follow_up)


def test_a_cut_before_the_first_chunk_repeats_the_same_post(fake: FakeInstance, outlast: Outlast) -> None:
    fake.faults.extend([Cut(after=0), Cut(after=0, torn=True)])
    result = outlast("run", "x")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    first, second, third = fake.streams()
    assert [asked.method for asked in (first, second, third)] == ["POST"] * 3
    assert first.body == second.body == third.body


def test_a_clean_end_in_the_middle_of_a_run_is_not_believed(fake: FakeInstance, outlast: Outlast) -> None:
    ended(fake)
    fake.faults.extend([Cut(after=3, clean=True), Cut(after=0, clean=True)])
    assert outlast("tail", "r").stdout == ALL


def test_a_terminal_chunk_in_the_middle_of_a_run_is_no_end(fake: FakeInstance, outlast: Outlast) -> None:
    run = fake.start("r")
    run.add(text("one\n"), {"type": "RUN_FINISHED"}, {"type": "RUN_STARTED"}, text("two\n"))
    run.finish()
    fake.faults.append(Cut(after=3, clean=True))
    assert outlast("tail", "r").stdout == "one\ntwo\n"


def test_heartbeats_are_no_chunks(fake: FakeInstance, outlast: Outlast) -> None:
    ended(fake)
    fake.faults.extend([Beats(3), Cut(after=2)])
    result = outlast("tail", "r", "--json")
    assert len(result.stdout.splitlines()) == len(LINES) + 2


def test_errors_of_a_restarting_instance_are_waited_out(fake: FakeInstance, outlast: Outlast) -> None:
    ended(fake)
    proxy = Refuse(503, body=b"<html>no server is available</html>")
    fake.faults.extend([Cut(after=2), proxy, Refuse(503), Refuse(404, body=b"Path not found."), Refuse(500), Cut(1)])
    result = outlast("tail", "r")
    assert (result.exit_code, result.stdout) == (0, ALL)
    assert result.stderr.count("Trying again") == 2, "one line for each outage, not for each attempt"


def test_an_instance_that_comes_back_on_another_port_is_found(fake: FakeInstance, outlast: Outlast) -> None:
    run = fake.start("r")
    run.add(text("before\n"))

    def restart() -> None:
        wait_until(fake.streams, "the stream is open")
        fake.down()
        run.add(text("meanwhile\n"))
        fake.up()
        run.add(text("after\n"))
        run.finish()

    thread = threading.Thread(target=restart)
    thread.start()
    result = outlast("tail", "r")
    thread.join()
    assert (result.exit_code, result.stdout) == (0, "before\nmeanwhile\nafter\n")


def test_an_instance_that_does_not_come_back_is_given_up(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r").add(text("before\n"))
    fake.faults.extend([Cut(after=2)])

    def go() -> None:
        wait_until(lambda: len(fake.streams()) >= 2, "a second stream: what the first one brought is read")
        fake.down()

    thread = threading.Thread(target=go)
    thread.start()
    result = outlast("tail", "r", patience=Patience(lost_s=0.3, pause_s=0.002, longest_pause_s=0.02))
    thread.join()
    assert (result.exit_code, result.stdout) == (5, "before\n")
    assert "outlast: The instance at http://127.0.0.1:" in result.stderr


def test_a_silent_connection_is_taken_for_dead(fake: FakeInstance, outlast: Outlast) -> None:
    run = fake.start("r")
    run.add(text("one\n"))

    def finish() -> None:
        wait_until(lambda: len(fake.streams()) >= 2, "a second connection")
        run.finish()

    thread = threading.Thread(target=finish)
    thread.start()
    result = outlast("tail", "r", patience=Patience(pause_s=0.002, silence_s=0.2))
    thread.join()
    assert (result.exit_code, result.stdout) == (0, "one\n")


def test_a_refusal_in_the_middle_ends_the_command(fake: FakeInstance, outlast: Outlast) -> None:
    fake.start("r").add(text("one\n"))
    fake.faults.extend([Cut(after=2), Refuse(410, "offset_gone", "Offset 2 is not in this log.")])
    result = outlast("tail", "r")
    assert (result.exit_code, result.stdout) == (6, "one\n")
    assert "outlast: Offset 2 is not in this log." in result.stderr


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"type": "RUN_FINISHED"}, 0),
        ({"type": "RUN_ERROR", "message": "It broke.", "code": "agent_exit"}, 1),
        ({"type": "RUN_ERROR", "message": "Cancelled.", "code": "aborted"}, 3),
    ],
)
def test_an_instance_that_goes_right_after_the_end_does_not_spoil_it(
    fake: FakeInstance, outlast: Outlast, end: dict[str, object], code: int
) -> None:
    fake.script = [text("hello\n"), end]
    fake.faults.append(Cut(after=3, clean=True))
    fake.refusals["/api/runs/r"] = Refuse(503)
    quick = Patience(lost_s=0.1, pause_s=0.002, longest_pause_s=0.02)
    result = outlast("run", "--run", "r", "x", patience=quick)
    assert (result.exit_code, result.stdout) == (code, "hello\n")


def test_tail_from_an_offset_shows_what_follows_it(fake: FakeInstance, outlast: Outlast) -> None:
    ended(fake)
    assert outlast("tail", "r", "--from", f"{0:016d}_{3:016d}").stdout == "".join(LINES[2:])
    assert outlast("tail", "r", "--from", "-1").stdout == ALL
    assert outlast("tail", "r", "--from", "0" * 16 + "_" + "0" * 16).stdout == ALL


def test_tail_from_now_shows_what_comes_even_if_the_first_connection_breaks(
    fake: FakeInstance, outlast: Outlast
) -> None:
    run = fake.start("r")
    run.add(text("old\n"))
    fake.faults.append(Cut(after=0))

    def go_on() -> None:
        wait_until(fake.streams, "a stream")
        run.add(text("new\n"))
        run.finish()

    thread = threading.Thread(target=go_on)
    thread.start()
    result = outlast("tail", "r", "--from", "now")
    thread.join()
    assert result.stdout == "new\n"


def test_no_follow_stops_at_what_is_stored(fake: FakeInstance, outlast: Outlast) -> None:
    run = fake.start("r")
    run.add(*script())
    fake.faults.append(Cut(after=5))
    result = outlast("tail", "r", "--no-follow")
    assert (result.exit_code, result.stdout) == (0, ALL)
    assert result.stderr.endswith("run r running\n")
    assert outlast("tail", "r", "--no-follow", "--from", "now").stdout == ""


def test_no_follow_of_an_ended_run_has_its_exit_code(fake: FakeInstance, outlast: Outlast) -> None:
    run = fake.start("r")
    run.finish("failed", {"message": "It broke.", "code": "agent_exit"})
    assert outlast("tail", "r", "--no-follow").exit_code == 1
    assert outlast("tail", "r", "--no-follow", "--from", "now").exit_code == 1


def test_json_is_the_envelopes_as_they_came(fake: FakeInstance, outlast: Outlast) -> None:
    ended(fake)
    fake.faults.extend(Cut(after=2, torn=True) for _ in range(4))
    envelopes = [json.loads(line) for line in outlast("tail", "r", "--json").stdout.splitlines()]
    assert [envelope["id"] for envelope in envelopes] == [f"{0:016d}_{n:016d}" for n in range(1, len(LINES) + 3)]
    assert [envelope["chunk"] for envelope in envelopes] == fake.runs["r"].chunks


def test_detach_leaves_after_the_first_chunk(fake: FakeInstance, outlast: Outlast) -> None:
    fake.script = None
    result = outlast("run", "--detach", "--run", "r", "x")
    assert (result.exit_code, result.stdout) == (0, "r\n")
    assert "outlast tail r" in result.stderr
    assert not [asked for asked in fake.asked if "cancel" in asked.path]
    as_json = outlast("run", "--detach", "--json", "--run", "s", "x")
    assert json.loads(as_json.stdout)["chunk"]["name"] == "run.accepted"


def test_the_message_may_come_from_standard_input(fake: FakeInstance, outlast: Outlast) -> None:
    assert outlast("run", "-", input="zwei\nZeilen äöü\n".encode()).exit_code == 0
    assert fake.streams()[0].body["messages"][0]["content"] == "zwei\nZeilen äöü\n"


def test_option_values_are_json_or_text(fake: FakeInstance, outlast: Outlast) -> None:
    pairs = {"a": "1", "b": "true", "c": '["x","y"]', "d": "plain text", "e": "NaN", "f": "", "g": "k=v", "h": "1e999"}
    flags = [part for name, value in pairs.items() for part in ("--option", f"{name}={value}")]
    assert outlast("run", *flags, "x").exit_code == 0
    assert fake.streams()[0].body["forwardedProps"] == {
        "a": 1,
        "b": True,
        "c": ["x", "y"],
        "d": "plain text",
        "e": "NaN",
        "f": "",
        "g": "k=v",
        "h": "1e999",
    }


faults = st.one_of(
    st.builds(Cut, after=st.integers(0, 5), torn=st.booleans(), clean=st.booleans()),
    st.builds(Refuse, status=st.sampled_from([500, 502, 503])),
    st.builds(Beats, count=st.integers(0, 3)),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(faults, max_size=8))
def test_any_sequence_of_faults_leaves_one_gapless_text(sequence: list[Fault]) -> None:
    with TemporaryDirectory() as folder:
        fake = FakeInstance(Path(folder))
        fake.up()
        try:
            ended(fake)
            fake.faults.append(Cut(after=1))
            fake.faults.extend(sequence)
            assert Outlast(Path(folder))("tail", "r", patience=PATIENCE).stdout == ALL
        finally:
            fake.down()


@given(st.lists(st.binary(max_size=6).map(lambda part: part.replace(b"\r", b"\n"))))
def test_lines_do_not_depend_on_how_bytes_are_split(parts: list[bytes]) -> None:
    buffer = LineBuffer()
    *lines, rest = b"".join(parts).split(b"\n")
    assert [line for part in parts for line in buffer.feed(part)] == lines
    assert buffer.partial == bool(rest)
