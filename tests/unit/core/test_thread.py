"""A thread is what each run's input added, then what its log says."""

from __future__ import annotations

from typing import Any

from runtime.core import chunk
from runtime.core.messages import to_agui
from runtime.core.thread import ThreadRun, thread_messages
from runtime.core.transcript import of_log

Message = dict[str, Any]


def user(message_id: str, text: str) -> Message:
    return {"id": message_id, "role": "user", "content": text}


def answer(message_id: str, text: str) -> list[bytes]:
    return [
        chunk.run_accepted(),
        chunk.run_started("r", "t"),
        chunk.encode({"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"}),
        chunk.encode({"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text}),
        chunk.encode({"type": "TEXT_MESSAGE_END", "messageId": message_id}),
        chunk.run_finished("r", "t"),
    ]


def run_of(run_id: str, messages: list[Message], log: list[bytes]) -> ThreadRun:
    return ThreadRun(run_id, messages, of_log(log))


def told(*runs: ThreadRun) -> list[tuple[str, str, str]]:
    """Return (id, role, text) of each message of the thread."""
    return [
        (message["id"], message["role"], "".join(part.get("content", "") for part in message["parts"]))
        for message in thread_messages(runs)
    ]


def test_a_thread_without_runs_is_empty() -> None:
    assert thread_messages([]) == []


def test_a_client_that_sends_its_whole_history_is_told_each_message_once() -> None:
    first = [user("u1", "a")]
    second = [*first, {"id": "m1", "role": "assistant", "content": "b"}, user("u2", "c")]
    assert told(run_of("r1", first, answer("m1", "b")), run_of("r2", second, answer("m2", "d"))) == [
        ("u1", "user", "a"),
        ("m1", "assistant", "b"),
        ("u2", "user", "c"),
        ("m2", "assistant", "d"),
    ]


def test_a_client_that_fans_out_tools_and_reasoning_adds_its_new_words_only() -> None:
    second = [
        user("u1", "a"),
        {"id": "m1-reasoning-0", "role": "reasoning", "content": "hm"},
        {"id": "m1", "role": "assistant", "content": "b", "toolCalls": []},
        {"id": "tool-c", "role": "tool", "toolCallId": "c", "content": "x"},
        user("u2", "c"),
        user("u3", "and d"),
    ]
    runs = [run_of("r1", [user("u1", "a")], answer("m1", "b")), run_of("r2", second, [])]
    assert [message_id for message_id, _role, _text in told(*runs)] == ["u1", "m1", "u2", "u3"]


def test_a_client_that_sends_only_its_last_message_adds_it() -> None:
    runs = [
        run_of("r1", [user("u1", "a")], answer("m1", "b")),
        run_of("r2", [user("u2", "c")], answer("m2", "d")),
    ]
    assert [message_id for message_id, _role, _text in told(*runs)] == ["u1", "m1", "u2", "m2"]


def test_messages_without_ids_get_stable_ones() -> None:
    runs = [run_of(f"r{n}", [{"role": "user", "content": "go on"}], answer(f"m{n}", "ok")) for n in (1, 2)]
    assert [message_id for message_id, _role, _text in told(*runs)] == ["r1-input-0", "m1", "r2-input-0", "m2"]


def test_programs_that_count_ids_from_one_in_each_run_lose_no_message() -> None:
    runs = [run_of(f"r{n}", [user("1", f"q{n}")], answer("1", f"a{n}")) for n in (1, 2)]
    assert told(*runs) == [
        ("1", "user", "q1"),
        ("r1:1", "assistant", "a1"),
        ("r2:1", "user", "q2"),
        ("r2:r2:1", "assistant", "a2"),
    ]


def test_the_first_runs_input_may_bring_a_history() -> None:
    brought = [
        {"id": "s", "role": "system", "content": "be kind"},
        user("u0", "x"),
        {"id": "m0", "role": "assistant", "content": "y"},
        user("u1", "a"),
    ]
    assert [message_id for message_id, _role, _text in told(run_of("r1", brought, []))] == ["s", "u0", "m0", "u1"]


def test_asking_again_adds_the_new_answer_alone() -> None:
    runs = [run_of(f"r{n}", [user("u1", "a")], answer(f"m{n}", f"b{n}")) for n in (1, 2)]
    assert [message_id for message_id, _role, _text in told(*runs)] == ["u1", "m1", "m2"]


def test_a_snapshot_of_the_thread_restates_its_messages_in_place() -> None:
    snapshot = chunk.encode(
        {
            "type": "MESSAGES_SNAPSHOT",
            "messages": [user("u1", "a"), {"id": "m1", "role": "assistant", "content": "better"}, user("u2", "c")],
        }
    )
    runs = [
        run_of("r1", [user("u1", "a")], answer("m1", "b")),
        run_of("r2", [user("u2", "c")], [snapshot, *answer("m2", "d")]),
    ]
    assert told(*runs) == [
        ("u1", "user", "a"),
        ("m1", "assistant", "better"),
        ("u2", "user", "c"),
        ("m2", "assistant", "d"),
    ]


def test_the_history_for_the_next_run_is_in_agui_form() -> None:
    runs = [run_of("r1", [user("u1", "a")], answer("m1", "b"))]
    assert to_agui(thread_messages(runs)) == [user("u1", "a"), {"id": "m1", "role": "assistant", "content": "b"}]
