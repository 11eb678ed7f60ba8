"""Messages in two forms: AG-UI's flat ones on requests, and UI messages with parts for a client that hydrates.

A UI message is `{id, role, parts}` (contract 4.6); its parts are `text {content}`, `thinking {content}`, `tool-call
{id, name, arguments, state, input?, output?}` and `tool-result {toolCallId, content, state}`. What AG-UI spreads over
several messages (reasoning, tool results) is merged into the assistant message that it belongs to, and taken apart
again in the other direction.

Nothing here raises on odd input: what has no place in the other form is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runtime.core.chunk import decode

Message = dict[str, Any]
Part = dict[str, Any]

# Parts that AG-UI has as messages or fields of their own, never as content.
_OWN_PARTS = frozenset({"thinking", "tool-call", "tool-result"})
UI_ROLES = {"user": "user", "system": "system", "developer": "system"}


def parse_json(text: str) -> Any:
    """Return the value of JSON text; the text itself if it is none."""
    try:
        return decode(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return text


def result_part(tool_call_id: str, content: Any, failed: bool) -> Part:
    """Return a tool-result part."""
    state = "error" if failed else "complete"
    return {"type": "tool-result", "toolCallId": tool_call_id, "content": content, "state": state}


def result_output(content: Any) -> Any:
    """Return what a tool call's `output` is for the content of its result."""
    return parse_json(content) if isinstance(content, str) else content


def from_agui(messages: Iterable[Any], id_prefix: str) -> list[Message]:
    """Return the UI messages of AG-UI `messages`; one without an id gets `<id_prefix>-<index>`."""
    building = _Building()
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        identity, role = _text(message.get("id")) or f"{id_prefix}-{index}", message.get("role")
        if role == "reasoning":
            building.think(identity, _text(message.get("content")))
        elif role == "assistant":
            building.add_assistant(identity, message)
        elif role == "tool":
            building.add_result(identity, message)
        elif isinstance(role, str) and role in UI_ROLES:
            building.flush()
            building.made.append(_ui(identity, UI_ROLES[role], _content_parts(message), message))
    building.flush()
    return building.made


class _Building:
    """UI messages so far, with thinking that waits for its assistant message."""

    def __init__(self) -> None:
        self.made: list[Message] = []
        self._thinking: list[Part] = []
        self._thinking_id = ""
        self._calls: dict[str, Part] = {}  # of the last assistant message

    def think(self, identity: str, content: str) -> None:
        if content:
            self._thinking_id = self._thinking_id or identity
            self._thinking.append({"type": "thinking", "content": content})

    def flush(self) -> None:
        """Make waiting thinking a message of its own: no assistant message came for it."""
        if self._thinking:
            self._add(self._thinking_id, [], {})

    def add_assistant(self, identity: str, message: Message) -> None:
        self._add(identity, _assistant_parts(message), message)

    def add_result(self, identity: str, message: Message) -> None:
        """Add a tool message to the assistant message before it; to one of its own if there is none."""
        self.flush()
        call_id, content = _text(message.get("toolCallId")), message.get("content")
        result = result_part(call_id, content, failed=message.get("error") is not None)
        if not self.made or self.made[-1]["role"] != "assistant":
            self._add(identity, [], {})
        call = self._calls.get(call_id)
        if call is not None:
            call |= {"output": result_output(content), "state": result["state"]}
        self.made[-1]["parts"].append(result)

    def _add(self, identity: str, parts: list[Part], source: Message) -> None:
        self.made.append(_ui(identity, "assistant", [*self._thinking, *parts], source))
        self._thinking, self._thinking_id = [], ""
        self._calls = {part["id"]: part for part in parts if part["type"] == "tool-call"}


def to_agui(messages: Sequence[Message]) -> list[Message]:
    """Return the AG-UI messages of UI `messages`, for an agent that is told the thread so far. Thinking is left out."""
    made: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            made.extend(_fan_out(message))
        else:
            made.append(
                _named({"id": message["id"], "role": message["role"], "content": _flat(message["parts"])}, message)
            )
    return made


def _ui(identity: str, role: str, parts: list[Part], source: Message) -> Message:
    return _named({"id": identity, "role": role, "parts": parts}, source)


def _named(message: Message, source: Message) -> Message:
    if isinstance(source.get("name"), str):
        message["name"] = source["name"]
    return message


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _content_parts(message: Message) -> list[Part]:
    """Return the parts of `content`: text, or a list whose text items say `text` where UI parts say `content`."""
    content = message.get("content", message.get("parts"))
    if isinstance(content, str):
        return [{"type": "text", "content": content}] if content else []
    if not isinstance(content, list):
        return []
    return [
        {"type": "text", "content": _text(part.get("text", part.get("content")))} if part["type"] == "text" else part
        for part in content
        if isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] not in _OWN_PARTS
    ]


def _assistant_parts(message: Message) -> list[Part]:
    parts = _content_parts(message)
    calls = message.get("toolCalls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        arguments = _text(function.get("arguments"))
        part = {
            "type": "tool-call",
            "id": _text(call.get("id")),
            "name": _text(function.get("name")),
            "arguments": arguments,
            "state": "input-complete",
        }
        value = parse_json(arguments)
        parts.append(part if value is arguments else {**part, "input": value})
    return parts


def _flat(parts: Iterable[Part]) -> str | list[Part]:
    """Return `content`: one text if all is text, else a list in AG-UI's form."""
    kept = [part for part in parts if part["type"] not in _OWN_PARTS]
    if all(part["type"] == "text" for part in kept):
        return "".join(part["content"] for part in kept)
    return [{"type": "text", "text": part["content"]} if part["type"] == "text" else part for part in kept]


def _fan_out(message: Message) -> list[Message]:
    """Return an assistant message as AG-UI has it: text and calls, then each result, and again from there."""
    made: list[Message] = []
    segment: list[Part] = []
    segments = 0

    def close() -> None:
        nonlocal segments
        anchor = _anchor(message, segment, segments)
        if anchor is not None:
            made.append(anchor)
            segments += 1
        segment.clear()

    for part in message["parts"]:
        if part["type"] != "tool-result":
            segment.append(part)
            continue
        close()
        call_id, content = part["toolCallId"], part["content"]
        result = {"id": f"tool-{call_id}", "role": "tool", "toolCallId": call_id, "content": content}
        made.append({**result, "error": _text(content)} if part["state"] == "error" else result)
    close()
    return made


def _anchor(message: Message, segment: list[Part], number: int) -> Message | None:
    calls = [
        {"id": part["id"], "type": "function", "function": {"name": part["name"], "arguments": part["arguments"]}}
        for part in segment
        if part["type"] == "tool-call"
    ]
    content = _flat(segment)
    if not calls and not content:
        return None
    identity = message["id"] if number == 0 else f"{message['id']}:{number}"
    anchor = _named({"id": identity, "role": "assistant"}, message)
    if content:
        anchor["content"] = content
    if calls:
        anchor["toolCalls"] = calls
    return anchor
