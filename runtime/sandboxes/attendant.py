"""Answers a driver from inside a container, as its root: launch, follow, exit, kill (P15, P16).

Chunk path 2/6 where the agent is in a container. Before: `recorder.py` writes the journal. After: `container_line.py`
reads what is sent here.

One process for one connection, which it does not outlive: at the end of its stdin it ends, whatever it is at. An engine
that was killed leaves that open, so it ends too when it has heard nothing for as long as its first argument says.

A request is a line of JSON, `{"op": ...}` and what that needs; an empty line only says that somebody is there. An
answer is a line of JSON, followed by as many bytes as its `bytes` says. Only `follow` has more than one: pieces of the
journal, the last one with the `exit`. An answer with `error` says what could not be done.

Like the recorder it is of little more than the core of the standard library, for its start is part of a run's first
byte, and like `recording.py` it decides `lost`: who finds the recorder's lock free takes it, and keeps it to its end.
"""

# ruff: noqa: PTH101, PTH110, PTH116, PTH123
from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

from runtime.sandboxes import baseline, recorder, spool
from runtime.sandboxes.isolated import IsolatedRecorder, become_agent, end_agents
from runtime.sandboxes.recorder import read_stat, to_json
from runtime.sandboxes.workspace_marks import Marks

TYPE_CHECKING = False  # as in `recorder.py`
if TYPE_CHECKING:
    from typing import Any, BinaryIO, NoReturn

    Facts = dict[str, Any]

JOURNAL_FOLDER = "/.outlast/journal"
BASELINES = "/.outlast/baselines"
JOURNAL = f"{JOURNAL_FOLDER}/journal"
SPOOL = "/.outlast/tools"  # made with the container: `calls` in it is the agent's, all else ours
HOME = "/home/agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where the image names none
PIECE_BYTES = 64 << 10
LOOK_S = 1.0  # for what inotify and the recorder's pidfd cannot say
POLL_S = 0.02  # where there is no inotify
IN_MODIFY, IN_MOVED_TO = 0x2, 0x80
PR_SET_NAME = 15
RUNNING = b'{"state":"running"}'


