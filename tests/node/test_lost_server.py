"""What TanStack's clients do when a part of the server goes away under an open stream, or all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate import Gate
from instance import Instance
from npm_client import NpmClient
from processes import kill
from tanstack import Tanstack, types
from waiting import wait_until

from runtime.process import ProcessIdentity

pytestmark = pytest.mark.timeout(180)

# By default the client gives up after 5 times 250 ms without an answer; a restart takes longer.
PATIENT = {"maxAttempts": 400, "delayMs": 250}


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path, before=20, total=40)


def _watching(tanstack: Tanstack, gate: Gate, **asked: object) -> list[NpmClient]:
    """Start a run that waits at `gate`, or join it; return every adapter's client, once it has the first half."""
    clients = tanstack.each("connect", text=gate.script, **asked)
    for client in clients:
        client.wait_for(lambda it: it.text == gate.first_text, "the first half")
    return clients


def _check_whole(clients: list[NpmClient], gate: Gate) -> None:
    """Each client has each chunk once, and was told nothing that it never forgives: any status but 200."""
    for client in clients:
        assert client.finished(60.0).types == types(gate.total)
        assert client.text == gate.text
        assert set(client.of("status")) == {200}


def test_clients_do_not_notice_the_death_of_driver_and_shard(tanstack: Tanstack, gate: Gate) -> None:
    clients = _watching(tanstack, gate)
    instance = tanstack.instance
    kill(instance.driver(tanstack.run_id))
    kill(instance.the_process("ray::LogShard"))
    gate.open()
    _check_whole(clients, gate)
    assert [len(client.requests) for client in clients] == [1] * 4
    assert [epoch for epoch, _ in instance.claims(tanstack.run_id)] == [1, 2]


def _replicas(instance: Instance) -> list[ProcessIdentity]:
    found = instance.processes("ray::ServeReplica")
    return found if len(found) == 2 and instance.ready else []


def test_clients_outlive_the_death_of_each_replica(tanstack: Tanstack, gate: Gate) -> None:
    clients = _watching(tanstack, gate)
    instance = tanstack.instance
    first, second = wait_until(lambda: _replicas(instance), "two replicas")
    kill(first)
    wait_until(lambda: [it for it in _replicas(instance) if it != first], "another replica in its place", 40.0)
    kill(second)
    gate.open()
    _check_whole(clients, gate)
    assert all(client.resumed_from for client in clients), "a client has seen neither of the two die"


def test_a_restart_is_outlived_by_who_waits_for_it(tanstack: Tanstack, gate: Gate) -> None:
    patient = _watching(tanstack, gate, reconnect=PATIENT)
    hasty = _watching(tanstack, gate)
    assert tanstack.instance.stop() == 0
    tanstack.instance.start()
    for client in hasty:
        # Nobody listened for longer than its 5 attempts: a limit of the client's, not a refusal of ours.
        assert client.ended()["error"]["name"] == "StreamReconnectLimitError"
        assert set(client.of("status")) == {200}
    joined = tanstack.each("joinRun")
    gate.open()
    _check_whole([*patient, *joined], gate)
    assert tanstack.instance.claims(tanstack.run_id)[-1][1] == "restart"
