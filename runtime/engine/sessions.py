"""Whether the session that a run is to go on with is there: in the home of its thread's agent, or lost (P18).

A lost one is no failure. The run begins a new session and is told the conversation so far, as if it had named none;
the agent reports the new session by its own event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from runtime.core.record import RunSpec
from runtime.ports import Harness, KeepsSessions, Sandbox

log = logging.getLogger("outlast.run")

LOOK_S = 30.0


async def without_lost_session(harness: Harness, sandbox: Sandbox, spec: RunSpec, env: Mapping[str, str]) -> RunSpec:
    """Return what to launch by: `spec`, but for a session that is not in the agent's home.

    Where the agent has no home of its thread, or the home does not tell, the session is taken to be there.
    Raises SandboxUnreachable, SandboxLost."""
    if sandbox.home is None or not isinstance(harness, KeepsSessions):
        return spec
    kept = harness.session_file(spec.input, env)
    if kept is None:
        return spec
    folder = f"{sandbox.home}/{kept.folder}"
    code, output = await sandbox.exec(["find", folder, "-name", kept.name], LOOK_S)
    if code not in (0, 1) or any(line.startswith(folder.encode()) for line in output.split(b"\n")):
        return spec
    log.warning("sandbox %s: the session %s is lost; the agent is told the conversation", sandbox.key, kept.name)
    return msgspec.structs.replace(spec, input=harness.without_session(spec.input))
