"""Fills a new workspace in a container from the driver's side: what `workspace_filler.py` takes.

The source is made ready on the driver's host first, by the rules of `filling.py` (nothing of an archive lies or leads
outside, bounds, a git without credentials), since a container may have neither git nor a network. What is sent is that
folder, file by file, none of it through a path that has a link in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path

from runtime.errors import LaunchFailed, SandboxUnreachable
from runtime.sandboxes.container_line import Line

SEND_S = 840.0  # less than a `create` is waited for
PIECE_BYTES = 1 << 20

Prepared = Callable[[], AbstractContextManager[Path]]  # makes a folder of the source; blocks


async def is_made(line: Line) -> bool:
    """Return whether the workspace is there already; waits for whoever is filling it. Raises LineLost."""
    return bool((await line.answer())[0]["state"] == "made")


async def send(line: Line, folder: Path) -> None:
    """Fill the workspace with what is in `folder`, unless another one was first.

    Raises LaunchFailed if there it cannot be written, SandboxUnreachable, LineLost, OSError."""
    try:
        async with asyncio.timeout(SEND_S):
            if await is_made(line):
                return
            pieces = _pieces(folder)
            while piece := await asyncio.to_thread(next, pieces, b""):
                await line.send(piece)
            facts, _ = await line.answer()
    except TimeoutError as error:
        raise SandboxUnreachable(f"The workspace is still not filled after {SEND_S:.0f} s.") from error
    if "error" in facts:
        raise LaunchFailed(f"The workspace could not be filled in its container: {facts['error']}.")


@asynccontextmanager
async def prepared(make: Prepared) -> AsyncIterator[Path]:
    """Yield the folder that `make` makes on an OS thread; it is removed at the end, however that comes."""
    stack = ExitStack()
    entering = asyncio.ensure_future(asyncio.to_thread(stack.enter_context, make()))
    try:
        yield await asyncio.shield(entering)
    finally:
        if entering.done():
            await asyncio.to_thread(stack.close)
        else:  # nobody waits for it any more
            entering.add_done_callback(lambda _: stack.close())


def _pieces(folder: Path) -> Iterator[bytes]:
    """Yield what is in the folder, in pieces worth sending."""
    held = bytearray()
    for part in _parts(folder):
        held += part
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def _parts(folder: Path) -> Iterator[bytes]:
    folders = [str(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                seen = entry.stat(follow_symlinks=False)
                facts = {"path": os.path.relpath(entry.path, folder), "mode": stat.S_IMODE(seen.st_mode) & 0o777}
                if stat.S_ISDIR(seen.st_mode):
                    folders.append(entry.path)
                    yield _line(**facts, kind="folder")
                elif stat.S_ISLNK(seen.st_mode):
                    yield _line(**facts, kind="link", target=str(Path(entry.path).readlink()))
                else:
                    yield _line(**facts, kind="file", size=seen.st_size)
                    yield from _content(entry.path, seen.st_size)
    yield _line(kind="end")


def _content(path: str, size: int) -> Iterator[bytes]:
    with Path(path).open("rb") as file:
        while size:
            piece = file.read(min(PIECE_BYTES, size))
            if not piece:
                raise OSError(f"{path} was cut off while it was read")
            size -= len(piece)
            yield piece


def _line(**facts: object) -> bytes:
    return json.dumps(facts).encode() + b"\n"
