"""A takeover in the middle of a real agent's run: the log is, byte for byte, the one of a run that nobody disturbed.

Twice over: it is what one translator makes of the whole journal, and it is what another run of the same script gave
whose driver lived, but for the ids that an agent makes anew each time.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import host_functions
import pytest
from instance import Instance
from journal_band import keep_journal, stored, undisturbed, without_chance
from model_scripts import tag
from model_server import ModelServer
from processes import kill
from real_agents import AGENTS, CLAUDE, CODEX, CREDENTIAL, Agent
from waiting import wait_until
from watching import Watch

from runtime.sandboxes.recorder import descendants

pytestmark = pytest.mark.timeout(180)
WITHIN_S = 60.0

# Name of the script, what it is given, and how the run ends.
SCRIPTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({}, "completed"),
    "tools": ({"count": 6, "at_once": "no"}, "completed"),
    "flaky": ({}, "completed"),
    "big": ({}, "completed"),
    "fail": ({"status": 529}, "failed"),
}
IN_CI = [(CLAUDE, "tools"), (CODEX, "tools")]
ALL = [(agent, script) for agent in AGENTS for script in SCRIPTS if (agent, script) not in IN_CI]


def ids(value: Any) -> str:
    return value.name if isinstance(value, Agent) else str(value)


@pytest.mark.parametrize(
    ("agent", "script"),
    [*IN_CI, *(pytest.param(*one, marks=pytest.mark.long) for one in ALL)],
    ids=ids,
)
def test_a_takeover_in_the_middle_changes_no_byte(
    instance: Instance, models: ModelServer, tmp_path: Path, run: str, agent: Agent, script: str
) -> None:
    calm, taken = f"{run}-calm", f"{run}-taken"
    params, status = SCRIPTS[script]
    with watch(instance, agent, calm, tag(script, calm, **params)) as watched:
        watched.until_end(WITHIN_S)
    assert instance.ended(calm, WITHIN_S)["status"] == status

    with watch(instance, agent, taken, tag(script, taken, hold="yes", **params)) as watched:
        hold = models.hold(taken)
        hold.reached()
        until_more(watched, 2)  # Codex says a text when it is whole
        journal = keep_journal(instance, taken, tmp_path)
        kill(instance.driver(taken))
        hold.open()
        watched.until_end(WITHIN_S)
    assert watched.responses == 1, "the client noticed"
    check_undisturbed(instance, agent, taken, journal, status)
    assert [claim["epoch"] for claim in instance.record(taken)["claims"]] == [1, 2]
    _, calm_band, calm_end = stored(instance, calm)
    _, band, end = stored(instance, taken)
    assert without_chance(taken, [*band, end]) == without_chance(calm, [*calm_band, calm_end])


def check_undisturbed(instance: Instance, agent: Agent, run: str, journal: Path, status: str) -> None:
    """Check that a run's log is what one reading of its journal gives, and that it holds no secret."""
    record = instance.ended(run, WITHIN_S)
    assert (record["status"], record["signal"]) == (status, None), record["error"]
    spec, band, end = stored(instance, run)
    data = journal.read_bytes()
    assert (band, end) == undisturbed(agent.harness, spec, run, data, record["exitCode"])
    assert CREDENTIAL.encode() not in data + b"".join(band) + end


def until_more(watched: Watch, count: int) -> None:
    wait_until(lambda: len(watched.events) > count, f"more than {count} events", WITHIN_S)


def watch(instance: Instance, agent: Agent, run: str, prompt: str, thread: str | None = None, **options: Any) -> Watch:
    return Watch(instance, run, prompt, thread, harness=agent.name, **agent.free, **options)


