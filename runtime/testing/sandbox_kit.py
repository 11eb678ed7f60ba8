"""The conformance kit of sandbox providers: what the engine relies on, as tests that any provider can be run through.

    class TestMine(SandboxKit):
        @pytest.fixture
        def make_provider(self, tmp_path: Path) -> MakeProvider:
            return functools.partial(MyProvider, tmp_path)

        def living(self, key: str) -> list[int]:
            return [...]  # the sandbox's processes, found by other means than the provider's own

pytest with pytest-asyncio runs it. Agents are `/bin/sh` scripts of POSIX and `setsid`, so that the smallest image can
pass. `make_provider` is pickled: two launchers race in processes of their own.
"""

# ruff: noqa: D102, PLR2004 - a test's name states the fact, and expected numbers are literal on purpose

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import signal
import sys
import time
from contextlib import aclosing

import pytest

from runtime.core.launch import AgentExit, ExitKind
from runtime.errors import JournalUnavailable, WorkspaceHeld
from runtime.ports import LaunchSpec, Sandbox, SandboxProvider
from runtime.testing.provider_kit import MakeProvider, ProviderKit

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "GREETING": "two words; $HOME 'quoted'\nline é"}
DEADLINE_S = 30.0
ODD_IDS = (
    ".",
    "..",
    "_40",
    "@",
    "a/b c;d",
    "é",
    "CON",
    "$(touch pwned)",
    "a\nb",
    "-rf",
    "x" * 300,
    "x" * 301,
    "run-123",
)


def sh(script: str, stdin: bytes = b"", max_log_bytes: int = 1 << 30) -> LaunchSpec:
    """Return an agent that is a shell script."""
    return LaunchSpec(argv=("/bin/sh", "-c", script), env=ENV, stdin=stdin, max_log_bytes=max_log_bytes)


async def read_all(sandbox: Sandbox, start: int = 0) -> bytes:
    """Return the journal from `start` to the end of the run."""
    async with asyncio.timeout(DEADLINE_S):
        return b"".join([piece async for piece in sandbox.follow(start)])


async def read_until(sandbox: Sandbox, end: bytes) -> bytes:
    """Return the journal as soon as it ends with `end`."""
    journal = b""
    async with asyncio.timeout(DEADLINE_S), aclosing(sandbox.follow(0)) as pieces:
        async for piece in pieces:
            journal += piece
            if journal.endswith(end):
                break
    return journal


async def run_to_end(sandbox: Sandbox, spec: LaunchSpec) -> tuple[bytes, AgentExit]:
    """Launch, and return the journal and the exit."""
    await sandbox.launch(spec)
    journal = await read_all(sandbox)
    exit = await sandbox.exit()
    assert exit is not None
    assert exit.journal_length == len(journal)
    return journal, exit


def race() -> None:
    """Launch on a word from stdin: one of the racing launchers, as a program of its own."""
    make, key, spec = pickle.loads(base64.b64decode(sys.stdin.readline()))  # noqa: S301 - from our own parent

    async def launch() -> None:
        sandbox = await make().resume(key)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        await sandbox.launch(spec)

    asyncio.run(launch())


