"""The recorder: launches one agent, at most once, and copies what it prints into its journal (P15, P16).

Chunk path 1/6. Before: the agent's stdout. After: `follow.py` reads the journal that is written here.

A program of its own, which outlives whatever started it, and of little more than the core of the standard library
(pathlib alone takes 5 ms): its start is part of a run's first byte. `main` gets one JSON object (`Job`) on stdin, never
on the command line, which all can read; it answers `ready`, `already`, `absent` or `failed <why>`. Whoever starts it
does so in a new session; it forks once more into yet another: Ray kills a worker's children whatever their session, but
no grandchild in a session of its own. The order matters, since machine or program may stop between any two steps:

 1. `<journal>.launch` is made under a private name, locked, filled, then link(2)ed: once in the life of a sandbox,
    whoever races. Its directory is never made here, so a sandbox that was destroyed does not come back.
 2. `<journal>` and `<journal>.exit` are made, the latter at its full size, so that a full disk cannot lose the end.
    Then `ready` is said. The directory is synced: after a power cut there is a launch file, or no agent ever ran.
 3. The agent starts. One read of its pipe is one write of the journal; a failed write is tried again each RETRY_S and
    holds the agent back. Its stderr goes to `<journal>.err`, which is cut to its last half at STDERR_BYTES.
 4. The agent has ended: its descendants, whose parent we are as child subreaper, get GRACE_S, then SIGKILL; the pipe is
    drained, for at most DRAIN_S; the journal is synced, and the exit is written over `running` and synced.

SIGTERM ends the agent and its descendants now (`killed`). The lock is held until this process is gone, however it goes;
so a free lock beside `running` means `lost`. The agent dies with us (PR_SET_PDEATHSIG). `AGENT_SANDBOX=<sandbox key>`
is in the environment of everything in a sandbox: `strays.py` finds by it what no process tree shows any more.

Deliberately not: a limit on how long a full disk may hold a run, which would drop output; a cancel ends it.
"""

# ruff: noqa: PTH108, PTH120, PTH123, PTH208
from __future__ import annotations

import binascii
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # importing `typing` takes 3 ms; mypy takes this name for true
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Job = dict[str, Any]  # {journal, argv, env, cwd, stdin (base64), maxLogBytes, sandbox (its key)}

MARKER = "AGENT_SANDBOX"
GRACE_S, DRAIN_S, RETRY_S = 2.0, 5.0, 1.0  # P16
KILL_S = 10.0  # what sleeps uninterruptibly outlives SIGKILL; `journalLength` is the bound of what it could print
PIPE_BYTES = STDERR_BYTES = 1 << 20  # what Linux lets anybody ask for (pipe-max-size)
EXIT_RECORD_BYTES = 512  # runtime/core/launch.py; the golden files hold the two together
MESSAGE_BYTES = 200  # twice that, if all of it needs a backslash, still fits
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

Process = tuple[int, int]  # pid, start time in clock ticks since boot: one process, in this boot (P5)


def read_stat(pid: int) -> tuple[int, int, bool] | None:
    """Return (parent's pid, start time, whether it still runs) of a process, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read(1024)
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    # A leader that ended before its other OS threads shows as a zombie with more than one thread.
    return int(fields[1]), int(fields[19]), fields[0] not in (b"Z", b"X") or int(fields[17]) > 1


def descendants(root: int) -> set[Process]:
    """Return the running descendants of process `root`, itself left out."""
    stats = {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := read_stat(int(name)))}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat[0], []).append(pid)
    found: set[Process] = set()
    queue = children.get(root, [])
    while queue:
        queue.extend(children.get(pid := queue.pop(), []))
        if stats[pid][2]:
            found.add((pid, stats[pid][1]))
    return found


def send(process: Process, signum: int) -> None:
    """Signal that very process, or none (P5)."""
    try:
        fd = os.pidfd_open(process[0])
    except OSError:
        return
    with suppress(OSError):  # just gone, or another user's: then `find` goes on to name it
        if (stat := read_stat(process[0])) and stat[1] == process[1]:
            signal.pidfd_send_signal(fd, signum)
    os.close(fd)


def end_all(find: Callable[[], set[Process]], within_s: float) -> set[Process]:
    """SIGKILL what `find` names until it names nothing; return what is left after `within_s`.

    All are stopped first: what is stopped cannot fork faster than it is found."""
    deadline = time.monotonic() + within_s
    while (found := find()) and time.monotonic() < deadline:
        stopped: set[Process] = set()
        while (fresh := found - stopped) and time.monotonic() < deadline:
            for process in fresh:
                send(process, signal.SIGSTOP)
            stopped |= fresh
            found = find()
        for process in stopped | found:
            send(process, signal.SIGKILL)
        time.sleep(0.001)
    return found


def to_json(value: dict[str, Any]) -> bytes:
    """Return canonical bytes: the same as msgspec makes of the same fields."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def launch_record() -> bytes:
    """Return the launch file's bytes: this process as a `LaunchRecord`."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id, stat = file.read().strip(), read_stat(os.getpid())
    return to_json({"bootId": boot_id, "pid": os.getpid(), "pidStartedAt": stat and stat[1], "version": 1}) + b"\n"


def exit_record(kind: str, length: int, code: int | None, signum: int | None, message: str | None) -> bytes:
    """Return the exit file's bytes: an `AgentExit`, padded so that every one has the same size."""
    if message is not None:
        message = "".join(c if c.isprintable() else "?" for c in message)
        message = message.encode()[:MESSAGE_BYTES].decode(errors="ignore")
    record = to_json({"kind": kind, "journalLength": length, "code": code, "signal": signum, "message": message})
    return record.ljust(EXIT_RECORD_BYTES - 1) + b"\n"


