"""Fold a run's log into messages: what a client sees that comes back without having watched (contract 4.6).

The log becomes the assistant messages that a client would have built from the same chunks: text under its own message
id; thinking and tool calls in the assistant message that they belong to, or in the one that comes next; a result in
the message of its call. Ids are those of the chunks, so that a client that goes on reading the log meets messages that
it has.

Folding is linear in the log: deltas are kept in pieces and joined once. Odd chunks, of which a foreign agent may print
any, change nothing. What is kept is bounded (`growing.py`), whatever the agent prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from runtime.core.chunk import Event, decode_chunk
from runtime.core.growing import Call, Fixed, Growing, GrowingMessage, Messages, Words, kept, measure, short
from runtime.core.messages import UI_ROLES, Message, Part, from_agui, result_output, result_part


def _text(event: Event, key: str) -> str:
    value = event.get(key)
    return value if isinstance(value, str) else ""


def _name(event: Event, key: str) -> str:
    return short(_text(event, key))


def _tanstack(event: Event) -> dict[str, Any]:
    metadata = event.get("metadata")
    tanstack = metadata.get("tanstack") if isinstance(metadata, dict) else None
    return tanstack if isinstance(tanstack, dict) else {}


class Fold:
    """Folds one run's log; `feed` it in order, ask for `messages` at any time."""

    def __init__(self) -> None:
        self.from_snapshot: set[str] = set()  # ids that a MESSAGES_SNAPSHOT stated
        self.interrupts: list[Part] = []  # what the run asks, if its log ends with the outcome `interrupt` (P23)
        self.session: str | None = None  # that the agent reported last
        self._messages = Messages(self._forget)
        self._latest: GrowingMessage | None = None  # the assistant message that nameless things go to
        self._provisional: GrowingMessage | None = None  # made for such a thing; the next message id names it
        self._calls: dict[str, tuple[GrowingMessage, Call]] = {}
        self._unended: dict[str, Call] = {}
        self._thoughts: dict[str, Words] = {}
        self._shorthand: dict[str, str] = {}  # _CHUNK type -> id that the next one without an id goes on with

    def begin_late(self) -> None:
        """Say that what is fed is not the beginning of the log."""
        self._messages.late = True

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
        return self._messages.made()

    def _forget(self, part: Growing) -> None:
        """A part had to go: what still speaks of it begins anew, or is left out."""
        match part:
            case Call(id=identity):
                self._calls.pop(identity, None)
                self._unended.pop(identity, None)
            case Words(id=identity) if self._thoughts.get(identity) is part:
                del self._thoughts[identity]

    # --- messages ---------------------------------------------------------------------------------------------

    def _named(self, identity: str, role: str = "assistant") -> GrowingMessage:
        """Return the message of this id, made if it is new; a provisional one takes the id."""
        known = self._messages.by_id.get(identity)
        if known is not None:
            if known is self._provisional:
                self._provisional = None
            return known
        provisional = self._provisional
        if provisional is not None and role == "assistant" and self._messages.has(provisional):
            growing, self._provisional = provisional, None
            self._messages.rename(growing, identity)
        else:
            growing = self._messages.begin(identity, role)
        self._latest = growing if role == "assistant" else None
        return growing

    def _current(self, identity: str) -> GrowingMessage:
        """Return the assistant message that is being written; `identity` is for a new one until it gets its own."""
        if self._latest is None or not self._messages.has(self._latest):
            self._latest = self._named(identity)
            self._provisional = self._latest
        return self._latest

    def _text_start(self, event: Event) -> None:
        identity = _name(event, "messageId")
        if identity:
            growing = self._named(identity, UI_ROLES.get(_text(event, "role"), "assistant"))
            if name := _name(event, "name"):
                self._messages.call(growing, name)

    def _text_content(self, event: Event) -> None:
        identity, delta = _name(event, "messageId"), _text(event, "delta")
        if not identity or not delta:
            return
        message = self._named(identity)
        words = message.parts[-1] if message.parts else None
        if not isinstance(words, Words) or words.type != "text":
            words = Words("text")
            self._messages.add(message, words)
        self._messages.grow(words, words.text.add(delta))

    def _text_chunk(self, event: Event) -> None:
        identity = self._shorthand_id(event, "messageId")
        if identity:
            self._text_start({**event, "messageId": identity})
            self._text_content({**event, "messageId": identity})

    # --- thinking ---------------------------------------------------------------------------------------------

    def _thought(self, event: Event) -> None:
        identity, delta = _name(event, "messageId"), _text(event, "delta")
        if not delta:
            return
        words = self._thoughts.get(identity)
        if words is None:
            words = self._thoughts[identity] = Words("thinking", identity)
            self._messages.add(self._current(identity or "thinking"), words)
        self._messages.grow(words, words.text.add(delta))

    def _thought_start(self, _event: Event) -> None:
        self._thoughts.pop("", None)

    def _thought_chunk(self, event: Event) -> None:
        self._thought({**event, "messageId": self._shorthand_id(event, "messageId")})

    # --- tool calls -------------------------------------------------------------------------------------------

    def _call_start(self, event: Event) -> None:
        identity, parent = _name(event, "toolCallId"), _name(event, "parentMessageId")
        if not identity or identity in self._calls:
            return
        owner = self._named(parent) if parent else self._current(identity)
        call = Call(identity, _name(event, "toolCallName"))
        self._calls[identity] = owner, call
        self._unended[identity] = call
        self._messages.add(owner, call)

    def _call_arguments(self, event: Event) -> None:
        delta, found = _text(event, "delta"), self._calls.get(_name(event, "toolCallId"))
        if delta and found is not None:
            self._messages.grow(found[1], found[1].argue(delta))

    def _call_end(self, event: Event) -> None:
        identity = _name(event, "toolCallId")
        if identity in self._calls:
            call = self._calls[identity][1]
            self._unended.pop(identity, None)
            self._messages.grow(call, call.end(_tanstack(event).get("input")))

    def _call_chunk(self, event: Event) -> None:
        identity = self._shorthand_id(event, "toolCallId")
        self._call_start({**event, "toolCallId": identity})
        self._call_arguments({**event, "toolCallId": identity})

    def _call_result(self, event: Event) -> None:
        identity, content = _name(event, "toolCallId"), kept(event.get("content"))
        part = result_part(identity, content, failed=_tanstack(event).get("state") == "output-error")
        if identity not in self._calls:
            self._messages.add_fixed(self._current(_name(event, "messageId") or identity), part)
            return
        owner, call = self._calls[identity]
        self._messages.grow(call, call.end())
        call.state, call.more["output"] = part["state"], result_output(content)
        self._messages.grow(call, measure(content))
        if call.result is None:
            call.result = self._messages.add_fixed(owner, part)
        else:
            call.result.value |= part

    # --- the run ----------------------------------------------------------------------------------------------

    def _segment_start(self, _event: Event) -> None:
        self.interrupts = []

    def _segment_end(self, event: Event) -> None:
        self._provisional = None
        self._shorthand.clear()
        unended, self._unended = self._unended, {}
        for call in unended.values():
            self._messages.grow(call, call.end())
        outcome = event.get("outcome")
        asked = outcome.get("interrupts") if isinstance(outcome, dict) and outcome.get("type") == "interrupt" else None
        asked = asked if isinstance(asked, list) and kept(asked) is asked else []
        self.interrupts = [each for each in asked if isinstance(each, dict)]

    def _custom(self, event: Event) -> None:
        if _text(event, "name").endswith(".session-id"):
            value = event.get("value")
            self.session = _name(value, "sessionId") if isinstance(value, dict) else self.session

    def _snapshot(self, event: Event) -> None:
        """Replace all messages by those that the agent states."""
        given = event.get("messages")
        self._messages = Messages(self._forget)
        self._calls, self._unended, self._thoughts = {}, {}, {}
        self._provisional = self._latest = None
        stated_ids = set()
        for stated in from_agui(given if isinstance(given, list) else [], "snapshot"):
            growing = self._named(short(stated["id"]), stated["role"])
            if stated.get("name"):
                self._messages.call(growing, short(stated["name"]))
            stated_ids.add(growing.id)
            for part in stated["parts"]:
                self._messages.add(growing, self._again(growing, part))
        self.from_snapshot = stated_ids & self._messages.by_id.keys()

    def _again(self, owner: GrowingMessage, part: Part) -> Growing:
        if part["type"] in {"text", "thinking"}:
            words = Words(part["type"])
            words.size += words.text.add(part["content"])
            return words
        if part["type"] != "tool-call":
            value = {key: kept(each) for key, each in part.items()}
            return Fixed(value, measure(value))
        more: Part = {key: kept(part[key]) for key in ("input", "output") if key in part}
        call = Call(short(part["id"]), short(part["name"]), state=part["state"], more=more)
        call.size += call.text.add(part["arguments"]) + measure(more)
        self._calls[call.id] = owner, call
        return call

    def _shorthand_id(self, event: Event, key: str) -> str:
        kind = event["type"]
        identity = _name(event, key) or self._shorthand.get(kind, "")
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
        "RUN_STARTED": _segment_start,
        "RUN_FINISHED": _segment_end,
        "RUN_ERROR": _segment_end,
        "MESSAGES_SNAPSHOT": _snapshot,
        "CUSTOM": _custom,
    }
