"""What the recorder does with an agent: its environment, a full disk, a large log, a slow end."""

# ruff: noqa: ASYNC221, ASYNC240 - a test's loop has nothing else to do

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_deployment import DEPLOYMENT
from waiting import until

from runtime import process
from runtime.core.launch import AgentExit, ExitKind, decode_launch
from runtime.errors import LaunchFailed, SandboxLost
from runtime.ports import LaunchSpec
from runtime.sandboxes.launcher import start_recorder
from runtime.sandboxes.local import LocalProvider, LocalSandbox
from runtime.testing.sandbox_kit import ENV, read_all, read_until, run_to_end, sh

NUMBERS = b"".join(b"%d\n" % number for number in range(1, 400_001))  # 2.7 MB


def recorder_of(sandbox: LocalSandbox) -> int:
    launch = decode_launch((sandbox._home / "journal.launch").read_bytes())
    assert launch is not None
    return launch.pid


def spec(*argv: str) -> LaunchSpec:
    return LaunchSpec(argv=argv, env=ENV)


# --- what an agent starts with


async def test_the_environment_is_the_given_one_and_three_names(sandbox: LocalSandbox) -> None:
    journal, _ = await run_to_end(sandbox, spec("env", "-0"))
    found = dict(entry.split("=", 1) for entry in journal.decode().split("\0")[:-1])
    assert found == {**ENV, "TERM": "dumb", "PYTHONUNBUFFERED": "1", "AGENT_SANDBOX": sandbox.key}


# 32 and 33, which glibc keeps to itself: whoever inherits them ignored cannot change that.
C_LIBRARY_SIGNALS = 0b11 << 31


async def test_an_agent_inherits_three_descriptors_and_no_signal_settings(sandbox: LocalSandbox) -> None:
    script = "ls -l /proc/self/fd | wc -l; exec grep -E '^Sig(Ign|Blk)' /proc/self/status"
    journal, _ = await run_to_end(sandbox, sh(script))
    lines = journal.decode().split("\n")
    assert lines[0].strip() == "5"  # a heading, 0 to 2, and the folder that ls reads
    masks = [int(line.split()[1], 16) for line in lines[1:3]]
    assert [mask & ~C_LIBRARY_SIGNALS for mask in masks] == [0, 0]


async def test_an_agent_leads_a_session_and_recorder_and_launcher_have_others(sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("cat /proc/$$/stat; while [ ! -e gate ]; do sleep 0.01; done"))
    journal = await read_until(sandbox, b"\n")
    pid, session = int(journal.split()[0]), int(journal.split()[5])
    recorder = recorder_of(sandbox)
    assert session == pid
    assert os.getsid(recorder) == recorder
    assert len({session, recorder, os.getsid(0)}) == 3


async def test_no_secret_is_on_a_command_line_or_in_the_recorders_environment(sandbox: LocalSandbox) -> None:
    launch = LaunchSpec(argv=("/bin/sh", "-c", "echo $KEY; sleep 600"), env={**ENV, "KEY": "s3cret"}, stdin=b"s3cret")
    await sandbox.launch(launch)
    assert await read_until(sandbox, b"\n") == b"s3cret\n"
    for name in ("cmdline", "environ"):
        assert b"s3cret" not in Path(f"/proc/{recorder_of(sandbox)}/{name}").read_bytes()


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("no-such-agent",), "no-such-agent: No such file or directory"),
        (("/etc/passwd",), "/etc/passwd: Permission denied"),
        ((), ": list index out of range"),
        (("a\0b",), "a?b: execve: embedded null character in path"),
        (("true", "x" * 3_000_000), "true: Argument list too long"),
    ],
)
async def test_what_cannot_be_started_says_why(sandbox: LocalSandbox, argv: tuple[str, ...], why: str) -> None:
    journal, exit = await run_to_end(sandbox, spec(*argv))
    assert (journal, exit.kind, exit.message) == (b"", ExitKind.SPAWN_FAILED, why)


async def test_a_workspace_that_is_gone_is_a_spawn_that_failed(sandbox: LocalSandbox) -> None:
    Path(sandbox.workspace).rmdir()
    _, exit = await run_to_end(sandbox, sh("echo"))
    assert (exit.kind, exit.message) == (ExitKind.SPAWN_FAILED, "/bin/sh: No such file or directory")


async def test_bytes_that_are_no_utf8_pass_through_arguments_and_environment(sandbox: LocalSandbox) -> None:
    launch = LaunchSpec(argv=("sh", "-c", 'printf "$1$ODD"', "sh", "\udcff"), env={**ENV, "ODD": "\udcfe"})
    assert (await run_to_end(sandbox, launch))[0] == b"\xff\xfe"


# --- a launch that does not happen


def test_a_sandbox_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    with pytest.raises(SandboxLost):
        start_recorder(sh("echo"), tmp_path / "gone" / "journal", str(tmp_path), "local/x")
    assert not (tmp_path / "gone").exists()


async def test_a_launch_that_cannot_make_its_files_says_why(sandbox: LocalSandbox) -> None:
    (sandbox._home / "journal.exit").touch()
    with pytest.raises(LaunchFailed, match="exists"):
        await sandbox.launch(sh("echo"))
    assert await sandbox.launched()
    exit = await until(sandbox.exit, "the end of the recorder")
    assert exit == AgentExit(kind=ExitKind.LOST, journal_length=0)


# --- a full disk


