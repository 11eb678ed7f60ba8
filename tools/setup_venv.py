"""Make `.venv` ready: what `outlast` needs, and `outlast` itself, installed.

    python3.11 tools/setup_venv.py run     what an instance needs
    python3.11 tools/setup_venv.py dev     what the tests and checks need as well

Does nothing, in milliseconds, when nothing changed. What was done is kept in a stamp in `.venv`, one entry a step; an
entry is removed before its step begins, so an interrupted set-up is taken up again. Two at once wait for each other:
the lock is on this checkout's folder, so nothing is left behind and a killed set-up holds nothing.

The requirements are pinned and hashed, and only wheels are taken, so no compiler is needed. The package is installed
as a user would have it, not as a link to the checkout: an instance that runs does not change when a file is saved.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import package_sources

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "outlast-setup.json"
SETS = ("run", "dev")


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


def say(text: str) -> None:
    """Tell a person what takes time. On stderr, since stdout belongs to what comes after."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


@contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Hold the lock of this checkout; wait for whoever has it."""
    folder = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this folder is running; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def check_python() -> None:
    """Raise SetupError unless this Python is the one that the requirements were pinned for, with venv."""
    if sys.version_info[:2] != (3, 11):
        is_not = f"{sys.executable} is {platform.python_version()}"
        raise SetupError(f"Python 3.11 is needed, {is_not}. Install it (on Debian 12: python3.11-venv), or set PYTHON=")
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        raise SetupError(f"{sys.executable} has no venv. On Debian: apt-get install python3.11-venv")


class Stamp:
    """What was done in this `.venv`: step -> hash of what it was done with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, str] = {}
        # Nothing done yet, or cut off in the middle of a write: both mean that everything is to be done.
        with suppress(FileNotFoundError, ValueError):
            self.done = json.loads(path.read_text())

    def has(self, step: str, value: str) -> bool:
        """Return whether `step` was done with `value`."""
        return self.done.get(step) == value

    @contextmanager
    def step(self, step: str, value: str) -> Iterator[None]:
        """Forget `step`, let the caller do it, and remember it if that went well."""
        if self.done.pop(step, None) is not None:
            self._write()
        yield
        self.done[step] = value
        self._write()

    def _write(self) -> None:
        self.path.write_text(json.dumps(self.done, indent=1, sort_keys=True))


def _run(what: str, *argv: str | Path) -> None:
    result = subprocess.run([str(arg) for arg in argv], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if result.returncode:
        raise SetupError(f"{what} failed (exit {result.returncode}); its own words are above. Mend that and repeat.")


def _pip(what: str, *args: str | Path) -> None:
    # -I: neither PYTHONPATH nor a folder of this checkout may shadow what pip imports.
    _run(what, PYTHON, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq", *args)


def _works(python: Path) -> bool:
    if not python.exists():
        return False
    probe = "import sys, pip; sys.exit(sys.version_info[:2] != (3, 11))"
    return subprocess.run([python, "-I", "-c", probe], capture_output=True, check=False).returncode == 0


def make_venv() -> Stamp:
    """Make `.venv`, unless a sound one is there and was made in this place; return its stamp."""
    stamp = Stamp(STAMP)
    moved = stamp.done.get("place", str(VENV)) != str(VENV)  # its scripts would start the Python of the old place
    if moved or not _works(PYTHON):
        say("making .venv")
        _run("python -m venv", sys.executable, "-I", "-m", "venv", "--clear", VENV)
        stamp = Stamp(STAMP)
    if not stamp.has("place", str(VENV)):
        with stamp.step("place", str(VENV)):
            pass
    return stamp


def install_requirements(stamp: Stamp, which: str) -> None:
    """Install `requirements/<which>.txt`, hashes checked, unless that very file was installed with this Python."""
    pins = ROOT / "requirements" / f"{which}.txt"
    value = hashlib.sha256(pins.read_bytes() + platform.python_version().encode()).hexdigest()
    if stamp.has(which, value):
        return
    say(f"installing requirements/{which}.txt (the first time takes a minute or two)")
    with stamp.step(which, value):
        _pip("installing the requirements", "--require-hashes", "--only-binary", ":all:", "-r", pins)


def install_package(stamp: Stamp) -> None:
    """Install runtime, actors and serve_app from a copy, byte-compiled, unless they are installed as they are now."""
    value = package_sources.digest(ROOT)
    if stamp.has("package", value):
        return
    say("installing outlast")
    # Byte code is written now: a run actor that must compile first starts 0.8 s later.
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall", "--compile")
    with stamp.step("package", value), tempfile.TemporaryDirectory(prefix="outlast-build-") as folder:
        package_sources.copy(ROOT, Path(folder))
        _pip("installing outlast", *options, folder)


def main(argv: list[str]) -> int:
    """Run one set-up; return the exit code."""
    if len(argv) != 1 or argv[0] not in SETS:
        print(f"usage: setup_venv.py {{{'|'.join(SETS)}}}", file=sys.stderr)
        return 2
    return exit_code(lambda: _set_up(argv[0]))


def _set_up(name: str) -> None:
    check_python()
    with one_at_a_time(ROOT):
        stamp = make_venv()
        install_requirements(stamp, name)
        install_package(stamp)


def exit_code(set_up: Callable[[], object]) -> int:
    """Do `set_up`; say why it could not be done, and return the exit code of its program."""
    try:
        set_up()
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next one goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
