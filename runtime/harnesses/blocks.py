"""Build the chunks of a coding agent's messages: ids, and the one text or reasoning block that may be open.

At most one block is open at a time, whatever the lines say, so that what clients get is always well formed: opening
another one closes it first. Chunks carry the model in `metadata.tanstack` where the contract's table does (2.2).
"""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.core import chunk

TEXT = "text"
THINKING = "thinking"

# Ids with these prefixes are unique beyond this run; others get the run's (design 6).
_GLOBAL_IDS = ("msg_", "toolu_")
# Tools that a host lends to the agent come under the host's own names (contract 11.1).
LENT = "outlast"  # the MCP server of our own host tools
_LENT_TOOLS = ("mcp__tanstack__", f"mcp__{LENT}__")
# The result of a call that nobody answered.
_INTERRUPTED = '{"status":"interrupted"}'

# Around the encoded text of a content chunk; "delta" sorts first among its keys.
CONTENT_HEAD = b'{"delta":'
_CONTENT_TYPES = {TEXT: "TEXT_MESSAGE_CONTENT", THINKING: "REASONING_MESSAGE_CONTENT"}

_json = msgspec.json.Encoder()


class Blocks:
    """Ids and the open block. `kind`, `index` and `tail` describe it; `kind` is None if none is open.

    `tail` is what follows the text in a content chunk of this block, constant while it is open."""

    __slots__ = ("_id", "_minted", "_run_id", "index", "kind", "model", "tail")

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._minted = 0
        self._id = ""
        self.model: str | None = None
        self.kind: str | None = None
        self.index: Any = None
        self.tail = b""

    def mint(self) -> str:
        """Return a new id of this run."""
        minted = f"{self._run_id}-{self._minted}"
        self._minted += 1
        return minted

    def own(self, cli_id: str) -> str:
        """Return `cli_id` if it is globally unique, else with the run's before it; `:` keeps it apart from minted
        ones."""
        return cli_id if cli_id.startswith(_GLOBAL_IDS) else f"{self._run_id}:{cli_id}"

    def message_id(self, cli_id: Any) -> str:
        """Return the message id for what the CLI gave, if anything."""
        return self.own(cli_id) if isinstance(cli_id, str) and cli_id else self.mint()

    def open_text(self, index: Any, message_id: str, out: list[bytes]) -> None:
        """Open a text block; what was open is closed."""
        self.close(out)
        self._set(TEXT, index, message_id)
        out.append(self._event("TEXT_MESSAGE_START", messageId=message_id, role="assistant"))

    def open_thinking(self, index: Any, out: list[bytes], message_id: str | None = None) -> None:
        """Open a reasoning block, under a minted id if none is given; what was open is closed."""
        self.close(out)
        message_id = message_id if message_id is not None else self.mint()
        self._set(THINKING, index, message_id)
        out.append(self._event("REASONING_START", messageId=message_id))
        out.append(self._event("REASONING_MESSAGE_START", messageId=message_id, role="reasoning"))

    def content(self, text: str, out: list[bytes]) -> None:
        """Add `text` to the open block. No chunk for an empty text: strict clients refuse an empty delta."""
        if text and self.kind is not None:
            out.append(chunk.encode({"type": _CONTENT_TYPES[self.kind], "messageId": self._id, "delta": text}))

    def close(self, out: list[bytes]) -> None:
        """Close what is open, if anything."""
        if self.kind == TEXT:
            out.append(self._event("TEXT_MESSAGE_END", messageId=self._id))
        elif self.kind == THINKING:
            out.append(self._event("REASONING_MESSAGE_END", messageId=self._id))
            out.append(self._event("REASONING_END", messageId=self._id))
        self.kind = None

    def tool_call(self, tool_id: str, name: str, arguments: Any, out: list[bytes]) -> None:
        """Add a whole tool call. The arguments are JSON in the order in which the agent gave them."""
        for lent in _LENT_TOOLS:
            name = name.removeprefix(lent)
        out.append(self._event("TOOL_CALL_START", toolCallId=tool_id, toolCallName=name))
        delta = json_text(arguments)
        out.append(chunk.encode({"type": "TOOL_CALL_ARGS", "toolCallId": tool_id, "delta": delta}))
        more = {"toolCallName": name, "toolName": name, "input": arguments}
        out.append(self._event("TOOL_CALL_END", more, toolCallId=tool_id))

    def tool_result(self, tool_id: str, content: str, failed: bool, out: list[bytes]) -> None:
        """Add the result of a tool call under a minted message id."""
        more = {"state": "output-error"} if failed else {}
        event = self._event("TOOL_CALL_RESULT", more, messageId=self.mint(), toolCallId=tool_id, content=content)
        out.append(event)

    def run_started(self, thread_id: str) -> bytes:
        """Return the run's RUN_STARTED, with the model if it is known by now."""
        event = {"type": chunk.RUN_STARTED, "runId": self._run_id, "threadId": thread_id}
        tanstack = self.tanstack()
        return chunk.encode({**event, "metadata": {"tanstack": tanstack}} if tanstack else event)

    def interrupt(self, unresolved: dict[str, None], out: list[bytes]) -> None:
        """Give the calls that nobody answered their interrupted results; none is unresolved then."""
        for tool_id in unresolved:
            self.tool_result(tool_id, _INTERRUPTED, failed=False, out=out)
        unresolved.clear()

    def tanstack(self, **more: Any) -> dict[str, Any]:
        """Return `metadata.tanstack` with the model, once it is known, and `more`."""
        return {"model": self.model, **more} if self.model is not None else more

    def state(self) -> list[Any]:
        """Return what the lines so far have left behind, as plain values."""
        return [self._minted, self.model, *((self.kind, self.index, self._id) if self.kind else (None, None, None))]

    def restore(self, state: list[Any]) -> None:
        """Take that."""
        self._minted, self.model, kind, index, message_id = state
        if kind is not None:
            self._set(kind, index, message_id)

    def _set(self, kind: str, index: Any, message_id: str) -> None:
        self.kind, self.index, self._id = kind, index, message_id
        constant = chunk.encode({"messageId": message_id, "type": _CONTENT_TYPES[kind]})
        self.tail = b"," + constant[1:]

    def _event(self, kind: str, more: dict[str, Any] | None = None, /, **fields: Any) -> bytes:
        fields["type"] = kind
        if more:
            fields["metadata"] = {"tanstack": self.tanstack(**more)}
        elif self.model is not None:
            fields["metadata"] = {"tanstack": {"model": self.model}}
        return chunk.encode(fields)


def json_text(value: Any) -> str:
    """Return `value` as JSON, its keys in the order in which the agent gave them."""
    try:
        return _json.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate: sorted keys, but JSON all the same
        return chunk.encode(value).decode()
