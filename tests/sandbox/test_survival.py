"""Who may die, and what is left of the run: launchers, recorders, drivers (P15, P16, P5)."""

# ruff: noqa: ASYNC220 - a test's loop has nothing else to do

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import carrying
from own_deployment import DEPLOYMENT
from waiting import until, wait_until

from runtime import process
from runtime.core.launch import AgentExit, ExitKind, LaunchRecord, decode_launch
from runtime.sandboxes import follow, recorder
from runtime.sandboxes.local import LocalProvider, LocalSandbox
from runtime.testing.sandbox_kit import read_all, read_until, sh

GATED = "echo on; while [ ! -e gate ]; do sleep 0.01; done; echo off"
LAUNCHING = """
import asyncio, sys
from pathlib import Path
from runtime.sandboxes.local import LocalProvider
from runtime.testing.sandbox_kit import sh

async def main():
    provider = LocalProvider(Path(sys.argv[1]), sys.argv[4], Path(sys.argv[2]))
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    await sandbox.launch(sh(sys.argv[3]))
    print("launched", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def launch_of(sandbox: LocalSandbox) -> LaunchRecord:
    launch = decode_launch((sandbox._home / "journal.launch").read_bytes())
    assert launch is not None
    return launch


def kill_recorder(sandbox: LocalSandbox) -> None:
    launch = launch_of(sandbox)
    who = process.ProcessIdentity(boot_id=launch.boot_id, pid=launch.pid, pid_started_at=launch.pid_started_at)
    assert process.send(who, signal.SIGKILL)
    wait_until(lambda: not process.alive(who), "the recorder's end")


def in_session(session: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and os.getsid(int(folder.name)) == session:
                found.append(int(folder.name))
        except ProcessLookupError:
            continue
    return found


async def test_an_agent_outlives_its_launcher_with_all_of_its_session(
    provider: LocalProvider, sandbox: LocalSandbox, tmp_path: Path
) -> None:
    folders = (str(tmp_path / "sandboxes"), str(tmp_path / "workspaces"))
    argv = [sys.executable, "-c", LAUNCHING, *folders, GATED, DEPLOYMENT]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True, env=env) as launcher:
        assert launcher.stdout is not None
        assert await asyncio.to_thread(launcher.stdout.readline) == b"launched\n"
        assert launch_of(sandbox).pid not in in_session(launcher.pid)
        for pid in in_session(launcher.pid):
            os.kill(pid, signal.SIGKILL)  # the launcher has not been waited for, so the session is still its own
    assert launcher.returncode == -signal.SIGKILL
    assert await sandbox.exit() is None
    await sandbox.exec(["touch", "gate"], 10)
    assert await read_all(sandbox) == b"on\noff\n"
    assert await sandbox.exit() == AgentExit(kind=ExitKind.EXITED, journal_length=7, code=0)


async def test_a_recorder_whose_launcher_does_not_listen_launches_all_the_same(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen.communicate

    def deaf(self: subprocess.Popen[bytes], data: bytes, timeout: float) -> tuple[bytes, bytes]:
        assert self.stdout is not None
        self.stdout.close()
        self.stdout = None
        real(self, data, timeout)
        return b"", b""

    monkeypatch.setattr(subprocess.Popen, "communicate", deaf)
    launch = asyncio.create_task(sandbox.launch(sh("echo on")))
    await asyncio.wait([launch])
    monkeypatch.undo()
    await until(sandbox.launched, "a launch")
    assert await read_all(sandbox) == b"on\n"
    launch.exception()


async def test_a_killed_recorder_is_lost_and_what_it_left_is_ended(
    provider: LocalProvider, sandbox: LocalSandbox
) -> None:
    await sandbox.launch(sh("setsid sh -c 'trap \"\" TERM PIPE HUP; while :; do sleep 1; done' & echo on; sleep 600"))
    successor = await provider.resume(sandbox.key)
    assert successor is not None
    following = [asyncio.create_task(read_all(each)) for each in (sandbox, sandbox, successor)]
    await read_until(sandbox, b"on\n")
    await until(lambda: len(carrying("AGENT_SANDBOX", sandbox.key)) >= 3, "the agent and its child")
    kill_recorder(sandbox)
    assert await asyncio.gather(*following) == [b"on\n"] * 3
    assert carrying("AGENT_SANDBOX", sandbox.key) == []
    for each in (sandbox, successor):
        assert await each.exit() == AgentExit(kind=ExitKind.LOST, journal_length=3)
    await successor.launch(sh("echo again"))
    assert await read_all(successor) == b"on\n"


async def test_a_killed_recorder_takes_the_agents_main_process_along(sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("trap '' TERM HUP PIPE; echo $$; exec sleep 600"))
    agent = int(await read_until(sandbox, b"\n"))
    kill_recorder(sandbox)
    await until(lambda: process.started_at(agent) is None, "the agent's end")  # nobody looked, nobody swept


async def test_an_end_that_was_recorded_is_not_lost_when_the_recorder_is_gone(
    provider: LocalProvider, sandbox: LocalSandbox
) -> None:
    await sandbox.launch(sh("echo on; exit 4"))
    assert await read_all(sandbox) == b"on\n"
    launch = launch_of(sandbox)
    await until(lambda: process.started_at(launch.pid) != launch.pid_started_at, "the recorder's end")
    successor = await provider.resume(sandbox.key)
    assert successor is not None
    assert await read_all(successor) == b"on\n"
    assert await successor.exit() == AgentExit(kind=ExitKind.EXITED, journal_length=3, code=4)


async def test_while_another_driver_has_the_lock_nobody_else_decides(
    provider: LocalProvider, sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "LOOK_S", 0.05)
    await sandbox.launch(sh("echo on; sleep 600"))
    await read_until(sandbox, b"on\n")
    successor = await provider.resume(sandbox.key)
    assert successor is not None
    following = asyncio.create_task(read_all(successor))
    other = os.open(sandbox._home / "journal.launch", os.O_RDWR)
    kill_recorder(sandbox)
    fcntl.flock(other, fcntl.LOCK_EX)  # may come after the follower, which then has decided
    if await sandbox.exit() is None:
        assert not following.done()
    os.close(other)
    assert await following == b"on\n"
    assert await sandbox.exit() == AgentExit(kind=ExitKind.LOST, journal_length=3)


async def test_a_stopped_recorder_does_not_stop_a_destroy(provider: LocalProvider, sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("setsid env -i sh -c 'trap \"\" TERM; echo on; sleep 600' & sleep 600"))
    await read_until(sandbox, b"on\n")
    launch = launch_of(sandbox)
    below = {pid for pid, _ in recorder.descendants(launch.pid)}
    os.kill(launch.pid, signal.SIGSTOP)
    await provider.destroy(sandbox.key)
    assert len(below) >= 3
    assert [pid for pid in (*below, launch.pid) if process.started_at(pid) is not None] == []
    assert await provider.list() == []


async def test_a_stopped_agent_can_be_killed(sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("echo $$; sleep 600"))
    os.kill(int(await read_until(sandbox, b"\n")), signal.SIGSTOP)
    await sandbox.kill()
    exit = await sandbox.exit()
    assert exit is not None
    assert exit.kind == ExitKind.KILLED


async def test_a_pid_that_is_another_process_by_now_is_left_alone(
    provider: LocalProvider, sandbox: LocalSandbox
) -> None:
    await sandbox.launch(sh("echo on"))
    await read_all(sandbox)
    with subprocess.Popen(["sleep", "600"]) as bystander:
        launch = launch_of(sandbox)
        text = f'{{"bootId":"{launch.boot_id}","pid":{bystander.pid},"pidStartedAt":1,"version":1}}\n'
        (sandbox._home / "journal.launch").write_text(text)
        await sandbox.kill()
        await provider.destroy(sandbox.key)
        assert bystander.poll() is None
        bystander.kill()


async def test_a_command_left_in_the_background_ends_with_its_sandbox(
    provider: LocalProvider, sandbox: LocalSandbox
) -> None:
    code, output = await sandbox.exec(["sh", "-c", "setsid sleep 600 & echo left"], 10)
    assert (code, output) == (0, b"left\n")
    assert len(carrying("AGENT_SANDBOX", sandbox.key)) == 1
    await provider.destroy(sandbox.key)
    assert carrying("AGENT_SANDBOX", sandbox.key) == []
