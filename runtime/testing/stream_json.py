"""Generate what a Claude-Code-like agent prints with `stream-json` and partial messages; for tests and benchmarks.

One session of as many turns as it takes: a message with perhaps some thinking, a text and one or two tool calls, then
the tools' results; a last message; the result line. Lengths and proportions follow recorded sessions (see
`tests/recordings/README.md` for real ones). The same arguments give the same bytes on every machine.

    python -m runtime.testing.stream_json --lines 100000 --seed 7 > agent.ndjson
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec

MODEL = "generated-model-1"
TOOLS = ("Bash", "Read", "Edit", "Grep", "Glob", "Write")

_SYLLABLES = ("ba", "co", "de", "fi", "gu", "la", "me", "no", "pi", "ra", "so", "tu", "ve", "zi")
# What stands between two words. Most English, some code; two in 40 are not ASCII.
_BREAKS = (*(" " for _ in range(30)), ", ", ", ", ". ", ".\n", "\n", "\n    ", ' "', '" ', " → ", " 日本 🎉 é")
_THINKS = 0.3  # of the messages begin with thinking
_ID_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"
_PIECE = (20, 60)  # characters of one streamed piece

_encode = msgspec.json.Encoder().encode


def stream_json(lines: int, *, seed: int = 1, stamp: bool = False, text_only: bool = False) -> Iterator[bytes]:
    """Yield at least `lines` lines, without newlines: whole turns, a last message and the result.

    `stamp` puts `@@NNNNNNN@@` (7 digits, counted from 0) before the text of every text piece, where a benchmark's
    agent writes the time. `text_only` makes one endless text: one line, one chunk."""
    session = _Session(seed, stamp)
    yield session.init()
    if text_only:
        yield from session.message(texts=max(1, lines - 6), thoughts=0, tools=0)
    else:
        while session.lines < lines:
            yield from session.turn()
        yield from session.message(texts=20, thoughts=0, tools=0)
    yield session.result()


class _Session:
    """The state of one generated session: its random numbers and its counters."""

    def __init__(self, seed: int, stamp: bool) -> None:
        self.lines = 0
        self._random = Random(seed)
        self._stamp = stamp
        self._stamped = 0
        self._turns = 0
        self._calls: list[str] = []
        self._id = self._uuid()
        self._words = ["".join(self._random.choices(_SYLLABLES, k=self._random.randint(1, 4))) for _ in range(400)]

    def init(self) -> bytes:
        return self._line(
            {
                "type": "system",
                "subtype": "init",
                "cwd": "/workspace",
                "session_id": self._id,
                "tools": list(TOOLS),
                "mcp_servers": [],
                "model": MODEL,
                "permissionMode": "bypassPermissions",
                "slash_commands": ["compact", "review"],
                "apiKeySource": "none",
                "claude_code_version": "2.1.0",
                "output_style": "default",
                "agents": ["general-purpose"],
                "skills": [],
                "plugins": [],
                "uuid": self._uuid(),
            }
        )

    def turn(self) -> Iterator[bytes]:
        """Yield a message that calls tools, and their results."""
        chance = self._random
        thoughts = chance.randint(5, 40) if chance.random() < _THINKS else 0
        yield from self.message(texts=chance.randint(10, 80), thoughts=thoughts, tools=chance.choice((1, 1, 1, 2)))
        for call in self._calls:
            yield self._tool_result(call)

    def message(self, *, texts: int, thoughts: int, tools: int) -> Iterator[bytes]:
        """Yield one streamed message of the assistant with so many pieces and tool calls."""
        self._turns += 1
        self._calls = []
        message_id = self._new_id("msg_")
        start = {**self._message(message_id, []), "type": "message"}
        yield self._event({"type": "message_start", "message": start})
        index = 0
        if thoughts:
            yield from self._thinking(message_id, index, thoughts)
            index += 1
        yield from self._text(message_id, index, texts)
        for _ in range(tools):
            index += 1
            yield from self._tool(message_id, index)
        ended = {"stop_reason": "tool_use" if tools else "end_turn", "stop_sequence": None}
        yield self._event({"type": "message_delta", "delta": ended, "usage": self._usage()})
        yield self._event({"type": "message_stop"})

    def result(self) -> bytes:
        usage = self._usage()
        return self._line(
            {
                "type": "result",
                "subtype": "success",
                "is_error": False,
                "api_error_status": None,
                "duration_ms": self.lines * 20,
                "duration_api_ms": self.lines * 15,
                "num_turns": self._turns,
                "result": self._prose(100, 300),
                "stop_reason": "end_turn",
                "session_id": self._id,
                "total_cost_usd": 0.25,
                "usage": usage,
                "modelUsage": {MODEL: {"inputTokens": usage["input_tokens"], "outputTokens": usage["output_tokens"]}},
                "permission_denials": [],
                "uuid": self._uuid(),
            }
        )

    def _text(self, message_id: str, index: int, pieces: int) -> Iterator[bytes]:
        yield self._block_start(index, {"type": "text", "text": ""})
        whole = []
        for _ in range(pieces):
            text = self._prose(*_PIECE)
            if self._stamp:
                text = f"@@{self._stamped:07d}@@{text}"
            self._stamped += 1
            whole.append(text)
            yield self._delta(index, "text_delta", "text", text)
        yield from self._block_end(message_id, index, {"type": "text", "text": "".join(whole)})

    def _thinking(self, message_id: str, index: int, pieces: int) -> Iterator[bytes]:
        yield self._block_start(index, {"type": "thinking", "thinking": "", "signature": ""})
        whole = [self._prose(*_PIECE) for _ in range(pieces)]
        for text in whole:
            yield self._delta(index, "thinking_delta", "thinking", text)
        signature = f"{self._random.getrandbits(800):0200x}"
        yield self._delta(index, "signature_delta", "signature", signature)
        block = {"type": "thinking", "thinking": "".join(whole), "signature": signature}
        yield from self._block_end(message_id, index, block)

    def _tool(self, message_id: str, index: int) -> Iterator[bytes]:
        call, name = self._new_id("toolu_"), self._random.choice(TOOLS)
        self._calls.append(call)
        given = self._tool_input(name)
        block = {"type": "tool_use", "id": call, "name": name, "input": given}
        yield self._block_start(index, {**block, "input": {}})
        text = _encode(given).decode()
        yield self._delta(index, "input_json_delta", "partial_json", "")
        at = 0
        while at < len(text):
            size = self._random.randint(*_PIECE)
            yield self._delta(index, "input_json_delta", "partial_json", text[at : at + size])
            at += size
        yield from self._block_end(message_id, index, block)

    def _tool_input(self, name: str) -> dict[str, str]:
        path = f"/workspace/src/{self._random.choice(self._words)}.py"
        match name:
            case "Bash":
                return {"command": self._prose(30, 160), "description": self._prose(20, 50)}
            case "Read":
                return {"file_path": path}
            case "Edit":
                return {"file_path": path, "old_string": self._prose(80, 400), "new_string": self._prose(80, 500)}
            case "Write":
                return {"file_path": path, "content": self._prose(400, 2000)}
            case _:
                return {"pattern": self._prose(8, 30), "path": "/workspace"}

    def _tool_result(self, call: str) -> bytes:
        printed = self._prose(1000, 5000)
        content = [{"tool_use_id": call, "type": "tool_result", "content": printed, "is_error": False}]
        return self._line(
            {
                "type": "user",
                "message": {"role": "user", "content": content},
                "parent_tool_use_id": None,
                "session_id": self._id,
                "uuid": self._uuid(),
                "tool_use_result": {"stdout": printed, "stderr": "", "interrupted": False, "isImage": False},
            }
        )

    def _block_start(self, index: int, block: dict[str, Any]) -> bytes:
        return self._event({"type": "content_block_start", "index": index, "content_block": block})

    def _delta(self, index: int, kind: str, key: str, text: str) -> bytes:
        return self._event({"type": "content_block_delta", "index": index, "delta": {"type": kind, key: text}})

    def _block_end(self, message_id: str, index: int, block: dict[str, Any]) -> Iterator[bytes]:
        """Yield the `assistant` line with the whole block, then the block's stop, as the CLI does."""
        message = {**self._message(message_id, [block]), "context_management": None}
        yield self._line(
            {
                "type": "assistant",
                "message": message,
                "parent_tool_use_id": None,
                "session_id": self._id,
                "uuid": self._uuid(),
            }
        )
        yield self._event({"type": "content_block_stop", "index": index})

    def _message(self, message_id: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "model": MODEL,
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _event(self, event: dict[str, Any]) -> bytes:
        return self._line(
            {
                "type": "stream_event",
                "event": event,
                "session_id": self._id,
                "parent_tool_use_id": None,
                "uuid": self._uuid(),
            }
        )

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self._random.randint(3, 9),
            "cache_creation_input_tokens": self._random.randint(200, 4000),
            "cache_read_input_tokens": self._random.randint(8000, 90000),
            "output_tokens": self._random.randint(1, 900),
            "service_tier": "standard",
        }

    def _prose(self, low: int, high: int) -> str:
        """Return text of `low` to `high` characters, with quotes, line ends and characters of two to four bytes."""
        size = self._random.randint(low, high)
        words = self._random.choices(self._words, k=size // 3 + 1)
        breaks = self._random.choices(_BREAKS, k=len(words))
        return "".join(part for pair in zip(words, breaks, strict=True) for part in pair)[:size]

    def _uuid(self) -> str:
        digits = f"{self._random.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], f"4{digits[13:16]}", f"8{digits[17:20]}", digits[20:]))

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}01{''.join(self._random.choices(_ID_LETTERS, k=22))}"

    def _line(self, value: dict[str, Any]) -> bytes:
        self.lines += 1
        return _encode(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a generated session to stdout."""
    parser = argparse.ArgumentParser(prog="runtime.testing.stream_json", description="Generate stream-json lines.")
    parser.add_argument("--lines", type=int, required=True, help="at least so many lines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stamp", action="store_true", help="put @@NNNNNNN@@ before each text piece")
    parser.add_argument("--text-only", action="store_true", help="one endless text: one line, one chunk")
    chosen = parser.parse_args(arguments)
    generated = stream_json(chosen.lines, seed=chosen.seed, stamp=chosen.stamp, text_only=chosen.text_only)
    for line in generated:
        sys.stdout.buffer.write(line + b"\n")


if __name__ == "__main__":
    main()
