"""The port of a thread's messages (contract 4.5): in memory, and over Outlast's own threads.

Messages are UI messages, `{id, role, parts}` (`core/messages.py`). `core.messages.to_agui` turns them into what an
agent is told, `from_agui` back.

Outlast's own thread is what its runs were asked and what they said (P9): it is there the moment that a run ends, nobody
has to save it, and nobody can make it say something else. So there `save_thread` takes only what it says already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from runtime.core.chunk import decode, encode
from runtime.core.ids import LOCAL_OWNER
from runtime.core.messages import Message
from runtime.core.thread import thread_messages
from runtime.engine.authority import repeat
from runtime.engine.telling import thread_runs
from runtime.errors import InputInvalid
from runtime.ports import Cluster

TOLD_BYTES = 16 << 20


class MessageStore(Protocol):
    """The messages of an application's threads. Both methods may raise StoreError on the database's account."""

    async def load_thread(self, thread_id: str) -> list[Message]:
        """Return the thread's messages in order, the caller's to change; none for an unknown thread."""

    async def save_thread(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Replace the whole thread by `messages`. Raises InputInvalid where threads come about in another way."""


class MemoryMessageStore:
    """Threads in this process: for one process, and for tests."""

    def __init__(self) -> None:
        self._threads: dict[str, bytes] = {}

    async def load_thread(self, thread_id: str) -> list[Message]:
        """Return the thread's messages."""
        stored = self._threads.get(thread_id)
        return [] if stored is None else list(decode(stored)["messages"])

    async def save_thread(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Replace the thread."""
        self._threads[thread_id] = encode({"messages": list(messages)})


class OwnMessageStore:
    """The threads of one owner's runs."""

    def __init__(self, cluster: Cluster, owner: str = LOCAL_OWNER) -> None:
        self._cluster = cluster
        self._owner = owner

    async def load_thread(self, thread_id: str) -> list[Message]:
        """Return what the thread's runs were asked and have said, those at work included; of very long threads at most
        TOLD_BYTES of the newest, and of older runs what the user said."""
        runs = await repeat(lambda: self._cluster.shards()[0].list_thread(self._owner, thread_id))
        told = await thread_runs(runs, self._cluster.shard, repeat, TOLD_BYTES)
        return await asyncio.to_thread(thread_messages, told)

    async def save_thread(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Do nothing if that is what the thread says. Raises InputInvalid `thread_not_saved` otherwise."""
        if list(messages) != await self.load_thread(thread_id):
            raise InputInvalid(
                f"Thread {thread_id!r} says what its runs were asked and have said, and cannot be replaced. Begin "
                "another thread with these messages instead.",
                code="thread_not_saved",
                field="messages",
            )
