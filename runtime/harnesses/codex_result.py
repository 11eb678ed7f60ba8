"""Read the line that ends Codex's turn: `turn.completed`, `turn.failed`, or an `error` that nothing came after.

A failure's code is the HTTP status where the CLI's message begins with one, as in `unexpected status 401 Unauthorized:
...`; the CLI gives no code of its own, so else it is the type of the line.
"""

from __future__ import annotations

import re
from typing import Any

from runtime.core import chunk
from runtime.core.record import RunError, Status
from runtime.harnesses.endings import Said

TURN_COMPLETED = "turn.completed"
TURN_FAILED = "turn.failed"
ERROR = "error"

_HTTP_STATUS = re.compile(r"(?:unexpected status|exceeded retry limit, last status:) ([45]\d\d)\b")
_NO_REASON = "The agent's turn failed, and it gave no reason."


def read_completed(line: dict[str, Any], run_id: str, thread_id: str, model: str | None, source: str) -> Said:
    """Return what `turn.completed` says: RUN_FINISHED, finishReason stop."""
    element, details, stored = _usage(line.get("usage"), model)
    tanstack: dict[str, Any] = {"model": model} if model is not None else {}
    if details:
        tanstack["usage"] = details
    event = {
        "type": chunk.RUN_FINISHED,
        "runId": run_id,
        "threadId": thread_id,
        "metadata": {"tanstack": {**tanstack, "finishReason": "stop"}},
        **({"usage": [element]} if element else {}),
    }
    return Said(event, Status.COMPLETED, line, source, None, stored)


def read_failed(line: dict[str, Any], run_id: str, model: str | None, source: str) -> Said:
    """Return what `turn.failed` or `error` says: RUN_ERROR."""
    error = _error(line)
    tanstack: dict[str, Any] = {"model": model} if model is not None else {}
    event = {
        "type": chunk.RUN_ERROR,
        "message": error.message,
        "code": error.code,
        "metadata": {"tanstack": {**tanstack, "runId": run_id}},
    }
    return Said(event, Status.FAILED, line, source, error)


def _error(line: dict[str, Any]) -> RunError:
    kind: str = line["type"]
    nested = line.get("error") if kind == TURN_FAILED else line
    said = nested.get("message") if isinstance(nested, dict) else nested
    message = said if isinstance(said, str) and said else _NO_REASON
    status = _HTTP_STATUS.match(message)
    return RunError(message=message, code=status[1] if status else kind)


def _usage(usage: Any, model: str | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """Return the usage three times (contract 2.2): the wire's element, `metadata.tanstack.usage`, the record's."""
    usage = usage if isinstance(usage, dict) else {}
    given, made = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    if given is None or made is None:
        return {}, {}, None
    element: dict[str, Any] = {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}
    if model is not None:
        element["model"] = model
    read, written = _count(usage, "cached_input_tokens"), _count(usage, "cache_write_input_tokens")
    thought = _count(usage, "reasoning_output_tokens")
    cached: dict[str, Any] = {}
    details: dict[str, Any] = {}
    if read is not None:
        element["cachedInputTokens"] = cached["cachedTokens"] = read
    if written is not None:
        cached["cacheWriteTokens"] = written
    if cached:
        details["promptTokensDetails"] = cached
    if thought is not None:
        element["reasoningTokens"] = thought
        details["completionTokensDetails"] = {"reasoningTokens": thought}
    return element, details, {**element, **cached}


def _count(usage: dict[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
