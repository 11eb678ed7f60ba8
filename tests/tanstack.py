"""TanStack AI's four HTTP connection adapters, each in a Node process of its own, doing the same thing at once.

At once, since each has to be tried in each situation, and what a situation costs is a run and the start of Node."""

from __future__ import annotations

from typing import Any, NamedTuple

from instance import Instance
from npm_client import NpmClient, StartScript


class Adapter(NamedTuple):
    """One adapter: its name in the package, its path here, and what ends a chunk on its wire."""

    name: str
    path: str
    chunk_end: bytes


ADAPTERS = (
    Adapter("fetchServerSentEvents", "/api/chat", b"\n\n"),
    Adapter("fetchHttpStream", "/api/chat/ndjson", b"\n"),
    Adapter("xhrServerSentEvents", "/api/chat", b"\n\n"),
    Adapter("xhrHttpStream", "/api/chat/ndjson", b"\n"),
)


class Tanstack:
    """Calls of the adapters on one thread, `thread_id`, and one run, `run_id`, unless a call says otherwise."""

    def __init__(self, start: StartScript, instance: Instance, fresh: str) -> None:
        self.run_id = f"run-{fresh}"
        self.thread_id = f"thread-{fresh}"
        self.instance = instance
        self._start = start

    def one(self, adapter: Adapter, call: str, base: str = "", **asked: Any) -> NpmClient:
        """Start a call of one adapter, at `base` if that is not the instance itself."""
        known = {"adapter": adapter.name, "call": call, "runId": self.run_id, "threadId": self.thread_id}
        return self._start("tanstack", **{**known, "url": (base or self.instance.url) + adapter.path, **asked})

    def each(self, call: str, **asked: Any) -> list[NpmClient]:
        """Start the same call of every adapter: of `connect`, all but the first join by the same request."""
        return [self.one(adapter, call, **asked) for adapter in ADAPTERS]


def types(lines: int, ending: str = "RUN_FINISHED") -> list[str]:
    """Return the types of all chunks of a shell run that printed so many lines."""
    opening = ["CUSTOM", "RUN_STARTED", "TEXT_MESSAGE_START"]
    return [*opening, *["TEXT_MESSAGE_CONTENT"] * lines, "TEXT_MESSAGE_END", ending]


def numbers(last: int) -> str:
    """Return what `seq 1 last` prints."""
    return "".join(f"{number}\n" for number in range(1, last + 1))