async def test_a_failed_write_holds_the_agent_back_and_loses_nothing(sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("echo on; while [ ! -e gate ]; do sleep 0.01; done; cat; echo done > done", stdin=NUMBERS))
    await read_until(sandbox, b"on\n")
    recorder, journal = recorder_of(sandbox), sandbox._home / "journal"
    soft, hard = resource.prlimit(recorder, resource.RLIMIT_FSIZE)
    resource.prlimit(recorder, resource.RLIMIT_FSIZE, (500_000, hard))
    await sandbox.exec(["touch", "gate"], 10)
    await until(lambda: journal.stat().st_size == 500_000, "a journal that cannot grow")
    assert await sandbox.exec(["test", "-e", "done"], 10) == (1, b"")
    resource.prlimit(recorder, resource.RLIMIT_FSIZE, (soft, hard))
    assert await read_all(sandbox) == b"on\n" + NUMBERS
    assert await sandbox.exec(["test", "-e", "done"], 10) == (0, b"")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip(f"needs a file system of its own: {mount.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


async def test_a_full_disk_loses_nothing_once_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    provider = LocalProvider(small_disk, DEPLOYMENT, tmp_path / "workspaces")
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    await sandbox.launch(sh("cat; echo the end >&2; exit 3", stdin=NUMBERS))
    await until(lambda: os.statvfs(small_disk).f_bavail == 0, "a full disk")
    assert await sandbox.exit() is None
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    journal = await read_all(sandbox)
    assert journal == NUMBERS
    assert await sandbox.exit() == AgentExit(kind=ExitKind.EXITED, journal_length=len(NUMBERS), code=3)
    assert await sandbox.stderr_tail(100) == b"the end\n"
    await provider.destroy(sandbox.key)


async def test_the_exit_is_recorded_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    provider = LocalProvider(small_disk, DEPLOYMENT, tmp_path / "workspaces")
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    await sandbox.launch(sh("cat; sleep 600", stdin=NUMBERS))
    await until(lambda: os.statvfs(small_disk).f_bavail == 0, "a full disk")
    await sandbox.kill()
    journal = await read_all(sandbox)
    assert NUMBERS.startswith(journal)
    assert await sandbox.exit() == AgentExit(kind=ExitKind.KILLED, journal_length=len(journal), signal=9)
    await provider.destroy(sandbox.key)
    assert await provider.list() == []


# --- ends


async def test_a_log_limit_ends_an_agent_that_ignores_signals(sandbox: LocalSandbox) -> None:
    script = "trap '' TERM PIPE; setsid sleep 600 & while :; do echo 0123456789; done"
    journal, exit = await run_to_end(sandbox, sh(script, max_log_bytes=1_000_000))
    assert exit == AgentExit(kind=ExitKind.LOG_LIMIT, journal_length=1_000_000, signal=9)
    assert len(journal) == 1_000_000


async def test_what_daemonises_and_writes_late_is_cut_at_the_recorded_length(sandbox: LocalSandbox) -> None:
    daemon = "setsid sh -c '(setsid sh -c \"while :; do echo late; sleep 0.02; done\" &)'"
    journal, exit = await run_to_end(sandbox, sh(f"{daemon}; echo done; exit 5"))
    assert (exit.kind, exit.code) == (ExitKind.EXITED, 5)
    assert b"done\n" in journal
    assert (sandbox._home / "journal").stat().st_size == exit.journal_length == len(journal)


async def test_what_an_agent_says_on_stderr_as_it_ends_is_kept(sandbox: LocalSandbox) -> None:
    script = "import os; print(os.getpid()); open('gate').read(); os.write(2, b'e' * 1_000_000 + b'the end')"
    os.mkfifo(Path(sandbox.workspace, "gate"))
    await sandbox.launch(spec(sys.executable, "-S", "-c", script))
    agent = int(await read_until(sandbox, b"\n"))
    os.kill(recorder_of(sandbox), signal.SIGSTOP)  # so that it meets the output and the end together
    await sandbox.exec(["sh", "-c", "echo > gate"], 10)
    await until(lambda: process.started_at(agent) is None, "the agent's end")
    os.kill(recorder_of(sandbox), signal.SIGCONT)
    await read_all(sandbox)
    assert await sandbox.stderr_tail(10) == b"eeethe end"


async def test_a_descendant_that_ends_in_time_is_not_cut(sandbox: LocalSandbox) -> None:
    journal, exit = await run_to_end(sandbox, sh("(sleep 0.5; echo after) & echo before"))
    assert (journal, exit.code) == (b"before\nafter\n", 0)


async def test_a_kill_in_the_grace_keeps_the_agents_own_exit(sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("sh -c 'trap \"\" TERM; sleep 600' & echo $$; exit 6"))
    agent = int(await read_until(sandbox, b"\n"))
    await until(lambda: not Path(f"/proc/{agent}").exists(), "the end of the agent's main process")
    await sandbox.kill()
    assert await sandbox.exit() == AgentExit(kind=ExitKind.EXITED, journal_length=len(str(agent)) + 1, code=6)


async def test_signals_meant_for_a_terminal_do_not_end_the_recorder(sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("echo on; while [ ! -e gate ]; do sleep 0.01; done; echo off"))
    await read_until(sandbox, b"on\n")
    status = Path(f"/proc/{recorder_of(sandbox)}/status").read_text()
    ignored = int(next(line.split()[1] for line in status.split("\n") if line.startswith("SigIgn")), 16)
    assert ignored & 0b11 == 0b11  # SIGHUP and SIGINT
    await sandbox.exec(["touch", "gate"], 10)
    assert await read_all(sandbox) == b"on\noff\n"


async def test_an_agent_that_forks_all_the_time_is_ended_whole(sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("echo on; while :; do setsid sleep 30 & sleep 0.002; done"))
    await read_until(sandbox, b"on\n")
    await sandbox.kill()
    exit = await sandbox.exit()
    assert exit is not None
    assert exit.kind == ExitKind.KILLED
