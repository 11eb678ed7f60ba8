"""What reads a result on another node: piece after piece, and what it held is given up when nobody asks any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import pytest
from waiting import until

from actors import result_reader
from actors.result_reader import ResultReader
from runtime.core.result import Form, ResultAsk
from runtime.errors import SandboxUnreachable
from runtime.settings import Settings

ASK = ResultAsk(provider="p", key="k", thread_key="t", run_id="r", form=Form.ARCHIVE, max_bytes=1)


class Held:
    """Results that hold something while they are read."""

    def __init__(self) -> None:
        self.held = False
        self.hangs = False

    async def read_result(self, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        assert ask is ASK
        self.held = True
        try:
            if self.hangs:
                await asyncio.Event().wait()
            yield b"one"
            yield b"two"
        finally:
            self.held = False


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    monkeypatch.setattr(result_reader, "results", lambda *_: held)
    return held


async def test_pieces_come_as_they_are_asked_for_and_the_end_is_none(held: Held) -> None:
    reader = ResultReader(Settings(), "d", ASK)
    assert not held.held
    assert [await reader.piece() for _ in range(4)] == [b"one", b"two", b"", b""]
    assert not held.held


async def test_who_leaves_in_the_middle_leaves_nothing_behind(held: Held) -> None:
    reader = ResultReader(Settings(), "d", ASK)
    await reader.close()
    await reader.piece()
    assert held.held
    await reader.close()
    assert not held.held


async def test_who_leaves_in_the_middle_of_a_piece_leaves_nothing_behind(held: Held) -> None:
    held.hangs = True
    reader = ResultReader(Settings(), "d", ASK)
    piece = asyncio.create_task(reader.piece())
    await until(lambda: held.held, "the piece's beginning")
    await reader.close()
    assert not held.held
    with pytest.raises(SandboxUnreachable):
        await piece


class Remote:
    """The actor and its handle, for whoever asks from elsewhere; its pieces never come."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.piece, self.close = "piece", "close"

    def options(self, **_: object) -> Remote:
        return self

    def remote(self, *_: object) -> Remote:
        return self

    async def call(self, _: str, method: str, timeout_s: float) -> bytes:
        assert timeout_s > 0
        self.did.append(method)
        if method == "piece":
            await asyncio.Event().wait()
        await asyncio.to_thread(self.did.append, "closed")
        return b""


async def test_a_reader_is_closed_for_one_who_is_cancelled_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server does it to the response of a client that has left."""
    remote = Remote()
    monkeypatch.setattr(result_reader, "_actor", lambda: remote)
    monkeypatch.setattr(result_reader, "call", remote.call)
    monkeypatch.setattr(result_reader, "kill", lambda reader: reader.did.append("killed"))

    async def send() -> None:
        async with aclosing(result_reader.read_result(Settings(), "d", "ab" * 28, ASK)) as pieces:
            async for _ in pieces:
                pass

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        await until(lambda: remote.did, "the first piece to be asked for")
        group.cancel_scope.cancel()
    await until(lambda: "killed" in remote.did, "the end of the reader")
    assert remote.did == ["piece", "close", "closed", "killed"]
