"""Tells from inside a container what its agent does to files, as its root; a program for one driver's connection.

A request is a line of JSON, an answer a line of JSON and as many bytes as its `bytes` says; an empty line only says
that somebody is there. It ends with the connection, or when it has heard nothing for SILENCE_S.

The baseline is root's, and the workspace's files may be the agent's alone to read, so it looks at those as the agent's
user: as its effective user only, so that no process of the agent can signal or trace it (see `isolated.py`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runtime.sandboxes.attendant import BASELINES
from runtime.sandboxes.baseline import TooMuch
from runtime.sandboxes.file_watch import Facts, FileWatch
from runtime.sandboxes.isolated import AGENT_GID, AGENT_UID, OUTSIDER

SILENCE_S = 300


@contextmanager
def as_agent() -> Iterator[None]:
    """See what the agent's user may see."""
    os.setresgid(0, AGENT_GID, 0)
    os.setresuid(OUTSIDER, AGENT_UID, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


def _answer(watch: FileWatch, asked: dict[str, Any]) -> list[Facts] | Facts | None:
    whole = asked.get("whole")  # of how many bytes, and in how many seconds
    try:
        return watch.look(settled=asked["settled"]) if whole is None else watch.whole(*whole)
    except (OSError, TooMuch):
        return [] if whole is None else None


def main() -> None:
    """Answer until the connection ends."""
    watch: FileWatch | None = None
    os.setgroups([])
    while True:
        signal.alarm(SILENCE_S)
        line = sys.stdin.buffer.readline()
        if not line:
            return
        if not line.strip():
            continue
        asked = json.loads(line)
        if watch is None:
            watch = FileWatch(asked["workspace"], f"{BASELINES}/{asked['run']}", diffs=asked["diffs"], eyes=as_agent)
        data = json.dumps(_answer(watch, asked)).encode()
        sys.stdout.buffer.write(json.dumps({"bytes": len(data)}).encode() + b"\n" + data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
