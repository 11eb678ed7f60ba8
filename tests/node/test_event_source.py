"""A native EventSource: comes back with the id it has, and stops at the end of a closed log."""

from __future__ import annotations

from pathlib import Path

import pytest
from cutting_proxy import Cut, StartProxy
from gate import Gate
from instance import Instance
from npm_client import NpmClient, StartScript
from tanstack import types

pytestmark = pytest.mark.timeout(180)


def _ids(client: NpmClient) -> list[str]:
    return [chunk["lastEventId"] for chunk in client.chunks]


def test_it_comes_back_with_the_last_id_and_stops_at_the_end(
    instance: Instance, start: StartScript, proxy: StartProxy, fresh: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path, before=30, total=50)
    run = f"run-{fresh}"
    instance.begin(run, gate.script)
    network = proxy([Cut(marker=b'"17\\n"')])
    client = start("eventsource", url=f"{network.url}/api/chat?runId={run}&offset=-1")
    client.wait_for(lambda it: it.text == gate.first_text, "the first half, over two connections")
    gate.open()
    assert client.finished().of("end")[0]["value"] == {"code": 204}
    assert client.types == types(50)
    assert client.text == gate.text
    assert len(set(_ids(client))) == len(client.chunks)
    assert client.of("status") == [200, 200, 204]
    broken = next(number for number, chunk in enumerate(client.chunks) if chunk.get("delta") == "16\n")
    assert client.resumed_from in (
        [_ids(client)[broken], _ids(client)[-1]],
        [_ids(client)[broken + 1], _ids(client)[-1]],
    )


def test_it_is_told_to_stop_by_an_unknown_run(instance: Instance, start: StartScript, fresh: str) -> None:
    client = start("eventsource", url=f"{instance.url}/api/chat?runId=run-{fresh}&offset=-1")
    assert client.finished().of("end")[0]["value"] == {"code": 404}
    assert client.chunks == []