@pytest.mark.parametrize("agent", [CLAUDE, pytest.param(CODEX, marks=pytest.mark.long)], ids=ids)
def test_the_tools_of_a_living_agent_go_on_when_its_driver_is_killed_within_a_call(
    instance: Instance, tmp_path: Path, run: str, agent: Agent
) -> None:
    tools = Path(instance.env[host_functions.FOLDER])
    once, again = tools / f"{run}-once", tools / f"{run}-again"
    with Watch(instance, run, tag("lend", run), harness=agent.name) as watched:
        wait_until(once.exists, "the first call that stays within", WITHIN_S)
        journal = keep_journal(instance, run, tmp_path)
        token = token_of(instance, run)
        kill(instance.driver(run, 1))
        wait_until(again.exists, "the second one, under the next driver", WITHIN_S)
        kill(instance.driver(run, 2))
        wait_until(lambda: len(again.read_text().split()) == 2, "that call to be made again", WITHIN_S)
        again.with_name(f"{again.name}.open").touch()
        watched.until_end(WITHIN_S)
    once.with_name(f"{once.name}.open").touch()
    check_undisturbed(instance, agent, run, journal, "completed")
    assert [claim["epoch"] for claim in instance.record(run)["claims"]] == [1, 2, 3]
    assert len(once.read_text().split()) == 1, "an interrupted call was made again"
    assert len(set(again.read_text().split())) == 1
    said = [event["content"] for event in watched.events if event["type"] == "TOOL_CALL_RESULT"]
    assert [text.split()[0] for text in said] == ['{"sum":42}', "The", f"{run}-again", said[3].split()[0]], said
    assert "was interrupted" in said[1]
    assert json.loads(said[3]) == {"owner": "local", "run": run, "thread": instance.record(run)["threadId"]}
    names = [event["toolCallName"] for event in watched.events if event["type"] == "TOOL_CALL_START"]
    assert names == ["slow_add", "hold", "hold_again", "who"]
    for name in ("sum.begun", "sum.made"):
        assert len([event for event in watched.events if event.get("name") == name]) == 1
    told = [event["value"]["name"] for event in watched.events if event.get("name") == "held"]
    assert told == [f"{run}-once", f"{run}-again"], "an event of a repeated call came twice"
    kept = [path for path in instance.data_dir.rglob("*") if path.is_file()]  # the store, and the agent's home
    for path in (journal, instance.printed, *kept):
        assert token.encode() not in path.read_bytes(), path


def token_of(instance: Instance, run: str) -> str:
    """Return the token of a run, where its agent has it."""
    (recorder,) = instance.recorders(run)
    environs = [Path(f"/proc/{pid}/environ").read_bytes() for pid, _ in descendants(recorder.pid)]
    found = {entry for environ in environs for entry in environ.split(b"\0") if entry.startswith(b"AGENT_TOOLS_TOKEN=")}
    (entry,) = found
    return entry.partition(b"=")[2].decode()


@pytest.mark.long
@pytest.mark.parametrize("agent", AGENTS, ids=ids)
def test_a_run_of_minutes_outlives_a_kill_of_its_driver_every_few_seconds(
    instance: Instance, tmp_path: Path, run: str, agent: Agent
) -> None:
    with watch(instance, agent, run, tag("long", run, turns=25, words=40, delay_ms=15)) as watched:
        until_more(watched, 3)
        journal = keep_journal(instance, run, tmp_path)
        for epoch in range(1, 6):
            until_more(watched, len(watched.events) + 10)
            kill(instance.driver(run, epoch))
        watched.until_end(WITHIN_S)
    check_undisturbed(instance, agent, run, journal, "completed")
    assert [claim["epoch"] for claim in instance.record(run)["claims"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("agent", [CLAUDE, pytest.param(CODEX, marks=pytest.mark.long)], ids=ids)
def test_a_threads_next_run_goes_on_with_the_session_unless_that_is_lost(
    instance: Instance, models: ModelServer, run: str, agent: Agent
) -> None:
    home = instance.data_dir / "homes" / run
    first = session_of(instance, agent, f"{run}-1", run)
    assert any(first in path.name for path in home.rglob("*"))
    assert session_of(instance, agent, f"{run}-2", run, sessionId=first) == first
    shutil.rmtree(home)
    assert session_of(instance, agent, f"{run}-3", run, sessionId=first) != first


def session_of(instance: Instance, agent: Agent, run: str, thread: str, **options: Any) -> str:
    """Run the agent to its end; return the session that it reports."""
    with watch(instance, agent, run, tag("text", run), thread, **options) as watched:
        assert watched.until_end(WITHIN_S)["type"] == "RUN_FINISHED"
        (session,) = [event["value"] for event in watched.events if event.get("name") == agent.session_event]
    instance.ended(run, WITHIN_S)
    return str(session["sessionId"])


def test_a_credential_is_nowhere_in_what_an_instance_keeps_and_says(
    instance: Instance, models: ModelServer, run: str, agent: Agent
) -> None:
    with watch(instance, agent, run, tag("fail", run, status=400)) as watched:
        watched.until_end(WITHIN_S)
    record = instance.ended(run, WITHIN_S)
    assert {seen.credential for seen in models.of(run)} == {CREDENTIAL}
    stderr = instance.http.get(f"/api/runs/{run}/stderr").text
    told = [str(record), stderr, str(watched.events), instance.said]
    kept = [path for path in instance.data_dir.rglob("*") if path.is_file()]
    assert len(kept) > 3
    assert not [text for text in told if CREDENTIAL in text]
    assert not [path for path in kept if CREDENTIAL.encode() in path.read_bytes()]