@pytest.mark.asyncio
class SandboxKit(ProviderKit):
    """What every provider must do; see the module's docstring for how to use it."""

    odd_ids: tuple[str, ...] = ODD_IDS  # a provider whose sandboxes take long to make may take fewer

    def living(self, key: str) -> list[int]:
        """Return some name of each living process of the sandbox, found by other means than the provider's."""
        raise NotImplementedError

    @pytest.fixture
    async def sandbox(self, provider: SandboxProvider) -> Sandbox:
        """Return a new sandbox."""
        return await provider.create(provider.key("run-1"), "thread-1")

    # --- making and finding

    async def test_create_of_an_existing_key_returns_that_sandbox(self, provider: SandboxProvider) -> None:
        key = provider.key("run-1")
        first, *others = await asyncio.gather(*(provider.create(key, "thread-1") for _ in range(4)))
        again = await provider.create(key, "another-thread")
        assert {sandbox.workspace for sandbox in (*others, again)} == {first.workspace}
        assert {sandbox.key for sandbox in (first, *others, again)} == {key}
        assert await provider.list() == [key]

    async def test_resume_finds_what_exists_and_proves_what_does_not(self, make_provider: MakeProvider) -> None:
        provider, other = make_provider(), make_provider()
        key = provider.key("run-1")
        await provider.create(provider.key("run-0"), "thread-0")
        assert await other.resume(key) is None
        made = await provider.create(key, "thread-1")
        found = await other.resume(key)
        assert found is not None
        assert (found.key, found.workspace) == (made.key, made.workspace)
        for each in await provider.list():
            await provider.destroy(each)
        assert await other.resume(key) is None

    async def test_odd_run_ids_have_sandboxes_of_their_own(self, provider: SandboxProvider) -> None:
        assert len({provider.key(run_id) for run_id in ODD_IDS}) == len(ODD_IDS)
        keys = [provider.key(run_id) for run_id in self.odd_ids]
        sandboxes = [await provider.create(key, run_id) for key, run_id in zip(keys, self.odd_ids, strict=True)]
        assert sorted(await provider.list()) == sorted(keys)
        for number, sandbox in enumerate(sandboxes):
            journal, _ = await run_to_end(sandbox, sh(f"ls -A; echo {number} | tee own"))
            assert journal == b"%d\n" % number

    # --- launching (P15)

    async def test_a_second_launch_changes_nothing(self, sandbox: Sandbox) -> None:
        assert not await sandbox.launched()
        assert await sandbox.exit() is None
        await sandbox.launch(sh("echo one; while [ ! -e gate ]; do sleep 0.01; done"))
        assert await sandbox.launched()
        await sandbox.launch(sh("echo two"))
        await sandbox.exec(["touch", "gate"], DEADLINE_S)
        assert await read_all(sandbox) == b"one\n"
        await sandbox.launch(sh("echo three"))
        assert await read_all(sandbox) == b"one\n"

    async def test_of_launchers_that_race_in_two_processes_one_launches(
        self, make_provider: MakeProvider, provider: SandboxProvider
    ) -> None:
        for attempt in range(3):
            sandbox = await provider.create(provider.key(f"race-{attempt}"), f"thread-{attempt}")
            spec = sh("echo x >> count; echo $$; cat count")
            racers = [await self._racer((make_provider, sandbox.key, spec)) for _ in range(2)]
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(b"go\n")
            said = [await racer.communicate() for racer in racers]
            assert [racer.returncode for racer in racers] == [0, 0], said
            journal = await read_all(sandbox)
            assert journal.endswith(b"\nx\n")
            assert journal.count(b"\n") == 2

    async def _racer(self, what: object) -> asyncio.subprocess.Process:
        racer = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            f"from {__name__} import race; race()",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        )
        assert racer.stdin is not None
        assert racer.stdout is not None
        racer.stdin.write(base64.b64encode(pickle.dumps(what)) + b"\n")
        assert await racer.stdout.readline() == b"ready\n"
        return racer

    async def test_the_agent_gets_exactly_what_it_was_launched_with(self, sandbox: Sandbox) -> None:
        arguments = ("a b", "", "*", "$HOME", "'", "é\n")
        script = 'printf "%s\\0" "$GREETING" "$TERM" "$PYTHONUNBUFFERED" "$PWD" "$@"'
        spec = LaunchSpec(argv=("/bin/sh", "-c", script, "sh", *arguments), env=ENV)
        journal, _ = await run_to_end(sandbox, spec)
        assert journal.decode().split("\0")[:-1] == [ENV["GREETING"], "dumb", "1", sandbox.workspace, *arguments]

    async def test_nothing_of_ours_is_in_the_environment(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SECRET_OF_THE_DRIVER", "1")
        journal, _ = await run_to_end(sandbox, sh("env"))
        names = {line.partition(b"=")[0] for line in journal.split(b"\n")}
        assert not [name for name in names if name.startswith((b"OUTLAST_", b"RAY_", b"SECRET_"))]

    async def test_a_program_that_is_not_there_is_a_recorded_exit(self, sandbox: Sandbox) -> None:
        journal, exit = await run_to_end(sandbox, LaunchSpec(argv=("/nowhere/agent",), env=ENV))
        assert (journal, exit.kind) == (b"", ExitKind.SPAWN_FAILED)
        assert "/nowhere/agent" in (exit.message or "")

    async def test_stdin_is_given_whole_and_then_ends(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 20_000 + b"no newline at the end"
        journal, _ = await run_to_end(sandbox, sh("cat", data))
        assert journal == data

    async def test_a_large_stdin_that_nobody_reads_holds_nothing_up(self, sandbox: Sandbox) -> None:
        journal, exit = await run_to_end(sandbox, sh("echo done", b"x" * 5_000_000))
        assert (journal, exit.code) == (b"done\n", 0)

    # --- following

    async def test_a_line_arrives_while_the_agent_works_on(self, sandbox: Sandbox) -> None:
        await sandbox.launch(sh("echo first; while [ ! -e gate ]; do sleep 0.01; done; echo last"))
        seen, opened = b"", False
        async with asyncio.timeout(DEADLINE_S):
            async for piece in sandbox.follow(0):
                seen += piece
                if seen == b"first\n" and not opened:
                    assert await sandbox.exit() is None
                    assert await sandbox.exec(["touch", "gate"], DEADLINE_S) == (0, b"")
                    opened = True
        assert seen == b"first\nlast\n"

    async def test_two_follow_from_where_they_like_in_bounded_pieces(self, sandbox: Sandbox) -> None:
        await sandbox.launch(sh("head -c 3000000 /dev/zero; head -c 300000 /dev/zero | tr '\\0' x; echo"))
        whole, rest = await asyncio.gather(read_all(sandbox), read_all(sandbox, 2_999_990))
        assert whole == b"\0" * 3_000_000 + b"x" * 300_000 + b"\n"
        assert rest == whole[2_999_990:]
        assert await read_all(sandbox, len(whole)) == b""
        assert max([len(piece) async for piece in sandbox.follow(0)]) <= 128 << 10

    async def test_a_successor_reads_on_where_its_predecessor_stopped(self, make_provider: MakeProvider) -> None:
        first, later = make_provider(), make_provider()
        key = first.key("run-1")
        sandbox = await first.create(key, "thread-1")
        await sandbox.launch(sh("echo 1; echo 2; while [ ! -e gate ]; do sleep 0.01; done; echo 3; echo 4; exit 5"))
        assert await read_until(sandbox, b"2\n") == b"1\n2\n"
        found = await later.resume(key)
        assert found is not None
        assert await found.exec(["touch", "gate"], DEADLINE_S) == (0, b"")
        assert await read_all(found, 2) == b"2\n3\n4\n"
        exit = await found.exit()
        assert exit is not None
        assert (exit.kind, exit.code, exit.journal_length) == (ExitKind.EXITED, 5, 8)
        await later.destroy(key)
        assert (await first.resume(key), await first.list()) == (None, [])

    async def test_a_torn_last_line_is_kept(self, sandbox: Sandbox) -> None:
        journal, exit = await run_to_end(sandbox, sh("printf 'whole\\nto\\303'; kill -9 $$"))
        assert journal == b"whole\nto\xc3"
        assert (exit.kind, exit.signal, exit.code) == (ExitKind.EXITED, signal.SIGKILL, None)

    async def test_a_stretch_of_the_journal_is_read_without_waiting(self, sandbox: Sandbox) -> None:
        await sandbox.launch(sh("echo one; echo two; while [ ! -e gate ]; do sleep 0.01; done"))
        assert await read_until(sandbox, b"two\n") == b"one\ntwo\n"
        stretches = [await sandbox.read_journal(start, size) for start, size in ((0, 4), (4, 100), (8, 1), (99, 9))]
        assert stretches == [b"one\n", b"two\n", b"", b""]
        await sandbox.exec(["touch", "gate"], DEADLINE_S)
        await read_all(sandbox)
        assert await sandbox.read_journal(2, 4) == b"e\ntw"

    async def test_a_journal_has_a_name_of_its_own_as_long_as_it_is_there(self, make_provider: MakeProvider) -> None:
        provider, other = make_provider(), make_provider()
        names = []
        for run_id in ("run-1", "run-2", "run-1"):
            key = provider.key(run_id)
            sandbox = await provider.create(key, run_id)
            with pytest.raises(JournalUnavailable):
                await sandbox.journal_id()
            await sandbox.launch(sh("echo same"))
            names.append(await sandbox.journal_id())
            await read_all(sandbox)
            found = await other.resume(key)
            assert found is not None
            assert await found.journal_id() == await sandbox.journal_id() == names[-1]
            await provider.destroy(key)
        assert len(set(names)) == 3

    async def test_stderr_is_apart_and_its_end_is_kept(self, sandbox: Sandbox) -> None:
        assert await sandbox.stderr_tail(100) == b""
        script = "echo out; echo first >&2; head -c 3000000 /dev/zero | tr '\\0' e >&2; printf 'the end' >&2"
        journal, _ = await run_to_end(sandbox, sh(script))
        assert journal == b"out\n"
        assert await sandbox.stderr_tail(10) == b"eeethe end"
        tail = await sandbox.stderr_tail(64 << 10)
        assert (len(tail), tail.strip(b"e")) == (64 << 10, b"the end")

    # --- ending (P16)

    @pytest.mark.parametrize("code", [0, 7, 255])
    async def test_the_exit_code_is_recorded(self, sandbox: Sandbox, code: int) -> None:
        _, exit = await run_to_end(sandbox, sh(f"echo; exit {code}"))
        assert (exit.kind, exit.code, exit.signal) == (ExitKind.EXITED, code, None)
        assert await sandbox.exit() == exit

    async def test_what_the_agent_leaves_behind_is_ended_and_bounded(self, provider: SandboxProvider) -> None:
        sandbox = await provider.create(provider.key("run-1"), "thread-1")
        late = "trap '' TERM HUP; while :; do echo late; sleep 0.05; done"
        journal, exit = await run_to_end(sandbox, sh(f'setsid sh -c "{late}" & echo last; exit 3'))
        assert exit.code == 3
        assert b"last\n" in journal
        assert self.living(sandbox.key) == []
        assert await read_all(sandbox) == journal

    async def test_at_the_log_limit_the_agent_is_ended(self, sandbox: Sandbox) -> None:
        journal, exit = await run_to_end(sandbox, sh("while :; do echo 0123456789; done", max_log_bytes=100_005))
        assert (exit.kind, len(journal)) == (ExitKind.LOG_LIMIT, 100_005)
        assert journal.startswith(b"0123456789\n0123456789\n")
        assert self.living(sandbox.key) == []

    async def test_a_log_that_just_fits_is_no_log_limit(self, sandbox: Sandbox) -> None:
        journal, exit = await run_to_end(sandbox, sh("printf 0123456789", max_log_bytes=10))
        assert (exit.kind, exit.code, journal) == (ExitKind.EXITED, 0, b"0123456789")

    async def test_kill_ends_grandchildren_in_sessions_of_their_own(self, sandbox: Sandbox) -> None:
        deep = "trap '' TERM; echo deep; while :; do sleep 60; done"
        await sandbox.launch(sh(f'trap "" TERM; setsid sh -c "(setsid sh -c \\"{deep}\\") &" & wait; sleep 600'))
        assert await read_until(sandbox, b"deep\n") == b"deep\n"
        assert len(self.living(sandbox.key)) >= 2
        await sandbox.kill()
        assert self.living(sandbox.key) == []
        assert await read_all(sandbox) == b"deep\n"
        exit = await sandbox.exit()
        assert exit is not None
        assert (exit.kind, exit.journal_length) == (ExitKind.KILLED, 5)
        await sandbox.kill()
        assert await sandbox.exit() == exit

    async def test_destroy_leaves_no_process_and_no_sandbox(self, provider: SandboxProvider) -> None:
        key, other = provider.key("run-1"), provider.key("run-2")
        await provider.destroy(key)
        for each in (key, other):
            sandbox = await provider.create(each, f"thread of {each}")
            await sandbox.launch(sh("setsid sh -c 'trap \"\" TERM; echo on; while :; do sleep 60; done' & sleep 600"))
            assert await read_until(sandbox, b"on\n") == b"on\n"
        await provider.destroy(key)
        assert self.living(key) == []
        assert await provider.resume(key) is None
        assert len(self.living(other)) >= 2
        assert await provider.list() == [other]
        await provider.destroy(key)
        await provider.destroy(other)
        assert self.living(other) == []

    # --- workspaces (P18) and commands

    async def test_a_workspace_belongs_to_its_thread_and_outlives_its_sandboxes(
        self, provider: SandboxProvider
    ) -> None:
        first = await provider.create(provider.key("run-1"), "thread-1")
        await run_to_end(first, sh("echo work > result"))
        await provider.destroy(first.key)
        second = await provider.create(provider.key("run-2"), "thread-1")
        assert (await run_to_end(second, sh("cat result")))[0] == b"work\n"
        stranger = await provider.create(provider.key("run-3"), "thread-2")
        assert (await run_to_end(stranger, sh("ls -A")))[0] == b""

    async def test_an_agent_home_belongs_to_its_thread_and_outlives_its_sandboxes(
        self, provider: SandboxProvider
    ) -> None:
        first = await provider.create(provider.key("run-1"), "thread-1")
        if first.home is None:
            return  # its agents' HOME is what their environment says
        await run_to_end(first, sh(f"HOME='{first.home}'; echo session > ~/kept"))
        await provider.destroy(first.key)
        second = await provider.create(provider.key("run-2"), "thread-1")
        assert (await run_to_end(second, sh(f"HOME='{second.home}'; cat ~/kept")))[0] == b"session\n"
        assert (await second.exec(["sh", "-c", "cat ~/kept"], DEADLINE_S)) == (0, b"session\n")
        stranger = await provider.create(provider.key("run-3"), "thread-2")
        assert (await run_to_end(stranger, sh(f"HOME='{stranger.home}'; ls -A ~")))[0] == b""

    async def test_a_workspace_has_one_sandbox_at_a_time(self, provider: SandboxProvider) -> None:
        first = await provider.create(provider.key("run-1"), "thread-1")
        with pytest.raises(WorkspaceHeld):
            await provider.create(provider.key("run-2"), "thread-1")
        await provider.destroy(first.key)
        second = await provider.create(provider.key("run-2"), "thread-1")
        assert second.workspace == first.workspace

    async def test_exec_says_how_a_command_went(self, sandbox: Sandbox) -> None:
        code, output = await sandbox.exec(["sh", "-c", "echo err >&2; pwd; exit 4"], DEADLINE_S)
        assert (code, output) == (4, f"{sandbox.workspace}\nerr\n".encode())
        code, output = await sandbox.exec(["sh", "-c", "head -c 50000000 /dev/zero"], DEADLINE_S)
        assert code == 0
        assert 0 < len(output) < 10_000_000
        started = time.monotonic()
        code, output = await sandbox.exec(["sh", "-c", "echo on; sleep 600"], 0.2)
        assert (code != 0, output) == (True, b"on\n")
        assert time.monotonic() - started < DEADLINE_S
