"""Messages that grow while a log is folded, within bounds (P9): an agent may print without end, a transcript does not.

    a name      an id or a name over NAME_CHARS is its beginning and a digest of the whole
    a part      keeps its first PART_CHARS characters, and then says that it was cut
    a run       keeps its newest parts: beyond RUN_CHARS the oldest go, and the first message that stays says how many

All of it follows from the chunks alone, so that whoever folds a log, and in whatever pieces, comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from runtime.core.chunk import encode
from runtime.core.messages import Message, Part, parse_json

NAME_CHARS = 512
PART_CHARS = 256 << 10
RUN_CHARS = 4 << 20
CUT = "\n[cut: a transcript keeps the beginning of so long a part]"
_OVERHEAD = 64  # characters that a part or a message without any counts for

_STREAMING = frozenset({"awaiting-input", "input-streaming"})


@dataclass(slots=True)
class Text:
    """Pieces of a text, as many as are kept."""

    pieces: list[str] = field(default_factory=list)
    kept: int = 0
    cut: bool = False

    def add(self, delta: str) -> int:
        """Append, and return by how much it grew."""
        if self.cut:
            return 0
        room = PART_CHARS - self.kept
        if len(delta) > room:
            delta, self.cut = delta[:room] + CUT, True
        self.pieces.append(delta)
        self.kept += len(delta)
        return len(delta)

    def __str__(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Words:
    """A part of text or thinking that still grows."""

    type: str
    id: str = ""  # of a thought
    text: Text = field(default_factory=Text)
    size: int = _OVERHEAD
    gone: bool = False

    def __post_init__(self) -> None:
        self.size += len(self.id)

    def part(self) -> Part:
        """Return the part as it is now."""
        return {"type": self.type, "content": str(self.text)}


@dataclass(slots=True)
class Call:
    """A tool call that still grows."""

    id: str
    name: str
    text: Text = field(default_factory=Text)  # of its arguments
    state: str = "awaiting-input"
    more: Part = field(default_factory=dict)  # input, output
    result: Fixed | None = None
    size: int = _OVERHEAD
    gone: bool = False

    def __post_init__(self) -> None:
        self.size += len(self.id) + len(self.name)

    def argue(self, delta: str) -> int:
        """Take more of the arguments; return by how much it grew."""
        if self.state not in _STREAMING:
            return 0
        self.state = "input-streaming"
        return self.text.add(delta)

    def end(self, given: Any = None) -> int:
        """The arguments are complete; `given` is their value if the end of the call states it. Return the growth."""
        if self.state not in _STREAMING:
            return 0
        self.state = "input-complete"
        arguments = str(self.text)
        value = parse_json(arguments) if given is None else kept(given)
        if value is arguments:
            return 0
        self.more["input"] = value
        return len(arguments) if given is None else measure(value)

    def part(self) -> Part:
        """Return the part as it is now."""
        part = {"type": "tool-call", "id": self.id, "name": self.name, "arguments": str(self.text)}
        return {**part, "state": self.state, **self.more}


@dataclass(slots=True)
class Fixed:
    """A part that does not grow any more."""

    value: Part
    size: int
    gone: bool = False

    def part(self) -> Part:
        """Return a copy of the part."""
        return {**self.value}


Growing = Words | Call | Fixed


@dataclass(slots=True)
class GrowingMessage:
    """One message."""

    id: str
    role: str
    parts: list[Growing] = field(default_factory=list)
    name: str | None = None

    @property
    def size(self) -> int:
        """Return what it counts for without its parts."""
        return _OVERHEAD + len(self.id) + len(self.name or "")

    def message(self) -> Message:
        """Return the message as it is now."""
        message: Message = {"id": self.id, "role": self.role, "parts": [part.part() for part in self.parts]}
        return message if self.name is None else {**message, "name": self.name}


class Messages:
    """The messages of one run, by id and in order, and what they hold in all."""

    def __init__(self, forget: Callable[[Growing], None]) -> None:
        """`forget` hears of each part that had to go."""
        self.by_id: dict[str, GrowingMessage] = {}
        self._forget = forget
        self.left_out = 0  # parts that had to go
        self.late = False  # the log was not folded from its beginning
        self._order: list[GrowingMessage] = []
        self._size = 0

    def begin(self, identity: str, role: str) -> GrowingMessage:
        """Add a message."""
        message = GrowingMessage(identity, role)
        self._order.append(message)
        self.by_id[identity] = message
        self._grow(message.size)
        return message

    def call(self, message: GrowingMessage, name: str) -> None:
        """Say what the speaker of a message is called."""
        before, message.name = message.size, name
        if self.has(message):
            self._grow(message.size - before)

    def has(self, message: GrowingMessage) -> bool:
        """Return whether the message is still there."""
        return self.by_id.get(message.id) is message

    def rename(self, message: GrowingMessage, identity: str) -> None:
        """Give a message its own id."""
        del self.by_id[message.id]
        before, message.id = message.size, identity
        self.by_id[identity] = message
        self._grow(message.size - before)

    def add(self, message: GrowingMessage, part: Growing) -> None:
        """Append a part to a message. One whose message had to go is left out with it."""
        if not self.has(message):
            part.gone = True
            self._forget(part)
            return
        message.parts.append(part)
        self._grow(part.size)

    def add_fixed(self, message: GrowingMessage, value: Part) -> Fixed:
        """Append a part that is complete."""
        part = Fixed(value, _OVERHEAD + measure(value))
        self.add(message, part)
        return part

    def grow(self, part: Growing, by: int) -> None:
        """A part has grown by so many characters."""
        if not part.gone:
            part.size += by
            self._grow(by)

    def made(self) -> list[Message]:
        """Return the messages so far; those without a part are left out, but where parts had to go that is said."""
        made = [message.message() for message in self._order if message.parts]
        if made and (self.left_out or self.late):
            earlier = "the beginning" if self.late else f"{self.left_out} earlier parts"
            said = f"[left out: {earlier} of a run so long]"
            made[0]["parts"].insert(0, {"type": "text", "content": said})
        return made

    def _grow(self, by: int) -> None:
        self._size += by
        while self._size > RUN_CHARS and self._drop_oldest():
            pass

    def _drop_oldest(self) -> bool:
        """Let the oldest part go, or a message without any; never the newest message's last part."""
        oldest = self._order[0]
        if oldest.parts:
            if len(oldest.parts) == 1 and len(self._order) == 1:
                return False
            part = oldest.parts.pop(0)
            part.gone = True
            self._size -= part.size
            self.left_out += 1
            self._forget(part)
            return True
        if len(self._order) == 1:
            return False
        del self._order[0]
        del self.by_id[oldest.id]
        self._size -= oldest.size
        return True


def short(name: str) -> str:
    """Return an id or a name as a transcript keeps it; the same for the same, and for no two that differ."""
    if len(name) <= NAME_CHARS:
        return name
    return f"{name[: NAME_CHARS - 65]}#{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def kept(value: Any) -> Any:
    """Return a value as a transcript keeps it: itself, or the beginning of its text."""
    text = value if isinstance(value, str) else None
    if text is None:
        if value is None or isinstance(value, bool | int | float):
            return value
        encoded = encode(value) if isinstance(value, dict) else encode({"": value})
        if len(encoded) <= PART_CHARS:
            return value
        text = encoded.decode("utf-8", "replace")
    return text if len(text) <= PART_CHARS else text[:PART_CHARS] + CUT


def measure(value: Any) -> int:
    """Return about how many characters a value takes."""
    if isinstance(value, str):
        return len(value)
    return len(encode(value) if isinstance(value, dict) else encode({"": value}))
