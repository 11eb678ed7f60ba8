"""A process that writes to a SQLite store until it is killed: `python store_writer.py MODE PATH`.

It says on stdout what it has done, one line for each step, flushed: what it said must be true for ever.

    append   takes the shard and appends to its run `by-<pid>`, printing the log's length after each commit; on
             ShardSuperseded it prints `superseded` and goes on trying for as long as it is read from
    hold     takes the shard, begins a transaction, writes in it, prints `holding`, and waits
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from runtime.core.ops import Appended
from runtime.errors import ShardSuperseded
from runtime.stores import sqlite_schema as sql
from runtime.stores.sqlite import SqliteStore
from runtime.testing.sample_ops import append, claim, create, live
from runtime.testing.store_cases.shard_driver import ShardDriver

SIZES = (1, 1, 7, 1, 600, 2, 4096)  # chunks in a batch, over and over: commits of one page and of a hundred


def start(mode: str, path: Path) -> subprocess.Popen[str]:
    """Start the process."""
    argv = [sys.executable, str(Path(__file__)), mode, str(path)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def stdout(process: subprocess.Popen[str]) -> IO[str]:
    """Return what the process says."""
    assert process.stdout is not None
    return process.stdout


def run_id(pid: int) -> str:
    """Return the run that the process `pid` writes to."""
    return f"by-{pid}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _append_for_ever(shard: ShardDriver) -> None:
    name = run_id(os.getpid())
    shard.do(create(name, name), claim(0, "a", name))
    seq, turn = 1, 0
    while True:
        size = SIZES[turn % len(SIZES)]
        words = [f"{place}" for place in range(seq, seq + size)]
        try:
            outcome = shard.ask(append(live(seq, 1, *words, run_id=name)), Appended)
        except ShardSuperseded:
            _say("superseded")
            continue
        seq, turn = outcome.next_seq, turn + 1
        _say(str(seq))


def _hold(shard: ShardDriver, store: SqliteStore) -> None:
    connection = store._writing()
    connection.execute(sql.BEGIN)
    connection.execute(sql.WRITE_SUPERVISOR, (99, "never committed"))
    _say("holding")
    sys.stdin.read()
    _say(f"{shard.epoch}")


def main(mode: str, path: str) -> None:
    """Do what `mode` says."""
    store = SqliteStore(Path(path))
    shard = ShardDriver(store)
    if mode == "append":
        _append_for_ever(shard)
    else:
        _hold(shard, store)


if __name__ == "__main__":
    main(*sys.argv[1:])
