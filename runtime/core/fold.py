"""Fold a run's log into messages: what a client sees that comes back without having watched (contract 4.6).

The log becomes the assistant messages that a client would have built from the same chunks: text under its own message
id; thinking and tool calls in the assistant message that they belong to, or in the one that comes next; a result in
the message of its call. Ids are those of the chunks, so that a client that goes on reading the log meets messages that
it has.

Folding is linear in the log: deltas are kept in pieces and joined once. Odd chunks, of which a foreign agent may print
any, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runtime.core.chunk import Event, decode_chunk
from runtime.core.messages import UI_ROLES, Message, Part, from_agui, parse_json, result_output, result_part


def fold(chunks: Iterable[bytes]) -> list[Message]:
    """Return the UI messages of one run's log, complete or not."""
    folding = Fold()
    folding.feed(chunks)
    return folding.messages()


_STREAMING = frozenset({"awaiting-input", "input-streaming"})


@dataclass(slots=True)
class _Words:
    """A part of text or thinking that still grows."""

    type: str
    pieces: list[str]

    def part(self) -> Part:
        return {"type": self.type, "content": "".join(self.pieces)}


@dataclass(slots=True)
class _Call:
    """A tool call that still grows."""

    id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    state: str = "awaiting-input"
    more: Part = field(default_factory=dict)  # input, output
    result: Part | None = None

    def argue(self, delta: str) -> None:
        if self.state in _STREAMING:
            self.pieces.append(delta)
            self.state = "input-streaming"

    def end(self, given: Any = None) -> None:
        """The arguments are complete; `given` is their value if the end of the call states it."""
        if self.state not in _STREAMING:
            return
        self.state = "input-complete"
        arguments = "".join(self.pieces)
        value = parse_json(arguments) if given is None else given
        if value is not arguments:
            self.more["input"] = value

    def part(self) -> Part:
        part = {"type": "tool-call", "id": self.id, "name": self.name, "arguments": "".join(self.pieces)}
        return {**part, "state": self.state, **self.more}


@dataclass(slots=True)
class _Growing:
    """A message; parts that do not grow any more are kept as they are."""

    id: str
    role: str
    parts: list[_Words | _Call | Part] = field(default_factory=list)
    name: str | None = None

    def message(self) -> Message:
        parts = [{**part} if isinstance(part, dict) else part.part() for part in self.parts]
        message: Message = {"id": self.id, "role": self.role, "parts": parts}
        return message if self.name is None else {**message, "name": self.name}

    def say(self, kind: str, delta: str) -> _Words:
        """Append to the last part if it is of this kind, else begin one; return it."""
        last = self.parts[-1] if self.parts else None
        if not isinstance(last, _Words) or last.type != kind:
            last = _Words(kind, [])
            self.parts.append(last)
        last.pieces.append(delta)
        return last


def _text(event: Event, key: str) -> str:
    value = event.get(key)
    return value if isinstance(value, str) else ""


def _tanstack(event: Event) -> dict[str, Any]:
    metadata = event.get("metadata")
    tanstack = metadata.get("tanstack") if isinstance(metadata, dict) else None
    return tanstack if isinstance(tanstack, dict) else {}


