"""The `shell` harness: one command line, its output as one message. Needs no model and no key (design 7).

The agent is `/bin/sh -c` of the last user text, in the workspace. Running what the user typed is its purpose; the
text is one argument of an argv and is never pasted into another command.

Every line is text, also one that looks like JSON: a shell's output has no structure that could be trusted.

Chunk path 3/6. Before: core framing (journal bytes to lines). After: engine (chunks to the log).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime.core import chunk
from runtime.core.launch import AgentExit, ExitKind
from runtime.core.record import RunSpec, Status
from runtime.errors import InputInvalid
from runtime.harnesses import options, prompt
from runtime.harnesses.endings import Said, conclude
from runtime.ports import Ending, LaunchSpec, Translator


class ShellHarness:
    """Runs the last user text with `/bin/sh -c`."""

    name = "shell"
    translator_version = 1

    def validate(self, input: Mapping[str, Any]) -> None:
        """Check the message and `env`. Raises InputInvalid `message_invalid`, `option_invalid`."""
        options.check_env(options.forwarded(input))
        reason = options.argument_fault(prompt.last_user_text(input))
        if reason is not None:
            raise InputInvalid(
                f"The command {reason}. Put what is long into a script in the workspace and run that.",
                code="message_invalid",
                field="messages",
            )

    def launch(
        self,
        run_id: str,  # noqa: ARG002 - the port's form
        spec: RunSpec,
        env: Mapping[str, str],
        workspace: str,  # noqa: ARG002 - the port's form
        history: Sequence[Mapping[str, Any]],  # noqa: ARG002 - the port's form
    ) -> LaunchSpec:
        """Return the argv; nothing on stdin. Raises InputInvalid as `validate` does."""
        self.validate(spec.input)
        return LaunchSpec(
            argv=("/bin/sh", "-c", prompt.last_user_text(spec.input)),
            env=dict(env),
            max_log_bytes=spec.limits.max_log_bytes,
        )

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        """Return a fresh translator."""
        return ShellTranslator(run_id, str(spec.input.get("threadId", "")))


class ShellTranslator:
    """RUN_STARTED and one text message, opened by the first line; a content chunk for each line, newline included."""

    def __init__(self, run_id: str, thread_id: str) -> None:
        self._run_id = run_id
        self._thread_id = thread_id
        self._message_id = f"{run_id}-0"
        # A canonical TEXT_MESSAGE_CONTENT is this around the encoded text; "delta" sorts first.
        self._after = chunk.encode({"messageId": self._message_id, "type": "TEXT_MESSAGE_CONTENT"})[1:]
        self._started = False

    @property
    def has_result(self) -> bool:
        """Always False: only the exit says how a command ended."""
        return False

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        """Return the line as text; a torn one without the newline that it does not have."""
        text = line.decode("utf-8", "replace")
        content = b'{"delta":' + chunk.encode_text(text if torn else text + "\n") + b"," + self._after
        if self._started:
            return [content]
        return [*self._start(), self._message_start(), content]

    def finish(self, exit: AgentExit, stderr: bytes) -> Ending:
        """Return completed for exit code 0, else failed with the end of stderr."""
        succeeded = exit.kind is ExitKind.EXITED and exit.code == 0 and exit.signal is None
        said = self._success() if succeeded else None
        return conclude(self._run_id, said, exit, stderr, () if self._started else self._start())

    def state(self) -> bytes:
        """Return whether a line has come."""
        return b"1" if self._started else b"0"

    def restore(self, state: bytes) -> None:
        """Take that. Raises KeyError for anything else."""
        self._started = {b"0": False, b"1": True}[state]

    def _start(self) -> tuple[bytes, ...]:
        self._started = True
        return (chunk.run_started(self._run_id, self._thread_id),)

    def _message_start(self) -> bytes:
        return chunk.encode({"type": "TEXT_MESSAGE_START", "messageId": self._message_id, "role": "assistant"})

    def _success(self) -> Said:
        event = {
            "type": chunk.RUN_FINISHED,
            "runId": self._run_id,
            "threadId": self._thread_id,
            "result": {"exitCode": 0},
            "metadata": {"tanstack": {"finishReason": "stop"}},
        }
        return Said(event=event, status=Status.COMPLETED, printed=event, source=ShellHarness.name)
