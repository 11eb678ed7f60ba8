"""What Ray Serve starts as `haproxy`: HAProxy itself, with a configuration that clients can live with.

Serve renders HAProxy's configuration from a template of its own. Four things in it have no setting, and each would
break a promise:

    it lives on     when the process that started it dies, HAProxy keeps the port, and answers for nobody: it asks the
                    kernel to be killed then (the same parent starts every reload, so they are covered too)
    it answers      404 before the application is there, 500 without a replica. A client that re-joins takes either
                    for the last word (design 8): the connection is closed instead, and the client comes back
    it listens      for statistics on every address: on loopback instead (design 9)
    it is open      its admin socket may be used by everybody: by its owner only

Text that is not found is left as it is. This runs by itself, outside any virtual environment: standard library only.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shlex
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
APPLICATION = re.compile(r"^backend http-", re.MULTILINE)
NOT_FOUND = re.compile(r"^(backend default_backend\n\s*)http-request return status 404 .*$", re.MULTILINE)
ERROR_FILE = re.compile(r"^(\s*errorfile 50[234]) .*$", re.MULTILINE)
EVERY_ADDRESS = re.compile(r"^(\s*bind )\*?:(?=\d)", re.MULTILINE)
EVERYBODY = re.compile(r"^(\s*stats socket .*) mode 666 ", re.MULTILINE)


def adapted(config: str) -> str:
    """Return Serve's configuration with our changes; adapting twice changes nothing more."""
    if not APPLICATION.search(config):
        config = NOT_FOUND.sub(r"\1http-request reject", config)
    config = ERROR_FILE.sub(r"\1 /dev/null", config)  # an empty answer: the connection is closed
    config = EVERY_ADDRESS.sub(r"\g<1>127.0.0.1:", config)
    return EVERYBODY.sub(r"\1 mode 600 ", config)


def write_program(path: Path, binary: str) -> None:
    """Write the executable that Serve is to start: it starts this module with `binary`."""
    words = [sys.executable, "-I", "-S", str(Path(__file__)), binary]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o700)


def main() -> None:
    """Adapt the configuration that the arguments name, and become HAProxy."""
    binary, *arguments = sys.argv[1:]
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be watched
        sys.exit(1)
    for flag, value in itertools.pairwise(arguments):
        if flag == "-f":
            path = Path(value)
            path.write_text(adapted(path.read_text()))
    os.execv(binary, [binary, *arguments])  # noqa: S606 - this process is to be HAProxy


if __name__ == "__main__":
    main()
