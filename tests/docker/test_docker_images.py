"""What an image says of itself has no say in our own programs, and leaves nothing behind."""

from __future__ import annotations

import pytest
from docker_engine import DockerEngine, busybox_image

from runtime.sandboxes.docker import DockerProvider
from runtime.sandboxes.hardening import UNSAID, Limits
from runtime.testing.sandbox_kit import run_to_end, sh

pytestmark = pytest.mark.timeout(180)
TALKING = "outlast-test/talking:1"


async def test_an_image_with_volumes_and_variables(engine: DockerEngine) -> None:
    with engine.client() as client:
        repository, _, tag = TALKING.partition(":")
        changes = ["VOLUME /data", *(f"ENV {name}=/nothing.so" for name in UNSAID), "ENV SAID=by-the-image"]
        client.import_image_from_data(busybox_image(), repository=repository, tag=tag, changes=changes)
        before = {one["Name"] for one in client.volumes()["Volumes"] or []}
    provider = DockerProvider("talking", TALKING, Limits(memory_bytes=256 << 20, pids=64), engine.address)
    sandbox = await provider.create(provider.key("run-1"), "thread-1")
    journal, _ = await run_to_end(sandbox, sh("cat /proc/self/oom_score_adj /proc/1/oom_score_adj; echo $LD_PRELOAD."))
    assert journal == b"500\n0\n.\n", "the agent is taken before what records it"
    with engine.client() as client:
        name = next(name for name in engine.containers() if "thread-1" in name)
        made = client.exec_create(name, ["/bin/busybox", "env"])  # inherits, as any program there does
        said = client.exec_start(made["Id"]).decode().splitlines()
        assert {f"{name}=" for name in UNSAID} | {"SAID=by-the-image"} <= set(said)
        during = {one["Name"] for one in client.volumes()["Volumes"] or []} - before
        await provider.destroy(sandbox.key)
        after = {one["Name"] for one in client.volumes()["Volumes"] or []} - before
    ours = ("outlast-workspace-", "outlast-home-", "outlast-python-", "outlast-baselines-")
    kept = {name for name in after if name.startswith(ours)}
    assert after == kept, "a volume without a name stays behind"
    assert len(kept & during) >= 2
    assert len([name for name in during if not name.startswith("outlast-")]) == 1
