"""Processes of an earlier `serve` on the same data directory that outlived it.

When `serve` is killed with SIGKILL, Ray's processes go by themselves, but HAProxy does not: it keeps the port, and in
front of it nothing answers any more. We hold the data directory's lock, so nobody uses what carries its folders' names.
Agents and their recorders do not carry them, and are left alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from runtime.process import ProcessIdentity, alive, identify, send

PATIENCE_S = 5.0
FAMILY_PATIENCE_S = 2.0
LOOK_S = 0.02


def end_leftovers(folders: list[Path]) -> int:
    """End our own processes that name one of `folders` on their command line, or are Ray's and have a file open there;
    return how many there were.

    By identity (P5), and waits until they are gone, at most PATIENCE_S."""
    found = list(_using(folders))
    for process in found:
        send(process, signal.SIGKILL)
    wait_gone(found, PATIENCE_S)
    return len(found)


def end_family(family: Sequence[ProcessIdentity]) -> None:
    """See that all of these are gone: by themselves within FAMILY_PATIENCE_S, else by SIGKILL."""
    wait_gone(family, FAMILY_PATIENCE_S)
    for process in family:
        send(process, signal.SIGKILL)
    wait_gone(family, PATIENCE_S)


def wait_gone(processes: Sequence[ProcessIdentity], patience_s: float) -> None:
    """Return when none of them lives, or after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while any(alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(LOOK_S)


def family_of(pids: Collection[int]) -> list[ProcessIdentity]:
    """Return these processes and all that descend from them now. A recorder of an agent does not: it has left its
    launcher's family at its start."""
    parents = {int(entry.name): _parent(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    family = {pid for pid in pids if pid in parents}
    while more := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= more
    return [process for pid in sorted(family) if (process := identify(pid)) is not None]


def _parent(entry: Path) -> int:
    try:
        stat = (entry / "stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def _is_ray_in(entry: Path, command: bytes, names: Sequence[bytes]) -> bool:
    """Return whether it is a process of Ray's that writes its log below one of `names`. Such a one shows a title for
    its arguments, which may also lie over what its environment said."""
    if not command.startswith(b"ray::"):
        return False
    try:
        files = [os.fsencode(link.readlink()) for link in (entry / "fd").iterdir()]
    except OSError:
        return False
    return any(file.startswith(name) for file in files for name in names)


def _using(folders: list[Path]) -> Iterator[ProcessIdentity]:
    names = [os.fsencode(folder) + b"/" for folder in folders]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        process = identify(int(entry.name))
        try:
            ours = entry.stat().st_uid == os.getuid()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        named = any(name in command for name in names) or _is_ray_in(entry, command, names)
        if process is not None and ours and named:
            yield process
