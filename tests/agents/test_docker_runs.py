"""The real agents in hardened containers, on an engine of the tests' own. Their models are on the engine's loopback,
which the containers share (`OUTLAST_DOCKER_NETWORK=host`); that engine has no other network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker_engine
import host_functions
import pytest
from agent_image import import_agents
from docker_engine import DockerEngine
from instance import Instance
from journal_band import stored, undisturbed
from lone_agents import LoneAgents
from model_scripts import tag
from model_server import ModelServer
from namespaces import inside_network
from processes import kill
from real_agents import AGENTS, CLAUDE, CREDENTIAL, Agent, allowed, environment
from waiting import wait_until
from watching import Watch

from runtime.core.record import Status
from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.hardening import Limits
from runtime.testing.event_order import order_faults

# CI cannot go green without: it names the lane `docker` too, and that lane's need is the same.
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(docker_engine.missing() is not None, reason=f"lane docker: {docker_engine.missing()}"),
]
WITHIN_S = 120.0
LIMITS = Limits(network="host", memory_bytes=1 << 30, pids=256)


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerEngine]:
    made = DockerEngine()
    yield made
    made.close()


@pytest.fixture(scope="module")
def enclosed(engine: DockerEngine) -> Iterator[ModelServer]:
    """Yield models that listen where the containers are."""
    server = inside_network(engine.open_loopback(), ModelServer)
    yield server
    server.close()


@pytest.fixture(scope="module")
def image(engine: DockerEngine, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return import_agents(engine, tmp_path_factory.mktemp("image"), "claude")


@pytest.fixture(scope="module")
def both(engine: DockerEngine, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an image with both agents, which takes twice the time and room."""
    return import_agents(engine, tmp_path_factory.mktemp("both"), "claude", "codex")


@pytest.fixture(scope="module")
def docked(
    engine: DockerEngine, both: str, enclosed: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    """Yield an instance whose agents live in containers."""
    env = env_of(enclosed)
    settings = {
        "OUTLAST_SANDBOX": "docker",
        "OUTLAST_DOCKER_HOST": engine.address,
        "OUTLAST_DOCKER_IMAGE": both,
        "OUTLAST_DOCKER_NETWORK": LIMITS.network,
        "OUTLAST_DOCKER_MEMORY_BYTES": str(LIMITS.memory_bytes),
        "OUTLAST_AGENT_ENV": allowed(env),
        "OUTLAST_TOOLS": host_functions.SETTING,
        host_functions.FOLDER: str(tmp_path_factory.mktemp("tools")),
    }
    host = {name: value for name, value in env.items() if name not in ("PATH", "HOME")}
    served = Instance(tmp_path_factory.mktemp("docked"), {**host, **settings})
    try:
        served.start()
        yield served
        assert served.stop() == 0
        assert engine.containers() == []
    finally:
        served.close()


def env_of(models: ModelServer) -> dict[str, str]:
    env = environment(models, Path("/usr/local/bin"), Path("/nowhere"))
    return {**env, "PATH": "/usr/local/bin:/usr/bin:/bin"}


async def test_claude_does_its_work_in_a_container(
    engine: DockerEngine, enclosed: ModelServer, image: str, run: str
) -> None:
    provider = DockerProvider("agents", image, LIMITS, engine.address)
    played = await LoneAgents(provider, env_of(enclosed)).play(CLAUDE, run, tag("tools", run, count=2))
    assert (played.log.ending.status, played.exit.code) == (Status.COMPLETED, 0), (played.stderr, played.journal[-999:])
    assert order_faults(played.log.chunks) == []
    assert len(played.log.of("TOOL_CALL_START")) == len(played.results) == 1 + 2 + 2 + 1
    assert not [data for data in (played.journal, played.stderr) if CREDENTIAL.encode() in data]
    assert {seen.credential for seen in enclosed.of(run)} == {CREDENTIAL}
    assert engine.containers() == []


@pytest.mark.long
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
@pytest.mark.parametrize("script", ["tools", "big"])
def test_a_takeover_of_a_container_in_the_middle_changes_no_byte(
    docked: Instance, engine: DockerEngine, enclosed: ModelServer, tmp_path: Path, run: str, agent: Agent, script: str
) -> None:
    with Watch(docked, run, tag(script, run, hold="yes"), harness=agent.name) as watched:
        hold = enclosed.hold(run)
        hold.reached(WITHIN_S)
        wait_until(lambda: len(watched.events) > 2, "what the agent said so far", WITHIN_S)
        (volume,) = engine.volumes("journal")
        os.link(engine.data / "volumes" / volume / "_data" / "journal", tmp_path / "journal")
        kill(docked.driver(run))
        hold.open()
        watched.until_end(WITHIN_S)
    record = docked.ended(run, WITHIN_S)
    assert (record["status"], record["provider"]) == ("completed", "docker"), record["error"]
    assert [claim["epoch"] for claim in record["claims"]] == [1, 2]
    spec, band, end = stored(docked, run)
    journal = (tmp_path / "journal").read_bytes()
    assert (band, end) == undisturbed(agent.harness, spec, run, journal, record["exitCode"])
    assert CREDENTIAL.encode() not in journal + b"".join(band) + end


@pytest.mark.long
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_the_tools_of_an_agent_in_a_container_go_on_after_a_takeover(docked: Instance, run: str, agent: Agent) -> None:
    tools = Path(docked.env[host_functions.FOLDER])
    once, again = tools / f"{run}-once", tools / f"{run}-again"
    with Watch(docked, run, tag("lend", run), harness=agent.name) as watched:
        wait_until(once.exists, "the call that stays within", WITHIN_S)
        kill(docked.driver(run))
        wait_until(again.exists, "the next one, under the next driver", WITHIN_S)
        again.with_name(f"{again.name}.open").touch()
        watched.until_end(WITHIN_S)
    once.with_name(f"{once.name}.open").touch()
    assert docked.ended(run, WITHIN_S)["status"] == "completed"
    said = [event["content"] for event in watched.events if event["type"] == "TOOL_CALL_RESULT"]
    assert (said[0], "was interrupted" in said[1], said[2]) == ('{"sum":42}', True, f"{run}-again was opened"), said
    assert (len(once.read_text().split()), len(again.read_text().split())) == (1, 1)


@pytest.mark.long
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_a_session_outlives_its_container_and_a_lost_one_is_no_failure(
    docked: Instance, run: str, agent: Agent
) -> None:
    first = session_of(docked, agent, f"{run}-1", run)
    assert session_of(docked, agent, f"{run}-2", run, sessionId=first) == first
    assert session_of(docked, agent, f"{run}-3", f"{run}-other", sessionId=first) != first


def session_of(docked: Instance, agent: Agent, run: str, thread: str, **options: str) -> str:
    """Run the agent to its end; return the session that it reports."""
    with Watch(docked, run, tag("text", run), thread, harness=agent.name, **options) as watched:
        assert watched.until_end(WITHIN_S)["type"] == "RUN_FINISHED"
        (session,) = [event["value"] for event in watched.events if event.get("name") == agent.session_event]
    docked.ended(run, WITHIN_S)
    return str(session["sessionId"])