def claim(journal: str) -> int | None:
    """Return the locked launch file, which stays open, or None if there was one (P15). Raises FileNotFoundError: no
    sandbox."""
    private = f"{journal}.launch.{os.getpid()}.{os.urandom(6).hex()}"
    fd = os.open(private, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, launch_record())
        os.link(private, journal + ".launch")
    except FileExistsError:
        return None
    finally:
        os.unlink(private)
    return fd


def write_exit(files: list[int], record: bytes) -> None:
    """Write the exit over `running`, durably and after the journal; tried until it is written."""
    while True:
        with suppress(OSError):
            os.fsync(files[0])
            os.pwrite(files[1], record, 0)
            os.fsync(files[1])
            return
        time.sleep(RETRY_S)


def spawn(job: Job, prctl: Callable[..., int], fds: tuple[int, int, int], enter: Callable[[Any], None]) -> int:
    """Start the agent with `fds` as stdin, stdout and stderr; return its pid. Raises ChildProcessError: it cannot."""
    recorder = os.getpid()
    told, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            enter(fds)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user would clear it
            if os.getppid() == recorder:
                become(job, fds)
        except Exception as error:  # noqa: BLE001 - whatever it is, the recorder must hear of it
            why = getattr(error, "strerror", None) or error
            os.write(tell, f"{(job['argv'] or [''])[0]}: {why}".encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(tell)
    with open(told, "rb") as file:
        refusal = file.read()
    if refusal:
        os.waitpid(pid, 0)
        raise ChildProcessError(refusal.decode())
    return pid


def become(job: Job, fds: tuple[int, int, int]) -> NoReturn:
    """Turn this process into the agent: its own session, no signal ignored or blocked, nothing inherited."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    os.chdir(job["cwd"])
    env = {**job["env"], "TERM": "dumb", "PYTHONUNBUFFERED": "1", MARKER: job["sandbox"]}
    os.execvpe(job["argv"][0], job["argv"], env)  # noqa: S606 - no shell, on purpose


def pipe() -> tuple[int, int]:
    """Return the two ends of a large pipe, which an agent must not inherit by accident."""
    ends = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # this user's share of pipe memory is used up; 64 KiB do
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends


class Recorder:
    """One agent and its output, until nothing of either is left."""

    def __init__(self, job: Job, files: list[int], prctl: Callable[..., int]) -> None:
        self.kind, self.stop = "exited", False  # `stop`: SIGTERM came
        self.status: int | None = None  # of the agent's main process, once that has ended
        self.childless = False  # nothing of the agent is left
        self.deadline = 0.0  # first of the grace, then of the drain
        self.length = 0  # bytes in the journal
        self.limit = job["maxLogBytes"]
        self.over = False  # the agent printed more than that
        self.journal, _, self.err_file = files
        self.retry_at, self.err_size, self.complaint = 0.0, 0, b""
        self.buffer = memoryview(bytearray(PIPE_BYTES))
        self.pending = self.buffer[:0]  # read, and not yet in the journal
        self.woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stop", True))
        self.input = memoryview(binascii.a2b_base64(job["stdin"]))
        (stdin, self.stdin), (self.out, stdout), (self.err, stderr) = pipe(), pipe(), pipe()
        os.set_blocking(self.stdin, False)
        self.pid = spawn(job, prctl, (stdin, stdout, stderr), self.enter)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        self.open = {self.woken, self.out, self.err}

    def record(self) -> bytes:
        """Copy until the agent, its descendants and its output have ended; return the exit record."""
        self.feed()
        while not self.ended():
            self.move()
            self.reap()
            grace_is_over = self.status is not None and time.monotonic() > self.deadline
            if not self.childless and (self.stop or self.over or grace_is_over):
                self.kill()
        self.keep_stderr(b"")
        code = os.waitstatus_to_exitcode(signal.SIGKILL if self.status is None else self.status)
        return exit_record(self.kind, self.length, code if code >= 0 else None, -code if code < 0 else None, None)

    def ended(self) -> bool:
        """Return whether the exit can be recorded. What waits for a full disk is given up for a SIGTERM alone."""
        if self.pending or not self.childless:
            return self.childless and self.stop
        return self.open == {self.woken} or time.monotonic() > self.deadline

    def move(self) -> None:
        """Move bytes, or wait until there are some, a signal came or it is time for something."""
        times = [self.retry_at] if self.pending else [self.deadline] if self.status is not None else []
        timeout = max(0.0, min(times) - time.monotonic() + 0.001) if times else None
        readers = self.open - {self.out} if self.pending else self.open
        ready, hungry, _ = select.select(readers, [self.stdin] if self.stdin >= 0 else [], [], timeout)
        if self.woken in ready:
            os.read(self.woken, 4096)
        if self.err in ready:
            self.keep_stderr(data := os.read(self.err, 1 << 16))
            self.open -= set() if data else {self.err}
        if self.out in ready:
            size = os.readv(self.out, [self.buffer])
            self.open -= set() if size else {self.out}
            self.over = self.over or size > self.limit - self.length
            self.pending = self.buffer[: min(size, self.limit - self.length)]
            self.write()
        elif self.pending and time.monotonic() >= self.retry_at:
            self.write()
        if hungry:
            self.feed()

    def write(self) -> None:
        """Write what is pending; what fails stays pending until `retry_at`, and is not counted against the drain."""
        while self.pending:
            try:
                size = os.write(self.journal, self.pending)
            except OSError:
                self.retry_at = time.monotonic() + RETRY_S
                self.deadline = max(self.deadline, self.retry_at + DRAIN_S) if self.childless else self.deadline
                return
            self.length += size
            self.pending = self.pending[size:]

    def keep_stderr(self, data: bytes) -> None:
        """Keep the end of what the agent complained of. It never holds the agent back: on a full disk it waits here."""
        self.complaint = (self.complaint + data)[-STDERR_BYTES // 2 :]
        with suppress(OSError):
            if self.err_size + len(self.complaint) > STDERR_BYTES:
                kept = os.pread(self.err_file, STDERR_BYTES // 2, self.err_size - STDERR_BYTES // 2)
                self.err_size = os.pwrite(self.err_file, kept, 0)
                os.ftruncate(self.err_file, self.err_size)
            size = os.pwrite(self.err_file, self.complaint, self.err_size)
            self.err_size, self.complaint = self.err_size + size, self.complaint[size:]

    def feed(self) -> None:
        """Give the agent as much of its input as it takes now; at the end, or if it wants no more, EOF."""
        with suppress(BrokenPipeError):
            while self.input:
                try:
                    self.input = self.input[os.write(self.stdin, self.input) :]
                except BlockingIOError:
                    return
        os.close(self.stdin)
        self.stdin = -1

    def reap(self) -> None:
        """Take note of ended children, and set the deadline that follows from it."""
        while not self.childless:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                self.deadline = time.monotonic() + (0.1 if self.stop else DRAIN_S)
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = status
                self.deadline = time.monotonic() + GRACE_S

    def kill(self) -> None:
        """End what is left of the agent; the exit says so, unless its main process had ended by itself."""
        if self.status is None:
            self.kind = "killed" if self.stop else "log_limit"
        self.childless = bool(end_all(self.left, KILL_S)) or self.childless

    def left(self) -> set[Process]:
        """Return what is left of the agent."""
        self.reap()
        return set() if self.childless else descendants(os.getpid())

    def enter(self, fds: tuple[int, int, int]) -> None:
        """Become the agent's user, in the agent's process: here it is ours."""


def reply(text: str) -> None:
    """Answer who started us, if it is still there, and let go of its pipes."""
    with suppress(OSError):
        os.write(1, text.encode(errors="replace"))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def run(job: Job, kind: type[Recorder] = Recorder) -> None:
    """Launch and record one agent: the numbered steps above."""
    journal = job["journal"]
    try:
        if claim(journal) is None:
            reply("already")
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        files = [os.open(journal + suffix, flags, 0o600) for suffix in ("", ".exit", ".err")]
        os.write(files[1], b'{"state":"running"}'.ljust(EXIT_RECORD_BYTES - 1) + b"\n")
    except OSError as error:
        reply("absent" if isinstance(error, FileNotFoundError) else f"failed {error}")
        return
    reply("ready")
    os.fsync(os.open(os.path.dirname(journal), os.O_RDONLY | os.O_CLOEXEC))
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        record = kind(job, files, prctl).record()
    except ChildProcessError as error:
        record = exit_record("spawn_failed", 0, None, None, str(error))
    write_exit(files, record)


def detach() -> None:
    """Leave whoever started us: session, folder, descriptors, signals and priority."""
    os.setsid()
    os.closerange(3, 1 << 20)
    os.chdir("/")
    for signum in (signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Ray starts workers with niceness 15 and first in line for the OOM killer; neither is meant for agents.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("0")
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def main() -> NoReturn:
    """Detach, read the job, run it."""
    if os.fork():
        os._exit(0)
    detach()
    run(json.loads(sys.stdin.buffer.read()))  # raises if who started us ended in the middle of a sentence
    os._exit(0)


if __name__ == "__main__":
    main()
