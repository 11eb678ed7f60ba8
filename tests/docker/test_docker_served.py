"""`outlast serve` with agents in containers: what a client sees, what is lost (nothing) and what is left behind (the
thread's files)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import host_functions
import pytest
from docker_engine import IMAGE, DockerEngine
from instance import Instance
from processes import kill
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

pytestmark = pytest.mark.timeout(180)
LINES = 100
SOON_S = 60.0  # containers, on a machine that may be busy


@pytest.fixture(scope="module")
def served(lasting: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Yield an instance whose agents live on that engine."""
    settings = {"SANDBOX": "docker", "DOCKER_HOST": lasting.address, "DOCKER_IMAGE": IMAGE, "DOCKER_PIDS": "128"}
    settings["TOOLS"] = host_functions.SETTING
    env = {f"OUTLAST_{name}": value for name, value in settings.items()}
    folder = tmp_path_factory.mktemp("tools")
    instance = Instance(tmp_path_factory.mktemp("docker"), {**env, host_functions.FOLDER: str(folder)})
    try:
        instance.start()
        yield instance
        assert instance.stop() == 0
        assert lasting.containers() == []
        assert lasting.volumes("journal") == []
    finally:
        instance.close()


def gone(engine: DockerEngine, instance: Instance, run_id: str) -> None:
    """Wait until nothing of a run is left: no container, no journal, no process."""
    wait_until(lambda: not engine.containers(), f"no container of {run_id}", SOON_S)
    wait_until(lambda: not engine.volumes("journal"), f"no journal of {run_id}", SOON_S)
    assert instance.agents(run_id) == []


def test_a_run_ends_and_leaves_its_files_alone(served: Instance, lasting: DockerEngine) -> None:
    run = unique("docker-first")
    with Watch(served, run, "echo hello; id -u; echo work > result; echo trouble >&2; exit 3", "thread-first") as watch:
        terminal = watch.until_end(SOON_S)
    assert watch.lines == ["hello", "10001"]
    assert (terminal["type"], terminal["code"]) == ("RUN_ERROR", "agent_exit")
    assert served.ended(run, SOON_S)["exitCode"] == 3
    gone(lasting, served, run)
    later = unique("docker-later")
    with Watch(served, later, "cat result", "thread-first") as watch:
        watch.until_end(SOON_S)
    assert watch.lines == ["work"]
    assert served.ended(later, SOON_S)["status"] == "completed"
    gone(lasting, served, later)


def test_a_kept_container_stays_until_the_threads_next_run(served: Instance, lasting: DockerEngine) -> None:
    run, later = unique("docker-kept"), unique("docker-next")
    with Watch(served, run, "echo work > result; echo note > /tmp/note", "thread-kept", keepAlive=True) as watch:
        watch.until_end(SOON_S)
    assert served.record(run)["sandboxKeptUntil"] is not None
    assert len(lasting.containers()) == 1
    with Watch(served, later, "cat result; cat /tmp/note || echo gone", "thread-kept") as watch:
        watch.until_end(SOON_S)
    assert watch.lines == ["work", "gone"]
    assert served.ended(later, SOON_S)["status"] == "completed"
    gone(lasting, served, later)
    assert served.record(run)["sandboxKeptUntil"] is None


def test_a_run_outlives_a_kill_of_its_driver(served: Instance, lasting: DockerEngine) -> None:
    run = unique("docker-killed")
    with Watch(served, run, numbered(LINES, 50)) as watch:
        watch.until_lines(30, SOON_S)
        kill(served.driver(run))
        watch.until_end(SOON_S)
    check_whole(watch, LINES)
    record = served.ended(run, SOON_S)
    assert (record["status"], record["exitCode"]) == ("completed", 0)
    assert [claim["reason"] for claim in record["claims"]] == ["start", "driver_lost"]
    gone(lasting, served, run)


