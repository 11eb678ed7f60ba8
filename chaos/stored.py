"""Print, for each run id on stdin, the epochs of its stored batches in order of the log, as one line of JSON.

Opens the store that the environment's settings name, beside whoever serves it, and only reads.
"""

from __future__ import annotations

import json
import sys

from actors.compose import open_store
from runtime.settings import load

PAGE_BYTES = 4 << 20


def main() -> None:
    """Print `{run id: [[seq, count, epoch], ...]}`, a line for each."""
    store = open_store(load())
    try:
        for line in sys.stdin:
            run_id = line.strip()
            rows: list[list[int]] = []
            after = 0
            while page := store.read_batches(run_id, after, PAGE_BYTES):
                rows += [[batch.seq, batch.count, batch.epoch] for batch in page]
                after = page[-1].next_seq
            print(json.dumps({run_id: rows}))
    finally:
        store.close()


if __name__ == "__main__":
    main()
