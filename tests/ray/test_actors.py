"""What Ray is asked for: options, names, light processes, warm workers, and errors that cross a call whole."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from instance import Instance
from processes import command_line
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch

from actors import hook_actor, log_shard, run_actor, supervisor_actor
from actors.calls import call
from actors.errands import Errands
from actors.nodes import Nodes
from actors.reach import Reached
from actors.warm import WarmWorkers
from runtime.core.record import ClaimReason, Head
from runtime.delivery.errors import NotAcquired
from runtime.errors import OutlastError, leaves
from runtime.settings import load

# What costs memory in every run actor and is of no use there (70 ms and 6.5 MB for the first three together).
FORBIDDEN = (
    "pydantic",
    "fastapi",
    "starlette",
    "sqlite3",
    "psycopg",
    "uvicorn",
    "httpx",
    "click",
    "prometheus_client",
    "serve_app",
)
# Harnesses are loaded while a worker idles. Ray loads the class of an actor wherever its handle is looked up: that is
# why the shard is among them, and all of the engine with it.
LOADED = {
    "actors": "calls compose history identity light log_shard names run_actor segments shard_client slots",
    "runtime.harnesses": (
        "agui blocks claude_code claude_line claude_result claude_stream codex codex_items codex_result codex_stream "
        "endings json_line options prompt shell"
    ),
    "runtime.sandboxes": (
        "baseline cloning command diffing file_watch filling follow launcher local local_files recorder recording "
        "spool strays tool_server"
    ),
}
ENGINE_AND_CORE = 56  # modules at most; 54 when this was last raised, for transcripts, all small


def test_a_run_actor_and_its_calls_are_never_repeated_by_ray() -> None:
    assert (run_actor.OPTIONS["max_restarts"], run_actor.OPTIONS["max_task_retries"]) == (0, 0)


@pytest.mark.parametrize("options", [log_shard.OPTIONS, supervisor_actor.OPTIONS, hook_actor.OPTIONS])
def test_shard_supervisor_and_hooks_are_restarted_by_ray_but_no_call_of_theirs_is_repeated(
    options: dict[str, Any],
) -> None:
    assert (options["max_restarts"], options["max_task_retries"]) == (-1, 0)


@pytest.mark.parametrize(
    "options", [run_actor.OPTIONS, log_shard.OPTIONS, supervisor_actor.OPTIONS, hook_actor.OPTIONS]
)
def test_every_actor_outlives_who_made_it_and_needs_no_cpu(options: dict[str, Any]) -> None:
    assert (options["lifetime"], options["num_cpus"]) == ("detached", 0)


def test_ray_itself_says_so_of_a_living_run_actor(instance: Instance, ray_driver: Any) -> None:
    run = unique("options")
    with Watch(instance, run, numbered(3000)) as watch:
        watch.until_lines(1)
        handle = ray_driver.get_actor(f"run:{run}", namespace=instance.namespace)
        driver = instance.driver(run)
        status = asyncio.run(call("run", handle.status))
        assert (status["runId"], status["epoch"], status["pid"]) == (run, 1, driver.pid)
        assert command_line(driver.pid).startswith("ray::RunActor")
    instance.http.post("/api/chat/cancel", json={"runId": run})
    instance.ended(run)


@pytest.fixture(scope="module")
def loaded(shared_instance: Instance) -> list[str]:
    """Return the modules of a run actor when it launches its agent."""
    run = unique("spy")
    with Watch(shared_instance, run, "unused", harness="spy") as watch:
        watch.until_end()
    assert len(watch.lines) > 100
    return watch.lines


def test_a_run_actor_loads_nothing_heavy(loaded: list[str]) -> None:
    assert [name for name in loaded if name.partition(".")[0] in FORBIDDEN] == []


def test_a_run_actor_loads_these_modules_of_ours_and_no_other(loaded: list[str]) -> None:
    packages: dict[str, list[str]] = {}
    for name in loaded:
        package, _, module = name.rpartition(".")
        if name.partition(".")[0] in ("runtime", "actors"):
            packages.setdefault(package, []).append(module)
    assert set(packages) == {"", "runtime", "runtime.core", "runtime.engine", *LOADED}
    assert {package: " ".join(packages[package]) for package in LOADED} == LOADED
    assert len(packages["runtime.engine"]) + len(packages["runtime.core"]) <= ENGINE_AND_CORE


def test_the_private_call_that_warms_workers_works(instance: Instance, ray_driver: Any) -> None:
    async def warm() -> bool:
        nodes = Nodes(Errands(load(instance.env), ""), Reached(frozenset(), whole=False), "")
        await nodes.look()
        return await WarmWorkers(2, nodes).refill(2)

    before = len(instance.processes("ray::IDLE"))
    assert asyncio.run(warm())
    wait_until(lambda: len(instance.processes("ray::IDLE")) > before, "another idle worker", 20.0)


def test_an_instance_keeps_workers_warm(instance: Instance) -> None:
    wait_until(lambda: instance.processes("ray::IDLE"), "an idle worker", 20.0)


def test_a_taken_name_is_a_value_error(instance: Instance, ray_driver: Any) -> None:
    run = unique("name")
    with Watch(instance, run, numbered(3000)) as watch:
        watch.until_lines(1)
        deployment = (instance.data_dir / "deployment").read_text().strip()
        with pytest.raises(ValueError, match=run):
            run_actor.create(run, 1, ClaimReason.OPERATOR, load(instance.env), deployment)
    instance.http.post("/api/chat/cancel", json={"runId": run})
    assert [claim["epoch"] for claim in instance.ended(run)["claims"]] == [1]


def _sample(kind: type[OutlastError]) -> OutlastError:
    """Return an error of that class with a value in every field."""
    values: dict[str, Any] = {
        "str": "what",
        "int": 7,
        "float": 0.5,
        "str | None": "code",
        "int | None": 8,
        "NotAcquired": NotAcquired.UNKNOWN,
        "Head": Head(run_id="run", thread_id="thread", owner="owner", digest="digest", created_at=1),
    }
    parameters = list(inspect.signature(kind).parameters.values())
    return kind(**{parameter.name: values[str(parameter.annotation)] for parameter in parameters})


def test_every_error_crosses_a_ray_call_with_its_class_and_all_of_its_facts(
    instance: Instance, ray_driver: Any
) -> None:
    class Raiser:
        async def fail(self, error: OutlastError) -> None:
            raise error

    raiser = ray_driver.remote(num_cpus=0)(Raiser).remote()
    for kind in leaves():
        sent = _sample(kind)
        with pytest.raises(OutlastError) as raised:
            asyncio.run(call("raiser", raiser.fail, sent, timeout_s=20))
        came = raised.value
        assert type(came) is kind
        assert (came.__dict__ | {"cause": None}, str(came), came.code) == (
            sent.__dict__ | {"cause": None},
            str(sent),
            sent.code,
        )
    ray_driver.kill(raiser)
