"""Read the tool items of Codex's lines: what was called, and what came of it (contract 11.2).

    item                 name                      arguments    result
    -------------------  ------------------------  -----------  --------------------------------------------------
    command_execution    its type                  command      aggregated_output, exit_code, status
    file_change          its type                  changes      changes, status
    web_search           its type                  query        status, query and action (both unknown at the start)
    todo_list            its type                  none         items
    mcp_tool_call        mcp__<server>__<tool>     arguments    the error's message, or the result as text or JSON

A result holds whatever else the item holds, so that fields which a newer CLI adds are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from runtime.harnesses.blocks import json_text

MCP = "mcp_tool_call"
# What of an item is its arguments, and what of it need not be said again in its result.
_ARGUMENTS = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "web_search": ("query",),
    "todo_list": (),
}
_SAID = {"command_execution": frozenset({"id", "type", "command"})}
_ALWAYS_SAID = frozenset({"id", "type"})
_FAILED = frozenset({"failed", "declined"})


class Call(NamedTuple):
    """A tool call's name and arguments."""

    name: str
    arguments: Any


def read_call(item: dict[str, Any]) -> Call | None:
    """Return the call that `item` stands for; None if it is no tool item that we know."""
    kind = item.get("type")
    if kind == MCP:
        server, tool = item.get("server"), item.get("tool")
        if not isinstance(server, str) or not isinstance(tool, str):
            return None
        given = item.get("arguments")
        return Call(f"mcp__{server}__{tool}", {} if given is None else given)
    names = _ARGUMENTS.get(kind) if isinstance(kind, str) else None
    if names is None or not isinstance(kind, str):
        return None
    return Call(kind, {name: item[name] for name in names if name in item})


def read_result(item: dict[str, Any]) -> str:
    """Return the result of a tool item that `read_call` knows."""
    kind = item["type"]
    if kind == MCP:
        return _mcp_result(item)
    said = _SAID.get(kind, _ALWAYS_SAID)
    rest = {name: value for name, value in item.items() if name not in said and value is not None}
    return json_text({"status": "completed", **rest} if kind == "web_search" else rest)


def has_failed(item: dict[str, Any]) -> bool:
    """Return whether the tool failed, or was not allowed to try."""
    status = item.get("status")
    return isinstance(status, str) and status in _FAILED


def _mcp_result(item: dict[str, Any]) -> str:
    error, result = item.get("error"), item.get("result")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else None
        return message if isinstance(message, str) else json_text(error)
    if result is None:
        return json_text({"status": item.get("status")})
    content = result.get("content") if isinstance(result, dict) else None
    blocks = content if isinstance(content, list) else []
    texts = [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
    if blocks and len(texts) == len(blocks):
        return "\n".join(texts)
    structured = result.get("structured_content") if isinstance(result, dict) and not blocks else None
    return json_text(result if structured is None else structured)
