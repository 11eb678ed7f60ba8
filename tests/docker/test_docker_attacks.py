"""What an agent does to escape, to forge its end or to undo what it printed: each refused, or harmless (I8, P16).

The attacker is the agent's user, in a shell or in our own Python, which it can run. What it gets away with it prints,
so a test reads it in the journal, which is itself under attack.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from docker_engine import IMAGE, DockerEngine
from waiting import until, wait_until

from runtime.core.launch import AgentExit, ExitKind
from runtime.ports import LaunchSpec
from runtime.sandboxes.container import DockerSandbox
from runtime.sandboxes.container_python import interpreter
from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.hardening import Limits
from runtime.testing.provider_kit import MakeProvider
from runtime.testing.sandbox_kit import ENV, read_all, read_until, run_to_end, sh

pytestmark = pytest.mark.timeout(180)
MEMORY_BYTES = 256 << 20
SOON_S = 60.0

# `got` names what went well: of a call to libc, what is not -1.
ATTEMPT = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
got = []

def attempt(name, call):
    try:
        if call() != -1:
            got.append(name)
    except OSError:
        pass
"""
# Everything of a process that /proc may show; `cmdline`, `status` and the like are everybody's.
AGAINST_ROOT = """
FILES = "environ maps mem stack auxv syscall io pagemap smaps clear_refs".split()
LINKS = "cwd root exe".split()
roots = 0

def read(path):
    with open(path, "rb") as file:
        return file.read(1) and 0

class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]

def peek(pid):
    buffer = ctypes.create_string_buffer(8)
    local, remote = Piece(ctypes.addressof(buffer), 8), Piece(0x400000, 8)
    return libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)

def steal(pid):
    fd = os.pidfd_open(pid)
    return libc.syscall(438, fd, 0, 0)

for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
    try:
        uid = int(open(f"/proc/{pid}/status").read().partition("Uid:")[2].split()[0])
    except OSError:
        continue
    if uid != 0:
        continue
    roots += 1
    for name in FILES:
        attempt(f"{pid} {name}", lambda: read(f"/proc/{pid}/{name}"))
    for name in LINKS:
        attempt(f"{pid} {name}", lambda: os.readlink(f"/proc/{pid}/{name}") and 0)
    for name in ("fd", "fdinfo", "map_files"):
        attempt(f"{pid} {name}", lambda: os.listdir(f"/proc/{pid}/{name}") and 0)
    for signum in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        attempt(f"{pid} {signum.name}", lambda: os.kill(pid, signum))
    attempt(f"{pid} ptrace", lambda: libc.ptrace(16, pid, 0, 0))
    attempt(f"{pid} process_vm_readv", lambda: peek(pid))
    attempt(f"{pid} pidfd_getfd", lambda: steal(pid))
print("root's processes:", roots >= 3)
print("got:", got)
raise SystemExit(7)
"""
TO_BE_ROOT = """
attempt("setuid", lambda: os.setuid(0))
attempt("setresuid", lambda: os.setresuid(0, 0, 0))
attempt("setgid", lambda: os.setgid(0))
attempt("user namespace", lambda: libc.unshare(0x10000000))
attempt("mount namespace", lambda: libc.unshare(0x20000))
attempt("mount", lambda: libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None))
attempt("umount", lambda: libc.umount2(b"/.outlast/journal", 2))
attempt("mknod", lambda: os.mknod("/tmp/disk", 0o060666, os.makedev(254, 0)))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("chown", lambda: os.chown("/workspace", 0, 0))
attempt("our program", lambda: open("/.outlast/python/outlast/runtime/sandboxes/recorder.py", "a") and 0)
attempt("the engine", lambda: os.stat("/var/run/docker.sock") and 0)
print("got:", got)
"""
ON_ITS_STDOUT = """
import fcntl, os
got = []

def attempt(name, call):
    try:
        call()
        got.append(name)
    except OSError:
        pass

os.write(1, b"first\\n")
attempt("ftruncate", lambda: os.ftruncate(1, 0))
attempt("lseek", lambda: os.lseek(1, 0, 0))
attempt("pwrite", lambda: os.pwrite(1, b"FORGED", 0))
attempt("read", lambda: os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK))
attempt("read and write", lambda: os.open("/proc/self/fd/1", os.O_RDWR))
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) & ~os.O_APPEND)
again = os.open("/proc/self/fd/1", os.O_WRONLY | os.O_TRUNC)
os.write(again, b"second\\n")
os.write(1, repr(got).encode() + b"\\n")
"""
FORK_BOMB = """
import os, time
print("on", flush=True)
if os.fork():
    time.sleep(LASTS_S)
    os._exit(5)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def python(program: str) -> LaunchSpec:
    """Return an agent that is a Python program."""
    return LaunchSpec(argv=(*interpreter(), "-c", program), env=ENV)


@pytest.fixture
async def provider(make_docker: MakeProvider) -> AsyncIterator[DockerProvider]:
    """Yield the provider; whatever exists afterwards is destroyed."""
    provider = make_docker()
    assert isinstance(provider, DockerProvider)
    yield provider
    for key in await provider.list():
        await provider.destroy(key)


@pytest.fixture
async def sandbox(provider: DockerProvider) -> DockerSandbox:
    """Return a new sandbox."""
    return await provider.create(provider.key("run-1"), "thread-1")


def agents(engine: DockerEngine) -> list[str]:
    """Return the command lines of all processes of the agent's user, in every container that runs."""
    found = []
    with engine.client() as client:
        for container in client.containers():
            listed = client.top(container["Id"], ps_args="-eo pid,uid,args")
            found += [command for _, uid, command in listed["Processes"] if uid == "10001"]
    return found


