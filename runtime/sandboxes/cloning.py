"""Clones a git repository for a new workspace, as nobody in particular.

git gets nothing of the user that we run as: no configuration, no credentials (`~/.netrc`, helpers, Kerberos tickets),
no ssh keys and no ssh agent, and nobody to ask. So it reaches what anybody may read, and a URL cannot spend what an
operator may do. It follows no redirect either: where that leads nobody has allowed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runtime.errors import LaunchFailed

GIT_S = 600.0
LOOK_S = 1.0
HOME = "home"
# ssh finds its user's home without $HOME. Known hosts are no credentials, and are used.
_SSH = "ssh -F /dev/null -o BatchMode=yes -o " + " -o ".join(
    f"{way}Authentication=no" for way in ("Pubkey", "GSSAPI", "Hostbased")
)
_ENV = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_SSH_COMMAND": _SSH,
    "LC_ALL": "C",
}
_OPTIONS = [
    *("protocol.allow=never", *(f"protocol.{name}.allow=always" for name in ("https", "http", "ssh", "file"))),
    *("core.hooksPath=/dev/null", "core.symlinks=true", "http.followRedirects=false", "http.emptyAuth=false"),
]


def clone(place: str, ref: str | None, target: Path, check: Callable[[Path], None]) -> None:
    """Clone into `target`, an empty folder; `check` is called with it again and again and may refuse. Blocks.

    An empty HOME is made beside it. Raises LaunchFailed, and what `check` raises."""
    target.with_name(HOME).mkdir(mode=0o700)
    _git(target, check, "clone", "--quiet", "--no-hardlinks", "--", place, str(target))
    if ref is not None:
        _git(target, check, "-C", str(target), "checkout", "--quiet", ref, "--")


def _git(target: Path, check: Callable[[Path], None], *arguments: str) -> None:
    options = [word for option in _OPTIONS for word in ("-c", option)]
    env = {**_ENV, "HOME": str(target.with_name(HOME)), "PATH": os.environ.get("PATH", os.defpath)}
    try:
        process = subprocess.Popen(
            ["git", *options, *arguments],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise LaunchFailed("The workspace is a git repository, and git is not installed on this host.") from None
    with process:
        said = _watch(process, target, check).decode(errors="replace").strip()[-500:]
    check(target)
    if process.returncode:
        raise LaunchFailed(f"git could not get the workspace: {said or f'it exited with {process.returncode}'}")


def _watch(process: subprocess.Popen[bytes], target: Path, check: Callable[[Path], None]) -> bytes:
    """Return what a process said until its end, which comes early if the check or GIT_S says so."""
    deadline = time.monotonic() + GIT_S
    try:
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=LOOK_S)[1]
            check(target)
        raise LaunchFailed(f"git did not get the workspace within {GIT_S:.0f} s.")
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
