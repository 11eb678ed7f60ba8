"""Make `build/node` ready: the clients from npm that tests/node/ and tests/browser/ hold against an instance, and the
scripts that use them.

    python3.11 tools/setup_node.py

Like `setup_venv.py`, and with its lock and stamp: milliseconds when nothing changed, taken up again after an
interruption, two at once wait for each other. What is installed is what the lock names, by its hashes; npm's own cache
is asked first, so a machine that did it once needs no network. Scripts of packages are not run.

The scripts are copied beside the modules, since Node looks for a module above the file that asks for it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setup_venv import ROOT, SetupError, Stamp, exit_code, one_at_a_time, say

SOURCE = ROOT / "tests" / "node"
TARGET = ROOT / "build" / "node"
LOCKED = ("package.json", "package-lock.json", ".npmrc")
OLDEST = 20  # what the pinned packages run on


def check_node() -> str:
    """Return the version of Node. Raises SetupError if it or npm is missing, or too old."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise SetupError(f"{program} is not on the PATH")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    major = version.removeprefix("v").partition(".")[0]
    if not major.isdecimal() or int(major) < OLDEST:
        raise SetupError(f"Node {OLDEST} or newer is needed; `node --version` says {version or 'nothing'}")
    return version


def install(source: Path, target: Path) -> None:
    """Install what the lock in `source` names into `target`, unless that is there already. Raises SetupError."""
    version = check_node()
    target.mkdir(parents=True, exist_ok=True)
    stamp = Stamp(target / "outlast-setup.json")
    locked = b"\0".join((source / name).read_bytes() for name in LOCKED)
    value = hashlib.sha256(locked + version.encode()).hexdigest()
    if stamp.has("modules", value) and (target / "node_modules").is_dir():
        return
    say(f"installing what {source.parent.name}/{source.name}/package-lock.json names")
    with stamp.step("modules", value):
        for name in LOCKED:
            shutil.copyfile(source / name, target / name)
        result = subprocess.run(
            ["npm", "ci", "--prefer-offline", "--loglevel=error"],
            cwd=target,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            check=False,
        )
        if result.returncode:
            raise SetupError(
                f"npm ci failed (exit {result.returncode}); its own words are above. Mend that and repeat."
            )


def copy_scripts(source: Path, target: Path) -> None:
    """Put the scripts of `source` beside the modules; whoever runs one of them now keeps the file that it has."""
    scripts = {script.name for script in source.glob("*.mjs")}
    for old in target.glob("*.mjs"):
        if old.name not in scripts:
            old.unlink()
    for name in scripts:
        temporary = target / f".{name}.{os.getpid()}"
        shutil.copyfile(source / name, temporary)
        temporary.replace(target / name)


def prepare(root: Path = ROOT, source: Path = SOURCE, target: Path = TARGET) -> Path:
    """Return the folder with modules and scripts, made ready. Raises SetupError."""
    with one_at_a_time(root):
        install(source, target)
        copy_scripts(source, target)
    return target


def main() -> int:
    """Run one set-up; return the exit code."""
    return exit_code(prepare)


if __name__ == "__main__":
    sys.exit(main())
