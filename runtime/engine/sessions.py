"""Which session a run goes on with: the one that its request names, else the one that the thread's last run has left.

It must be there, in the home of the thread's agent, or it is lost (P18).

A lost one is no failure. The run begins a new session and is told the conversation so far, as if it had named none;
the agent reports the new session by its own event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from runtime.core.record import RunSpec
from runtime.engine.tools import Past
from runtime.errors import InputInvalid
from runtime.ports import Harness, KeepsSessions, Sandbox, SessionFile

log = logging.getLogger("outlast.run")

LOOK_S = 30.0


async def going_on(harness: Harness, sandbox: Sandbox, spec: RunSpec, env: Mapping[str, str], past: Past) -> RunSpec:
    """Return what to launch by: `spec`, with the thread's last session where the request names none and the home holds
    that one; without the one that it names, if that is lost; and with what was asked beside each answer to it.

    Raises SandboxUnreachable, SandboxLost."""
    spec = _with_questions(spec, past)
    if sandbox.home is None or not isinstance(harness, KeepsSessions):
        return spec
    if harness.session_file(spec.input, env) is not None:
        return await without_lost_session(harness, sandbox, spec, env)
    if past.session is None:
        return spec
    try:
        resumed = harness.with_session(spec.input, past.session)
        kept = harness.session_file(resumed, env)
    except InputInvalid:
        return spec  # an agent has printed what is none
    if kept is None or await _look(sandbox, kept) is not True:
        return spec
    return msgspec.structs.replace(spec, input=resumed)


def _with_questions(spec: RunSpec, past: Past) -> RunSpec:
    answers, asked = spec.input.get("resume"), {each.get("id"): each for each in past.asked}
    if not answers:
        return spec
    told = [{**each, "interrupt": asked.get(each.get("interruptId"))} for each in answers]
    return msgspec.structs.replace(spec, input={**spec.input, "resume": told})


async def without_lost_session(harness: Harness, sandbox: Sandbox, spec: RunSpec, env: Mapping[str, str]) -> RunSpec:
    """Return what to launch by: `spec`, but for a session that is not in the agent's home.

    Where the agent has no home of its thread, or the home does not tell, the session is taken to be there.
    Raises SandboxUnreachable, SandboxLost."""
    if sandbox.home is None or not isinstance(harness, KeepsSessions):
        return spec
    kept = harness.session_file(spec.input, env)
    if kept is None or await _look(sandbox, kept) is not False:
        return spec
    log.warning("sandbox %s: the session %s is lost; the agent is told the conversation", sandbox.key, kept.name)
    return msgspec.structs.replace(spec, input=harness.without_session(spec.input))


async def _look(sandbox: Sandbox, kept: SessionFile) -> bool | None:
    """Return whether the home holds the session; None if it does not tell."""
    folder = f"{sandbox.home}/{kept.folder}"
    code, output = await sandbox.exec(["find", folder, "-name", kept.name], LOOK_S)
    if any(line.startswith(folder.encode()) for line in output.split(b"\n")):
        return True
    return False if code in (0, 1) else None
