"""Runs a short command to its end, with bounds on its time and on what is kept of its output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

OUTPUT_BYTES = 1 << 20  # kept of stdout, and of stderr; what follows is read and dropped
AFTER_S = 0.2  # for output that is in the pipe when the command has ended, while some child of it holds the pipe open


def run_command(argv: Sequence[str], cwd: str, env: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
    """Return (exit code, stdout then stderr). Ended by a signal: its negative number, so -9 after `timeout_s`; not
    found 127, not executable 126, as a shell says. Blocks. What it left in the background goes on."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        return 127, str(error).encode()
    except OSError as error:
        return 126, str(error).encode()
    with process:
        try:
            output = _collect(process, time.monotonic() + timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # not yet waited for: the number is still its own
        return process.wait(), output


def _collect(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    pidfd = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for fd in (*kept, pidfd):
                selector.register(fd, selectors.EVENT_READ)
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fd == pidfd:
                        selector.unregister(pidfd)
                        deadline = min(deadline, time.monotonic() + AFTER_S)
                    elif data := os.read(key.fd, 1 << 16):
                        kept[key.fd] += data[: OUTPUT_BYTES - len(kept[key.fd])]
                    else:
                        selector.unregister(key.fd)
    finally:
        os.close(pidfd)
    return b"".join(kept.values())
