"""Runs a short command in a container's workspace, as the agent's user: the program behind `Sandbox.exec` there.

One line of JSON on stdin, `{"argv": [...], "cwd": ..., "timeoutS": ...}`; one on stdout, `{"code": n, "bytes": n}`,
followed by the output. Like all that runs as that user it can be tampered with by the agent, and is nothing to trust.
"""

from __future__ import annotations

import json
import os
import sys

from runtime.sandboxes.command import run_command


def main() -> None:
    """Run the command that stdin names."""
    job = json.loads(sys.stdin.buffer.readline())
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    code, output = run_command(job["argv"], job["cwd"], {**env, "TERM": "dumb", **job["env"]}, job["timeoutS"])
    sys.stdout.buffer.write(json.dumps({"code": code, "bytes": len(output)}).encode() + b"\n" + output)


if __name__ == "__main__":
    main()
