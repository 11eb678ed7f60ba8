"""Show a run's chunks to a person: text on stdout as it comes, what else happens on stderr, a short line each.

`LinesShow` is for programs: the envelopes as they came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Protocol, TextIO

from runtime.core import chunk
from serve_app.stream_client import Envelope

NOTE_LENGTH = 120  # characters of an agent's words in one line: what a terminal shows
ARGUMENTS_KEPT = 4 * NOTE_LENGTH  # of a tool call, while they come


class Show(Protocol):
    """Where a stream goes."""

    def batch(self, envelopes: Iterable[Envelope]) -> None:
        """Show what has come. Raises BrokenPipeError when nobody reads any more."""

    def note(self, text: str) -> None:
        """Tell a person something on stderr."""

    def end(self) -> None:
        """Finish the last line."""


class LinesShow:
    """NDJSON, byte for byte as the instance sent it."""

    def __init__(self, out: BinaryIO, err: TextIO) -> None:
        self._out = out
        self._err = err

    def batch(self, envelopes: Iterable[Envelope]) -> None:
        """Write one line for each envelope."""
        self._out.write(b"".join([envelope.line + b"\n" for envelope in envelopes]))
        self._out.flush()

    def note(self, text: str) -> None:
        """Write a line on stderr."""
        self._err.write(text + "\n")
        self._err.flush()

    def end(self) -> None:
        """Do nothing: every line is whole."""


class TextShow:
    """The messages of a run as text. A message that does not end its last line gets an end."""

    def __init__(self, out: BinaryIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._mid_line = False
        self._one_screen = out.isatty() and err.isatty()
        self._arguments: dict[str, str] = {}
        self._tools: dict[str, str] = {}
        self._handlers: dict[str, Callable[[chunk.Event], None]] = {
            "TEXT_MESSAGE_CONTENT": self._text,
            "TEXT_MESSAGE_CHUNK": self._text,
            "TEXT_MESSAGE_END": self._text_end,
            "TOOL_CALL_START": self._tool_start,
            "TOOL_CALL_ARGS": self._tool_arguments,
            "TOOL_CALL_END": self._tool_end,
            "TOOL_CALL_RESULT": self._tool_result,
            "REASONING_START": self._thinking,
            "THINKING_START": self._thinking,
            "STEP_STARTED": self._step,
            "CUSTOM": self._custom,
        }

    def batch(self, envelopes: Iterable[Envelope]) -> None:
        """Write what the envelopes mean to a person."""
        for envelope in envelopes:
            handler = self._handlers.get(str(envelope.chunk.get("type")))
            if handler is not None:
                handler(envelope.chunk)
        self._out.flush()

    def note(self, text: str) -> None:
        """Write a line on stderr, below the text if both are on one screen."""
        self._out.flush()
        self._err.write(("\n" if self._mid_line and self._one_screen else "") + text + "\n")
        self._err.flush()
        self._mid_line = self._mid_line and not self._one_screen

    def end(self) -> None:
        """End the last line of the text."""
        if self._mid_line:
            self._out.write(b"\n")
        self._out.flush()
        self._mid_line = False

    # --- chunks ---

    def _text(self, event: chunk.Event) -> None:
        delta = event.get("delta")
        if isinstance(delta, str) and delta:
            self._out.write(delta.encode(errors="replace"))
            self._mid_line = not delta.endswith("\n")

    def _text_end(self, _: chunk.Event) -> None:
        self.end()

    def _tool_start(self, event: chunk.Event) -> None:
        call = str(event.get("toolCallId"))
        self._tools[call] = str(event.get("toolCallName"))
        self._arguments[call] = ""

    def _tool_arguments(self, event: chunk.Event) -> None:
        call = str(event.get("toolCallId"))
        so_far = self._arguments.get(call, "")
        if len(so_far) < ARGUMENTS_KEPT:
            self._arguments[call] = so_far + str(event.get("delta", ""))

    def _tool_end(self, event: chunk.Event) -> None:
        call = str(event.get("toolCallId"))
        self.note(f"tool: {brief(self._tools.get(call, call))} {brief(self._arguments.pop(call, ''))}".rstrip())

    def _tool_result(self, event: chunk.Event) -> None:
        name = self._tools.pop(str(event.get("toolCallId")), "tool")
        self.note(f"{brief(name)}: {brief(event.get('content'))}")

    def _thinking(self, _: chunk.Event) -> None:
        self.note("thinking")

    def _step(self, event: chunk.Event) -> None:
        self.note(f"step: {brief(event.get('stepName'))}")

    def _custom(self, event: chunk.Event) -> None:
        name, value = event.get("name"), event.get("value")
        if name == chunk.RUN_ACCEPTED:
            return
        if name == chunk.RUN_WAITING and isinstance(value, dict):
            self.note(f"The agent starts once the thread's {brief(value.get('for'))} is free.")
            return
        if name == chunk.IMAGE_PULL and isinstance(value, dict):
            done, all_of_it = (int(value.get(what) or 0) >> 20 for what in ("bytesDone", "bytes"))
            self.note(f"The image {brief(value.get('image'))} is pulled: {done} of {all_of_it} MiB.")
            return
        if name == "process.stdout" and isinstance(value, dict):
            value = value.get("line")
        if name == "journal.line_skipped" and isinstance(value, dict):
            self.note(f"A line of {value.get('bytes')} bytes was left out: longer than OUTLAST_MAX_LINE_BYTES.")
            return
        self.note(f"{brief(name)}: {brief(value)}")


def brief(value: Any, length: int = NOTE_LENGTH) -> str:
    """Return `value` as one printable line of at most `length` characters. Control characters become spaces: an
    agent's words do not steer the terminal."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    more = len(text) > length
    line = "".join(char if char.isprintable() else " " for char in text[: length - more]).strip()
    return line + ("…" if more else "")
