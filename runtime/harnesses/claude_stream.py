"""Translate Claude Code's `stream-json` lines to chunks, by the table of contract 11.1.

Two paths, one result. The hot path reads the one kind of line that makes up most of a journal, a content_block_delta,
into a typed struct and joins its chunk by hand. Whatever is not exactly of that form, unknown fields included, takes
the generic path, which is the definition: `feed` must give what `feed_generic` gives, and tests hold it to that on
recordings, on generated lines and on broken ones.

Lines of subagents (`parent_tool_use_id` is set) make no chunks: the main agent's tool call and its result show their
work. Also without chunks, since other lines carry the same: message_start, message_delta and message_stop, the
streamed JSON of tool calls, signatures, whole messages that were streamed, and user text. All other JSON is RAW.

The `result` line is only remembered: its terminal chunk waits for the exit (`endings`). If work goes on after it, the
result stands until another one comes, but nobody waits for the exit meanwhile.

Chunk path 3/6. Before: core framing (journal bytes to lines). After: engine (chunks to the log).
"""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.core import chunk
from runtime.core.aside import put_aside, take_up
from runtime.core.launch import AgentExit
from runtime.harnesses.blocks import CONTENT_HEAD, TEXT, THINKING, Blocks
from runtime.harnesses.claude_line import HOT_LINE, decode_hot, encode_text
from runtime.harnesses.claude_result import asking, read_result
from runtime.harnesses.endings import Said, conclude
from runtime.harnesses.json_line import parse
from runtime.ports import Ending

NAME = "claude-code"
SESSION_EVENT = "claude-code.session-id"

_DELTAS = {"text_delta": TEXT, "thinking_delta": THINKING}
_QUIET_DELTAS = frozenset({"input_json_delta", "signature_delta"})
_QUIET_EVENTS = frozenset({"message_delta", "message_stop", "ping"})


