"""Starts the recorder, a program of its own, and hears from it whether it launched (P15).

The recorder is found by its folder at the *end* of the module path, and not run as a script, since only an imported
module is compiled once and for all: 5 ms of 27 to the first byte. Nothing of ours but that one file is imported there.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

from runtime.errors import LaunchFailed, SandboxLost
from runtime.ports import LaunchSpec

REPLY_S = 30.0  # a machine that needs longer to start a Python is in no state to run an agent
PROGRAM = "import sys; sys.path.append(sys.argv[1]); import recorder; recorder.main()"
KEPT = ("LD_LIBRARY_PATH",)  # some Pythons do not start without it; nothing else is inherited


def start_recorder(spec: LaunchSpec, journal: Path, workspace: str, sandbox: str) -> bool:
    """Start a recorder for `journal`; return whether it launched, or somebody had before. Blocks until it says so.

    Raises SandboxLost if the journal's directory is not there, LaunchFailed if the recorder could not do its part."""
    job = {
        "journal": str(journal),
        "argv": spec.argv,
        "env": spec.env,
        "cwd": workspace,
        "stdin": base64.b64encode(spec.stdin).decode(),
        "maxLogBytes": spec.max_log_bytes,
        "sandbox": sandbox,
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", PROGRAM, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # a Python that does not start says why
            cwd="/",
            env={name: os.environ[name] for name in KEPT if name in os.environ},
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchFailed(f"The recorder could not be started: {error}.") from error
    with process:
        try:
            said, _ = process.communicate(json.dumps(job).encode(), timeout=REPLY_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise LaunchFailed(f"The recorder did not answer within {REPLY_S:.0f} s.") from None
    return _launched(said.decode(errors="replace"), Path(f"{journal}.launch"))


def _launched(said: str, launch: Path) -> bool:
    if said == "absent":
        raise SandboxLost("The sandbox was removed before its agent was launched.")
    if said in ("ready", "already"):
        return said == "ready"
    if said.startswith("failed "):
        raise LaunchFailed(f"The agent could not be launched: {said.removeprefix('failed ')}.")
    if launch.exists():  # the recorder was killed in between: launched, and `lost` to whoever looks
        return True
    raise LaunchFailed(f"The recorder ended before it launched: {said[-500:].strip() or 'it was killed'}.")
