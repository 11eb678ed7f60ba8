"""The `docker` provider: a sandbox is a container of its run's own, on the engine that OUTLAST_DOCKER_HOST names.

    container   outlast-<thread>-<digest>   the agent's processes; `hardening.py` says what it may do
    volumes     outlast-journal-<digest>    journal, launch and exit records; goes with the sandbox
                outlast-workspace-<digest>  /workspace: the thread's files, which outlive its sandboxes (P18)
                outlast-home-<digest>       /home/agent: the thread's agent sessions, the same
                outlast-baselines-<digest>  how the workspace was when runs began (`baseline.py`), root's; the same
                outlast-python-<digest>     our program and what runs it, read-only (`container_python.py`)

A container has the *workspace's* name, so the engine itself gives a workspace to one sandbox at a time, whoever races
(P18). Its labels say the rest: `outlast.deployment`, `outlast.key`, `outlast.run`, `outlast.thread`, `outlast.owner`.
Volumes have them too, those of a thread without its runs'. So a journal whose container was removed, by a driver that
then died, is still listed, and a destroy of its key removes it.

The image is OUTLAST_DOCKER_IMAGE, any that the engine has or can pull; it needs a user's tools and nothing of ours:
neither Python nor a user for the agent, which is 10001:10001. Its PATH is the agent's, its entrypoint is not run.

What is called here by name blocks, and is called on OS threads; `key` alone is not (it asks an engine once, briefly).
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import platform
import secrets
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runtime.core.ids import owner_and_thread
from runtime.core.names import folder_name
from runtime.core.result import WorkspaceGone
from runtime.core.workspace import WorkspaceSource
from runtime.errors import LaunchFailed, NoRoom, SandboxLost, SandboxUnreachable, WorkspaceHeld
from runtime.ports import Capabilities
from runtime.sandboxes import container_python, filling, hardening, spool
from runtime.sandboxes.attendant import HOME, SPOOL
from runtime.sandboxes.container import DockerSandbox
from runtime.sandboxes.container_engine import UNIX, Container, Engine, Refusal
from runtime.sandboxes.hardening import WORKSPACE, Limits, Volumes
from runtime.sandboxes.isolated import AGENT_GID, AGENT_UID

T = TypeVar("T")

HELD_PATIENCE_S = 1.0  # for one try; whoever asks tries again
HELD_LOOK_S = 0.02
NOT_THERE = 127  # the exit code of what is not there
ABSENT_PATIENCE_S = 10.0  # an engine that restarts is back by then; a machine without one should say so soon
DEFAULT_ADDRESS = f"{UNIX}/var/run/docker.sock"
LABEL = "outlast."
STAGING = "staging"  # sources lie there until they are in their containers; what a dead driver left goes at the next
NAME_CHARACTERS = 40


class DockerProvider:
    """Sandboxes in containers (`runtime.ports.SandboxProvider`)."""

    name = "docker"

    def __init__(
        self,
        deployment: str,
        image: str,
        limits: Limits,
        address: str = DEFAULT_ADDRESS,
        sources: Sequence[str] = (),
        data: Path | None = None,
    ) -> None:
        """`sources`: what a workspace may begin with; it is made ready in `data`, our own folder on this host. Without
        that, workspaces begin empty."""
        self.capabilities = Capabilities(
            isolated_agent=True,
            one_host=address.startswith(UNIX),
            workspace_sources=data is not None,
            host_tools=True,
        )
        self._sources = tuple(sources)
        self._data = None if data is None else data.absolute()
        self._deployment = folder_name(deployment)
        self._image = image
        self._limits = limits
        self._engine = Engine(address)
        self._absent_since: float | None = None

    def key(self, run_id: str) -> str:
        """Return `docker/<engine id>/<deployment>/<encoded run id>` (P17).

        Raises LaunchFailed if there is no engine for us, SandboxUnreachable if it does not answer."""
        return self._prefix() + folder_name(run_id)

    def host(self, key: str) -> str:
        """Return `docker/<engine id>`."""
        return "/".join(key.split("/")[:2])

    async def create(self, key: str, thread_key: str, source: WorkspaceSource | None = None) -> DockerSandbox:
        """Make the sandbox, or return the one with this key; also one whose workspace was not filled to its end.

        Raises LaunchFailed, SandboxLost, SandboxUnreachable, WorkspaceHeld."""
        try:
            sandbox = await _blocking(self._create, key, thread_key)
            if source is not None:
                await self._begin(sandbox, source)
        except NoRoom as error:  # nothing was launched yet
            raise LaunchFailed(error.message) from error
        return sandbox

    async def _begin(self, sandbox: DockerSandbox, source: WorkspaceSource) -> None:
        assert self._data is not None, "a source is given to who declares `workspace_sources`"
        place = self._data / STAGING / "source"
        try:
            await sandbox.begin_with(partial(filling.prepared, place, source, self._sources, (self._data,)))
        except OSError as error:
            raise LaunchFailed(f"The workspace's source could not be made ready on this host: {error}.") from error

    def making(self) -> Mapping[str, Any] | None:
        """Return how far the pull of the image is, if one is under way."""
        pull = self._engine.pull
        return None if pull is None else pull.facts()

    async def resume(self, key: str) -> DockerSandbox | None:
        """Return the sandbox, or None: its own engine, asked anew who it is, has no such container (P17)."""
        return await _blocking(self._resume, key)

    async def destroy(self, key: str) -> None:
        """End its processes, then remove its container and journal; the workspace stays (P18).

        Raises SandboxUnreachable."""
        await _blocking(self._destroy, key)

    async def list(self) -> list[str]:
        """Return the keys of what exists; nothing where there is no engine that we may use.

        Raises SandboxUnreachable."""
        try:
            return sorted(await _blocking(self._keys))
        except LaunchFailed:
            return []
        except SandboxUnreachable:
            if self._engine.absent:
                return []
            raise

    async def read_in(self, key: str, thread_key: str, job: bytes) -> tuple[Any, Callable[[], None]]:
        """Start `result_sender.py` on the thread's workspace, in a container of its own; return the raw socket to it,
        and what ends it and blocks. Raises WorkspaceGone, SandboxUnreachable."""
        return await _blocking(partial(self._read_in, job), key, thread_key)

    # --- on OS threads

    def _read_in(self, job: bytes, key: str, thread_key: str) -> tuple[Any, Callable[[], None]]:
        self._check(key)
        volumes = self._volumes(key, thread_key)
        if not self._engine.has_volume(volumes.workspace):
            raise WorkspaceGone("The workspace's volume is not there any more.")
        if not self._engine.has_volume(volumes.python):
            self._fill()
        name = f"outlast-result-{secrets.token_hex(8)}"
        made = self._engine.create(name, self._image, hardening.reading(), hardening.reader(volumes))
        end = partial(self._engine.remove, made)
        try:
            self._engine.start(made)
            raw = self._engine.attach(made, container_python.program("result_sender"), "0:0", hardening.UNSAID)
            getattr(raw, "_sock", raw).sendall(job)
        except BaseException:
            end()
            raise
        return raw, end

    def _create(self, key: str, thread_key: str) -> DockerSandbox:
        self._check(key)
        found = self._find(key) or self._make(key, thread_key)
        if found.state == "created":
            self._engine.put(found.id, "/", _folders())  # nothing of an agent has run in it
            try:
                self._engine.start(found.id)
            except Refusal as refusal:
                raise LaunchFailed(f"The container could not be started: {refusal.message}.") from refusal
        return self._sandbox(key, found)

    def _resume(self, key: str) -> DockerSandbox | None:
        self._check(key)
        found = self._find(key)
        if found is None:
            self._prove(key)
        return None if found is None else self._sandbox(key, found)

    def _destroy(self, key: str) -> None:
        self._check(key)
        while (found := self._find(key)) is not None:
            self._engine.remove(found.id)
        self._prove(key)
        self._engine.remove_volume(_volume("journal", key))

    def _keys(self) -> set[str]:
        prefix, ours = self._prefix(), f"{LABEL}deployment={self._deployment}"
        labels = [*(one.labels for one in self._engine.find(ours)), *self._engine.volume_labels(ours)]
        return {key for one in labels if (key := one.get(f"{LABEL}key", "")).startswith(prefix)}

    def _sandbox(self, key: str, container: Container) -> DockerSandbox:
        return DockerSandbox(self._engine, key, container.id, partial(self._wake, key))

    def _find(self, key: str) -> Container | None:
        return next(iter(self._engine.find(f"{LABEL}key={key}")), None)

    def _make(self, key: str, thread_key: str) -> Container:
        """Make the container, or return one that another driver has made of this key meanwhile."""
        journal = _volume("journal", key)
        self._engine.remove_volume(journal)  # of a container that somebody else has removed
        volumes = self._volumes(key, thread_key)
        if not self._engine.has_volume(volumes.python):
            self._fill()  # one that is there and not whole is found by `_wake`
        labels = self._labels(key, thread_key)
        config = hardening.config(labels)
        host = hardening.host(self._limits, volumes, int(self._engine.info()["NCPU"]), labels)
        name = _container_name(thread_key, volumes.workspace)
        deadline = time.monotonic() + HELD_PATIENCE_S
        while True:
            try:
                return self._engine.look(self._engine.create(name, self._image, config, host))
            except Refusal as refusal:
                holder = self._holder(name, refusal)
            if holder is not None and holder.labels.get(f"{LABEL}key") == key:
                return holder
            if time.monotonic() >= deadline:
                raise WorkspaceHeld(
                    f"The workspace of the thread is still held by the container {name}, which could not be removed "
                    "yet."
                )
            time.sleep(HELD_LOOK_S)

    def _labels(self, key: str, thread_key: str) -> dict[str, str]:
        owner, thread_id = owner_and_thread(thread_key)
        return {
            f"{LABEL}deployment": self._deployment,
            f"{LABEL}key": key,
            f"{LABEL}run": key.rpartition("/")[2],
            f"{LABEL}thread": folder_name(thread_id),
            f"{LABEL}owner": folder_name(owner),
        }

    def _volumes(self, key: str, thread_key: str) -> Volumes:
        return Volumes(
            python=container_python.volume(),
            journal=_volume("journal", key),
            workspace=_volume("workspace", self._deployment, thread_key),
            home=_volume("home", self._deployment, thread_key),
            baselines=_volume("baselines", self._deployment, thread_key),
        )

    def _holder(self, name: str, refusal: Refusal) -> Container | None:
        """Return who has the name that the engine refused; None if it has just gone. Raises LaunchFailed if that is not
        why."""
        if refusal.status != Refusal.TAKEN:
            raise LaunchFailed(f"The container could not be made: {refusal.message}.") from refusal
        try:
            return self._engine.look(name)
        except Refusal:
            return None

    def _wake(self, key: str, container: str, refusal: Refusal) -> None:
        """Start a container that did not take a program; it ends at once while the volume of ours is not whole.

        Raises SandboxLost if there is none, SandboxUnreachable if it is not to be started, Refusal. Something may have
        been launched in it: nothing else that is absent (its network) and no full disk ends its run."""
        seen = self._seen(key, container)
        if seen.state == "paused":
            raise SandboxUnreachable(f"The container {seen.name} is paused: `docker unpause` lets its run go on.")
        if seen.exit_code == NOT_THERE or container_python.LOADER in refusal.message:
            try:
                self._fill()
            except LaunchFailed as error:
                raise SandboxUnreachable(error.message) from error
        elif seen.state == "running":
            raise SandboxUnreachable(f"The container {seen.name} takes no program: {refusal.message}.")
        self._engine.start(container)

    def _seen(self, key: str, container: str) -> Container:
        """Look at a container. Raises SandboxLost if there is none on its own engine, asked anew who it is (P17)."""
        try:
            return self._engine.look(container)
        except Refusal as refusal:
            if refusal.status != Refusal.ABSENT:
                raise
            self._prove(key)
            raise SandboxLost(f"The container of {key} does not exist any more.") from refusal

    def _fill(self) -> None:
        """Put our program into its volume, through a container that is never started."""
        machine = str(self._engine.info()["Architecture"])
        if not container_python.same_machine(machine):
            raise LaunchFailed(
                f"The Docker engine at {self._engine.address} runs on {machine} and we on {platform.machine()}: what "
                "records an agent does not run there. Use an engine of the same architecture (OUTLAST_DOCKER_HOST)."
            )
        volume = container_python.volume()
        config = {"entrypoint": ["-"], "labels": {f"{LABEL}fills": volume}}
        made = self._engine.create(f"{volume}-{secrets.token_hex(4)}", self._image, config, hardening.filler(volume))
        try:
            self._engine.put(made, container_python.FOLDER, container_python.archive())
        finally:
            self._engine.remove(made)

    # --- which engine

    def _prefix(self) -> str:
        try:
            engine = folder_name(str(self._engine.info()["ID"]).replace(":", "-"))
        except SandboxUnreachable as error:
            now = time.monotonic()
            self._absent_since = now if self._absent_since is None else self._absent_since
            if self._engine.absent and now - self._absent_since >= ABSENT_PATIENCE_S:
                raise LaunchFailed(error.message) from error
            raise
        except Refusal as refusal:
            raise SandboxUnreachable(f"The Docker engine does not say who it is: {refusal.message}.") from refusal
        self._absent_since = None
        return f"{self.name}/{engine}/{self._deployment}/"

    def _check(self, key: str) -> None:
        """Raise SandboxUnreachable unless the key is of this engine and deployment."""
        try:
            prefix = self._prefix()
        except LaunchFailed as error:
            raise SandboxUnreachable(error.message) from error
        if not key.startswith(prefix):
            raise SandboxUnreachable(f"The sandbox {key} is not of this engine and deployment ({prefix}).")

    def _prove(self, key: str) -> None:
        """Raise SandboxUnreachable unless the engine that answers now is the one that the key names (P17)."""
        self._engine.info(fresh=True)
        self._check(key)


async def _blocking(work: Callable[..., T], *of: str) -> T:
    """Run what blocks on an OS thread. Raises SandboxUnreachable for a refusal that nobody expected."""
    try:
        return await asyncio.to_thread(work, *of)
    except Refusal as refusal:
        raise SandboxUnreachable(f"The Docker engine refuses: {refusal.message}.") from refusal


def _volume(what: str, *of: str) -> str:
    return f"outlast-{what}-{hashlib.sha256(repr(of).encode()).hexdigest()[:32]}"


def _container_name(thread_key: str, workspace: str) -> str:
    return f"outlast-{folder_name(thread_key)[:NAME_CHARACTERS]}-{workspace.rpartition('-')[2][:16]}"


def _folders() -> bytes:
    """Return a tar that gives the agent its two folders, whatever the image and the volumes are like, /tmp, and the
    spool of its tool calls."""
    with io.BytesIO() as made:
        with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path, mode, user, group in (
                (WORKSPACE, 0o755, AGENT_UID, AGENT_GID),
                (HOME, 0o700, AGENT_UID, AGENT_GID),
                ("/tmp", 0o1777, 0, 0),  # noqa: S108 - the container's
                (SPOOL, 0o755, 0, 0),
                (f"{SPOOL}/{spool.CALLS}", 0o755, AGENT_UID, AGENT_GID),
                (f"{SPOOL}/{spool.ANSWERS}", 0o755, 0, 0),
                (f"{SPOOL}/{spool.OFFERS}", 0o755, 0, 0),
            ):
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, user, group
                tar.addfile(entry)
        return made.getvalue()