class ClaudeTranslator:
    """One run's lines to chunks."""

    def __init__(self, run_id: str, thread_id: str, *, asks: bool = False) -> None:
        """`asks`: what the agent was refused becomes the run's question."""
        self._asks = asks
        self._run_id = run_id
        self._thread_id = thread_id
        self._blocks = Blocks(run_id)
        self._started = False
        self._message_id: str | None = None  # of the message that is being streamed
        self._streamed: dict[Any, None] = {}  # in order: the CLI's ids of messages that came as stream_event lines
        self._unresolved: dict[str, None] = {}  # tool calls without a result, in order
        self._error_word: str | None = None
        self._said: Said | None = None
        self._result: list[Any] | None = None  # what `_said` was read from
        self._working = False  # since the last result

    @property
    def has_result(self) -> bool:
        """True from the result line on, unless work goes on after it."""
        return self._said is not None and not self._working

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        """Return the chunks of one line."""
        if line.startswith(HOT_LINE):
            try:
                event = decode_hot(line).event
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return self.feed_generic(line, torn)
            delta, blocks = event.delta, self._blocks
            text, kind = delta.text, delta.kind
            if kind == blocks.kind and event.index == blocks.index and text:
                return [CONTENT_HEAD + encode_text(text) + blocks.tail]
            if not kind and self._started:
                return []
        return self.feed_generic(line, torn)

    def feed_generic(self, line: bytes, torn: bool = False) -> list[bytes]:
        """Return the chunks of one line: the definition, for lines of every form."""
        out: list[bytes] = []
        try:
            value = parse(line, torn)
        except ValueError:
            self._begin(out)
            out.append(chunk.stdout_line(line, torn))
            return out
        if not isinstance(value, dict) or not self._read(value, out):
            self._begin(out)
            out.append(chunk.raw_event(value, NAME))
        return out

    def finish(self, exit: AgentExit, stderr: bytes) -> Ending:
        """Return the ending; calls that nobody answered get their interrupted results first."""
        out: list[bytes] = []
        self._begin(out)
        self._blocks.interrupt(self._unresolved, out)
        said = asking(self._said) if self._asks and self._said is not None else self._said
        return conclude(self._run_id, said, exit, stderr, tuple(out))

    def state(self) -> bytes:
        """Return what the lines so far have left behind; a result as the line that said it."""
        return put_aside(
            [
                self._blocks.state(),
                self._started,
                self._message_id,
                list(self._streamed),
                list(self._unresolved),
                self._error_word,
                self._result,
                self._working,
            ]
        )

    def restore(self, state: bytes) -> None:
        """Take that. Raises ValueError, TypeError or KeyError for anything else."""
        blocks, self._started, self._message_id, streamed, unresolved, *rest = take_up(state)
        self._error_word, result, self._working = rest
        self._blocks.restore(blocks)
        self._streamed = dict.fromkeys(streamed)
        self._unresolved = dict.fromkeys(unresolved)
        self._result = result
        if result is not None:
            self._said = read_result(result[0], self._run_id, self._thread_id, result[1], result[2], NAME)

    def _begin(self, out: list[bytes]) -> None:
        if not self._started:
            self._started = True
            out.append(self._blocks.run_started(self._thread_id))

    def _read(self, line: dict[str, Any], out: list[bytes]) -> bool:
        """Add the chunks of a line; False if it is of no kind that we know."""
        kind = line.get("type")
        if kind == "system":
            return line.get("subtype") == "init" and self._read_init(line, out)
        self._begin(out)
        if kind == "result":
            return self._read_result(line, out)
        if kind not in ("stream_event", "assistant", "user"):
            return False
        if line.get("parent_tool_use_id") is not None:
            return True
        if kind == "stream_event":
            return self._read_stream_event(line.get("event"), out)
        self._working = True
        message = line.get("message")
        if not isinstance(message, dict):
            return False
        if kind == "user":
            return self._read_user(message.get("content"), out)
        return self._read_assistant(line, message, out)

    def _read_init(self, line: dict[str, Any], out: list[bytes]) -> bool:
        model, session = line.get("model"), line.get("session_id")
        self._working = True
        if isinstance(model, str):
            self._blocks.model = model
        self._begin(out)
        value = {"sessionId": session, "model": model, "tools": line.get("tools")}
        out.append(chunk.custom(SESSION_EVENT, value, **self._blocks.tanstack()))
        return True

    def _read_stream_event(self, event: Any, out: list[bytes]) -> bool:
        if not isinstance(event, dict):
            return False
        blocks, index = self._blocks, event.get("index")
        match event.get("type"):
            case "content_block_delta":
                return self._read_delta(index, event.get("delta"), out)
            case "message_start":
                message = event.get("message")
                cli_id = message.get("id") if isinstance(message, dict) else None
                blocks.close(out)
                self._working = True
                self._message_id = blocks.message_id(cli_id)
                self._streamed[cli_id if isinstance(cli_id, str) else None] = None
            case "content_block_start":
                return self._read_block_start(index, event.get("content_block"), out)
            case "content_block_stop":
                if blocks.kind and blocks.index == index:
                    blocks.close(out)
            case other:
                return isinstance(other, str) and other in _QUIET_EVENTS
        return True

    def _read_block_start(self, index: Any, block: Any, out: list[bytes]) -> bool:
        if not isinstance(block, dict):
            return False
        kind = block.get("type")
        if kind in (TEXT, THINKING):
            self._open(kind, index, out)
            first = block.get(kind)
            if isinstance(first, str):
                self._blocks.content(first, out)
        return True  # a block of another kind comes whole in its `assistant` line

    def _read_delta(self, index: Any, delta: Any, out: list[bytes]) -> bool:
        kind = delta.get("type") if isinstance(delta, dict) else None
        if not isinstance(kind, str) or kind in _QUIET_DELTAS:
            return isinstance(kind, str)
        block = _DELTAS.get(kind)
        text = delta.get(block) if block is not None else None
        if block is None or not isinstance(text, str):
            return False
        if text and (self._blocks.kind != block or self._blocks.index != index):
            self._open(block, index, out)  # its start is missing: no text is lost for that
        self._blocks.content(text, out)
        return True

    def _open(self, kind: str, index: Any, out: list[bytes]) -> None:
        if kind == THINKING:
            self._blocks.open_thinking(index, out)
            return
        if self._message_id is None:
            self._message_id = self._blocks.mint()
        self._blocks.open_text(index, self._message_id, out)

    def _read_assistant(self, line: dict[str, Any], message: dict[str, Any], out: list[bytes]) -> bool:
        blocks, cli_id, content = self._blocks, message.get("id"), message.get("content")
        if isinstance(line.get("error"), str):
            self._error_word = line["error"]
        content = [{"type": TEXT, "text": content}] if isinstance(content, str) else content
        if not isinstance(content, list):
            return False
        streamed = (cli_id if isinstance(cli_id, str) else None) in self._streamed
        known = True
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "tool_use":
                known = self._read_tool_use(block, out) and known
            elif kind not in (TEXT, THINKING) or not isinstance(block.get(kind), str):
                known = False
            elif not streamed:
                if kind == TEXT:
                    blocks.open_text(None, blocks.message_id(cli_id), out)
                else:
                    blocks.open_thinking(None, out)
                blocks.content(block[kind], out)
                blocks.close(out)
        return known

    def _read_tool_use(self, block: dict[str, Any], out: list[bytes]) -> bool:
        cli_id, name = block.get("id"), block.get("name")
        if not isinstance(cli_id, str) or not isinstance(name, str):
            return False
        tool_id = self._blocks.own(cli_id)
        self._blocks.tool_call(tool_id, name, block.get("input", {}), out)
        self._unresolved[tool_id] = None
        return True

    def _read_user(self, content: Any, out: list[bytes]) -> bool:
        if isinstance(content, str):
            return True
        if not isinstance(content, list):
            return False
        known = True
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            cli_id = block.get("tool_use_id") if kind == "tool_result" else None
            if isinstance(cli_id, str):
                tool_id = self._blocks.own(cli_id)
                text = _result_text(block.get("content"))
                self._blocks.tool_result(tool_id, text, bool(block.get("is_error")), out)
                self._unresolved.pop(tool_id, None)
            elif kind != TEXT:
                known = False
        return known

    def _read_result(self, line: dict[str, Any], out: list[bytes]) -> bool:
        if not isinstance(line.get("subtype"), str):
            return False
        self._blocks.close(out)
        self._blocks.interrupt(self._unresolved, out)
        self._result = [line, self._blocks.model, self._error_word]
        self._said = read_result(line, self._run_id, self._thread_id, self._blocks.model, self._error_word, NAME)
        self._working = False
        return True


def _result_text(content: Any) -> str:
    """Return a tool's result as text: text blocks one a line; without any, the JSON of what there is."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    texts = [block.get("text") for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    found = [text for text in texts if isinstance(text, str)]
    return "\n".join(found) if found else chunk.encode(content).decode()
