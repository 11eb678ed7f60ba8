"""`outlast serve`: one instance, from an empty folder to a listening address, and down again.

In this order, and undone in the opposite one: data directory (locked for as long as we live), store (made once), Ray
(our own, or one that exists), supervisor and shards, gateway, `instance.json`. Agents belong to none of these: they
go on when everything here is gone, and the next `serve` on the same data directory picks their runs up.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.metadata
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from actors.compose import BUILT_IN_PROVIDERS, harnesses, hook_sets, lent_tools, named_paths
from actors.webhooks_file import read_webhooks
from runtime.errors import DataDirRefused, InputInvalid, PortInUse, RayUnreachable
from runtime.process import current
from runtime.settings import Settings
from serve_app import instance_file
from serve_app.instance_file import InstanceInfo
from serve_app.leftovers import end_leftovers
from serve_app.origins import check_package_origin
from serve_app.ray_environment import default_temp_dir, folders_of, prepare
from serve_app.store_setup import check_store_settings, prepare_store
from serve_app.tokens import open_to_readers, read_tokens

log = logging.getLogger("outlast.serve")

# A run actor takes about 50 MB of its own; the agents and everything else need room too.
RUN_BYTES = 60 << 20
RUNS_SHARE_OF_MEMORY = 0.5
LOOK_S = 1.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(settings: Settings) -> int:
    """Run an instance until SIGINT or SIGTERM; return the exit code.

    Raises InstanceError, StoreRefused, InputInvalid."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    check_package_origin()
    _check_settings(settings)
    stop = _StopSignal()
    if not settings.data_path.exists():
        check_port(settings)  # before anything is left behind; a directory that is there may be another instance's
    with ExitStack() as stack:
        settings = stack.enter_context(data_directory(settings))
        deployment = prepare_store(settings)
        temp_dir = settings.ray_temp_dir or default_temp_dir(settings)
        if not settings.ray_address:
            end_leftovers(folders_of(temp_dir))
        check_port(settings)
        stack.enter_context(neutral_folder(settings.data_path))
        prepare(temp_dir, settings.data_path, own=not settings.ray_address)
        ray_instance = importlib.import_module("serve_app.ray_cluster").RayInstance(settings, deployment, temp_dir)
        stack.callback(ray_instance.stop)
        ray_instance.start()
        stop.install()
        if stop.requested:
            return 0
        url = ray_instance.start_application()
        stop.install()
        info = _describe(settings, ray_instance, url)
        instance_file.write(settings.data_path, info)
        stack.callback(instance_file.remove, settings.data_path, info)
        _welcome(settings, url)
        if not stop.wait(ray_instance.healthy):
            raise RayUnreachable("A part of our own Ray has died, so nothing is served. Agents go on: start again.")
        _say("Stopping: streams are cut so that clients reconnect; agents go on.")
        left = ray_instance.drain()
    _say(f"Stopped. {left} run(s) go on without us; the next `outlast serve` here picks them up.")
    return 0


