"""A thread's messages: what each run's input added, then what its transcript says, oldest run first.

This is what a client gets that hydrates, and, in AG-UI form (`to_agui`), what the next run's agent is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from runtime.core.messages import Message, from_agui
from runtime.core.transcript import Transcript


class ThreadRun(NamedTuple):
    """One run of a thread: the `messages` of its input (AG-UI) and what it has said so far."""

    run_id: str
    messages: Iterable[Any]
    said: Transcript


def thread_messages(runs: Iterable[ThreadRun]) -> list[Message]:
    """Return the UI messages of a thread; `runs` oldest first. `to_agui` of them is the history for its next run."""
    thread: dict[str, Message] = {}
    for run in runs:
        for message in _added(thread, from_agui(run.messages, f"{run.run_id}-input")):
            _put(thread, message, run.run_id)
        stated = frozenset(run.said.stated)
        for message in run.said.messages:
            if message["id"] in stated:
                thread[message["id"]] = message
            else:
                _put(thread, message, run.run_id)
    return list(thread.values())


def _added(thread: dict[str, Message], given: list[Message]) -> list[Message]:
    """Return what a run's input adds to the thread: all of it at first, later the user's words since what is known."""
    if not thread:
        return given
    known = [at for at, message in enumerate(given) if _is_known(thread, message)]
    if known:
        return [message for message in given[known[-1] + 1 :] if message["role"] == "user"]
    return [message for message in given if message["role"] == "user"][-1:]


def _is_known(thread: dict[str, Message], message: Message) -> bool:
    other = thread.get(message["id"])
    return other is not None and (message["role"] != "user" or other["parts"] == message["parts"])


def _put(thread: dict[str, Message], message: Message, run_id: str) -> None:
    # Some programs count their message ids from 1 in each run; what is there already is never replaced.
    identity = message["id"]
    while identity in thread:
        identity = f"{run_id}:{identity}"
    thread[identity] = {**message, "id": identity}
