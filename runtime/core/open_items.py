"""What stands open in a log: messages, reasoning, tool calls, steps, and the run segment itself.

A run can end at any chunk: killed, cancelled, out of room. Clients refuse a RUN_FINISHED while anything is open
(`@ag-ui/client`: text messages, tool calls, steps), so the ending closes it first. What is open follows from the stored
log alone and not from a translator's memory, so that any driver closes the same things (P9).

Each kind is one row of `_RULES`. An item is closed by its own end; the end of a segment (RUN_FINISHED, RUN_ERROR) ends
everything in it, as clients do, since nothing but a RUN_STARTED may follow. What comes in shorthand (the _CHUNK types)
is closed by clients themselves, and content without a start opens nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from runtime.core.aside import put_aside, take_up
from runtime.core.chunk import RUN_ERROR, RUN_FINISHED, RUN_STARTED, decode_chunk, encode


class _Rule(NamedTuple):
    """One kind of item: opened and closed by these types, told apart by this key (None: there is only one)."""

    start: str
    end: str
    key: str | None


_RULES = (
    _Rule("TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "messageId"),
    _Rule("REASONING_START", "REASONING_END", "messageId"),
    _Rule("REASONING_MESSAGE_START", "REASONING_MESSAGE_END", "messageId"),
    _Rule("THINKING_START", "THINKING_END", None),
    _Rule("THINKING_TEXT_MESSAGE_START", "THINKING_TEXT_MESSAGE_END", None),
    _Rule("TOOL_CALL_START", "TOOL_CALL_END", "toolCallId"),
    _Rule("STEP_STARTED", "STEP_FINISHED", "stepName"),
)
_STARTS = {rule.start: rule for rule in _RULES}
_ENDS = {rule.end: rule for rule in _RULES}

# Most of every log, and of no effect here. In a canonical chunk a comma and a raw quote open a key, and a single brace
# after the value ends the event itself: so the end of the bytes tells the type for sure.
_WITHOUT_EFFECT = tuple(
    f',"type":"{kind}"}}'.encode()
    for kind in (
        "TEXT_MESSAGE_CONTENT",
        "TOOL_CALL_ARGS",
        "REASONING_MESSAGE_CONTENT",
        "THINKING_TEXT_MESSAGE_CONTENT",
        "RAW",
    )
)


class _Seen(msgspec.Struct, gc=False, rename="camel"):
    """What counts in a chunk; the rest of it is passed over without being made."""

    type: Any = None
    message_id: Any = None
    tool_call_id: Any = None
    step_name: Any = None


_decoder = msgspec.json.Decoder(_Seen)


class OpenItems:
    """Follows a log: `feed` it every stored chunk in order, of both bands."""

    __slots__ = ("_open", "_unresolved", "run_open", "run_started")

    def __init__(self) -> None:
        self.run_started = False  # a RUN_STARTED is in the log
        self.run_open = False  # the last one has not been followed by RUN_FINISHED or RUN_ERROR
        self._open: dict[tuple[_Rule, str], None] = {}  # a set that keeps the order
        self._unresolved: dict[str, None] = {}

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Return the ids of tool calls without a TOOL_CALL_RESULT, in the order of their starts."""
        return tuple(self._unresolved)

    def feed(self, chunks: list[bytes]) -> None:
        """Take the next chunks of the log."""
        for data in chunks:
            if not data.endswith(_WITHOUT_EFFECT):
                self._see(data)

    def state(self) -> bytes:
        """Return what the chunks so far have left behind (P25)."""
        opened = [[rule.start, identity] for rule, identity in self._open]
        return put_aside([self.run_started, self.run_open, opened, list(self._unresolved)])

    def restore(self, state: bytes) -> None:
        """Take the state of another log's follower, in place of our own.

        Raises ValueError, TypeError or KeyError for bytes that are none; nothing has changed then."""
        run_started, run_open, opened, unresolved = take_up(state)
        items = {(_STARTS[start], identity): None for start, identity in opened}
        self._unresolved = dict.fromkeys(unresolved)
        self.run_started, self.run_open, self._open = run_started, run_open, items

    def copy(self) -> OpenItems:
        """Return one that goes on by itself from here."""
        twin = OpenItems()
        twin.run_started, twin.run_open = self.run_started, self.run_open
        twin._open, twin._unresolved = dict(self._open), dict(self._unresolved)
        return twin

    def closers(self) -> list[bytes]:
        """Return the chunks that close everything, the youngest item first; feeding them leaves nothing open."""
        return [
            encode({"type": rule.end, rule.key: identity} if rule.key is not None else {"type": rule.end})
            for rule, identity in reversed(self._open)
        ]

    def _see(self, data: bytes) -> None:
        seen = _read(data)
        kind = seen.type
        if not isinstance(kind, str):
            return
        if kind == RUN_STARTED:
            self.run_started = self.run_open = True
        elif kind in (RUN_FINISHED, RUN_ERROR):
            self.run_open = False
            self._open.clear()
        elif kind == "TOOL_CALL_RESULT":
            if isinstance(seen.tool_call_id, str):
                self._unresolved.pop(seen.tool_call_id, None)
        elif kind in _STARTS:
            self._begin(_STARTS[kind], seen)
        elif kind in _ENDS:
            self._end(_ENDS[kind], seen)

    def _begin(self, rule: _Rule, seen: _Seen) -> None:
        identity = _identity(rule, seen)
        if identity is None:
            return
        self._open.setdefault((rule, identity))
        if rule.key == "toolCallId":
            self._unresolved.setdefault(identity)

    def _end(self, rule: _Rule, seen: _Seen) -> None:
        identity = _identity(rule, seen)
        if identity is not None:
            self._open.pop((rule, identity), None)


def _read(data: bytes) -> _Seen:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        event = decode_chunk(data)
        return _Seen(event.get("type"), event.get("messageId"), event.get("toolCallId"), event.get("stepName"))


def _identity(rule: _Rule, seen: _Seen) -> str | None:
    """Return what tells the item from others of its kind; None if the chunk lacks it."""
    match rule.key:
        case "messageId":
            value = seen.message_id
        case "toolCallId":
            value = seen.tool_call_id
        case "stepName":
            value = seen.step_name
        case _:
            value = ""
    return value if isinstance(value, str) else None
