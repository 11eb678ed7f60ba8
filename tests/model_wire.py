"""The two APIs that agents ask their models through, as pure functions: a request to what is played, and a turn to the
events of its answer.

    messages     Anthropic's Messages, as Claude Code asks (POST /v1/messages)
    responses    OpenAI's Responses, as Codex asks (POST /v1/responses)

An answer is a sequence of Event, HOLD (go on when the test says so) and Cut (break off, if it still does). Every id
follows from the turn, so the same request has the same answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from model_scripts import HOLD, Cut, Fail, Lend, Play, Run, Say, Step, Think, Turn, Write, find_play, has_tag

Json = dict[str, Any]

_CALL = re.compile(r"call_(\d+)_\d+")
_CLAUDE_FOLDER = re.compile(r"[Ww]orking directory: ([^\\\"\n]+)")
_LENT = "mcp__outlast"
_SMALL, _LARGE = 24, 16_384  # of the pieces in which arguments are streamed


class Event(NamedTuple):
    """One server-sent event; its type is in the data too, as both APIs have it."""

    type: str
    data: Json


Answer = Iterator[Event | Cut | str]


class Asked(NamedTuple):
    """What a request asks for: the play (None: it names none) and which turn of it."""

    play: Play | None
    turn: int


# --- Messages --------------------------------------------------------------------------------------------------


def asked_of_messages(request: Json) -> Asked:
    """Read a request of the Messages API. A turn is an answer of ours since the newest prompt."""
    messages: Sequence[Json] = request.get("messages", [])
    texts = [(message.get("role"), _texts(message.get("content"))) for message in messages]
    prompts = [at for at, (role, said) in enumerate(texts) if role == "user" and any(map(has_tag, said))]
    if not prompts:
        return Asked(None, 0)
    turn = sum(1 for role, _ in texts[prompts[-1] + 1 :] if role == "assistant")
    return Asked(find_play(texts[prompts[-1]][1]), turn)


def answer_in_messages(request: Json, turn: int, steps: Turn) -> Answer:
    """Yield the events of one answer of the Messages API."""
    usage = {"input_tokens": 100 + turn, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 7}
    message = {"id": f"msg_{turn:04d}", "type": "message", "role": "assistant", "model": request.get("model")}
    empty: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}
    yield Event("message_start", {"message": {**message, **empty}})
    index = 0
    for step in steps:
        match step:
            case Cut():
                yield step
            case Say(text) | Think(text):
                yield from _streamed_text(index, text, thinks=isinstance(step, Think))
                index += 1
            case Run() | Write() | Lend():
                yield from _streamed_call(index, f"toolu_{turn:04d}_{index}", *_claude_call(step, request))
                index += 1
            case Fail():
                pass
    calls = any(isinstance(step, Run | Write | Lend) for step in steps)
    stop = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield Event("message_delta", {"delta": stop, "usage": {**usage, "output_tokens": 20 + index}})
    yield Event("message_stop", {})


def _streamed_text(index: int, text: str, *, thinks: bool) -> Answer:
    kind = "thinking" if thinks else "text"
    block = {"type": kind, kind: "", **({"signature": ""} if thinks else {})}
    yield Event("content_block_start", {"index": index, "content_block": block})
    for word in _words(text):
        yield HOLD if word == HOLD else _block_delta(index, f"{kind}_delta", kind, word)
    if thinks:
        yield _block_delta(index, "signature_delta", "signature", "signed")
    yield Event("content_block_stop", {"index": index})


def _streamed_call(index: int, call_id: str, name: str, arguments: Json) -> Answer:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    yield Event("content_block_start", {"index": index, "content_block": block})
    for piece in _pieces(json.dumps(arguments)):
        yield _block_delta(index, "input_json_delta", "partial_json", piece)
    yield Event("content_block_stop", {"index": index})


def _block_delta(index: int, kind: str, field: str, text: str) -> Event:
    return Event("content_block_delta", {"index": index, "delta": {"type": kind, field: text}})


def _claude_call(step: Run | Write | Lend, request: Json) -> tuple[str, Json]:
    if isinstance(step, Lend):
        return f"{_LENT}__{step.tool}", dict(step.arguments)
    if isinstance(step, Run):
        return "Bash", {"command": step.command, "description": "A step of the script"}
    told = _CLAUDE_FOLDER.search(json.dumps([request.get("system"), request.get("messages")], ensure_ascii=False))
    folder = told[1].strip() if told else "."
    return "Write", {"file_path": f"{folder}/{step.path}", "content": step.text}


def messages_error(status: int) -> Json:
    """Return the body of a refusal of the Messages API."""
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": f"The script says {status}."}}


# --- Responses -------------------------------------------------------------------------------------------------


def asked_of_responses(request: Json) -> Asked:
    """Read a request of the Responses API. The turn is in the ids of the calls since the newest prompt."""
    items: Sequence[Json] = request.get("input", [])
    said = [_texts(item.get("content")) if item.get("role") == "user" else [] for item in items]
    prompts = [at for at, texts in enumerate(said) if any(map(has_tag, texts))]
    if not prompts:
        return Asked(None, 0)
    calls = [_CALL.fullmatch(str(item.get("call_id"))) for item in items[prompts[-1] + 1 :]]
    turns = [int(call[1]) for call in calls if call]
    return Asked(find_play(said[prompts[-1]]), max(turns) + 1 if turns else 0)


def answer_in_responses(request: Json, turn: int, steps: Turn) -> Answer:
    """Yield the events of one answer of the Responses API."""
    response = {"id": f"resp_{turn:04d}", "object": "response", "created_at": 1_700_000_000, "error": None}
    response |= {"model": request.get("model"), "output": [], "usage": None, "status": "in_progress"}
    yield Event("response.created", {"response": response})
    done: list[Json] = []
    for step in steps:
        if isinstance(step, Cut):
            yield step
        elif not isinstance(step, Fail):
            item, streamed = _item(step, turn, len(done), request)
            yield from streamed
            yield Event("response.output_item.done", {"output_index": len(done), "item": item})
            done.append(item)
    usage: Json = {"input_tokens": 100 + turn, "output_tokens": 20 + len(done), "total_tokens": 120 + turn + len(done)}
    usage |= {"input_tokens_details": {"cached_tokens": 7}, "output_tokens_details": {"reasoning_tokens": 0}}
    yield Event("response.completed", {"response": {**response, "status": "completed", "output": done, "usage": usage}})


def _item(step: Step, turn: int, index: int, request: Json) -> tuple[Json, Answer]:
    """Return an output item, and the events that stream it."""
    place = {"output_index": index}
    if isinstance(step, Say):
        item = {"id": f"msg_{turn:04d}_{index}", "type": "message", "role": "assistant", "status": "completed"}
        text = step.text.replace(HOLD, "")
        whole = {**item, "content": [{"type": "output_text", "text": text, "annotations": []}]}
        return whole, _streamed_message({**place, "item_id": item["id"]}, {**item, "content": []}, step.text)
    if isinstance(step, Think):
        summary = [{"type": "summary_text", "text": step.text}]
        thought: Json = {"id": f"rs_{turn:04d}_{index}", "type": "reasoning", "status": "completed", "summary": summary}
        return thought, iter((Event("response.output_item.added", {**place, "item": thought}),))
    assert isinstance(step, Run | Write | Lend)
    called = _codex_call(step, request)
    item = {"id": f"fc_{turn:04d}_{index}", "call_id": f"call_{turn}_{index}", "status": "completed", **called}
    return item, iter((Event("response.output_item.added", {**place, "item": item}),))


def _streamed_message(place: Json, item: Json, text: str) -> Answer:
    yield Event("response.output_item.added", {"output_index": place["output_index"], "item": item})
    for word in _words(text):
        yield (
            HOLD if word == HOLD else Event("response.output_text.delta", {**place, "content_index": 0, "delta": word})
        )


def _codex_call(step: Run | Write | Lend, request: Json) -> Json:
    """Return a call of the tool that this Codex offers for it: the names differ between models."""
    if isinstance(step, Lend):
        called = {"namespace": _LENT, "name": step.tool, "arguments": json.dumps(step.arguments)}
        return {"type": "function_call", **called}
    tools = {tool.get("name") or tool.get("type"): tool for tool in request.get("tools", [])}
    if isinstance(step, Write) and tools.get("apply_patch", {}).get("type") == "custom":
        lines = "".join(f"+{line}\n" for line in step.text.removesuffix("\n").split("\n"))
        patch = f"*** Begin Patch\n*** Add File: {step.path}\n{lines}*** End Patch\n"
        return {"type": "custom_tool_call", "name": "apply_patch", "input": patch}
    command = step.command if isinstance(step, Run) else f"cat > {step.path} <<'END'\n{step.text}\nEND"
    forms: Mapping[str, Json] = {
        "exec_command": {"cmd": command},
        "shell_command": {"command": command},
        "shell": {"command": ["bash", "-c", command]},
    }
    name = next((name for name in forms if name in tools), "exec_command")
    return {"type": "function_call", "name": name, "arguments": json.dumps(forms[name])}


def responses_error(status: int) -> Json:
    """Return the body of a refusal of the Responses API."""
    message = f"The script says {status}."
    return {"error": {"type": "server_error" if status >= 500 else "invalid_request_error", "message": message}}


# --- both ------------------------------------------------------------------------------------------------------


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    return [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]


def _words(text: str) -> list[str]:
    """Return a text in words, each with the blanks after it; HOLD is one of its own."""
    return [word for word in re.findall(rf"{HOLD}|[^\s{HOLD}]+\s*|\s+", text) if word]


def _pieces(arguments: str) -> Iterator[str]:
    size = _SMALL if len(arguments) < 4 * _LARGE else _LARGE
    return (arguments[at : at + size] for at in range(0, len(arguments), size))