class Connection:
    """Requests and answers."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._heard_at = time.monotonic()
        self._heard = b""
        os.set_blocking(1, False)

    def request(self) -> Facts:
        """Wait for the next request, and return it."""
        while True:
            line, newline, rest = self._heard.partition(b"\n")
            if not newline:
                self.wait()
                continue
            self._heard = rest
            if line:
                facts: Facts = json.loads(line)
                return facts

    def answer(self, data: bytes = b"", **facts: Any) -> None:
        """Send one answer."""
        left = memoryview(to_json({**facts, "bytes": len(data)}) + b"\n" + data)
        while left:
            if self.wait(writes=[1])[1]:
                with suppress(BlockingIOError):
                    left = left[os.write(1, left) :]

    def wait(
        self, reads: list[int] | None = None, writes: list[int] | None = None, within_s: float = LOOK_S
    ) -> tuple[list[int], list[int]]:
        """Wait until there is something to read or room to write; take in what the client says. At the end of the
        connection the process ends."""
        readable, writable, _ = select.select([0, *(reads or [])], writes or [], [], within_s)
        now = time.monotonic()
        if 0 in readable:  # also what came while the container was paused
            data = os.read(0, 1 << 20)
            if not data:
                os._exit(0)
            self._heard += data
            self._heard_at = now
        elif now - self._heard_at > self._silence_s:
            os._exit(0)
        return readable, writable


class Journal:
    """The files of the recording, and its lock."""

    def __init__(self) -> None:
        self._lock = -1
        self._ours = False

    def launch(self) -> Facts | None:
        """Return the launch record; None if nothing was launched."""
        if self._lock < 0:
            try:
                self._lock = os.open(f"{JOURNAL}.launch", os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        record: Facts = json.loads(os.pread(self._lock, 4096, 0))
        return record

    def take(self) -> bool:
        """Take the recorder's lock if it is free; return whether it is ours."""
        if not self._ours:
            with suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._ours = True
        return self._ours

    def made(self) -> bool:
        """Return whether journal and exit file are there."""
        return os.path.exists(JOURNAL) and os.path.exists(f"{JOURNAL}.exit")

    def exit(self) -> Facts | None:
        """Return the exit, None while the agent lives. Decides `lost` (P15)."""
        exit = self._recorded()
        if exit is None and self.launch() is not None and self.take():
            exit = self._recorded() or self._lose()
        return exit

    def _recorded(self) -> Facts | None:
        try:
            with open(f"{JOURNAL}.exit", "rb") as file:
                text = file.read().strip()
        except FileNotFoundError:
            return None
        with suppress(ValueError):
            record: Facts = json.loads(text or RUNNING)
            return record if "kind" in record else None
        return None

    def _lose(self) -> Facts:
        end_agents()
        size = os.stat(JOURNAL).st_size if os.path.exists(JOURNAL) else 0
        record = recorder.exit_record("lost", size, None, None, None)
        with suppress(OSError):  # we keep the lock, so nobody can come to another answer
            fd = os.open(f"{JOURNAL}.exit", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(fd, record, 0)
            os.fsync(fd)
            os.close(fd)
        lost: Facts = json.loads(record)
        return lost


class Attendant:
    """Does what one connection asks for."""

    def __init__(self, silence_s: float) -> None:
        self._connection = Connection(silence_s)
        self._journal = Journal()

    def serve(self) -> NoReturn:
        """Answer until the connection ends."""
        ops = {
            "launched": self.launched,
            "launch": self.launch,
            "follow": self.follow,
            "read": self.read,
            "exit": self.exit,
            "stderr": self.stderr,
            "kill": self.kill,
            "offer": self.offer,
            "calls": self.calls,
            "answer": self.answer,
        }
        while True:
            request = self._connection.request()
            try:
                ops[request["op"]](request)
            except OSError as error:
                self._connection.answer(error=str(error))

    def launched(self, _: Facts) -> None:
        """Say what tells this journal from others: which process recorded it; null if nothing was launched."""
        launch = self._journal.launch()
        self._connection.answer(journal=launch and f"{launch['bootId']}/{launch['pid']}/{launch['pidStartedAt']}")

    def launch(self, request: Facts) -> None:
        """Fork a recorder, and say what it says. `absent` cannot be: a container has its journal's volume."""
        os.chmod(JOURNAL_FOLDER, 0o700)
        job = request["job"]
        if self._journal.launch() is None and os.path.ismount(BASELINES):  # not in a container of an older version
            Marks(BASELINES, job["cwd"]).settle()
            baseline.take(job["cwd"], BASELINES, request["run"], write_as_agent)
        job["journal"] = JOURNAL
        job["env"] = {"PATH": os.environ.get("PATH", PATH), "HOME": HOME, **job["env"]}
        reply, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            record(job, told)
        os.close(told)
        with open(reply, "rb") as file:
            said = file.read()
        os.waitpid(pid, 0)
        while self._journal.launch() is not None and not self._journal.made() and not self._journal.take():
            time.sleep(POLL_S / 4)  # whoever was first is between its first and its second step
        launched = self._journal.launch() is not None
        self._connection.answer(said="launched" if launched else said.decode(errors="replace"))

    def follow(self, request: Facts) -> None:
        """Send the journal from `start` to its end."""
        position = request["start"]
        with Watch(self._journal, self._connection) as watch:
            exit = self._journal.exit()
            while True:
                size = PIECE_BYTES if exit is None else min(PIECE_BYTES, exit["journalLength"] - position)
                if size > 0 and (piece := watch.read(size, position)):
                    position += len(piece)
                    self._connection.answer(piece)
                elif exit is None:
                    exit = self._journal.exit()
                    if exit is None:
                        watch.wait()
                elif size > 0:
                    raise OSError(f"it ends at {position}, its record says {exit['journalLength']}")
                else:
                    self._connection.answer(exit=exit)
                    return

    def read(self, request: Facts) -> None:
        """Send a stretch of the journal."""
        fd = os.open(JOURNAL, os.O_RDONLY)
        try:
            self._connection.answer(os.pread(fd, request["size"], request["start"]))
        finally:
            os.close(fd)

    def exit(self, _: Facts) -> None:
        """Say how the agent ended."""
        self._connection.answer(exit=self._journal.exit())

    def stderr(self, request: Facts) -> None:
        """Send the end of the agent's stderr."""
        data = b""
        with suppress(FileNotFoundError), open(f"{JOURNAL}.err", "rb") as file:
            data = file.read()  # bounded by the recorder
        self._connection.answer(data[max(0, len(data) - request["size"]) :])

    def offer(self, request: Facts) -> None:
        """Offer host tools."""
        spool.offer(SPOOL, request["name"], request["data"].encode())
        self._connection.answer()

    def calls(self, request: Facts) -> None:
        """Send the calls that wait; with none, wait for one."""
        deadline = time.monotonic() + request["waitS"]
        inotify: int = ctypes.CDLL(None).inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        watched = ctypes.CDLL(None).inotify_add_watch(inotify, f"{SPOOL}/{spool.CALLS}".encode(), IN_MOVED_TO) >= 0
        try:
            while not (found := spool.waiting(SPOOL, request["known"])) and time.monotonic() < deadline:
                ready, _ = self._connection.wait([inotify] if watched else [], within_s=LOOK_S if watched else POLL_S)
                if inotify in ready:
                    os.read(inotify, 4096)
        finally:
            if inotify >= 0:
                os.close(inotify)
        self._connection.answer(json.dumps(found).encode())

    def answer(self, request: Facts) -> None:
        """Answer a call."""
        spool.answer(SPOOL, request["id"], request["data"].encode())
        self._connection.answer()

    def kill(self, request: Facts) -> None:
        """Have the recorder end the agent and record that; if it does not, end both. Say how many are left."""
        launch = self._journal.launch()
        stat = launch and read_stat(launch["pid"])
        if launch and stat and stat[1] == launch["pidStartedAt"]:
            os.kill(launch["pid"], signal.SIGTERM)
            patience = time.monotonic() + request["patienceS"]
            while self._journal.exit() is None and time.monotonic() < patience:
                time.sleep(POLL_S / 4)
            if self._journal.exit() is None:
                os.kill(launch["pid"], signal.SIGKILL)
        left = end_agents()
        self._connection.answer(left=len(left), exit=self._journal.exit() if launch else None)


class Watch:
    """Wakes its one waiter when the journal or the exit file was written, or the recorder ended."""

    def __init__(self, journal: Journal, connection: Connection) -> None:
        self._connection = connection
        self._look_s = LOOK_S
        launch = journal.launch()
        if launch is None:
            raise FileNotFoundError("nothing was launched")
        while not journal.made() and not journal.take():
            time.sleep(POLL_S / 4)
        self._fd = os.open(JOURNAL, os.O_RDONLY) if os.path.exists(JOURNAL) else -1
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for name in (JOURNAL, f"{JOURNAL}.exit"):
            if self._inotify < 0 or libc.inotify_add_watch(self._inotify, name.encode(), IN_MODIFY) < 0:
                self._look_s = POLL_S
        self._pidfd = -1
        with suppress(OSError):  # gone, or not allowed here: the look each second sees it
            self._pidfd = os.pidfd_open(launch["pid"])

    def __enter__(self) -> Watch:  # noqa: PYI034 - `typing` takes 3 ms
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._fd, self._inotify, self._pidfd):
            if fd >= 0:
                os.close(fd)

    def read(self, size: int, position: int) -> bytes:
        """Return what is there."""
        return os.pread(self._fd, size, position) if self._fd >= 0 else b""

    def wait(self) -> None:
        """Return when there may be something new. At the end of the connection the process ends."""
        fds = [fd for fd in (self._inotify, self._pidfd) if fd >= 0]
        ready, _ = self._connection.wait(fds, within_s=self._look_s)
        if self._inotify in ready:
            with suppress(BlockingIOError):
                os.read(self._inotify, 4096)
        if self._pidfd in ready:
            os.close(self._pidfd)
            self._pidfd = -1


def write_as_agent(workspace: str, out: BinaryIO, before: baseline.Baseline | None) -> None:
    """Write a baseline: only the agent's user may read all of its files. Raises OSError."""
    pipe, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(pipe)
            become_agent()
            with open(told, "wb") as file:
                baseline.write(workspace, file, before)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(told)
    with open(pipe, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            out.write(piece)
    if os.waitpid(pid, 0)[1]:
        raise OSError("it could not be taken")


def record(job: Facts, told: int) -> NoReturn:
    """Become the recorder, in a process of its own that nobody waits for."""
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd, source in enumerate((null, told, null)):
        os.dup2(source, fd)
    try:
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"recorder")  # it still has our command line
        recorder.detach()
        recorder.run(job, IsolatedRecorder)
    finally:
        os._exit(0)


def main() -> NoReturn:
    """Serve the connection that stdin and stdout are."""
    try:
        Attendant(float(sys.argv[1])).serve()
    except BrokenPipeError:
        os._exit(0)
    except Exception as error:  # noqa: BLE001 - whoever is connected reads it
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
