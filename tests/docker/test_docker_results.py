"""What a run in a container made of its workspace: read beside the agent and after it, and never through its links."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest
from docker_engine import IMAGE, DockerEngine

from runtime.core.ids import LOCAL_OWNER, thread_key
from runtime.core.result import Form, ResultAsk, WorkspaceGone, WorkspaceTooLarge
from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.docker_results import DockerResults
from runtime.sandboxes.hardening import Limits
from runtime.testing.sandbox_kit import read_until, run_to_end, sh

pytestmark = pytest.mark.timeout(180)
# Of the agent's, what its own user cannot read; a link to what only root reads; and what it can see of the baselines.
AGENT = """
echo made > made; chmod 0 made
ln -s /.outlast/baselines link
rm before
ls /.outlast/baselines 2>/dev/null; cat /.outlast/baselines/run-2 2>/dev/null
echo x > /.outlast/baselines/run-2 2>/dev/null
mv /.outlast/baselines /.outlast/other 2>/dev/null
echo on; sleep 600
"""


async def test_a_result_is_read_beside_the_agent_and_after_it(engine: DockerEngine) -> None:
    provider = DockerProvider("results", IMAGE, Limits(memory_bytes=256 << 20, pids=64), engine.address)
    results = DockerResults(provider)

    async def read(form: Form, run: str = "run-2", **changed: Any) -> bytes:
        ask = ResultAsk(
            provider="docker",
            key=provider.key(run),
            thread_key="thread-1",
            run_id=run,
            form=form,
            max_bytes=changed.get("max_bytes", 1 << 20),
        )
        return b"".join([piece async for piece in results.read_result(ask)])

    with pytest.raises(WorkspaceGone):
        await read(Form.ARCHIVE)
    first = await provider.create(provider.key("run-1"), "thread-1")
    await run_to_end(first, sh("echo before > before"))
    await provider.destroy(first.key)
    sandbox = await provider.create(provider.key("run-2"), "thread-1")
    await sandbox.launch(sh(AGENT))
    assert await read_until(sandbox, b"on\n") == b"on\n", "the agent sees nothing of the baselines"
    changes = {one["path"]: one["change"] for one in json.loads(await read(Form.FILES))}
    assert changes == {"before": "deleted", "link": "created", "made": "created"}
    await provider.destroy(sandbox.key)
    diff = (await read(Form.DIFF)).decode()
    assert "\n-before\n" in diff
    assert "\n+made\n" in diff
    with tarfile.open(fileobj=io.BytesIO(await read(Form.ARCHIVE)), mode="r:gz") as archive:
        assert {one.name: one.issym() for one in archive} == {"link": True, "made": False}
    assert [one["path"] for one in json.loads(await read(Form.FILES, "run-1"))] == ["before"]
    with pytest.raises(WorkspaceGone):
        await read(Form.ARCHIVE, "run-1")
    with pytest.raises(WorkspaceTooLarge):
        await read(Form.ARCHIVE, max_bytes=4)
    assert [name for name in engine.containers() if "result" in name] == []


async def test_volumes_say_whose_they_are_and_a_journal_without_its_container_is_found(engine: DockerEngine) -> None:
    """As of a driver that died between the two, in the middle of a destroy."""
    provider = DockerProvider("labels", IMAGE, Limits(memory_bytes=256 << 20, pids=64), engine.address)
    one = await provider.create(provider.key("run-1"), thread_key(LOCAL_OWNER, "thread-9"))
    two = await provider.create(provider.key("run-2"), thread_key("anna", "thread-9"))

    def found(**labels: str) -> list[str]:
        filters = {"label": [f"outlast.{name}={value}" for name, value in labels.items()]}
        with engine.client() as client:
            return sorted(one["Name"].split("-")[1] for one in client.volumes(filters=filters)["Volumes"] or [])

    assert found(thread="thread-9", owner="anna") == ["baselines", "home", "journal", "workspace"]
    assert found(run="run-1") == ["journal"]
    with engine.client() as client:
        (container,) = client.containers(all=True, filters={"label": f"outlast.key={one.key}"})
        client.remove_container(container["Id"], force=True)
    assert await provider.list() == sorted([one.key, two.key])
    await provider.destroy(one.key)
    assert await provider.list() == [two.key]
    await provider.destroy(two.key)
    assert found(deployment="labels", run="run-2") == []
    assert found(deployment="labels") == ["baselines", "baselines", "home", "home", "workspace", "workspace"]


async def test_what_an_agent_does_to_files_is_told_and_to_a_successor_by_the_same_keys(engine: DockerEngine) -> None:
    """Also of what the agent keeps to itself: its own user may look, and so may who tells."""
    provider = DockerProvider("files", IMAGE, Limits(memory_bytes=256 << 20, pids=64), engine.address)
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    await sandbox.launch(
        sh(
            "umask 77; mkdir own; for i in $(seq 200); do echo $i > own/file-$i; done; echo on; "
            "while [ ! -e go ]; do usleep 20000; done; rm own/file-1; echo off; sleep 600"
        )
    )
    await read_until(sandbox, b"on\n")
    told = await sandbox.file_changes(diffs=True, settled=True)
    assert sorted(one.path for one in told) == sorted(f"own/file-{number}" for number in range(1, 201))
    assert {one.type for one in told} == {"create"}
    assert next(one.diff for one in told if one.path == "own/file-7").endswith("+7\n")  # type: ignore[union-attr]
    assert await sandbox.file_changes(diffs=True, settled=True) == []
    assert (await sandbox.exec(["touch", "/workspace/go"], 10.0))[0] == 0
    await read_until(sandbox, b"off\n")
    assert {(one.type, one.path) for one in await sandbox.file_changes(diffs=True, settled=True)} == {
        ("create", "go"),
        ("delete", "own/file-1"),
    }
    whole = await sandbox.whole_diff(1 << 20, 60.0)
    assert whole is not None
    assert (whole.diff.count("\nnew file mode "), whole.truncated) == (200, False)
    successor = await provider.resume(sandbox.key)
    assert successor is not None
    again = await successor.file_changes(diffs=True, settled=True)
    assert {one.key for one in again} - {one.key for one in told} == {one.key for one in again if one.path == "go"}
    await provider.destroy(sandbox.key)
