"""Read Claude Code's `result` line: how the agent says that its work ended (contract 11.1).

    subtype success, is_error false     RUN_FINISHED, finishReason stop
    subtype error_max_turns             RUN_FINISHED, finishReason length: completed, although the CLI exits with 1
    subtype success, is_error true      RUN_ERROR: the model's API failed; code is its HTTP status, else the CLI's word
    any other subtype                   RUN_ERROR, code is the subtype

`is_error` decides over `subtype`: real CLIs were recorded that print `success` for every failure of the API.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runtime.core import chunk
from runtime.core.record import RunError, Status
from runtime.harnesses.endings import Said

# The CLI exits with 1 when it stops at --max-turns; that is its way to say so and no failure of its own.
_MAX_TURNS_EXITS = frozenset({0, 1})
# What says best what a tool would do, in this order.
_TELLING = ("command", "file_path", "notebook_path", "path", "url", "query", "pattern")


def read_result(
    line: dict[str, Any], run_id: str, thread_id: str, model: str | None, error_word: str | None, source: str
) -> Said:
    """Return what the line says. `error_word` is the `error` of the last synthetic message, such as `rate_limit`."""
    element, details, stored = _usage(line, model)
    tanstack: dict[str, Any] = {"model": model} if model is not None else {}
    if details:
        tanstack["usage"] = details
    shared = {"usage": [element]} if element else {}
    reason = _finish_reason(line)
    if reason is not None:
        event = {
            "type": chunk.RUN_FINISHED,
            "runId": run_id,
            "threadId": thread_id,
            "metadata": {"tanstack": {**tanstack, "finishReason": reason}},
            **shared,
        }
        agreeing = _MAX_TURNS_EXITS if reason == "length" else frozenset({0})
        return Said(event, Status.COMPLETED, line, source, None, stored, agreeing)
    error = _error(line, error_word)
    event = {
        "type": chunk.RUN_ERROR,
        "message": error.message,
        "code": error.code,
        "metadata": {"tanstack": {**tanstack, "runId": run_id}},
        **shared,
    }
    return Said(event, Status.FAILED, line, source, error, stored)


def asking(said: Said) -> Said:
    """Return a success in which the agent was refused something as the question whether it may (P23)."""
    denials = said.printed.get("permission_denials")
    asked = [question for each in denials if (question := _question(each))] if isinstance(denials, list) else []
    if said.status is not Status.COMPLETED or not asked:
        return said
    event = {**said.event, "outcome": {"type": "interrupt", "interrupts": asked}}
    return replace(said, event=event, status=Status.INTERRUPTED)


def _question(denial: Any) -> dict[str, Any] | None:
    tool, call = (denial.get("tool_name"), denial.get("tool_use_id")) if isinstance(denial, dict) else (None, None)
    if not isinstance(tool, str) or not isinstance(call, str):
        return None
    given = denial.get("tool_input")
    facts = given if isinstance(given, dict) else {}
    what = next((facts[name] for name in _TELLING if isinstance(facts.get(name), str)), "")
    message = f"May the agent use {tool}: {what[:500]}?" if what else f"May the agent use {tool}?"
    told = {"toolName": tool, "input": given}
    return {"id": call, "reason": "tool_call", "message": message, "toolCallId": call, "metadata": told}


def _finish_reason(line: dict[str, Any]) -> str | None:
    if line["subtype"] == "error_max_turns":
        return "length"
    if line["subtype"] == "success" and not line.get("is_error"):
        return "stop"
    return None


def _error(line: dict[str, Any], error_word: str | None) -> RunError:
    subtype: str = line["subtype"]
    errors = line.get("errors")
    texts = [text for text in errors if isinstance(text, str)] if isinstance(errors, list) else []
    if subtype != "success":
        return RunError(message="; ".join(texts) or f"The agent ended with {subtype}.", code=subtype)
    status = line.get("api_error_status")
    known = isinstance(status, int | str) and not isinstance(status, bool) and status != ""
    said = line.get("result")
    message = said if isinstance(said, str) and said else "; ".join(texts)
    code = str(status) if known else error_word or "agent_exit"
    return RunError(message=message or "The agent ended with an error and gave no reason.", code=code)


def _usage(line: dict[str, Any], model: str | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """Return the usage three times (contract 2.2): the wire's element, `metadata.tanstack.usage`, the record's."""
    usage = line.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    given, made = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    if given is None or made is None:
        return {}, {}, None
    element: dict[str, Any] = {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}
    if model is not None:
        element["model"] = model
    read, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    cached: dict[str, Any] = {}
    if read is not None:
        element["cachedInputTokens"] = read
        cached["cachedTokens"] = read
    if written is not None:
        cached["cacheWriteTokens"] = written
    details: dict[str, Any] = {"promptTokensDetails": cached} if cached else {}
    cost = line.get("total_cost_usd")
    priced = {"totalCostUsd": cost} if isinstance(cost, int | float) and not isinstance(cost, bool) else {}
    if priced:
        details["providerUsageDetails"] = priced
    return element, details, {**element, **cached, **priced}


def _count(usage: dict[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
