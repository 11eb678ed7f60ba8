"""A Docker engine: the calls that we make, and what its silence and its refusals mean here (P17).

    it does not answer              SandboxUnreachable: not a proof of anything
    it answers no                   `Refusal` with its status; what a 404 or a 409 means depends on the question
    we may not ask it               SandboxUnreachable too, with what to do: who restarts it may be at just that
    its disk is full                `NoRoom`, a kind of that: only where nothing was launched yet may a run end of it

Every call blocks: callers use OS threads. The SDK is imported at the first call, and only where a socket is: it takes
some 15 MB of each process, which an instance without containers does not pay.
"""

from __future__ import annotations

import importlib
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from runtime.core.record import Struct
from runtime.errors import LaunchFailed, NoRoom, OutlastError, SandboxUnreachable
from runtime.sandboxes.image_pull import ImagePull

FIRST_S = 2.0  # the first answer is waited for where a loop may stand still meanwhile (`SandboxProvider.key`)
API_S = 60.0
PULL_SILENT_S = 60.0  # a pull tells of every piece that comes; one that is silent for so long stands still
AGAIN_S = 1.0  # an engine that did not answer is not asked again so soon
UNIX = "unix://"
POOLS = 8


class Refusal(Exception):
    """The engine's own no."""

    ABSENT, TAKEN = 404, 409

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Container(Struct, frozen=True, kw_only=True):
    """A container as the engine tells it. `state`: created, running, paused, exited, ..."""

    id: str
    name: str
    state: str
    labels: dict[str, str]
    exit_code: int = 0  # 127: what it should run is not there; only `look` tells


class Engine:
    """One engine, by its address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.absent = False  # nobody listens there, to us: not only slow
        self.pull: ImagePull | None = None  # under way
        self._api: Any = None
        self._info: dict[str, Any] = {}
        self._failure: tuple[float, OutlastError] | None = None

    def info(self, *, fresh: bool = False) -> Mapping[str, Any]:
        """Return what the engine says of itself: ID, NCPU, Architecture, DockerRootDir, ..."""
        if fresh or not self._info:
            with self.asking() as api:
                self._info = api.info()
        return self._info

    def find(self, *labels: str) -> list[Container]:
        """Return the containers with all of these labels (`name=value`), stopped ones too."""
        with self.asking() as api:
            found = api.containers(all=True, filters={"label": list(labels)})
        return [
            Container(
                id=one["Id"],
                name=(one["Names"] or [one["Id"]])[0].strip("/"),  # one that is being removed may have none
                state=one["State"],
                labels=one["Labels"] or {},
            )
            for one in found
        ]

    def look(self, container: str) -> Container:
        """Return the container with this id or name. Raises Refusal 404."""
        with self.asking() as api:
            one = api.inspect_container(container)
        return Container(
            id=one["Id"],
            name=one["Name"].strip("/"),
            state=one["State"]["Status"],
            labels=one["Config"]["Labels"] or {},
            exit_code=one["State"]["ExitCode"],
        )

    def create(self, name: str, image: str, config: Mapping[str, Any], host: Mapping[str, Any]) -> str:
        """Make a container and return its id; the image is pulled if it is missing.

        Raises Refusal (409 if the name is taken), LaunchFailed if there is no such image."""
        with self.asking() as api:
            options = {**config, "name": name, "host_config": api.create_host_config(**host), "use_config_proxy": False}
            try:
                made = api.create_container(image, **options)
            except self._errors.ImageNotFound:
                self._pull(api, image)
                made = api.create_container(image, **options)
            return str(made["Id"])

    def volume_labels(self, label: str) -> list[dict[str, str]]:
        """Return the labels of the volumes with this one (`name=value`)."""
        with self.asking() as api:
            found = api.volumes(filters={"label": label})
        return [one["Labels"] or {} for one in found["Volumes"] or []]

    def has_image(self, image: str) -> bool:
        """Return whether the engine has the image."""
        return self._has(lambda api: api.inspect_image(image))

    def has_volume(self, name: str) -> bool:
        """Return whether the engine has the volume."""
        return self._has(lambda api: api.inspect_volume(name))

    def _has(self, look: Callable[[Any], Any]) -> bool:
        try:
            with self.asking() as api:
                look(api)
        except Refusal as refusal:
            if refusal.status == Refusal.ABSENT:
                return False
            raise
        return True

    def _pull(self, api: Any, image: str) -> None:
        """Pull an image, for as long as that moves. Raises LaunchFailed, SandboxUnreachable."""
        said = ""
        pull = self.pull = ImagePull(image)
        try:
            for event in _pulled(api, image):
                pull.note(event)
                said = str(event.get("error") or event.get("status") or said)
            api.inspect_image(image)
        except self._errors.NotFound:
            raise LaunchFailed(_no_image(image, said)) from None
        except self._errors.APIError as error:
            raise LaunchFailed(_no_image(image, error.explanation or str(error))) from error
        finally:
            self.pull = None

    def start(self, container: str) -> None:
        """Start a container; one that runs stays as it is."""
        with self.asking() as api:
            api.start(container)

    def put(self, container: str, path: str, archive: bytes) -> None:
        """Unpack a tar in a container. Never in a folder that an agent has written to: links would lead out of it."""
        with self.asking() as api:
            api.put_archive(container, path, archive)

    def remove(self, container: str, within_s: float = 20.0) -> None:
        """End all processes of a container, and remove it and its volumes without a name, which an image may ask for;
        return when it is gone. Absent: nothing to do.

        Raises SandboxUnreachable if it stays."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                with self.asking() as api:
                    api.remove_container(container, v=True, force=True)
                    return
            except Refusal as refusal:
                if refusal.status == Refusal.ABSENT:
                    return
                if time.monotonic() >= deadline:
                    raise SandboxUnreachable(f"The container could not be removed: {refusal.message}") from refusal
            time.sleep(0.05)  # somebody else is removing it, or it does not die at once

    def remove_volume(self, name: str) -> bool:
        """Remove a volume; return False if a container has it. Absent: nothing to do."""
        try:
            with self.asking() as api:
                api.remove_volume(name)
        except Refusal as refusal:
            return refusal.status == Refusal.ABSENT
        return True

    def attach(self, container: str, command: Sequence[str], user: str, env: Mapping[str, str]) -> Any:
        """Start a program in a running container, and return the raw socket that is its stdin, stdout and stderr."""
        with self.asking() as api:
            made = api.exec_create(container, list(command), stdin=True, user=user, workdir="/", environment=dict(env))
            return api.exec_start(made["Id"], socket=True)

    @contextmanager
    def asking(self) -> Iterator[Any]:
        """Yield the SDK's client; what it raises becomes one of ours."""
        api = self._connected()
        try:
            yield api
        except (OutlastError, Refusal):
            raise
        except Exception as error:
            if not isinstance(error, self._errors.APIError) or error.response is None:
                raise SandboxUnreachable(f"The Docker engine at {self.address} does not answer: {error}.") from error
            status, message = int(error.response.status_code), str(error.explanation or error)
            if "no space left on device" in message:
                raise NoRoom(f"The Docker engine's disk is full: {message}. Free some space there.") from error
            raise Refusal(status, message) from error

    @property
    def _errors(self) -> Any:
        return importlib.import_module("docker.errors")

    def _connected(self) -> Any:
        if self._api is not None:
            self._reach()  # else the SDK would try, and leave its socket open
            return self._api
        if self._failure is not None and time.monotonic() - self._failure[0] < AGAIN_S:
            raise self._failure[1]
        try:
            self._api = self._connect()
        except OutlastError as error:
            self._failure = (time.monotonic(), error)
            raise
        return self._api

    def _reach(self) -> None:
        """Raise SandboxUnreachable if nobody opens at the address."""
        why = _knock(self.address)
        self.absent = isinstance(why, FileNotFoundError | ConnectionRefusedError | PermissionError)
        if isinstance(why, PermissionError):
            raise SandboxUnreachable(
                f"This user may not use the Docker engine at {self.address}. Add it to the group that owns the socket "
                "(often `docker`; that makes it as good as root), or run a rootless engine and name it in "
                "OUTLAST_DOCKER_HOST."
            ) from why
        if why is not None:
            raise SandboxUnreachable(no_engine(self.address, why.strerror or str(why))) from why

    def _connect(self) -> Any:
        self._reach()
        try:
            api = importlib.import_module("docker").APIClient(
                base_url=self.address, version="auto", timeout=FIRST_S, num_pools=POOLS
            )
            self._info = api.info()
        except Exception as error:
            raise SandboxUnreachable(no_engine(self.address, str(error))) from error
        api.timeout = API_S
        weakref.finalize(self, api.close)
        return api


