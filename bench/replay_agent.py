"""The agent of the benchmark: prints a prepared `stream-json` session as its orders say. Runs as `claude`.

The prompt on stdin is the orders, one JSON object:

    lines   path of the session, made by `runtime.testing.stream_json` with stamps
    rate    lines a second; 0: as fast as the pipe takes them
    burst   so many lines at once first, however low the rate is
    gate    start when this file exists; before that, `<gate>.<pid>` is made: a waiting agent can be seen

A text piece holds `@@0000042@@`. Where it is written line by line, that becomes `@@42:<microseconds since 1970>@@` at
the moment of the write. Flat out, one line of each block of BLOCK_LINES is stamped: what a line costs shall be the
system's, not this program's.

Of the standard library only, and little of it: its start is not what is measured, but runs on the same cores.
"""

from __future__ import annotations

import json
import os
import sys
import time

BLOCK_LINES = 200
STAMP_DIGITS = 7
GATE_LOOK_S = 0.01
STDOUT = 1


def main() -> None:
    """Obey the orders."""
    orders = json.loads(sys.stdin.read())
    with open(orders["lines"], "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        lines = file.read().split(b"\n")[:-1]
    wait_at(orders.get("gate"))
    burst = int(orders.get("burst", 0))
    rate = float(orders.get("rate", 0))
    if not rate:
        burst = len(lines)
    write_flat_out(lines[:burst])
    write_paced(lines[burst:], rate)


def wait_at(gate: str | None) -> None:
    """Return when the gate is open."""
    if gate is None:
        return
    os.close(os.open(f"{gate}.{os.getpid()}", os.O_CREAT | os.O_WRONLY))
    while not os.path.exists(gate):  # noqa: PTH110 - as above
        time.sleep(GATE_LOOK_S)


def write_flat_out(lines: list[bytes]) -> None:
    """Write blocks, each with the time in its first stamped line."""
    for start in range(0, len(lines), BLOCK_LINES):
        block = b"\n".join(lines[start : start + BLOCK_LINES]) + b"\n"
        write_all(stamped(block))


def write_paced(lines: list[bytes], rate: float) -> None:
    """Write line by line at `rate`, each with its time, on a schedule that does not drift."""
    begun = time.monotonic()
    for number, line in enumerate(lines):
        pause_s = begun + number / rate - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        write_all(stamped(line) + b"\n")


def stamped(data: bytes) -> bytes:
    """Return `data` with the time in its first stamp, if it holds one."""
    at = data.find(b"@@")
    end = at + 2 + STAMP_DIGITS
    if at < 0 or data[end : end + 2] != b"@@":
        return data
    index = int(data[at + 2 : end])
    return b"%b@@%d:%d%b" % (data[:at], index, time.time_ns() // 1000, data[end:])


def write_all(data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(STDOUT, view) :]


if __name__ == "__main__":
    main()