def test_a_call_of_a_host_tool_outlives_its_driver_and_nobody_can_forge_one(
    served: Instance, lasting: DockerEngine
) -> None:
    run = unique("docker-tools")
    tools = Path(served.env[host_functions.FOLDER])
    attacks = "".join(
        f"({attack}) 2>/dev/null && echo did: {attack.split()[0]}; "
        for attack in (
            "touch /.outlast/tools/answers/x",
            "echo [] > /.outlast/tools/offers/x",
            "mv /.outlast/tools/calls /.outlast/tools/mine",
            "rm -rf /.outlast/tools/answers",
        )
    )
    calls = (
        '$AGENT_TOOLS call slow_add \'{"a": 40, "b": 2}\'',
        f'$AGENT_TOOLS call hold \'{{"name": "{run}"}}\' 2>&1',
        "$AGENT_TOOLS call who",
    )
    with Watch(served, run, attacks + "; ".join(calls), f"thread-{run}") as watch:
        wait_until((tools / run).exists, "the call that stays within", SOON_S)
        kill(served.driver(run))
        assert watch.until_end(SOON_S)["type"] == "RUN_FINISHED"
    (tools / f"{run}.open").touch()
    assert [line.partition(":")[0] for line in watch.lines] == ['{"sum"', "The call was interrupted", '{"owner"']
    assert len((tools / run).read_text().split()) == 1
    assert [event["value"] for event in watch.events if event.get("name") == "sum.made"] == [{"sum": 42}]
    gone(lasting, served, run)


def test_a_run_outlives_its_engine_and_nobody_notices(served: Instance, lasting: DockerEngine) -> None:
    run = unique("docker-restart")
    with Watch(served, run, numbered(LINES, 25)) as watch:
        watch.until_lines(30, SOON_S)
        lasting.end(signal.SIGKILL)
        lasting.start()
        watch.until_end(SOON_S)
    check_whole(watch, LINES)
    record = served.ended(run, SOON_S)
    assert (record["status"], [claim["reason"] for claim in record["claims"]]) == ("completed", ["start"])
    gone(lasting, served, run)


def test_a_run_outlives_a_pause(served: Instance, lasting: DockerEngine) -> None:
    run = unique("docker-paused")
    with Watch(served, run, numbered(LINES, 50)) as watch:
        watch.until_lines(30, SOON_S)
        (container,) = lasting.containers()
        with lasting.client() as client:
            client.pause(container)
            kill(served.driver(run))  # so that somebody has to come to a container that answers nothing
            served.driver(run, 2)
            client.unpause(container)
        watch.until_end(SOON_S)
    check_whole(watch, LINES)
    assert served.ended(run, SOON_S)["status"] == "completed"
    gone(lasting, served, run)


@pytest.mark.parametrize("state", ["running", pytest.param("paused", marks=pytest.mark.long), "without a driver"])
def test_a_cancel_leaves_no_process_and_no_container_and_keeps_the_files(
    served: Instance, lasting: DockerEngine, state: str
) -> None:
    run, thread = unique("docker-cancel"), f"thread-{state}".replace(" ", "-")
    script = f"echo work > result; (setsid sh -c 'trap \"\" TERM; while :; do sleep 60; done' &); {numbered(10**6, 50)}"
    with Watch(served, run, script, thread) as watch:
        watch.until_lines(10, SOON_S)
        assert len(served.agents(run)) >= 2
        (container,) = lasting.containers()
        if state == "paused":
            with lasting.client() as client:
                client.pause(container)
        if state == "without a driver":
            kill(served.driver(run))
        assert served.http.post("/api/chat/cancel", json={"runId": run}).status_code == 204
        terminal = watch.until_end(SOON_S)
    assert (terminal["type"], terminal["code"]) == ("RUN_ERROR", "aborted")
    assert served.ended(run, SOON_S)["status"] == "aborted"
    gone(lasting, served, run)
    later = unique("docker-after")
    with Watch(served, later, "cat result", thread) as watch:
        watch.until_end(SOON_S)
    assert watch.lines == ["work"]
    gone(lasting, served, later)


def test_a_container_that_is_removed_by_hand_ends_its_run(served: Instance, lasting: DockerEngine) -> None:
    run = unique("docker-removed")
    with Watch(served, run, numbered(10**6, 50)) as watch:
        watch.until_lines(10, SOON_S)
        with lasting.client() as client:
            client.remove_container(lasting.containers()[0], force=True)
        terminal = watch.until_end(SOON_S)
    assert (terminal["type"], terminal["code"]) == ("RUN_ERROR", "sandbox_lost")
    gone(lasting, served, run)
