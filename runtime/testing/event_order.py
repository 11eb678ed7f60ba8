"""Say what is wrong with the order of a log's chunks, as a strict AG-UI client would (contract 1.11, P26).

nothing but CUSTOM and RAW before RUN_STARTED, except a RUN_ERROR
no RUN_STARTED in an open run, and nothing else after a terminal
content and end only of what is open; no second start of it
no empty delta, which strict clients refuse
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runtime.core import chunk

_FREE = frozenset({"CUSTOM", "RAW"})
_STARTS = {
    "TEXT_MESSAGE_START": ("TEXT_MESSAGE", "messageId"),
    "REASONING_START": ("REASONING", "messageId"),
    "REASONING_MESSAGE_START": ("REASONING_MESSAGE", "messageId"),
    "TOOL_CALL_START": ("TOOL_CALL", "toolCallId"),
}
_CONTENTS = {
    "TEXT_MESSAGE_CONTENT": ("TEXT_MESSAGE", "messageId"),
    "REASONING_MESSAGE_CONTENT": ("REASONING_MESSAGE", "messageId"),
    "TOOL_CALL_ARGS": ("TOOL_CALL", "toolCallId"),
}
_ENDS = {
    "TEXT_MESSAGE_END": ("TEXT_MESSAGE", "messageId"),
    "REASONING_MESSAGE_END": ("REASONING_MESSAGE", "messageId"),
    "REASONING_END": ("REASONING", "messageId"),
    "TOOL_CALL_END": ("TOOL_CALL", "toolCallId"),
}


def order_faults(chunks: Iterable[bytes]) -> list[str]:
    """Return one sentence for each fault, empty if a strict client takes the whole log."""
    order = _Order()
    for number, data in enumerate(chunks):
        event = chunk.decode_chunk(data)
        fault = order.fault(event.get("type"), event)
        if fault is not None:
            order.faults.append(f"chunk {number}, {event.get('type')}: {fault}")
    return order.faults


class _Order:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self._run_open = False
        self._ended = False
        self._open: set[tuple[str, Any]] = set()

    def fault(self, kind: Any, event: dict[str, Any]) -> str | None:
        """Take the next event and return what is wrong with it."""
        if kind == chunk.RUN_STARTED:
            was_open, self._run_open, self._ended = self._run_open, True, False
            return "the run is open already" if was_open else None
        if self._ended:
            return "something after a terminal chunk"
        if kind in chunk.TERMINAL_TYPES:
            was_open, self._run_open, self._ended = self._run_open, False, True
            return None if was_open or kind == chunk.RUN_ERROR else "no RUN_STARTED before it"
        if kind in _FREE:
            return None
        return self._item_fault(kind, event) if self._run_open else "no RUN_STARTED before it"

    def _item_fault(self, kind: Any, event: dict[str, Any]) -> str | None:
        if kind in _STARTS:
            item = self._item(_STARTS[kind], event)
            known = item in self._open
            self._open.add(item)
            return f"{item} is open already" if known else None
        if kind in _CONTENTS:
            if not event.get("delta"):
                return "an empty delta"
            item = self._item(_CONTENTS[kind], event)
            return None if item in self._open else f"{item} is not open"
        if kind in _ENDS:
            item = self._item(_ENDS[kind], event)
            known = item in self._open
            self._open.discard(item)
            return None if known else f"{item} is not open"
        return None

    def _item(self, place: tuple[str, str], event: dict[str, Any]) -> tuple[str, Any]:
        name, key = place
        return name, event.get(key)
