"""A connection to a program in a container loses no byte, and no word of ours costs one; without a container."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest

from runtime.sandboxes.container_line import GONE_S, Line, LineLost

WORD_S = 0.05


def frame(data: bytes, stream: int = 1) -> bytes:
    """Return what an engine makes of what a program writes."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def answer(data: bytes = b"", **facts: object) -> bytes:
    """Return what an attendant answers."""
    return json.dumps({**facts, "bytes": len(data)}).encode() + b"\n" + data


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield our end and the engine's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [1, 3, 8, 9, 1000])
async def test_answers_do_not_depend_on_how_they_are_cut(ends: tuple[socket.socket, socket.socket], size: int) -> None:
    line = Line(ends[0], 60.0)
    said = answer(b"first\n\0", n=1) + answer(n=2) + answer(b"x" * 500, n=3)
    sent = b"".join(frame(said[at : at + size]) + frame(b"a complaint", stream=2) for at in range(0, len(said), size))
    ends[1].sendall(sent)
    answers = [await line.answer() for _ in range(3)]
    assert [(facts["n"], data) for facts, data in answers] == [(1, b"first\n\0"), (2, b""), (3, b"x" * 500)]
    line.close()


async def test_what_comes_at_the_moment_of_a_word_is_not_lost(ends: tuple[socket.socket, socket.socket]) -> None:
    line = Line(ends[0], WORD_S)
    loop = asyncio.get_running_loop()
    await line.send(b"\n")

    def send_and_hold_the_loop_past_the_word() -> None:
        ends[1].sendall(frame(answer(b"piece", n=1)))
        until = loop.time() + WORD_S
        while loop.time() < until:
            pass

    loop.call_later(WORD_S / 2, send_and_hold_the_loop_past_the_word)
    async with asyncio.timeout(20):
        assert await line.answer() == ({"n": 1, "bytes": 5}, b"piece")
    line.close()


async def test_the_program_hears_of_us_while_we_wait(ends: tuple[socket.socket, socket.socket]) -> None:
    line = Line(ends[0], WORD_S)
    waiting = asyncio.ensure_future(line.answer())
    ends[1].setblocking(False)
    async with asyncio.timeout(20):
        words = b""
        while len(words) < 3:
            words += await asyncio.get_running_loop().sock_recv(ends[1], 10)
    assert words == b"\n" * len(words)
    ends[1].sendall(frame(answer(b"late")))
    assert (await waiting)[1] == b"late"
    line.close()


@pytest.mark.parametrize(
    "said", [b"no frame at all", frame(b"OCI runtime exec failed: no such file\n"), frame(b"died", stream=2), b""]
)
async def test_the_end_of_a_connection_says_why(ends: tuple[socket.socket, socket.socket], said: bytes) -> None:
    line = Line(ends[0], 60.0)
    ends[1].sendall(said)
    ends[1].shutdown(socket.SHUT_WR)
    with pytest.raises(LineLost, match=r"no frame at all|no such file|died|has ended"):
        await line.answer()
    line.close()


async def test_a_machine_that_is_gone_ends_its_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        line = Line(ours, 60.0)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, every, times = (
            ours.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + every * times == GONE_S, "while nothing of ours is on its way"
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == GONE_S * 1000, "while something is"
        line.close()
