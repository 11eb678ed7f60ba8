"""The first process of a host: gives it a disk, a /tmp and names of its own, then reaps, and obeys one word a line.

    host_init.py DISK FOLDER NUMBER REAPS KEEP...

DISK is bound over FOLDER, so each host has another disk under the same path, and none sees another's. KEEP are folders
that stay visible even if they lie in the old /tmp: the checkout, its Python. `REAPS` is 1, or 0 for a host whose dead
children stay as zombies, as in a container without an init.

Words on stdin: `freeze`, `thaw`. At the end of stdin it ends, and the kernel ends every process of the host with it: a
host never outlives whoever made it. Of the standard library only, and started with `-I -S`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

# Host 0 has 0...0 etc.: what names a host must not be the machine's own.
MACHINE_ID = "{number:032x}"
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def main(disk: str, folder: str, number: str, reaps: str, *keep: str) -> None:
    """Set up, say `ready`, obey."""
    _private_tmp(Path(disk), Path(folder), [Path(path) for path in keep])
    _mount("-t", "tmpfs", "-o", "size=2g", "tmpfs", "/dev/shm")  # noqa: S108 - its own
    _own_names(Path(folder), int(number))
    if reaps == "1":
        signal.signal(signal.SIGCHLD, _reap)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if (word := line.strip()) in ("freeze", "thaw"):
            # -1 is every process of this host but its first: one step of the kernel, nobody can fork past it.
            _signal_all(signal.SIGSTOP if word == "freeze" else signal.SIGCONT)
        sys.stdout.write("done\n")
        sys.stdout.flush()


def _private_tmp(disk: Path, folder: Path, keep: list[Path]) -> None:
    """Put an empty /tmp in place, with `disk` at `folder` and what must stay visible."""
    stage = disk / "tmp"
    stage.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "size=2g,mode=1777", "tmpfs", str(stage))
    inside_tmp = Path("/tmp")  # noqa: S108 - this is where it is made private
    for source, target in [*((path, path) for path in keep), (disk, folder)]:
        place = target
        if target.is_relative_to(inside_tmp):
            place = stage / target.relative_to(inside_tmp)
            place.mkdir(parents=True, exist_ok=True)
        if (source, place) != (target, target):
            _mount("--bind", str(source), str(place))
    _mount("--move", str(stage), str(inside_tmp))


def _own_names(folder: Path, number: int) -> None:
    """Give the host a machine id that it keeps, and a boot id of this boot."""
    machine, boot = folder / "machine-id", folder / "boot-id"
    machine.write_text(MACHINE_ID.format(number=number + 1) + "\n")
    boot.write_text(f"{number:08x}-{os.urandom(2).hex()}-4000-8000-{os.urandom(6).hex()}\n")
    _mount("--bind", str(machine), "/etc/machine-id")
    _mount("--bind", str(boot), BOOT_ID_FILE)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _signal_all(signum: signal.Signals) -> None:
    try:
        os.kill(-1, signum)
    except ProcessLookupError:
        return  # nobody is here


def _reap(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