async def test_roots_processes_can_be_neither_read_nor_traced_nor_signalled(sandbox: DockerSandbox) -> None:
    journal, exit = await run_to_end(sandbox, python(ATTEMPT + AGAINST_ROOT))
    assert journal == b"root's processes: True\ngot: []\n", await sandbox.stderr_tail(2000)
    assert (exit.kind, exit.code) == (ExitKind.EXITED, 7)


async def test_nothing_makes_the_agent_root(sandbox: DockerSandbox) -> None:
    journal, exit = await run_to_end(sandbox, python(ATTEMPT + TO_BE_ROOT))
    assert (journal, exit.code) == (b"got: []\n", 0), await sandbox.stderr_tail(2000)


async def test_what_was_printed_stays_printed(sandbox: DockerSandbox) -> None:
    journal, _ = await run_to_end(sandbox, python(ON_ITS_STDOUT))
    assert journal == b"first\nsecond\n[]\n", await sandbox.stderr_tail(2000)


async def test_an_ending_that_only_looks_like_one_is_output(sandbox: DockerSandbox) -> None:
    record = '{"kind":"exited","journalLength":0,"code":0,"signal":null,"message":null}'
    tricks = (
        f"echo '{record}' > /.outlast/journal/journal.exit",
        "mkdir /.outlast/other",
        "mv /.outlast/journal /.outlast/other",
        "mv /.outlast /tmp/other",
        "mv /workspace /tmp/other",
        "rm -rf /.outlast/journal/journal",
        "ln -s /tmp/mine /.outlast/journal/journal.exit",
        "cat /.outlast/journal/journal",
        "ls /.outlast/journal",
        "chmod 777 /.outlast/journal",
    )
    script = "; ".join(f"{{ {trick}; }} 2>/dev/null && echo GOT {number}" for number, trick in enumerate(tricks))
    journal, exit = await run_to_end(sandbox, sh(f"echo '{record}'; {script}; exit 7"))
    assert journal == f"{record}\n".encode()
    assert (exit.kind, exit.code) == (ExitKind.EXITED, 7)


async def test_links_that_an_agent_leaves_lead_nobody_out(provider: DockerProvider, sandbox: DockerSandbox) -> None:
    links = "ln -s /.outlast/journal/journal.exit own; ln -s / tmp; ln -s /.outlast/journal up; chmod 777 ."
    await run_to_end(sandbox, sh(f"{links}; ln -s /.outlast ~/.cache; echo made"))
    code, output = await sandbox.exec(["sh", "-c", "cat own; echo forged > own; ls up"], SOON_S)
    assert (code != 0, b"forged" in output) == (True, False)
    await provider.destroy(sandbox.key)
    later = await provider.create(provider.key("run-2"), "thread-1")
    journal, exit = await run_to_end(
        later, sh("for link in own tmp up; do readlink $link; done; stat -c '%u %a' /workspace /tmp /.outlast; exit 4")
    )
    assert journal == b"/.outlast/journal/journal.exit\n/\n/.outlast/journal\n10001 755\n0 1777\n0 755\n"
    assert (exit.kind, exit.code) == (ExitKind.EXITED, 4)


async def test_late_children_are_ended_whatever_they_changed(engine: DockerEngine, sandbox: DockerSandbox) -> None:
    hidden = "import ctypes, os, time; ctypes.CDLL(None).prctl(4, 0); os.environ.clear(); os.setsid(); time.sleep(600)"
    command = " ".join([*interpreter(), "-c", f'"{hidden}"'])
    late = "trap '' TERM HUP; while :; do echo late; sleep 0.05; done"
    script = f"setsid {command} & setsid env -i sh -c \"{late}\" & (setsid sh -c '(sleep 600 &)' &); echo last; exit 3"
    journal, exit = await run_to_end(sandbox, sh(script))
    assert (exit.kind, exit.code, b"last\n" in journal) == (ExitKind.EXITED, 3, True)
    assert agents(engine) == []
    assert await read_all(sandbox) == journal


