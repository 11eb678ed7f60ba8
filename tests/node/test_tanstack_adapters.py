"""TanStack AI's four HTTP adapters against a real instance: start, broken connections, joins, hydration, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from cutting_proxy import Cut, StartProxy
from gate import Gate
from tanstack import ADAPTERS, Tanstack, numbers, types

pytestmark = pytest.mark.timeout(180)  # the first test of the lane starts the instance and may install the clients


def test_a_run_streams_every_chunk_in_order(tanstack: Tanstack) -> None:
    clients = [
        tanstack.one(adapter, "connect", text="seq 1 300", runId=f"{tanstack.run_id}-{number}", threadId=f"t-{number}")
        for number, adapter in enumerate(ADAPTERS)
    ]
    for number, client in enumerate(clients):
        assert client.finished().types == types(300)
        assert client.text == numbers(300)
        assert client.chunks[-1]["finishReason"] == "stop"
        assert client.chunks[-1]["runId"] == f"{tanstack.run_id}-{number}"
        assert len(client.requests) == 1


def test_the_same_request_four_times_starts_one_agent(tanstack: Tanstack, tmp_path: Path) -> None:
    started = tmp_path / "started"
    clients = tanstack.each("connect", text=f"echo x >> {started}; seq 1 5")
    for client in clients:
        assert client.finished().types == types(5)
        assert client.chunks == clients[0].chunks
    assert started.read_text() == "x\n"
    assert [epoch for epoch, _ in tanstack.instance.claims(tanstack.run_id)] == [1]


def test_another_body_under_the_same_run_id_is_refused(tanstack: Tanstack) -> None:
    tanstack.one(ADAPTERS[0], "connect", text="echo 1").finished()
    for client in tanstack.each("connect", text="echo 2"):
        assert "409" in client.ended()["error"]["message"]
        assert len(client.requests) == 1


def test_a_broken_connection_is_taken_up_where_it_broke(tanstack: Tanstack, proxy: StartProxy, tmp_path: Path) -> None:
    gate = Gate(tmp_path, before=100, total=200)
    # In the middle of a line; in the headers, so that nothing new came; by a reset; and while the agent works.
    cuts = [Cut(2500), Cut(100), Cut(3000, reset=True), Cut(marker=b'"150\\n"', then=b"delta")]
    networks = [proxy(cuts) for _ in ADAPTERS]
    clients = [
        tanstack.one(adapter, "connect", network.url, text=gate.script)
        for adapter, network in zip(ADAPTERS, networks, strict=True)
    ]
    for client in clients:
        client.wait_for(lambda it: it.text == gate.first_text, "all of the first half")
    gate.open()
    for client, network in zip(clients, networks, strict=True):
        assert client.finished().text == gate.text
        assert client.types == types(200)
        assert (network.cuts, len(client.requests), len(client.resumed_from)) == (4, 5, 4)
        assert client.resumed_from == sorted(client.resumed_from)
        assert client.chunks == clients[0].chunks
    assert len(tanstack.instance.claims(tanstack.run_id)) == 1


def test_a_connection_that_breaks_after_the_last_chunk_ends_well(tanstack: Tanstack, proxy: StartProxy) -> None:
    networks = [proxy([Cut(marker=b"RUN_FINISHED", then=adapter.chunk_end)]) for adapter in ADAPTERS]
    for call in ("connect", "joinRun"):
        clients = [
            tanstack.one(adapter, call, network.url, text="seq 1 5")
            for adapter, network in zip(ADAPTERS, networks, strict=True)
        ]
        for client in clients:
            client.finished()
            assert client.text == numbers(5)
    assert [network.cuts for network in networks] == [1] * 4


def test_clients_join_in_the_middle_and_after_the_end(tanstack: Tanstack, proxy: StartProxy, tmp_path: Path) -> None:
    gate = Gate(tmp_path, before=20, total=40)
    first = tanstack.one(ADAPTERS[0], "connect", text=gate.script)
    first.wait_for(lambda it: it.text == gate.first_text, "the first half")
    joined = tanstack.each("joinRun")
    for client in joined:
        client.wait_for(lambda it: it.text == gate.first_text, "the first half")
    gate.open()
    assert first.finished().types == types(40)
    for client in joined:
        assert client.finished().chunks == first.chunks
        assert len(client.requests) == 1
    cuts = [Cut(1500), Cut(1500, reset=True)]
    for client in [tanstack.one(adapter, "joinRun", proxy(cuts).url) for adapter in ADAPTERS]:
        assert client.finished().chunks == first.chunks
        assert len(client.resumed_from) == len(cuts)


def test_a_thread_is_hydrated_while_it_works_and_after(tanstack: Tanstack, tmp_path: Path) -> None:
    gate = Gate(tmp_path, before=3, total=6)
    client = tanstack.one(ADAPTERS[0], "connect", text=gate.script)
    client.wait_for(lambda it: it.text == gate.first_text, "the first half")
    during = [client.finished().of("end")[0]["value"] for client in tanstack.each("hydrate")]
    gate.open()
    client.finished()
    after = [client.finished().of("end")[0]["value"] for client in tanstack.each("hydrate")]
    for thread, active, said in ((during, {"runId": tanstack.run_id}, gate.first_text), (after, None, gate.text)):
        assert [one["activeRun"] for one in thread] == [active] * 4
        for one in thread:
            assert [message["role"] for message in one["messages"]] == ["user", "assistant"]
            assert one["messages"][1]["parts"] == [{"type": "text", "content": said}]


def test_an_unknown_thread_is_empty(tanstack: Tanstack) -> None:
    for client in tanstack.each("hydrate"):
        hydrated = client.finished().of("end")[0]["value"]
        assert (hydrated["messages"], hydrated["activeRun"], hydrated["interrupts"]) == ([], None, None)


def test_a_join_of_an_unknown_run_is_refused_at_once(tanstack: Tanstack) -> None:
    for client in tanstack.each("joinRun"):
        assert "404" in client.ended()["error"]["message"]
        assert client.chunks == []
        assert len(client.requests) == 1


def test_a_run_that_fails_ends_with_its_error(tanstack: Tanstack) -> None:
    for client in tanstack.each("connect", text="echo 1; echo no >&2; exit 3"):
        assert client.finished().types == types(1, "RUN_ERROR")
        assert client.chunks[-1]["code"] == "agent_exit"
        # Restored from its metadata: without it the client takes this for the failure of every run.
        assert client.chunks[-1]["runId"] == tanstack.run_id


def test_a_run_that_is_cancelled_ends_for_everybody(tanstack: Tanstack) -> None:
    clients = tanstack.each("connect", text="echo 1; sleep 1000")
    for client in clients:
        client.wait_for(lambda it: it.text, "the first line")
    assert tanstack.instance.http.post("/api/chat/cancel", json={"runId": tanstack.run_id}).status_code == 204
    for client in clients:
        assert client.finished().types == types(1, "RUN_ERROR")
        assert (client.chunks[-1]["code"], client.chunks[-1]["runId"]) == ("aborted", tanstack.run_id)
