"""Sends a run's result from inside a container that has the thread's workspace and baselines, as its root.

A job is a line of JSON on stdin. An answer is a line of JSON and as many bytes as its `bytes` says: pieces, then
`done`; or what stands against it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from runtime.sandboxes.attendant import BASELINES
from runtime.sandboxes.baseline import Gone, TooMuch
from runtime.sandboxes.results import read


def main() -> None:
    """Do the one job."""
    job = json.loads(sys.stdin.buffer.readline())
    try:
        for piece in read(Path(job["workspace"]), Path(BASELINES), job["run"], job["form"], job["maxBytes"]):
            _answer(piece)
    except TooMuch as error:
        _answer(error=str(error), code=None)
    except Gone as error:
        _answer(error=str(error), code=error.code)
    else:
        _answer(done=True)


def _answer(data: bytes = b"", **facts: Any) -> None:
    sys.stdout.buffer.write(json.dumps({**facts, "bytes": len(data)}).encode() + b"\n" + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
