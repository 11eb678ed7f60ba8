"""How long a body may take to come: as long as its length allows, and no longer for whoever only keeps a place."""

from __future__ import annotations

import asyncio
from itertools import chain, repeat
from typing import Any

import pytest
from starlette.requests import Request

from runtime.settings import Settings
from runtime.testing.sim_loop import elapse, play
from serve_app.body import BodyTooSlow, read_object

KIB = 1024
SETTINGS = Settings()


async def _read(*parts: tuple[float, bytes], ends: bool = True) -> dict[str, Any]:
    """Read a body of `parts`, each after so many seconds. Without `ends`, the last of them comes again for ever."""
    coming = iter(parts) if ends else chain(parts, repeat(parts[-1]))
    left = len(parts)

    async def receive() -> dict[str, Any]:
        nonlocal left
        pause, data = next(coming)
        left -= 1
        await elapse(pause)
        return {"type": "http.request", "body": data, "more_body": not ends or left > 0}

    headers = [(b"content-type", b"application/json")]
    return await read_object(Request({"type": "http", "method": "POST", "headers": headers}, receive), SETTINGS)


def _refused_at(*parts: tuple[float, bytes]) -> float:
    """Return when a body that comes so is refused, in seconds."""

    async def acts() -> float:
        with pytest.raises(BodyTooSlow):
            await _read(*parts, ends=False)
        return asyncio.get_running_loop().time()

    return play(1, acts())


def test_a_large_body_over_a_slow_line_is_read() -> None:
    piece, count = b" " * 64 * KIB, 127  # 1 Mbit/s for 8 MiB: over a minute

    async def acts() -> tuple[dict[str, Any], float]:
        value = await _read(*[(0.55, piece)] * count, (0.5, b'{"a":1}'))
        return value, asyncio.get_running_loop().time()

    value, took = play(1, acts())
    assert value == {"a": 1}
    assert took > 2 * SETTINGS.body_timeout_s


@pytest.mark.parametrize(
    ("parts", "at"),
    [
        ([(1.0, b" ")], 30),  # a byte now and then
        ([(1.0, b" " * 32 * KIB)], 60),  # half of the least rate: it falls behind by half a second each second
        ([(0.0, b" " * 1024 * KIB), (1000.0, b" ")], 46),  # one MiB at once, and then nothing
    ],
)
def test_a_body_that_does_not_come_on_is_refused(parts: list[tuple[float, bytes]], at: float) -> None:
    assert at - 1 <= _refused_at(*parts) <= at + 1
