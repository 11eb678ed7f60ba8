"""The real agents, launched by their harnesses on the `local` provider and read by their translators."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import leftovers
import pytest
from lone_agents import LoneAgents, Played, wait_for_file
from model_scripts import BIG, HARD_TEXT, tag
from model_server import ModelServer
from own_deployment import DEPLOYMENT
from real_agents import CLAUDE, CODEX, CREDENTIAL, Agent, environment

from runtime.core.launch import decode_launch
from runtime.core.record import Status
from runtime.ports import Sandbox
from runtime.sandboxes.local import LocalProvider, LocalSandbox
from runtime.sandboxes.recorder import descendants, read_stat, send
from runtime.testing.event_order import order_faults

pytestmark = pytest.mark.timeout(120)
EASY_PART = HARD_TEXT.partition(" العربية")[0]  # without what JSON escapes: a result may be JSON in a text


@pytest.fixture
async def local(tmp_path: Path, programs: Path, models: ModelServer, run: str) -> AsyncIterator[LoneAgents]:
    provider = LocalProvider(tmp_path / "sandboxes", DEPLOYMENT, tmp_path / "workspaces")
    (tmp_path / "home").mkdir()
    yield LoneAgents(provider, environment(models, programs, tmp_path / "home"))
    for key in await provider.list():
        await provider.destroy(key)
        leftovers.end("AGENT_SANDBOX", key)


def check(played: Played, status: Status = Status.COMPLETED) -> None:
    """Check what holds for every run: how it ended, that a strict client takes its log, and that no secret is in it."""
    ending = played.log.ending
    assert (ending.status, played.log.types[-1]) == (
        status,
        "RUN_FINISHED" if status is Status.COMPLETED else "RUN_ERROR",
    ), (ending, played.exit, played.stderr, played.journal[-2000:])
    assert order_faults(played.log.chunks) == []
    for said in (played.journal, played.stderr, *played.log.chunks):
        assert CREDENTIAL.encode() not in said


async def test_text_arrives_character_for_character(
    local: LoneAgents, models: ModelServer, agent: Agent, run: str
) -> None:
    before = len(models.foreign)
    played = await local.play(agent, run, tag("text", run))
    check(played)
    assert played.exit.code == 0
    assert played.text == f"Two plus two is four. {HARD_TEXT}"
    assert played.log.ending.usage is not None
    assert played.log.ending.usage["totalTokens"] > 100
    assert {seen.credential for seen in models.of(run)} == {CREDENTIAL}
    assert models.foreign[before:] == [], "something was asked of the world"


async def test_every_tool_call_has_its_result(local: LoneAgents, agent: Agent, run: str) -> None:
    played = await local.play(agent, run, tag("tools", run, count=8), **agent.free)
    check(played)
    calls = [event["toolCallId"] for event in played.log.of("TOOL_CALL_START")]
    answered = [event["toolCallId"] for event in played.log.of("TOOL_CALL_RESULT")]
    assert len(set(calls)) == len(calls) == 1 + 8 + 2 + 1
    assert sorted(answered) == sorted(calls)
    assert len([result for result in played.results if EASY_PART in result]) == 1
    assert len([result for result in played.results if "no-such-file" in result]) == 1
    assert len([event for event in played.log.of("TOOL_CALL_RESULT") if failed(event)]) == 1
    assert played.text.endswith("Done: 8 rows.")


async def test_claude_streams_its_words_as_they_come(local: LoneAgents, run: str) -> None:
    played = await local.play(CLAUDE, run, tag("think", run), **CLAUDE.free)
    check(played)
    assert len(played.log.of("REASONING_MESSAGE_CONTENT")) > 3
    assert len(played.log.of("TEXT_MESSAGE_CONTENT")) > 3


async def test_failures_of_the_model_that_pass_end_nothing(
    local: LoneAgents, models: ModelServer, agent: Agent, run: str
) -> None:
    played = await local.play(agent, run, tag("flaky", run), **agent.free)
    check(played)
    assert played.text == "Before.After the failures."
    assert [seen.turn for seen in models.of(run)] == [0, 1, 1, 1]


@pytest.mark.parametrize("agent", [CLAUDE, pytest.param(CODEX, marks=pytest.mark.long)], ids=lambda agent: agent.name)
async def test_a_model_that_stays_overloaded_fails_the_run(local: LoneAgents, agent: Agent, run: str) -> None:
    """Claude Code calls that a success, and exits with 1. Codex tries for half a minute."""
    played = await local.play(agent, run, tag("fail", run, status=529), **agent.free)
    check(played, Status.FAILED)
    assert played.exit.code == 1
    assert played.text.startswith("I begin at once.")
    assert played.log.terminal["code"] != "agent_exit"


@pytest.mark.parametrize(("status", "code"), [(400, None), pytest.param(401, "401", marks=pytest.mark.long)])
async def test_a_model_that_refuses_fails_the_run(
    local: LoneAgents, agent: Agent, run: str, status: int, code: str | None
) -> None:
    """Codex tells the status of most refusals, and of a bad request only what the model said."""
    played = await local.play(agent, run, tag("fail", run, status=status), **agent.free)
    check(played, Status.FAILED)
    assert played.exit.code == 1
    assert f"The script says {status}." in played.log.terminal["message"]
    assert played.log.terminal["code"] == (code or {"claude-code": "400", "codex": "turn.failed"}[agent.name])


async def test_output_far_beyond_a_pipe_is_whole(local: LoneAgents, agent: Agent, run: str) -> None:
    played = await local.play(agent, run, tag("big", run), **agent.free)
    check(played)
    assert max(len(line) for line in played.journal.split(b"\n")) > BIG
    assert max(len(data) for data in played.log.chunks) > BIG


async def test_a_killed_agent_is_a_failure_that_leaves_nothing_but_its_session(
    local: LoneAgents, agent: Agent, run: str
) -> None:
    sandbox, spec = await local.start(agent, run, tag("wait", run), "thread", **agent.free)
    await wait_for_file(sandbox, "begun")
    kill_main_process(sandbox)
    played = await local.end(agent, sandbox, spec)
    check(played, Status.FAILED)
    assert played.log.terminal["code"] == "agent_signal"
    assert leftovers.carrying("AGENT_SANDBOX", sandbox.key) == []
    assert len(played.log.of("TOOL_CALL_START")) == len(played.log.of("TOOL_CALL_RESULT")) == 1
    (session,) = [said["sessionId"] for said in played.custom(agent.session_event)]
    again = await local.play(agent, f"{run}-2", tag("text", f"{run}-2"), "thread", sessionId=session, **agent.free)
    check(again)
    assert [said["sessionId"] for said in again.custom(agent.session_event)] == [session]
    assert again.text.startswith("Two plus two")


def kill_main_process(sandbox: Sandbox) -> None:
    """SIGKILL the program that was launched, and none of its children."""
    assert isinstance(sandbox, LocalSandbox)
    launch = decode_launch((sandbox._home / "journal.launch").read_bytes())
    assert launch is not None
    stats = {process: read_stat(process[0]) for process in descendants(launch.pid)}
    (main,) = [process for process, stat in stats.items() if stat is not None and stat[0] == launch.pid]
    send(main, signal.SIGKILL)


async def test_unless_told_claude_runs_no_command_that_writes_elsewhere(local: LoneAgents, run: str) -> None:
    outside = Path("/") / f"outlast-{run}"
    try:
        played = await local.play(CLAUDE, run, tag("shell", run, cmd=f"touch+inside+{outside}"))
        check(played)
        assert not outside.exists()
        assert [failed(event) for event in played.log.of("TOOL_CALL_RESULT")] == [True]
    finally:
        outside.unlink(missing_ok=True)


async def test_unless_told_codex_writes_its_workspace_and_no_more(local: LoneAgents, run: str) -> None:
    """Its log need not tell: of a command that ends at once under its sandbox, Codex sometimes prints nothing."""
    outside = Path("/") / f"outlast-{run}"
    try:
        sandbox, spec = await local.start(CODEX, run, tag("shell", run, cmd=f"touch+inside+{outside}"))
        check(await local.end(CODEX, sandbox, spec))
        await wait_for_file(sandbox, "inside")
        assert not outside.exists()
    finally:
        outside.unlink(missing_ok=True)


def failed(event: dict[str, Any]) -> bool:
    """Return whether the result of a tool call says that it failed."""
    return "state" in event.get("metadata", {}).get("tanstack", {})