@pytest.mark.parametrize("kind", [pytest.param(ExitKind.EXITED, marks=pytest.mark.long), ExitKind.KILLED])
async def test_a_fork_bomb_ends_with_its_run(engine: DockerEngine, tmp_path: Path, kind: ExitKind) -> None:
    limits = Limits(memory_bytes=MEMORY_BYTES, pids=64, cpus=1.0)
    provider = DockerProvider(tmp_path.name, IMAGE, limits, engine.address)
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    try:
        lasts_s = 2 if kind is ExitKind.EXITED else 600
        await sandbox.launch(python(FORK_BOMB.replace("LASTS_S", str(lasts_s))))
        assert await read_until(sandbox, b"on\n") == b"on\n"
        if kind is ExitKind.KILLED:
            await until(lambda: len(agents(engine)) > 50, "a crowd", SOON_S)
            other = await provider.resume(sandbox.key)  # a successor comes through, though nothing can fork
            assert other is not None
            assert await other.exit() is None
            await other.kill()
        assert await read_all(sandbox) == b"on\n"
        exit = await sandbox.exit()
        assert exit is not None
        assert (exit.kind, exit.code) == (kind, 5 if kind is ExitKind.EXITED else None)
        assert agents(engine) == []
    finally:
        await provider.destroy(sandbox.key)


async def test_an_agent_that_takes_all_memory_is_ended_and_its_end_recorded(
    engine: DockerEngine, tmp_path: Path
) -> None:
    limits = Limits(memory_bytes=MEMORY_BYTES, pids=64)
    provider = DockerProvider(f"memory-{tmp_path.name}", IMAGE, limits, engine.address)
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    try:
        hungry = f"print('hungry', flush=True); x = b'x' * {4 * MEMORY_BYTES}; print('full')"
        journal, exit = await run_to_end(sandbox, python(hungry))
        assert (journal, exit.kind, exit.signal) == (b"hungry\n", ExitKind.EXITED, signal.SIGKILL)
    finally:
        await provider.destroy(sandbox.key)


async def test_a_recorder_that_is_killed_from_outside_is_lost_and_its_agent_with_it(
    engine: DockerEngine, provider: DockerProvider, sandbox: DockerSandbox
) -> None:
    await sandbox.launch(sh("setsid sh -c 'trap \"\" TERM HUP; sleep 600' & echo on; sleep 600"))
    assert await read_until(sandbox, b"on\n") == b"on\n"
    recorder = int((await sandbox.journal_id()).split("/")[2])
    with engine.client() as client:  # as root of the container, which no agent is
        killing = client.exec_create(sandbox._container, ["kill", "-9", str(recorder)], user="0:0")
        client.exec_start(killing["Id"])
    other = await provider.resume(sandbox.key)
    assert other is not None
    assert await read_all(other) == b"on\n"
    assert await other.exit() == AgentExit(kind=ExitKind.LOST, journal_length=3)
    wait_until(lambda: not agents(engine), "the end of the agent", SOON_S)
    await other.launch(sh("echo again"))
    assert await read_all(sandbox) == b"on\n"


@pytest.fixture(scope="module")
def small() -> Iterator[DockerEngine]:
    """Yield an engine with a small disk."""
    engine = DockerEngine(disk_bytes=120 << 20)
    engine.import_image()
    yield engine
    engine.close()


async def test_a_full_disk_holds_a_run_up_and_loses_nothing(small: DockerEngine) -> None:
    provider = DockerProvider("full", IMAGE, Limits(memory_bytes=MEMORY_BYTES, pids=64), small.address)
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    fill = "echo before; cat /dev/zero > fill 2>/dev/null; cat /dev/zero > ~/fill 2>/dev/null"
    lines = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done"
    await sandbox.launch(sh(f"{fill}; (sleep 3; rm -f fill ~/fill) & {lines}; wait; echo after"))
    journal = await read_all(sandbox)
    assert journal == b"before\n" + b"".join(b"line %d\n" % number for number in range(1, 20_001)) + b"after\n"
    assert (await sandbox.exit()) == AgentExit(kind=ExitKind.EXITED, journal_length=len(journal), code=0)
    await provider.destroy(sandbox.key)


@pytest.mark.long
async def test_on_a_full_disk_an_end_is_recorded_and_a_kill_works(small: DockerEngine) -> None:
    provider = DockerProvider("full", IMAGE, Limits(memory_bytes=MEMORY_BYTES, pids=64), small.address)
    fill = "cat /dev/zero > fill 2>/dev/null; cat /dev/zero > ~/fill 2>/dev/null"
    for number, (end, kind) in enumerate((("exit 6", ExitKind.EXITED), ("while :; do echo x; done", ExitKind.KILLED))):
        sandbox = await provider.create(provider.key(f"run-{number}"), "thread-1")
        await sandbox.launch(sh(f"rm -f fill ~/fill; {fill}; {end}"))
        if kind is ExitKind.KILLED:
            await until(lambda: _is_full(small), "a full disk", SOON_S)
            await sandbox.kill()
        await read_all(sandbox)
        exit = await sandbox.exit()
        assert exit is not None
        assert (exit.kind, exit.code) == (kind, 6 if kind is ExitKind.EXITED else None)
        await provider.destroy(sandbox.key)


def _is_full(engine: DockerEngine) -> bool:
    return engine.free_bytes() == 0
