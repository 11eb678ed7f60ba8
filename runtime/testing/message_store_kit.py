"""The conformance kit of `delivery.threads.MessageStore` (contract 12.5, scenario 38).

    class TestMine(MessageStoreKit):
        async def make(self) -> MessageStore: ...

`replaces = False` says that threads come about in another way: then `seed` makes them, and `save_thread` refuses.
"""

# ruff: noqa: D102 - a test's name states the fact

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from runtime.core.messages import Message
from runtime.delivery.threads import MessageStore
from runtime.errors import InputInvalid

T = TypeVar("T")

THREAD = "thread-1"


def rich() -> list[Message]:
    """Return a thread with every kind of part that both forms of a message have, and odd texts."""
    arguments = '{"path":"ä\\n\\u0000","deep":[1,{"null":null}]}'
    call = {"type": "tool-call", "id": "call-1", "name": "read", "arguments": arguments, "state": "complete"}
    made = {"input": {"path": "ä\n\0", "deep": [1, {"null": None}]}, "output": {"lines": [1, 2]}}
    result = {"type": "tool-result", "toolCallId": "call-1", "content": '{"lines": [1, 2]}', "state": "complete"}
    return [
        {"id": "u-1", "role": "user", "parts": [{"type": "text", "content": "wörds \U0001f600\n\n"}]},
        {"id": "a-1", "role": "assistant", "parts": [{"type": "text", "content": "I look."}, {**call, **made}, result]},
        {"id": "u-2", "role": "user", "parts": [{"type": "text", "content": "and now?"}]},
    ]


class MessageStoreKit:
    """All cases; see the module's docstring."""

    replaces = True

    async def make(self) -> MessageStore:
        """Return a store without threads."""
        raise NotImplementedError("a subclass has a method make")

    async def seed(self, store: MessageStore, thread_id: str, messages: Sequence[Message]) -> None:
        """Make a thread of `messages`."""
        await store.save_thread(thread_id, messages)

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one test."""
        return asyncio.run(work)

    def test_an_unknown_thread_is_empty(self) -> None:
        async def case() -> None:
            store = await self.make()
            assert await store.load_thread(THREAD) == []

        self.play(case())

    def test_a_thread_reads_back_as_it_was_said(self) -> None:
        async def case() -> None:
            store = await self.make()
            await self.seed(store, THREAD, rich())
            await self.seed(store, "thread-2", rich()[:1])
            assert await store.load_thread(THREAD) == rich()
            assert await store.load_thread("thread-2") == rich()[:1]

        self.play(case())

    def test_what_was_loaded_is_the_callers(self) -> None:
        async def case() -> None:
            store = await self.make()
            await self.seed(store, THREAD, rich())
            loaded = await store.load_thread(THREAD)
            loaded[0]["parts"][0]["content"] = "changed"
            loaded.pop()
            assert await store.load_thread(THREAD) == rich()

        self.play(case())

    def test_to_save_what_a_thread_says_changes_nothing(self) -> None:
        async def case() -> None:
            store = await self.make()
            await self.seed(store, THREAD, rich())
            await store.save_thread(THREAD, rich())
            assert await store.load_thread(THREAD) == rich()

        self.play(case())

    def test_to_save_replaces_the_whole_thread_or_is_refused(self) -> None:
        async def case() -> None:
            store = await self.make()
            await self.seed(store, THREAD, rich())
            given = [{"id": "u-9", "role": "user", "parts": [{"type": "text", "content": "anew"}]}]
            if self.replaces:
                await store.save_thread(THREAD, given)
                given[0]["id"] = "changed later"
                assert [message["id"] for message in await store.load_thread(THREAD)] == ["u-9"]
                await store.save_thread(THREAD, [])
                assert await store.load_thread(THREAD) == []
                return
            with pytest.raises(InputInvalid):
                await store.save_thread(THREAD, given)
            assert await store.load_thread(THREAD) == rich()

        self.play(case())
