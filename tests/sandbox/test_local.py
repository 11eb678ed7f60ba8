"""The local provider's folders: whose they are, and what an interruption leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from leftovers import carrying
from own_deployment import DEPLOYMENT

from runtime.core.result import Form, ResultAsk
from runtime.errors import LaunchFailed, SandboxLost, SandboxUnreachable
from runtime.sandboxes import local
from runtime.sandboxes.command import run_command
from runtime.sandboxes.local import LocalProvider, LocalSandbox
from runtime.sandboxes.local_results import LocalResults
from runtime.testing.sandbox_kit import read_until, sh


@pytest.mark.parametrize("change", [("local/", "docker/"), (DEPLOYMENT, "other"), ("run-1", ""), ("run-1", "a/b")])
async def test_a_key_of_elsewhere_is_unreachable_and_never_absent(
    provider: LocalProvider, change: tuple[str, str]
) -> None:
    key = provider.key("run-1").replace(*change)
    for asked in (provider.resume(key), provider.destroy(key), provider.create(key, "thread-1")):
        with pytest.raises(SandboxUnreachable, match="not of this machine and deployment"):
            await asked


async def test_a_key_of_another_machine_is_unreachable(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = provider.key("run-1")
    (tmp_path / "machine-id").write_text("f" * 32 + "\n")
    monkeypatch.setattr(local, "MACHINE_ID", tmp_path / "machine-id")
    elsewhere = LocalProvider(tmp_path / "sandboxes", DEPLOYMENT, tmp_path / "workspaces")
    assert elsewhere.key("run-1") == f"local/{'f' * 32}/{DEPLOYMENT}/run-1"
    with pytest.raises(SandboxUnreachable):
        await elsewhere.resume(key)


@pytest.mark.parametrize("text", [None, "", "uninitialized\n", "../../etc\n"])
def test_a_machine_without_an_id_gets_one_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "machine-id").write_text(text)
    monkeypatch.setattr(local, "MACHINE_ID", tmp_path / "machine-id")
    keys = {LocalProvider(tmp_path / "s", DEPLOYMENT, tmp_path / "w").key("run-1") for _ in range(3)}
    assert len(keys) == 1
    assert len(keys.pop().split("/")[1]) == 32
    other = LocalProvider(tmp_path / "other", DEPLOYMENT, tmp_path / "w")
    assert other.key("run-1") not in keys


async def test_a_disk_that_is_not_there_proves_nothing(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path / "not-mounted", DEPLOYMENT, tmp_path / "w")
    with pytest.raises(SandboxUnreachable, match="mounted"):
        await provider.resume(provider.key("run-1"))
    assert await provider.list() == []


async def test_a_folder_that_cannot_be_made_is_a_launch_that_failed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    provider = LocalProvider(tmp_path / "file", DEPLOYMENT, tmp_path / "w")
    with pytest.raises(LaunchFailed, match="could not be made"):
        await provider.create(provider.key("run-1"), "thread-1")


async def test_an_interrupted_destroy_is_listed_and_completed(provider: LocalProvider, sandbox: LocalSandbox) -> None:
    await sandbox.launch(sh("echo on; sleep 600"))
    await read_until(sandbox, b"on\n")
    home = sandbox._home
    home.rename(home.with_name(home.name + local.GONE))  # as far as a destroy got
    assert await provider.list() == [sandbox.key]
    assert await provider.resume(sandbox.key) is None
    await provider.destroy(sandbox.key)
    assert await provider.list() == []
    assert carrying("AGENT_SANDBOX", sandbox.key) == []


async def test_what_a_create_is_still_making_goes_with_a_destroy(
    provider: LocalProvider, sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a driver that stands still in the middle of it, or was killed there."""
    key, write = provider.key("run-2"), local._write_durably

    def write_slowly(path: Path, data: bytes) -> None:
        write(path, data)
        asyncio.run(provider.destroy(key))

    monkeypatch.setattr(local, "_write_durably", write_slowly)
    with pytest.raises(LaunchFailed, match="could not be made"):
        await provider.create(key, "thread-2")
    assert [path.name for path in sandbox._home.parent.iterdir()] == ["run-1"]


async def test_a_sandbox_that_was_destroyed_is_lost_to_who_still_holds_it(
    provider: LocalProvider, sandbox: LocalSandbox
) -> None:
    await sandbox.launch(sh("echo on; sleep 600"))
    await provider.destroy(sandbox.key)
    for asked in (sandbox.launched(), sandbox.launch(sh("echo")), sandbox.exit(), anext(sandbox.follow(0))):
        with pytest.raises(SandboxLost):
            await asked
    await sandbox.kill()
    assert await sandbox.stderr_tail(10) == b""


async def test_what_an_agent_put_into_the_sandboxs_folder_goes_with_it(
    provider: LocalProvider, sandbox: LocalSandbox, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (sandbox._home / "folder").mkdir()
    (sandbox._home / "folder" / "link").symlink_to(kept)
    await provider.destroy(sandbox.key)
    assert (kept / "file").exists()
    assert not sandbox._home.exists()


async def test_a_run_begins_with_what_its_agent_found_whoever_launches_it_again(
    provider: LocalProvider, sandbox: LocalSandbox, tmp_path: Path
) -> None:
    (tmp_path / "workspaces" / "thread-1" / "before").write_text("x")
    await sandbox.launch(sh("rm before; echo made > made; echo on; sleep 600"))
    await read_until(sandbox, b"on\n")
    successor = await provider.resume(sandbox.key)
    assert successor is not None
    await successor.launch(sh("echo no"))
    await provider.destroy(sandbox.key)
    ask = ResultAsk(
        provider="local",
        key=sandbox.key,
        thread_key="thread-1",
        run_id="run-1",
        form=Form.FILES,
        max_bytes=1 << 20,
    )
    results = LocalResults(tmp_path / "workspaces", tmp_path / "baselines")
    told = json.loads(b"".join([piece async for piece in results.read_result(ask)]))
    assert told == [
        {"path": "before", "change": "deleted", "bytes": 0},
        {"path": "made", "change": "created", "bytes": 5},
    ]


async def test_a_sandbox_of_an_older_version_has_no_baseline_and_is_launched(
    provider: LocalProvider, sandbox: LocalSandbox, tmp_path: Path
) -> None:
    meta = sandbox._home / local.META
    meta.write_text(json.dumps({"key": sandbox.key, "workspace": sandbox.workspace, "home": None}))
    older = await provider.resume(sandbox.key)
    assert older is not None
    await older.launch(sh("echo on; sleep 600"))
    await read_until(older, b"on\n")
    assert not (tmp_path / "baselines").exists()


async def test_folders_of_others_are_left_alone(provider: LocalProvider, sandbox: LocalSandbox) -> None:
    (sandbox._home.parent / "lost+found").mkdir()
    (sandbox._home.parent / "notes.txt").touch()
    assert await provider.list() == [sandbox.key]


@pytest.mark.parametrize(
    ("argv", "code"), [(["no-such-command"], 127), (["/etc/passwd"], 126), (["sh", "-c", "kill -15 $$"], -15)]
)
def test_a_command_that_did_not_go_well_has_the_code_of_a_shell(argv: list[str], code: int) -> None:
    assert run_command(argv, "/", {"PATH": "/usr/bin:/bin"}, 10)[0] == code


def test_a_command_is_not_held_up_by_what_it_leaves_behind(provider: LocalProvider) -> None:
    env = {"PATH": "/usr/bin:/bin", "AGENT_SANDBOX": provider.key("run-1")}
    assert run_command(["sh", "-c", "sleep 600 & echo done"], "/", env, 60) == (0, b"done\n")
