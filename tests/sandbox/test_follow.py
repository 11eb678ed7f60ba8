"""Following a journal: without inotify, on another loop, and where the files are not what they should be."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from waiting import until

from runtime.core.launch import AgentExit, ExitKind, encode_exit
from runtime.errors import JournalUnavailable
from runtime.sandboxes import follow, recorder
from runtime.sandboxes.follow import JournalFollower
from runtime.sandboxes.local import LocalProvider, LocalSandbox
from runtime.sandboxes.recording import Recording
from runtime.testing.sandbox_kit import read_all, read_until, sh

RUNNING = b'{"state":"running"}'.ljust(511) + b"\n"


class NoInotify:
    """What libc says when a user's 128 inotify instances are in use."""

    def inotify_init1(self, _flags: int) -> int:
        return -1


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "journal.launch").write_bytes(recorder.launch_record())
    return tmp_path


@pytest.fixture
def held(home: Path) -> Iterator[int]:
    """The lock of a recorder, which is this process."""
    lock = os.open(home / "journal.launch", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield lock
    os.close(lock)


def follower(home: Path) -> JournalFollower:
    recording = Recording.open(home, "local/none/of/these")
    assert recording is not None
    return JournalFollower(recording)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def pieces(following: JournalFollower, start: int = 0) -> bytes:
    async with asyncio.timeout(10):
        return b"".join([piece async for piece in following.follow(start)])


async def test_without_inotify_lines_still_arrive(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_libc", NoInotify())
    await sandbox.launch(sh("echo on; while [ ! -e gate ]; do sleep 0.01; done; echo off"))
    assert await read_until(sandbox, b"\n") == b"on\n"
    await sandbox.exec(["touch", "gate"], 10)
    assert await read_all(sandbox) == b"on\noff\n"


def test_it_follows_on_uvloop_too(provider: LocalProvider) -> None:
    async def run() -> bytes:
        sandbox = await provider.create(provider.key("run-1"), "thread-1")
        await sandbox.launch(sh("echo on; sleep 0.1; head -c 1000000 /dev/zero"))
        journal = await read_all(sandbox)
        await provider.destroy(sandbox.key)
        return journal

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == b"on\n" + b"\0" * 1_000_000


async def test_an_empty_journal_is_waited_on_without_a_limit(home: Path, held: int) -> None:
    following = asyncio.create_task(pieces(follower(home)))
    await asyncio.sleep(0)
    (home / "journal").touch()
    (home / "journal.exit").write_bytes(RUNNING)
    written = (home / "journal").open("ab", buffering=0)
    with written:
        await asyncio.wait([following], timeout=0.1)
        assert not following.done()
        written.write(b"at last\n")
    with (home / "journal.exit").open("r+b") as file:
        file.write(encode_exit(AgentExit(kind=ExitKind.EXITED, journal_length=8, code=0)))
    assert await following == b"at last\n"
    assert os.fstat(held).st_nlink == 1


async def test_nothing_after_the_recorded_length_belongs_to_the_run(home: Path) -> None:
    (home / "journal").write_bytes(b"ours\nnot ours\n")
    (home / "journal.exit").write_bytes(encode_exit(AgentExit(kind=ExitKind.EXITED, journal_length=5, code=0)))
    assert await pieces(follower(home)) == b"ours\n"
    assert await pieces(follower(home), 5) == b""
    assert await pieces(follower(home), 6) == b""


async def test_a_journal_shorter_than_its_record_is_unavailable(home: Path) -> None:
    (home / "journal").write_bytes(b"short")
    (home / "journal.exit").write_bytes(encode_exit(AgentExit(kind=ExitKind.EXITED, journal_length=10, code=0)))
    with pytest.raises(JournalUnavailable, match="ends at 5, its record says 10"):
        await pieces(follower(home))


async def test_a_recorder_that_ended_before_it_made_a_journal_is_lost(home: Path) -> None:
    assert await pieces(follower(home)) == b""
    assert await follower(home).look() == AgentExit(kind=ExitKind.LOST, journal_length=0)


async def test_a_journal_that_is_no_file_is_unavailable(home: Path) -> None:
    (home / "journal").mkdir()
    (home / "journal.exit").write_bytes(RUNNING)
    with pytest.raises(JournalUnavailable, match="cannot be read"):
        await pieces(follower(home))


async def test_what_was_not_launched_cannot_be_followed(sandbox: LocalSandbox) -> None:
    with pytest.raises(JournalUnavailable, match="Nothing was launched"):
        await read_all(sandbox)


async def test_a_follower_that_leaves_gives_everything_back(sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("echo on; sleep 600"))
    await read_until(sandbox, b"on\n")
    before = descriptors()
    for _ in range(3):
        following = asyncio.create_task(read_all(sandbox))
        await until(lambda: descriptors() > before, "a follower")
        following.cancel()
        await asyncio.wait([following])
    assert descriptors() == before
