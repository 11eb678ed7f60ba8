"""`serve` on a Ray that it did not start and that stays: it takes its actors with it, and the next one goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import httpx
import leftovers
import pytest
from instance import OUTLAST, Instance
from processes import command_line, kill, wait_dead
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

from runtime import process
from runtime.process import ProcessIdentity
from serve_app.ray_environment import PROXY_GUARD, free_port

LINES, PER_SECOND = 500, 10.0  # longer than a stop and a start
NO_INSTANCE = 5
REPLICA = ":ServeReplica:"
KILLS = 3
READERS = 16
MARK = "OUTLAST_TEST_CLUSTER"


@pytest.fixture
def cluster_address(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a Ray of one node, whose processes carry MARK."""
    mark, port = str(tmp_path), free_port()
    temp_dir = f"/tmp/outlast-cluster-{os.getpid()}-{port}"
    options = {
        "port": port,
        "node-ip-address": "127.0.0.1",
        "num-cpus": 4,
        "object-store-memory": 100 << 20,
        "include-dashboard": "false",
        "ray-client-server-port": free_port(),
        "dashboard-agent-listen-port": free_port(),
        "temp-dir": temp_dir,
    }
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--disable-usage-stats"]
    command += [f"--{name}={value}" for name, value in options.items()]
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    env |= {MARK: mark, "RAY_AUTH_MODE": "disabled", "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": PROXY_GUARD}
    try:
        subprocess.run(command, env=env, cwd="/", check=True, timeout=60, capture_output=True)
        yield f"127.0.0.1:{port}"
    finally:
        leftovers.end(MARK, mark)
        shutil.rmtree(temp_dir, ignore_errors=True)


@pytest.fixture
def guest(tmp_path: Path, cluster_address: str) -> Iterator[Instance]:
    """Yield an instance that lives on that Ray."""
    # No lease runs out here while a driver starts, which takes longer than its 3 s on a busy machine.
    guest = Instance(tmp_path, {"OUTLAST_RAY_ADDRESS": cluster_address, "OUTLAST_LEASE_TTL_S": "30"})
    try:
        yield guest
    finally:
        guest.close()


@pytest.mark.timeout(240)
def test_a_stop_takes_every_driver_along_and_the_next_serve_on_the_same_cluster_goes_on(guest: Instance) -> None:
    guest.start()
    runs = [unique(f"guest-{number}") for number in range(3)]
    for run in runs:
        guest.begin(run, numbered(LINES, PER_SECOND))
    for run in runs:
        wait_until(lambda run=run: guest.record(run)["chunks"] > 20, f"chunks of {run}", 30.0)  # type: ignore[misc]
    drivers = [guest.driver(run) for run in runs]
    assert guest.stop() == 0
    wait_dead(drivers)
    assert all(guest.agents(run) for run in runs)
    guest.start()
    for run in runs:
        with Watch(guest, run) as watch:
            watch.until_end(within_s=120)
        check_whole(watch, LINES)
        record = guest.ended(run)
        assert record["status"] == "completed"
        told = [(claim["reason"], claim["end"]) for claim in record["claims"]]
        assert told == [("start", "handed_over"), ("restart", "finished")]
    assert guest.stop() == 0


@pytest.mark.timeout(120)
def test_another_port_than_that_of_the_clusters_serve_is_refused_with_the_right_one(guest: Instance) -> None:
    guest.start()
    assert guest.stop() == 0
    listens, other = guest.port, str(free_port())
    ended = subprocess.run(
        [OUTLAST, "serve"],
        cwd="/",
        env={**guest.env, "OUTLAST_PORT": other},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == NO_INSTANCE
    assert f"Set OUTLAST_PORT={listens}." in ended.stderr.splitlines()[-1]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_who_comes_back_to_a_run_hears_nothing_of_a_replica_that_dies(guest: Instance, tmp_path: Path) -> None:
    """Ray Serve's own proxy is in front here, and says 500 for a replica that dies before it answers."""
    guest.start()
    run = unique("guest")
    guest.begin(run, numbered(LINES, PER_SECOND))
    wait_until(lambda: guest.record(run)["chunks"] > 20, f"chunks of {run}", 30.0)
    told: Counter[int] = Counter()
    enough = Event()
    with ThreadPoolExecutor(READERS) as pool:
        readers = [pool.submit(_come_back, guest.url, run, told, enough) for _ in range(READERS)]
        try:
            for _ in range(KILLS):
                before = _replicas(tmp_path)
                assert before, [command_line(pid) for pid in leftovers.carrying(MARK, str(tmp_path))]
                heard = told[200]
                kill(before[0])
                wait_until(lambda before=before: set(_replicas(tmp_path)) - set(before), "another replica", 60.0)  # type: ignore[misc]
                wait_until(lambda heard=heard: told[200] > heard + READERS, "readers are answered", 60.0)  # type: ignore[misc]
        finally:
            enough.set()
        for reader in readers:
            reader.result()
    assert set(told) == {200}, told


def _replicas(mark: Path) -> list[ProcessIdentity]:
    """Return the gateway replicas, which are the cluster's processes."""
    pids = leftovers.carrying(MARK, str(mark))
    return [who for pid in pids if REPLICA in command_line(pid) and (who := process.identify(pid))]


def _come_back(url: str, run: str, told: Counter[int], enough: Event) -> None:
    """Read the run's first chunk again and again; count what is answered. A connection that is cut is no answer."""
    with httpx.Client(base_url=url, timeout=10.0) as http:
        while not enough.is_set():
            with (
                suppress(httpx.TransportError),
                http.stream("GET", "/api/chat", params={"runId": run, "offset": "-1"}) as response,
            ):
                told[response.status_code] += 1
                next(response.iter_lines(), None)
