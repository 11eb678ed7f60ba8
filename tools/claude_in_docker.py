"""`make claude`: the real Claude Code, in a hardened container, driven by an instance of its own.

    make claude                            on a stub of its model, on a Docker engine of its own; needs root
    make claude ARGS=--kill                the same, and its driver is killed in the middle
    ANTHROPIC_API_KEY=... make claude ARGS='--ask "Write a haiku into poem.txt"'
                                           on the real model, on the engine at OUTLAST_DOCKER_HOST

Everything that it starts ends with it: instance, engine, container. It shows what a client of the run is told, then how
the run ended and what was left.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

import agent_image  # noqa: E402 - of tests/: the same engine, image, stub and instance
import docker_engine  # noqa: E402
import model_scripts  # noqa: E402
import setup_agents  # noqa: E402
from docker_engine import DockerEngine  # noqa: E402
from instance import OUTLAST, Instance  # noqa: E402
from model_server import ModelServer  # noqa: E402
from namespaces import inside_network  # noqa: E402
from real_agents import allowed, environment  # noqa: E402
from setup_venv import SetupError  # noqa: E402

RUN = "claude-1"
TOOLS = '["Bash","Read","Write"]'
WITHIN_S = 180.0


def tell(text: str) -> None:
    """Say what we do, beside what the run's client shows."""
    sys.stderr.write(f"claude: {text}\n")
    sys.stderr.flush()


class Place(NamedTuple):
    """Where the container will be, and what its agent is given. `hold` waits until the agent is in the middle of its
    work, and returns what lets it go on."""

    settings: dict[str, str]
    prompt: str
    hold: Callable[[], Callable[[], None]] | None


@contextmanager
def stubbed(folder: Path, *, kill: bool) -> Iterator[Place]:
    """Yield an engine of our own, without any network, and a stub of the model on its loopback."""
    if why := docker_engine.missing():
        raise SetupError(f"No Docker engine can be started here: {why}. `make test` says how to get one.")
    with ExitStack() as undo:
        engine = DockerEngine()
        undo.callback(engine.close)
        models = inside_network(engine.open_loopback(), ModelServer)
        undo.callback(models.close)
        tell("packing the image of the agent")
        image = agent_image.import_agents(engine, folder, "claude")
        env = environment(models, Path("/usr/local/bin"), Path("/nowhere"))

        def hold() -> Callable[[], None]:
            held = models.hold(RUN)
            held.reached(WITHIN_S)
            return held.open

        params = {"hold": "yes"} if kill else {}
        yield Place(
            settings_of(engine.address, image, "host", env),
            model_scripts.tag("tools", RUN, count=2, **params),
            hold if kill else None,
        )
        tell(f"containers left: {len(engine.containers())}")


@contextmanager
def real(folder: Path, prompt: str) -> Iterator[Place]:
    """Yield this machine's engine, with the image of the agent, and the real model."""
    address = os.environ.get("OUTLAST_DOCKER_HOST", "unix:///var/run/docker.sock")
    archive = folder / "agents.tar"
    agent_image.pack(archive, {"claude": setup_agents.native(setup_agents.TARGET)["claude"]})
    repository, _, tag = agent_image.NAME.partition(":")
    client = import_module("docker").APIClient(base_url=address, timeout=agent_image.IMPORT_S)
    try:
        client.import_image_from_file(str(archive), repository=repository, tag=tag)
        env = {"ANTHROPIC_API_KEY": os.environ["ANTHROPIC_API_KEY"]}
        yield Place(settings_of(address, agent_image.NAME, "bridge", env), prompt, None)
    finally:
        client.close()


def settings_of(address: str, image: str, network: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the instance, and the environment that its agents are allowed."""
    given = {name: value for name, value in env.items() if name not in ("PATH", "HOME")}
    return {
        **given,
        "OUTLAST_SANDBOX": "docker",
        "OUTLAST_HARNESS": "claude-code",
        "OUTLAST_DOCKER_HOST": address,
        "OUTLAST_DOCKER_IMAGE": image,
        "OUTLAST_DOCKER_NETWORK": network,
        "OUTLAST_DOCKER_MEMORY_BYTES": str(1 << 30),
        "OUTLAST_AGENT_ENV": allowed(env),
    }


def play(place: Place, folder: Path) -> int:
    """Serve, have `outlast run` show the run, and tell how it ended; return that command's exit code."""
    served = Instance(folder, place.settings)
    try:
        tell("starting an instance")
        served.start()
        tools = ["--option", f"allowedTools={TOOLS}"]
        argv = [str(OUTLAST), "run", "--harness", "claude-code", "--run", RUN, *tools, place.prompt]
        with subprocess.Popen(argv, env=served.env) as following:
            if place.hold is not None:
                go_on = place.hold()
                driver = served.driver(RUN)
                tell(f"killing the driver, process {driver.pid}, in the middle of the run")
                os.kill(driver.pid, signal.SIGKILL)
                served.driver(RUN, 2)
                go_on()
            code = following.wait()
        record = served.ended(RUN, WITHIN_S)
        claims = ", ".join(f"{claim['epoch']} ({claim['reason']})" for claim in record["claims"])
        tell(f"{record['status']}, {record['chunks']} chunks; drivers: {claims}")
        listed = served.http.get(f"/api/runs/{RUN}/workspace?as=files").json()
        tell(f"files that it left: {', '.join(file['path'] for file in listed)}")
        served.stop()
        return code
    finally:
        served.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of `outlast run`; 1 if it could not be started."""
    parser = argparse.ArgumentParser(prog="claude", description=__doc__.partition("\n")[0])
    parser.add_argument("--ask", default="", help="what the real model is asked; needs ANTHROPIC_API_KEY")
    parser.add_argument("--kill", action="store_true", help="kill the driver in the middle (on the stub)")
    asked = parser.parse_args(arguments)
    if asked.ask and (asked.kill or not os.environ.get("ANTHROPIC_API_KEY")):
        parser.error("--ask needs ANTHROPIC_API_KEY in the environment, and goes without --kill.")
    try:
        setup_agents.prepare()
        with tempfile.TemporaryDirectory(prefix="outlast-claude-") as made:
            folder = Path(made)
            place = real(folder, asked.ask) if asked.ask else stubbed(folder, kill=asked.kill)
            with place as ready:
                return play(ready, folder)
    except SetupError as error:
        tell(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
