"""Who may talk to an instance's own Ray: whoever is on this machine and can read its token file.

Whoever reaches Ray can run code, and Ray listens on every address of the machine, whatever address its nodes are given,
unless it is told that this machine is no part of a cluster: `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0`, which Linux heeds
too. Then everything but one port of each Serve replica is on loopback. And Ray's token authentication is on: one token
per data directory, in a file of mode 600, named to Ray by `RAY_AUTH_TOKEN_PATH`.

Set before Ray is first used in a process; what Ray starts inherits it. An agent's environment never holds it.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

TOKEN_FILE = "ray-token"  # noqa: S105 - its name


def make_token(data_dir: Path) -> None:
    """Make the data directory's token if there is none, and use it in this process."""
    make_secret(data_dir / TOKEN_FILE)
    use_token(data_dir)


def make_secret(path: Path) -> None:
    """Write a random secret that only this user can read, unless there is one."""
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_hex(32))
        temporary.replace(path)


def use_token(data_dir: Path) -> None:
    """Let this process join the Ray of the data directory's instance; one that joined a foreign Ray has no token."""
    path = data_dir.absolute() / TOKEN_FILE
    if path.exists():
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if (constants := sys.modules.get("ray._private.ray_constants")) is not None:
            vars(constants)["ENABLE_RAY_CLUSTER"] = False
    else:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    if (core := sys.modules.get("ray._raylet")) is not None:
        core.Config.initialize("")  # Ray has read the environment already: again, as Ray itself does in `init`
