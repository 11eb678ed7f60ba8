"""Processes of an earlier `serve` on the same data directory that outlived it.

When `serve` is killed with SIGKILL, Ray's processes go by themselves, but HAProxy does not: it keeps the port, and in
front of it nothing answers any more. We hold the data directory's lock, so nobody uses what carries its folders' names.
Agents and their recorders do not carry them, and are left alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from runtime.process import ProcessIdentity, alive, identify, send

PATIENCE_S = 5.0
LOOK_S = 0.02


def end_leftovers(folders: list[Path]) -> int:
    """End our own processes that name one of `folders` on their command line; return how many there were.

    By identity (P5), and waits until they are gone, at most PATIENCE_S."""
    found = list(_using(folders))
    for process in found:
        send(process, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while any(alive(process) for process in found) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return len(found)


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
        if process is not None and ours and any(name in command for name in names):
            yield process
