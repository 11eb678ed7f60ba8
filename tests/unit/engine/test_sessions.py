"""A run goes on with a session that is in its agent's home, and begins a new one where that is lost (P18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import agent_runs
import pytest
from unit.engine.stage import RUN, Stage, create

from runtime.core.record import RunSpec, Status
from runtime.engine.sessions import going_on, without_lost_session
from runtime.engine.tools import Past
from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.harnesses.codex import CodexHarness
from runtime.harnesses.shell import ShellHarness
from runtime.ports import Harness, LaunchSpec, Sandbox
from runtime.testing.sim_agent import Script, SimHarness
from runtime.testing.sim_loop import play
from runtime.testing.sim_sandbox import SimSandbox

SESSION = "0a0b0c0d-0000-4000-8000-000000000001"
FOUND = f"/home/.claude/projects/-w/{SESSION}.jsonl\n".encode()


class Home:
    """As much of a sandbox as a look at its home needs; `find` answers what the test says."""

    key = "key"

    def __init__(self, answer: tuple[int, bytes], home: str | None = "/home") -> None:
        self.home = home
        self.asked: list[Sequence[str]] = []
        self._answer = answer

    async def exec(self, argv: Sequence[str], timeout_s: float) -> tuple[int, bytes]:  # noqa: ARG002
        self.asked.append(argv)
        return self._answer


async def kept(home: Home, harness: Harness, env: Mapping[str, str] | None = None, **options: Any) -> bool:
    """Return whether the run is launched with what it asked for."""
    spec = agent_runs.spec(harness.name, "hello", **options)
    found = await without_lost_session(harness, cast("Sandbox", home), spec, env or {})
    if found is not spec:
        assert found.input == {**spec.input, "forwardedProps": {"model": "m"}}
    return found is spec


@pytest.mark.parametrize(
    ("code", "output", "stays"),
    [
        (0, FOUND, True),
        (0, b"", False),
        (1, b"find: '/home/.claude/projects': No such file or directory\n", False),
        (1, FOUND + b"find: '/home/.claude/projects/x': Permission denied\n", True),
        (127, b"find: not found\n", True),
        (-9, b"", True),
    ],
)
@pytest.mark.parametrize("name", ["sessionId", "resume"])
async def test_a_session_is_lost_only_where_a_look_says_so(code: int, output: bytes, stays: bool, name: str) -> None:
    home = Home((code, output))
    options: dict[str, Any] = {"model": "m", name: SESSION}
    assert await kept(home, ClaudeCodeHarness(), **options) is stays
    assert home.asked == [["find", "/home/.claude/projects", "-name", f"{SESSION}.jsonl"]]


async def test_each_agent_keeps_its_sessions_where_it_does() -> None:
    home = Home((0, b""))
    assert not await kept(home, CodexHarness(), model="m", sessionId=SESSION)
    assert home.asked == [["find", "/home/.codex/sessions", "-name", f"*{SESSION}.jsonl"]]


async def test_codex_writes_a_session_in_lower_case_however_it_is_asked_for() -> None:
    home = Home((0, b""))
    assert not await kept(home, CodexHarness(), model="m", sessionId=SESSION.upper())
    assert home.asked == [["find", "/home/.codex/sessions", "-name", f"*{SESSION}.jsonl"]]


async def test_nobody_looks_where_a_look_would_tell_nothing() -> None:
    home, nowhere = Home((0, b"")), Home((0, b""), None)
    assert await kept(home, ClaudeCodeHarness(), model="m")
    assert await kept(home, ClaudeCodeHarness(), {"CLAUDE_CONFIG_DIR": "/c"}, sessionId=SESSION)
    assert await kept(home, CodexHarness(), {"CODEX_HOME": "/c"}, sessionId=SESSION)
    assert await kept(home, ShellHarness(), sessionId=SESSION)
    assert await kept(nowhere, ClaudeCodeHarness(), sessionId=SESSION)
    assert home.asked == nowhere.asked == []


class Noting(SimHarness):
    """Notes the environment that it launches with."""

    def __init__(self) -> None:
        self.env: Mapping[str, str] = {}

    def launch(
        self, run_id: str, spec: RunSpec, env: Mapping[str, str], workspace: str, history: Sequence[Mapping[str, Any]]
    ) -> LaunchSpec:
        self.env = env
        return super().launch(run_id, spec, env, workspace, history)


@pytest.mark.parametrize("home", [None, "/home/of-the-thread"])
def test_an_agent_lives_in_its_threads_home(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.setattr(SimSandbox, "home", home)

    async def acts() -> None:
        stage = Stage(Script(pieces=[(0.1, b"result\n")]))
        stage.harness = harness = Noting()
        shard = await stage.open()
        await shard.submit(create(RUN))
        assert (await stage.drive(shard)).status is Status.COMPLETED
        assert harness.env == ({} if home is None else {"HOME": home})

    play(1, acts())


async def launched_by(home: Home, past: Past, harness: Harness | None = None, **options: Any) -> dict[str, Any]:
    """Return the input that a run is launched with."""
    chosen = harness or ClaudeCodeHarness()
    spec = agent_runs.spec(chosen.name, "hello", **options)
    return (await going_on(chosen, cast("Sandbox", home), spec, {}, past)).input


@pytest.mark.parametrize(
    ("answer", "goes_on"), [((0, FOUND), True), ((0, b""), False), ((1, b"find: no\n"), False), ((127, b"?"), False)]
)
async def test_a_thread_goes_on_with_its_last_session_only_where_it_is_seen(
    answer: tuple[int, bytes], goes_on: bool
) -> None:
    launched = await launched_by(Home(answer), Past(session=SESSION), model="m")
    expected = {"model": "m", "sessionId": SESSION} if goes_on else {"model": "m"}
    assert launched["forwardedProps"] == expected


async def test_a_session_that_the_request_names_comes_before_the_threads_last_one() -> None:
    home = Home((0, FOUND))
    launched = await launched_by(home, Past(session="another"), sessionId=SESSION)
    assert launched["forwardedProps"]["sessionId"] == SESSION
    assert len(home.asked) == 1


@pytest.mark.parametrize("session", ["--version", "a b", ""])
async def test_what_is_no_session_is_not_gone_on_with(session: str) -> None:
    home = Home((0, FOUND))
    assert "sessionId" not in (await launched_by(home, Past(session=session), model="m"))["forwardedProps"]
    assert home.asked == []


async def test_no_session_is_looked_for_where_there_is_none_to_keep() -> None:
    home, nowhere = Home((0, FOUND)), Home((0, FOUND), None)
    past = Past(session=SESSION)
    for launched in (await launched_by(home, past, ShellHarness(), x="y"), await launched_by(nowhere, past, x="y")):
        assert launched["forwardedProps"] == {"x": "y"}
    assert home.asked == nowhere.asked == []


async def test_an_answer_is_launched_with_what_was_asked_and_never_with_what_a_client_says_was() -> None:
    asked = {"id": "q", "message": "May I?"}
    spec = agent_runs.spec("shell", "hello")
    spec.input["resume"] = [{"interruptId": "q", "status": "resolved", "interrupt": {"message": "forged"}}]
    for past, told in ((Past(asked=[asked]), asked), (Past(), None)):
        found = await going_on(ShellHarness(), cast("Sandbox", Home((0, b""))), spec, {}, past)
        assert found.input["resume"] == [{"interruptId": "q", "status": "resolved", "interrupt": told}]
