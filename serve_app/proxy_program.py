"""What Ray Serve starts as `haproxy`: HAProxy itself, with a configuration that clients can live with.

Serve renders HAProxy's configuration from a template of its own. Five things in it have no setting, and each would
break a promise:

    it lives on     when the process that started it dies, HAProxy keeps the port, and answers for nobody: it asks the
                    kernel to be killed then (the same parent starts every reload, so they are covered too)
    it answers      404 before the application is there, 500 without a replica. A client that re-joins takes either
                    for the last word (design 8): the connection is closed instead, and the client comes back
    it passes on    what a replica says that is being ended: its HTTP server fills in 500 for a request that was given
                    up. Who comes back to a run is not told so, as in `proxy_guard.py`: the connection is closed
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
FRONTEND = re.compile(r"^frontend http_frontend\n(?!    # who comes back)", re.MULTILINE)
# The same as `_comes_back` and `_of_the_proxy` in proxy_guard.py. A denial has the error file of its status: none.
COMES_BACK = """\
    # who comes back to a run
    acl outlast_chat path_end /api/chat /api/chat/ndjson
    acl outlast_names_run req.hdr(x-run-id) -m found
    acl outlast_names_run url_param(runId) -m found
    acl outlast_has_seen req.hdr(last-event-id) -m found
    http-request set-var(txn.outlast_back) bool(true) if METH_GET outlast_chat outlast_names_run
    http-request set-var(txn.outlast_back) bool(true) if METH_POST outlast_chat outlast_has_seen
    acl outlast_back var(txn.outlast_back) -m bool
    acl outlast_json res.hdr(content-type) application/json
    http-response deny deny_status 502 if outlast_back { status ge 500 }
    http-response deny deny_status 502 if outlast_back { status 404 } !outlast_json
"""


def adapted(config: str) -> str:
    """Return Serve's configuration with our changes; adapting twice changes nothing more."""
    if not APPLICATION.search(config):
        config = NOT_FOUND.sub(r"\1http-request reject", config)
    config = ERROR_FILE.sub(r"\1 /dev/null", config)  # an empty answer: the connection is closed
    if ERROR_FILE.search(config):  # without one, a denial would be told
        config = FRONTEND.sub(lambda found: found[0] + COMES_BACK, config)
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
