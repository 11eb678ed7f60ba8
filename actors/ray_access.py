"""Who may talk to an instance's own Ray: whoever can read its token file.

Some of Ray's ports listen on every address of the machine, whatever address its nodes have, and whoever reaches one can
run code. So Ray's token authentication is on: one token per data directory, in a file of mode 600, named to Ray by
`RAY_AUTH_TOKEN_PATH`. Set before Ray is first used in a process; what Ray starts inherits it. An agent's environment
never holds it.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

TOKEN_FILE = "ray-token"  # noqa: S105 - its name


def make_token(data_dir: Path) -> None:
    """Make the data directory's token if there is none, and use it in this process."""
    path = data_dir / TOKEN_FILE
    if not path.exists():
        temporary = path.with_name(f".{TOKEN_FILE}.{os.getpid()}")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_hex(32))
        temporary.replace(path)
    use_token(data_dir)


def use_token(data_dir: Path) -> None:
    """Let this process join the Ray of the data directory's instance; one that joined a foreign Ray has no token."""
    path = data_dir.absolute() / TOKEN_FILE
    if path.exists():
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
    else:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    if (core := sys.modules.get("ray._raylet")) is not None:
        core.Config.initialize("")  # Ray has read the environment already: again, as Ray itself does in `init`
