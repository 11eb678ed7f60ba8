"""One finish that holds everything: closers, terminal, status (P9, I5)."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.core import chunk
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.open_items import OpenItems
from runtime.core.record import CancelReason, Head, RunError, Status
from runtime.engine.finishing import STDERR_BYTES, aborted, build_finish, failed, failed_by
from runtime.errors import LaunchFailed
from runtime.ports import Ending

COMPLETED = Ending(status=Status.COMPLETED)


def head(**fields: Any) -> Head:
    return Head(run_id="run", thread_id="thread", owner="", digest="d", created_at=0, driver_epoch=3, **fields)


def open_items(*events: dict[str, Any]) -> OpenItems:
    items = OpenItems()
    items.feed([chunk.encode(event) for event in events])
    return items


STARTED = {"type": "RUN_STARTED", "runId": "run", "threadId": "thread"}
MESSAGE = {"type": "TEXT_MESSAGE_START", "messageId": "m"}
TOOL = {"type": "TOOL_CALL_START", "toolCallId": "t", "toolCallName": "x"}


def kinds(ending: Ending, items: OpenItems, **fields: Any) -> list[str]:
    batch = build_finish(head(**fields), 3, 7, ending, items).batch
    assert (batch.seq, batch.epoch, batch.key) == (7, 3, None)
    return [chunk.chunk_type(data) for data in batch.chunks()]


def test_what_the_log_has_open_is_closed_the_youngest_first() -> None:
    assert kinds(COMPLETED, open_items(STARTED, MESSAGE, TOOL)) == ["TOOL_CALL_END", "TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert kinds(failed("c", "m"), open_items(STARTED, MESSAGE)) == ["TEXT_MESSAGE_END", "RUN_ERROR"]


def test_chunks_of_the_exit_come_first_and_what_they_open_is_closed() -> None:
    ending = Ending(status=Status.COMPLETED, chunks=(chunk.encode(MESSAGE),))
    assert kinds(ending, open_items(STARTED)) == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "RUN_FINISHED"]


def test_a_finish_without_a_start_gets_one() -> None:
    assert kinds(COMPLETED, open_items()) == ["RUN_STARTED", "RUN_FINISHED"]
    assert kinds(failed("c", "m"), open_items()) == ["RUN_ERROR"]


LAST = chunk.custom("file.changed", {"path": ".", "diff": "+x"})


def test_what_is_told_of_the_whole_run_comes_right_before_the_terminal() -> None:
    def built(ending: Ending, items: OpenItems, **fields: Any) -> list[str]:
        batch = build_finish(head(**fields), 3, 7, ending, items, last=LAST).batch
        assert batch.count == len(batch.chunks() if batch.data else [])
        return [chunk.chunk_type(data) for data in batch.chunks()] if batch.data else []

    assert built(COMPLETED, open_items(STARTED, MESSAGE)) == ["TEXT_MESSAGE_END", "CUSTOM", "RUN_FINISHED"]
    assert built(failed("c", "m"), open_items(STARTED)) == ["CUSTOM", "RUN_ERROR"]
    assert built(COMPLETED, open_items()) == ["RUN_STARTED", "CUSTOM", "RUN_FINISHED"]
    assert built(failed("c", "m"), open_items()) == ["RUN_ERROR"], "nothing before a start"
    assert built(COMPLETED, open_items(STARTED), closed=True) == [], "its log has its end already"


def test_the_agents_own_terminal_is_kept() -> None:
    own = chunk.encode({"type": "RUN_FINISHED", "runId": "run", "threadId": "thread", "result": 42})
    finish = build_finish(head(), 3, 7, Ending(status=Status.COMPLETED, terminal=own), open_items(STARTED))
    assert finish.batch.chunks() == [own]


def test_building_a_finish_leaves_the_open_items_as_they_are() -> None:
    items = open_items(STARTED, MESSAGE)
    ending = Ending(status=Status.COMPLETED, chunks=(chunk.encode(TOOL),))
    first = build_finish(head(), 3, 7, ending, items)
    assert build_finish(head(), 3, 7, ending, items) == first
    assert kinds(aborted(CancelReason.USER), items) == ["TEXT_MESSAGE_END", "RUN_ERROR"]


def test_an_error_names_its_run() -> None:
    finish = build_finish(head(), 3, 7, failed_by(LaunchFailed("no such program")), open_items())
    event = chunk.decode_chunk(finish.batch.chunks()[-1])
    assert (event["code"], event["message"]) == ("launch_failed", "no such program")
    assert event["metadata"] == {"tanstack": {"runId": "run"}}
    assert finish.error == RunError(message="no such program", code="launch_failed")
    assert finish.status is Status.FAILED


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (CancelReason.USER, "aborted"),
        (CancelReason.OPERATOR, "aborted"),
        (CancelReason.DISCONNECT, "aborted"),
        (CancelReason.DETACHED_EXPIRED, "detached_expired"),
        (None, "aborted"),
    ],
)
def test_a_cancel_ends_with_the_code_of_its_reason(reason: CancelReason | None, code: str) -> None:
    ending = aborted(reason)
    assert ending.status is Status.ABORTED
    assert ending.error is not None
    assert ending.error.code == code
    unreachable = aborted(reason, "sandbox_unreachable").error
    assert unreachable is not None
    assert unreachable.code == "sandbox_unreachable"


def test_exit_and_the_end_of_stderr_are_kept() -> None:
    exit = AgentExit(kind=ExitKind.EXITED, journal_length=1, code=3, signal=None)
    finish = build_finish(head(), 3, 7, COMPLETED, open_items(), exit=exit, stderr=b"x" * STDERR_BYTES + b"end")
    assert (finish.exit_code, finish.signal) == (3, None)
    assert len(finish.stderr) == STDERR_BYTES
    assert finish.stderr.endswith(b"end")


def test_an_interrupted_run_has_its_terminal_already() -> None:
    assert kinds(aborted(CancelReason.USER), open_items(), closed=True, status=Status.INTERRUPTED) == []
