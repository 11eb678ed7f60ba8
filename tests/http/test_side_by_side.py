"""Two instances on one machine: neither answers for the other, and Ctrl-C ends one whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from instance import STOP_S, Instance
from shell_runs import body, numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

from serve_app.tokens import digest

pytestmark = pytest.mark.timeout(150)


def test_two_instances_hold_a_run_of_the_same_id_each(instance: Instance, mortal: Instance) -> None:
    mortal.start()
    run = unique("same")
    with Watch(instance, run, numbered(30)) as here, Watch(mortal, run, numbered(40)) as there:
        here.until_end()
        there.until_end()
    check_whole(here, 30)
    check_whole(there, 40)
    assert instance.ended(run)["sandboxKey"] != mortal.ended(run)["sandboxKey"]
    only = unique("only")
    with Watch(mortal, only, "echo 1") as watch:
        watch.until_end()
    assert instance.http.get(f"/api/runs/{only}").status_code == 404


def test_a_replica_of_one_killed_is_not_stood_in_for_by_the_other(instance: Instance, mortal: Instance) -> None:
    only = unique("only")
    with Watch(mortal, only, "echo 1") as watch:
        watch.until_end()
    for replica in mortal.processes("ray::ServeReplica"):
        os.kill(replica.pid, signal.SIGKILL)
    for _ in range(20):
        try:
            answer = mortal.http.get(f"/api/runs/{only}", timeout=30)
        except httpx.TransportError:
            continue
        assert answer.status_code != 404, "the other instance answered"


def test_ctrl_c_ends_one_instance_whole_and_neither_its_agents_nor_the_other_one(
    instance: Instance, mortal: Instance
) -> None:
    run, other = unique("ctrl-c"), unique("goes-on")
    with Watch(instance, other, numbered(200)) as goes_on, Watch(mortal, run, numbered(3000)) as watch:
        goes_on.until_lines(10)
        watch.until_lines(10)
        assert mortal.serve is not None
        os.killpg(mortal.serve.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        assert mortal.serve.wait(STOP_S) == 0, mortal.said
        assert watch.cuts >= 1
        assert mortal.processes() == []
        assert mortal.agents(run)
        with pytest.raises(httpx.ConnectError):
            mortal.http.get("/readyz")
        goes_on.until_end()
    check_whole(goes_on, 200)
    assert goes_on.responses == 1
    assert "Traceback" not in mortal.said


@pytest.mark.long
def test_owners_share_an_instance_and_nothing_in_it(mortal: Instance, tmp_path: Path) -> None:
    said = {"ann": "a" * 43, "bob": "b" * 43}
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("".join(f"{owner} sha256:{digest(token).hex()}\n" for owner, token in said.items()))
    mortal.configure(OUTLAST_TOKENS_FILE=str(tokens))
    mortal.start()

    def client(headers: dict[str, str]) -> httpx.Client:
        return httpx.Client(base_url=mortal.url, trust_env=False, timeout=30, headers=headers)

    def start(http: httpx.Client, script: str) -> str:
        return http.post("/api/chat", headers={"X-Run-Id": "r"}, json=body("r", script, "t")).text

    bearer = {owner: {"Authorization": f"Bearer {token}"} for owner, token in said.items()}
    with client(bearer["ann"]) as ann, client(bearer["bob"]) as bob, client({}) as nobody:
        assert nobody.get("/api/runs").status_code == httpx.codes.UNAUTHORIZED
        assert "hers" in start(ann, "echo hers | tee kept")
        assert bob.get("/api/runs/r").status_code == httpx.codes.NOT_FOUND
        assert '"runId":"r"' in (his := start(bob, "ls; echo bob-says"))
        assert "kept" not in his
        assert [len(http.get("/api/runs").json()["runs"]) for http in (ann, bob)] == [1, 1]
        session = ann.post("/api/session").headers["set-cookie"].partition(";")[0]
    assert mortal.stop() == 0
    mortal.start()
    with client({"Cookie": session}) as ann, client(bearer["bob"]) as bob:
        log = ann.get("/api/chat", params={"runId": "r", "offset": "-1"}).text
        assert "hers" in log
        assert "bob-says" not in log
        tokens.write_text(f"bob sha256:{digest(said['bob']).hex()}\n")
        wait_until(lambda: ann.get("/api/runs").status_code == httpx.codes.UNAUTHORIZED, "the end of her session")
        assert bob.get("/api/runs").status_code == httpx.codes.OK
    assert mortal.stop() == 0
    assert not any(token in mortal.said for token in said.values())
