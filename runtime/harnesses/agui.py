"""The `agui` harness: any program that reads a RunAgentInput from stdin and prints AG-UI events, one a line (design 7).

`forwardedProps.command` is the program's argv. What it prints is stored as printed, but for what makes one run of it:

    printed threadId, runId     replaced by the run's
    no RUN_STARTED              supplied before the first event that needs one
    RUN_STARTED in an open run  RAW, since a strict client fails on it
    RUN_FINISHED, RUN_ERROR     held until the exit or the next line: released before another RUN_STARTED, otherwise the
                                next chunk goes before it; only the exit can make it the run's own ending
    a second terminal           the error wins, else the later; the other one is kept as RAW
    JSON of another kind        RAW; no JSON: CUSTOM process.stdout

CUSTOM and RAW before the program's own RUN_STARTED stay before it (P26 hides them from strict clients), so that a
banner line does not cost the program its RUN_STARTED.

Chunk path 3/6. Before: core framing (journal bytes to lines). After: engine (chunks to the log).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.core import chunk
from runtime.core.agui import SPEC_KEYS
from runtime.core.aside import put_aside, take_up
from runtime.core.launch import AgentExit
from runtime.core.record import RunError, RunSpec, Status
from runtime.harnesses import options, prompt
from runtime.harnesses.endings import Said, conclude
from runtime.harnesses.json_line import parse
from runtime.ports import Ending, LaunchSpec, Translator

NAME = "agui"

# AG-UI 1.0 added types below one prefix.
_NEW_TYPES = "SUBAGENT_"
_NEED_NO_START = frozenset({"CUSTOM", "RAW"})
# RunAgentInput's required fields that a request to us may leave out.
_INPUT_DEFAULTS: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}


class AguiHarness:
    """Runs `forwardedProps.command`."""

    name = NAME
    translator_version = 1

    def validate(self, input: Mapping[str, Any]) -> None:
        """Check `command` and `env`. The messages are the program's own business. Raises InputInvalid."""
        props = options.forwarded(input)
        options.argv(props, "command")
        options.check_env(props)

    def launch(
        self,
        run_id: str,
        spec: RunSpec,
        env: Mapping[str, str],
        workspace: str,  # noqa: ARG002 - the port's form
        history: Sequence[Mapping[str, Any]],
    ) -> LaunchSpec:
        """Return the command, with the RunAgentInput as one line on stdin. Raises InputInvalid as `validate` does."""
        self.validate(spec.input)
        agent_input = {
            **_INPUT_DEFAULTS,
            **spec.input,
            "runId": run_id,
            "messages": prompt.conversation(spec.input, history),
        }
        return LaunchSpec(
            argv=options.argv(options.forwarded(spec.input), "command"),
            env=dict(env),
            stdin=chunk.encode(agent_input) + b"\n",
            max_log_bytes=spec.limits.max_log_bytes,
        )

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        """Return a fresh translator."""
        return AguiTranslator(run_id, str(spec.input.get("threadId", "")))


