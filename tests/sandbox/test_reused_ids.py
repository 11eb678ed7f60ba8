"""After a boot, process ids begin anew: a recorder's may be that of an OS thread now, which is no process (P5, P16)."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runtime import process
from runtime.core.launch import ExitKind, LaunchRecord
from runtime.process import ProcessIdentity
from runtime.sandboxes import strays
from runtime.sandboxes.follow import JournalFollower
from runtime.sandboxes.recording import Recording


@pytest.fixture
def thread_id() -> Iterator[int]:
    """The id of an OS thread that is not the first of its process."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    yield thread.native_id
    end.set()
    thread.join()


def test_a_thread_is_no_process_to_be_signalled(thread_id: int) -> None:
    assert process.open_pidfd(thread_id) is None
    was = ProcessIdentity(boot_id=process.boot_id(), pid=thread_id, pid_started_at=1)
    assert not process.send(was, signal.SIGKILL)
    assert strays.ask_to_end((thread_id, 1), patience_s=0.0)


async def test_an_agent_whose_recorders_id_a_thread_has_now_is_lost_and_its_journal_is_read(
    tmp_path: Path, thread_id: int
) -> None:
    of_the_last_boot = LaunchRecord(boot_id="another", pid=thread_id, pid_started_at=1)
    (tmp_path / "journal.launch").write_bytes(msgspec.json.encode(of_the_last_boot))
    (tmp_path / "journal").write_bytes(b"one\ntwo\n")
    recording = Recording.open(tmp_path, "local/none/of/these")
    assert recording is not None
    following = JournalFollower(recording)
    async with asyncio.timeout(10):
        assert b"".join([piece async for piece in following.follow(0)]) == b"one\ntwo\n"
        exit = await following.look()
    assert exit is not None
    assert (exit.kind, exit.journal_length) == (ExitKind.LOST, 8)