class Fold:
    """Folds one run's log; `feed` it in order, ask for `messages` at any time."""

    def __init__(self) -> None:
        self.from_snapshot: set[str] = set()  # ids that a MESSAGES_SNAPSHOT stated
        self._order: list[_Growing] = []
        self._messages: dict[str, _Growing] = {}  # the same, by id
        self._latest: _Growing | None = None  # the assistant message that nameless things go to
        self._provisional: _Growing | None = None  # made for such a thing; the next message id names it
        self._calls: dict[str, tuple[_Growing, _Call]] = {}
        self._unended: dict[str, _Call] = {}
        self._thoughts: dict[str, _Words] = {}
        self._shorthand: dict[str, str] = {}  # _CHUNK type -> id that the next one without an id goes on with

    def feed(self, chunks: Iterable[bytes]) -> None:
        """Take the next chunks of the log."""
        for data in chunks:
            event = decode_chunk(data)
            kind = event.get("type")
            handle = self._handlers.get(kind) if isinstance(kind, str) else None
            if handle is not None:
                handle(self, event)

    def messages(self) -> list[Message]:
        """Return the UI messages so far; those without a part are left out."""
        return [growing.message() for growing in self._order if growing.parts]

    # --- messages ---------------------------------------------------------------------------------------------

    def _named(self, identity: str, role: str = "assistant") -> _Growing:
        """Return the message of this id, made if it is new; a provisional one takes the id."""
        known = self._messages.get(identity)
        if known is not None:
            if known is self._provisional:
                self._provisional = None
            return known
        if self._provisional is not None and role == "assistant":
            growing, self._provisional = self._provisional, None
            del self._messages[growing.id]
            growing.id = identity
        else:
            growing = _Growing(identity, role)
            self._order.append(growing)
        self._messages[identity] = growing
        self._latest = growing if role == "assistant" else None
        return growing

    def _current(self, identity: str) -> _Growing:
        """Return the assistant message that is being written; `identity` is for a new one until it gets its own."""
        if self._latest is None:
            self._latest = self._named(identity)
            self._provisional = self._latest
        return self._latest

    def _text_start(self, event: Event) -> None:
        identity = _text(event, "messageId")
        if identity:
            growing = self._named(identity, UI_ROLES.get(_text(event, "role"), "assistant"))
            growing.name = _text(event, "name") or growing.name

    def _text_content(self, event: Event) -> None:
        identity, delta = _text(event, "messageId"), _text(event, "delta")
        if identity and delta:
            self._named(identity).say("text", delta)

    def _text_chunk(self, event: Event) -> None:
        identity = self._shorthand_id(event, "messageId")
        if identity:
            self._text_start({**event, "messageId": identity})
            self._text_content({**event, "messageId": identity})

    # --- thinking ---------------------------------------------------------------------------------------------

    def _thought(self, event: Event) -> None:
        identity, delta = _text(event, "messageId"), _text(event, "delta")
        if not delta:
            return
        words = self._thoughts.get(identity)
        if words is not None:
            words.pieces.append(delta)
            return
        words = _Words("thinking", [delta])
        self._current(identity or "thinking").parts.append(words)
        self._thoughts[identity] = words

    def _thought_start(self, _event: Event) -> None:
        self._thoughts.pop("", None)

    def _thought_chunk(self, event: Event) -> None:
        self._thought({**event, "messageId": self._shorthand_id(event, "messageId")})

    # --- tool calls -------------------------------------------------------------------------------------------

    def _call_start(self, event: Event) -> None:
        identity, parent = _text(event, "toolCallId"), _text(event, "parentMessageId")
        if not identity or identity in self._calls:
            return
        owner = self._named(parent) if parent else self._current(identity)
        call = _Call(identity, _text(event, "toolCallName"))
        owner.parts.append(call)
        self._calls[identity] = owner, call
        self._unended[identity] = call

    def _call_arguments(self, event: Event) -> None:
        delta, found = _text(event, "delta"), self._calls.get(_text(event, "toolCallId"))
        if delta and found is not None:
            found[1].argue(delta)

    def _call_end(self, event: Event) -> None:
        identity = _text(event, "toolCallId")
        if identity in self._calls:
            self._calls[identity][1].end(_tanstack(event).get("input"))
            self._unended.pop(identity, None)

    def _call_chunk(self, event: Event) -> None:
        identity = self._shorthand_id(event, "toolCallId")
        self._call_start({**event, "toolCallId": identity})
        self._call_arguments({**event, "toolCallId": identity})

    def _call_result(self, event: Event) -> None:
        identity, content = _text(event, "toolCallId"), event.get("content")
        part = result_part(identity, content, failed=_tanstack(event).get("state") == "output-error")
        if identity not in self._calls:
            self._current(_text(event, "messageId") or identity).parts.append(part)
            return
        owner, call = self._calls[identity]
        call.end()
        call.state, call.more["output"] = part["state"], result_output(content)
        if call.result is None:
            owner.parts.append(part)
            call.result = part
        else:
            call.result |= part

    # --- the run ----------------------------------------------------------------------------------------------

    def _segment_end(self, _event: Event) -> None:
        self._provisional = None
        self._shorthand.clear()
        for call in self._unended.values():
            call.end()
        self._unended.clear()

    def _snapshot(self, event: Event) -> None:
        """Replace all messages by those that the agent states."""
        given = event.get("messages")
        self._order, self._messages = [], {}
        self._calls, self._unended, self._thoughts = {}, {}, {}
        self._provisional = self._latest = None
        for stated in from_agui(given if isinstance(given, list) else [], "snapshot"):
            growing = self._named(stated["id"], stated["role"])
            growing.name = stated.get("name", growing.name)
            growing.parts += [self._again(growing, part) for part in stated["parts"]]
        self.from_snapshot = set(self._messages)

    def _again(self, owner: _Growing, part: Part) -> _Words | _Call | Part:
        if part["type"] in {"text", "thinking"}:
            return _Words(part["type"], [part["content"]])
        if part["type"] != "tool-call":
            return part
        more: Part = {key: part[key] for key in ("input", "output") if key in part}
        call = _Call(part["id"], part["name"], [part["arguments"]], part["state"], more)
        self._calls[call.id] = owner, call
        return call

    def _shorthand_id(self, event: Event, key: str) -> str:
        kind = event["type"]
        identity = _text(event, key) or self._shorthand.get(kind, "")
        self._shorthand[kind] = identity
        return identity

    _handlers: ClassVar[dict[str, Callable[[Fold, Event], None]]] = {
        "TEXT_MESSAGE_START": _text_start,
        "TEXT_MESSAGE_CONTENT": _text_content,
        "TEXT_MESSAGE_CHUNK": _text_chunk,
        "REASONING_MESSAGE_CONTENT": _thought,
        "REASONING_MESSAGE_CHUNK": _thought_chunk,
        "THINKING_TEXT_MESSAGE_START": _thought_start,
        "THINKING_TEXT_MESSAGE_CONTENT": _thought,
        "TOOL_CALL_START": _call_start,
        "TOOL_CALL_ARGS": _call_arguments,
        "TOOL_CALL_END": _call_end,
        "TOOL_CALL_CHUNK": _call_chunk,
        "TOOL_CALL_RESULT": _call_result,
        "RUN_FINISHED": _segment_end,
        "RUN_ERROR": _segment_end,
        "MESSAGES_SNAPSHOT": _snapshot,
    }
