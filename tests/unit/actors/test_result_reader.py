"""What reads a result on another node: piece after piece, and what it held is given up when nobody asks any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from actors import result_reader
from actors.result_reader import ResultReader
from runtime.core.result import Form, ResultAsk
from runtime.settings import Settings

ASK = ResultAsk(provider="p", key="k", thread_key="t", run_id="r", form=Form.ARCHIVE, max_bytes=1)


class Held:
    """Results that hold something while they are read."""

    def __init__(self) -> None:
        self.held = False

    async def read_result(self, ask: ResultAsk) -> AsyncGenerator[bytes, None]:
        assert ask is ASK
        self.held = True
        try:
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