def _pulled(api: Any, image: str) -> Iterator[Mapping[str, Any]]:
    """Pull an image, and yield what the engine says of it. Raises SandboxUnreachable if that is nothing for too long.

    The SDK waits for ever, so it does on a thread of its own, which ends with the process if not before."""
    repository, tag = importlib.import_module("docker.utils").parse_repository_tag(image)
    said: SimpleQueue[Mapping[str, Any] | Exception | None] = SimpleQueue()

    def listen() -> None:
        try:
            for event in api.pull(repository, tag=tag or "latest", stream=True, decode=True):
                said.put(event)
            said.put(None)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            said.put(error)

    threading.Thread(target=listen, name="image pull", daemon=True).start()
    while True:
        try:
            event = said.get(timeout=PULL_SILENT_S)
        except Empty:
            message = f"The Docker engine's pull of {image} has stood still for {PULL_SILENT_S:.0f} s."
            raise SandboxUnreachable(message) from None
        if event is None:
            return
        if isinstance(event, Exception):
            raise event
        yield event


def _knock(address: str) -> OSError | None:
    """Return why nobody opens at the address; None if somebody does."""
    kind, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX) as knocking:
                knocking.settimeout(FIRST_S)
                knocking.connect(place)
        else:
            socket.create_connection((host.strip("[]"), int(port)), FIRST_S).close()
    except OSError as error:
        return error
    return None


def no_engine(address: str, why: str) -> str:
    """Return what to say and to do where nobody answers."""
    return (
        f"No Docker engine answers at {address}: {why}. Install Docker and start it, or name another engine in "
        "OUTLAST_DOCKER_HOST; `outlast doctor` looks again."
    )


def _no_image(image: str, why: str) -> str:
    return (
        f"The image {image} is not on the Docker engine and could not be pulled: {why}. Pull, build or import it "
        "there, or name another one in OUTLAST_DOCKER_IMAGE."
    )
