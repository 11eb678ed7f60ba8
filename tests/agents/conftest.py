"""The agents' programs, the stub of their models, and one instance that has both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import host_functions
import pytest
import setup_agents
from instance import Instance
from instances import answering, running
from model_server import ModelServer
from real_agents import AGENTS, Agent, allowed, environment
from shell_runs import unique


@pytest.fixture(scope="session")
def programs() -> Path:
    """Return the folder of `claude` and `codex`."""
    return setup_agents.prepare()


@pytest.fixture(scope="session")
def models() -> Iterator[ModelServer]:
    server = ModelServer()
    yield server
    server.close()


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def agent(request: pytest.FixtureRequest) -> Agent:
    """Each real agent in turn."""
    found: Agent = request.param
    return found


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """Return a run id that no other test uses."""
    return unique("agent")


@pytest.fixture(scope="session")
def agents_instance(
    tmp_path_factory: pytest.TempPathFactory, programs: Path, models: ModelServer
) -> Iterator[Instance]:
    env = environment(models, programs, tmp_path_factory.mktemp("home"))
    folder = tmp_path_factory.mktemp("tools")
    lent = {host_functions.FOLDER: str(folder), "OUTLAST_TOOLS": host_functions.SETTING}
    settings = {**env, **lent, "OUTLAST_AGENT_ENV": allowed(env)}
    with running(Instance(tmp_path_factory.mktemp("agents"), settings)) as served:
        yield served


@pytest.fixture
def instance(agents_instance: Instance) -> Iterator[Instance]:
    """Yield the instance, with every part of it answering before and after."""
    with answering(agents_instance) as instance:
        yield instance
