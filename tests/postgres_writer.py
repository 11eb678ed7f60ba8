"""A process that writes to a PostgreSQL store until it is killed: `python postgres_writer.py MODE URL SHARDS SHARD`.

append   takes the shard and appends to its run, printing the log's length after each commit; says `superseded` once
         it is, and ends
hold     takes the shard, begins a transaction of a kind that the store never makes, locks the shard's row and the
         rows of all runs, prints `holding`, and waits
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from runtime.core.ops import Appended
from runtime.errors import ShardSuperseded
from runtime.stores.postgres import PostgresStore
from runtime.testing.sample_ops import append, claim, create, live


def start(mode: str, url: str, shards: int = 1, shard: int = 0) -> subprocess.Popen[str]:
    """Start the process."""
    argv = [sys.executable, str(Path(__file__)), mode, url, str(shards), str(shard)]
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


def _append_for_ever(store: PostgresStore, shard: int, epoch: int) -> None:
    name = run_id(os.getpid())
    store.commit(shard, epoch, [create(name, name), claim(0, "a", name)], 1)
    seq = 1
    while True:
        try:
            (outcome,) = store.commit(shard, epoch, [append(live(seq, 1, str(seq), run_id=name))], 1)
        except ShardSuperseded:
            _say("superseded")
            return
        assert isinstance(outcome, Appended)
        seq = outcome.next_seq
        _say(str(seq))


def _hold(store: PostgresStore, shard: int) -> None:
    session = store._writing()
    session.execute("BEGIN")
    session.execute("SELECT FROM outlast.shard WHERE shard = %s FOR UPDATE", (shard,))
    session.execute("SELECT FROM outlast.run FOR UPDATE")
    _say("holding")
    sys.stdin.read()


def main(mode: str, url: str, shards: str, shard: str) -> None:
    """Do what `mode` says."""
    store = PostgresStore(url, shards=int(shards))
    epoch = store.open_shard(int(shard), "a writer")
    if mode == "append":
        _append_for_ever(store, int(shard), epoch)
    else:
        _hold(store, int(shard))


if __name__ == "__main__":
    main(*sys.argv[1:])