class AguiTranslator:
    """Passes events through; `_open` is True between a RUN_STARTED and its terminal's release."""

    def __init__(self, run_id: str, thread_id: str) -> None:
        self._run_id = run_id
        self._thread_id = thread_id
        self._open = False
        self._held: dict[str, Any] | None = None

    @property
    def has_result(self) -> bool:
        """True while a printed terminal is held."""
        return self._held is not None

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        """Return the chunks of one printed line."""
        try:
            value = parse(line, torn)
        except ValueError:
            return [chunk.stdout_line(line, torn)]
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or not (kind in SPEC_KEYS or kind.startswith(_NEW_TYPES)):
            return [chunk.raw_event(value, NAME)]
        if kind == chunk.RUN_STARTED:
            return self._run_started(value)
        out = [] if self._open or kind in _NEED_NO_START else [self._supply_start()]
        if kind in chunk.TERMINAL_TYPES:
            return out + self._hold(value)
        out.append(chunk.encode(self._owned(value)))
        return out

    def finish(self, exit: AgentExit, stderr: bytes) -> Ending:
        """Return what the held terminal and the exit make together."""
        chunks = () if self._open else (self._supply_start(),)
        said = self._said(self._held) if self._held is not None else None
        return conclude(self._run_id, said, exit, stderr, chunks)

    def state(self) -> bytes:
        """Return whether a run is open, and the terminal that is held."""
        return put_aside([self._open, self._held])

    def restore(self, state: bytes) -> None:
        """Take that. Raises ValueError or TypeError for anything else."""
        self._open, self._held = take_up(state)

    def _run_started(self, event: dict[str, Any]) -> list[bytes]:
        if self._open and self._held is None:
            return [chunk.raw_event(event, NAME)]
        released = [chunk.encode(self._terminal(self._held))] if self._held is not None else []
        self._held = None
        self._open = True
        return [*released, chunk.encode(self._owned(event, always=True))]

    def _supply_start(self) -> bytes:
        self._open = True
        return chunk.run_started(self._run_id, self._thread_id)

    def _hold(self, event: dict[str, Any]) -> list[bytes]:
        held, self._held = self._held, event
        if held is None:
            return []
        if held["type"] == chunk.RUN_ERROR and event["type"] != chunk.RUN_ERROR:
            self._held, held = held, event
        return [chunk.raw_event(held, NAME)]

    def _owned(self, event: dict[str, Any], always: bool = False) -> dict[str, Any]:
        """Return `event` with the run's ids where ids are printed, and with `always` also where they are not."""
        ids = {"runId": self._run_id, "threadId": self._thread_id}
        owned = {**event, **{key: value for key, value in ids.items() if always or key in event}}
        metadata = event.get("metadata")
        tanstack = metadata.get("tanstack") if isinstance(metadata, dict) else None
        if isinstance(metadata, dict) and isinstance(tanstack, dict) and not ids.keys().isdisjoint(tanstack):
            ours = {key: value for key, value in ids.items() if key in tanstack}
            owned["metadata"] = {**metadata, "tanstack": {**tanstack, **ours}}
        return owned

    def _terminal(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return a printed terminal in the form that ends a run of ours (design 4, contract 2.2)."""
        metadata = event.get("metadata")
        metadata = dict(metadata) if isinstance(metadata, dict) else {}
        tanstack = metadata.get("tanstack")
        tanstack = dict(tanstack) if isinstance(tanstack, dict) else {}
        if event["type"] == chunk.RUN_FINISHED:
            owned = self._owned(event, always=True)
            tanstack.setdefault("finishReason", "stop")
        else:
            error = _printed_error(event)
            owned = {key: value for key, value in event.items() if key not in ("runId", "threadId", "error")}
            owned |= {"message": error.message, "code": error.code}
            tanstack["runId"] = self._run_id
        return {**owned, "metadata": {**metadata, "tanstack": tanstack}}

    def _said(self, held: dict[str, Any]) -> Said:
        event = self._terminal(held)
        if held["type"] == chunk.RUN_ERROR:
            return Said(event, Status.FAILED, held, NAME, _printed_error(held), _usage(held))
        outcome = held.get("outcome")
        kind = outcome.get("type") if isinstance(outcome, dict) else None
        if kind == "cancelled":  # the program's own word; nobody here has cancelled the run
            error = RunError(message="The agent says that it was cancelled.", code="aborted")
            return Said(event, Status.ABORTED, held, NAME, error, _usage(held))
        status = Status.INTERRUPTED if kind == "interrupt" else Status.COMPLETED
        return Said(event, status, held, NAME, None, _usage(held))


def _printed_error(event: dict[str, Any]) -> RunError:
    """Return what a printed RUN_ERROR says, also where it says it in a nested `error` (contract 2.2)."""
    nested = event.get("error")
    nested = nested if isinstance(nested, dict) else {"message": nested}
    messages = [text for text in (event.get("message"), nested.get("message")) if isinstance(text, str) and text]
    codes = [code for code in (event.get("code"), nested.get("code")) if isinstance(code, str | int) and code != ""]
    return RunError(
        message=messages[0] if messages else "The agent ended its run with an error.",
        code=str(codes[0]) if codes else "agent_exit",
    )


def _usage(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the record's usage: the first element of the wire's array, or a printed object."""
    usage = event.get("usage")
    if isinstance(usage, list) and usage:
        usage = usage[0]
    return usage if isinstance(usage, dict) else None