class _StopSignal:
    """SIGINT or SIGTERM, remembered from the first moment on."""

    def __init__(self) -> None:
        self.requested = False
        self._read, self._write = os.pipe()
        self.install()

    def install(self) -> None:
        """Take both signals. Again after Ray has started: its core puts a handler of its own on SIGTERM, which prints
        a stack and aborts."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._note)

    def _note(self, *_: object) -> None:
        self.requested = True
        os.write(self._write, b".")

    def wait(self, healthy: Callable[[], bool]) -> bool:
        """Block until a signal came: True; or until `healthy` says no: False."""
        while not self.requested and healthy():
            select.select([self._read], [], [], LOOK_S)
        return self.requested


def _check_settings(settings: Settings) -> None:
    check_access(settings)
    known = harnesses(settings)
    if settings.harness not in known:
        names = ", ".join(sorted(known))
        raise InputInvalid(f"OUTLAST_HARNESS={settings.harness!r}: there are {names}.", code="setting_invalid")
    if settings.sandbox not in (providers_named := [*BUILT_IN_PROVIDERS, *named_paths(settings, "providers")]):
        names = ", ".join(sorted(providers_named))
        raise InputInvalid(f"OUTLAST_SANDBOX={settings.sandbox!r}: there are {names}.", code="setting_invalid")
    for name in known:
        known[name]  # one that cannot be loaded is refused here, and not when the first run needs it
    lent_tools(settings).of({})  # the same
    hook_sets(settings)
    if settings.webhooks_path is not None and not read_webhooks(settings.webhooks_path):
        log.warning("%s names no receiver: the ends of runs are posted nowhere", settings.webhooks_path)
    check_store_settings(settings)


def check_access(settings: Settings) -> None:
    """Refuse to be reached by everybody. Raises InputInvalid `host_refused`, `tokens_file_invalid`."""
    path = settings.tokens_path
    if path is not None:
        if not read_tokens(path):
            log.warning("%s holds no token: only `outlast` on this machine is let in", path)
        if open_to_readers(path):
            log.warning("%s can be read by others. It lets nobody in, but tells who there is: chmod go-r", path)
    elif settings.host not in LOOPBACK:
        message = (
            f"OUTLAST_HOST={settings.host} is not loopback, and there is no OUTLAST_TOKENS_FILE: anyone who reaches "
            "it could run commands. Make tokens (docs/runbook.md, Owners), or listen on 127.0.0.1."
        )
        raise InputInvalid(message, code="host_refused", field="host")


@contextmanager
def data_directory(settings: Settings) -> Iterator[Settings]:
    """Make and lock the data directory; yield the settings with its absolute path."""
    path = settings.data_path
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path / "serve.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirRefused(
            f"{path} cannot be used as data directory: {error.strerror}. Set OUTLAST_DATA_DIR."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        info = instance_file.read(path)
        where = f" at {info.url} (pid {info.pid})" if info else ""
        message = f"{path} is in use by a running instance{where}. Stop it (`outlast stop`) or set OUTLAST_DATA_DIR."
        raise DataDirRefused(message) from None
    try:
        tokens = "" if settings.tokens_path is None else str(settings.tokens_path)
        webhooks = "" if settings.webhooks_path is None else str(settings.webhooks_path)
        yield msgspec.structs.replace(
            settings, data_dir=str(path), max_runs=max_runs(settings), tokens_file=tokens, webhooks_file=webhooks
        )
    finally:
        os.close(lock)


def max_runs(settings: Settings) -> int:
    """Return OUTLAST_MAX_RUNS; if that is 0, what this machine bears. On a cluster that exists it stays 0: as much as
    that bears at the time (`actors/slots.py`)."""
    return settings.max_runs or (0 if settings.ray_address else runs_that_fit())


def runs_that_fit() -> int:
    """Return how many active runs this machine's memory bears."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(4, int(total * RUNS_SHARE_OF_MEMORY) // RUN_BYTES)


def check_port(settings: Settings) -> None:
    """Raise PortInUse if somebody listens where we are to listen. On a cluster that exists, its Serve does: also after
    an instance of ours has gone."""
    if settings.ray_address:
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            message = f"Port {settings.port} on {settings.host} is taken ({error.strerror}). Set OUTLAST_PORT."
            raise PortInUse(message) from None


@contextmanager
def neutral_folder(data_path: Path) -> Iterator[None]:
    """Work in the data directory: a folder `runtime/` where the user happens to stand must not shadow ours.

    Ray puts a driver's working folder on every worker's path."""
    before = Path.cwd()
    folder = data_path / "ray-cwd"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    sys.path[:] = [entry for entry in sys.path if entry not in ("", ".", str(before))]
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        os.chdir(before)


def _describe(settings: Settings, ray_instance: Any, url: str) -> InstanceInfo:
    me = current()
    return InstanceInfo(
        url=url,
        ray_address=ray_instance.address,
        ray_temp_dir=ray_instance.temp_dir,
        namespace=settings.namespace,
        pid=me.pid,
        started_at=time.time_ns() // 1_000_000,
        version=importlib.metadata.version("outlast"),
        boot_id=me.boot_id,
        pid_started_at=me.pid_started_at,
    )


def _welcome(settings: Settings, url: str) -> None:
    body = '{"threadId":"demo","messages":[{"role":"user","content":"for i in 1 2 3; do echo $i; sleep 1; done"}]}'
    _say(
        f"""Outlast listens on {url}  (data in {settings.data_path})

Try, in another terminal:
  outlast run 'for i in 1 2 3 4 5; do echo $i; sleep 1; done'      (.venv/bin/outlast in a checkout)
  curl -N {url}/api/chat -H 'Content-Type: application/json' -H "X-Run-Id: demo-$RANDOM" \\
       -d '{body}'
Then kill what drives it (`outlast doctor --json` lists the actors), and see nothing lost. Ctrl-C here stops serving."""
    )


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what `serve` tells the person in front of it
