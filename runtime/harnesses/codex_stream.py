"""Translate the lines of `codex exec --json` to chunks, by the table of contract 11.2.

Where this differs from the contract, real CLIs (0.171.0) were recorded that show why:

    error                   RAW; not an end: the CLI prints `Reconnecting... 2/5` as an error, goes on, and completes.
                            The last word only if nothing came after it and the agent then exited by itself
    item of type error      RAW: a warning, such as a model that it does not know
    item.updated of a tool  RAW: a plan's steps on the way are told nowhere else
    an item's id            only counts within one run (`item_3`), so the run's goes before it; one that comes again
                            after its end is another item and gets a minted id

Text grows: a line tells an item's whole text so far, of which what is new becomes a chunk. Should a text change in
what was told already, the line is RAW. `turn.started` tells nothing; all other JSON is RAW.

The end of the turn is only remembered: its terminal chunk waits for the exit (`endings`). If work goes on after it, it
stands until another one comes (the one before is then RAW), but nobody waits for the exit meanwhile.

Chunk path 3/6. Before: core framing (journal bytes to lines). After: engine (chunks to the log).
"""

from __future__ import annotations

from typing import Any

from runtime.core import chunk
from runtime.core.aside import put_aside, take_up
from runtime.core.launch import AgentExit, ExitKind
from runtime.harnesses.blocks import TEXT, THINKING, Blocks
from runtime.harnesses.codex_items import has_failed, read_call, read_result
from runtime.harnesses.codex_result import ERROR, TURN_COMPLETED, TURN_FAILED, read_completed, read_failed
from runtime.harnesses.endings import Said, conclude
from runtime.harnesses.json_line import parse
from runtime.ports import Ending

NAME = "codex"
SESSION_EVENT = "codex.session-id"

_STARTED, _UPDATED, _COMPLETED = "item.started", "item.updated", "item.completed"
_PHASES = frozenset({_STARTED, _UPDATED, _COMPLETED})
_TEXTS = {"agent_message": TEXT, "reasoning": THINKING}


class CodexTranslator:
    """One run's lines to chunks."""

    def __init__(self, run_id: str, thread_id: str, model: str | None) -> None:
        self._run_id = run_id
        self._thread_id = thread_id
        self._blocks = Blocks(run_id)
        self._blocks.model = model
        self._started = False
        self._used: dict[str, None] = {}  # the CLI's ids of all items so far, in order
        self._told: dict[str, str] = {}  # by id: the text so far of each text item that is not complete
        self._calls: dict[str, str] = {}  # by id: the tool call of each tool item that is not complete
        self._unresolved: dict[str, None] = {}  # tool calls without a result, in order
        self._complaint: dict[str, Any] | None = None  # an `error` line, until something comes after it
        self._said: Said | None = None
        self._working = False  # since the last end of a turn

    @property
    def has_result(self) -> bool:
        """True from the end of the turn on, unless work goes on after it."""
        return self._said is not None and not self._working

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        """Return the chunks of one line."""
        out: list[bytes] = []
        self._begin(out)
        try:
            value = parse(line, torn)
        except ValueError:
            out.append(chunk.stdout_line(line, torn))
            return out
        if not isinstance(value, dict) or not self._read(value, out):
            out.append(chunk.raw_event(value, NAME))
        return out

    def finish(self, exit: AgentExit, stderr: bytes) -> Ending:
        """Return the ending; calls that nobody answered get their interrupted results first."""
        out: list[bytes] = []
        self._begin(out)
        self._blocks.interrupt(self._unresolved, out)
        return conclude(self._run_id, self._last_word(exit), exit, stderr, tuple(out))

    def state(self) -> bytes:
        """Return what the lines so far have left behind; the end of a turn as the line that said it."""
        said = self._said.printed if self._said is not None else None
        marks = [self._started, self._working, self._complaint, said]
        return put_aside([self._blocks.state(), *marks, [*self._used], self._told, self._calls, [*self._unresolved]])

    def restore(self, state: bytes) -> None:
        """Take that. Raises ValueError, TypeError or KeyError for anything else."""
        blocks, self._started, self._working, self._complaint, said, used, self._told, self._calls, left = take_up(
            state
        )
        self._blocks.restore(blocks)
        self._used = dict.fromkeys(used)
        self._unresolved = dict.fromkeys(left)
        self._said = self._word(said) if said is not None else None

    def _begin(self, out: list[bytes]) -> None:
        if not self._started:
            self._started = True
            out.append(self._blocks.run_started(self._thread_id))

    def _last_word(self, exit: AgentExit) -> Said | None:
        """Return what the agent said last; a signal that found it reconnecting is no failure of its own."""
        if self._said is not None or self._complaint is None:
            return self._said
        if exit.kind is not ExitKind.EXITED or exit.code is None or exit.signal is not None:
            return None
        return self._word(self._complaint)

    def _read(self, line: dict[str, Any], out: list[bytes]) -> bool:
        """Add the chunks of a line; False if it is to be RAW."""
        kind = line.get("type")
        if not isinstance(kind, str):
            return False
        if kind in _PHASES:
            item = line.get("item")
            return isinstance(item, dict) and self._read_item(kind, item, out)
        if kind == ERROR:
            self._complaint = line
        elif kind == "turn.started":
            self._work()
            return True
        elif kind == "thread.started":
            return self._read_thread(line.get("thread_id"), out)
        elif kind in (TURN_COMPLETED, TURN_FAILED):
            self._read_end(line, out)
            return True
        return False

    def _work(self) -> None:
        self._working = True
        self._complaint = None

    def _read_thread(self, session: Any, out: list[bytes]) -> bool:
        if not isinstance(session, str):
            return False
        out.append(chunk.custom(SESSION_EVENT, {"sessionId": session}, **self._blocks.tanstack()))
        return True

    def _read_item(self, phase: str, item: dict[str, Any], out: list[bytes]) -> bool:
        self._work()
        cli_id, kind = item.get("id"), item.get("type")
        if not isinstance(cli_id, str) or not cli_id or not isinstance(kind, str):
            return False
        if kind in _TEXTS:
            text = item.get("text")
            return isinstance(text, str) and self._read_text(phase, _TEXTS[kind], cli_id, text, out)
        return self._read_tool(phase, cli_id, item, out)

    def _read_text(self, phase: str, block: str, cli_id: str, text: str, out: list[bytes]) -> bool:
        blocks, told = self._blocks, self._told.get(cli_id)
        is_open = blocks.kind == block and blocks.index == cli_id
        grown = told is None or text.startswith(told)
        if grown:
            new = text[len(told or "") :]
            if not is_open and (new or told is None):
                self._open(block, cli_id, out)
            blocks.content(new, out)
            self._told[cli_id] = text
        if phase == _COMPLETED:
            if blocks.kind == block and blocks.index == cli_id:
                blocks.close(out)
            self._told.pop(cli_id, None)
        return grown

    def _open(self, block: str, cli_id: str, out: list[bytes]) -> None:
        message_id = self._name(cli_id)
        if block == TEXT:
            self._blocks.open_text(cli_id, message_id, out)
        else:
            self._blocks.open_thinking(cli_id, out, message_id)

    def _name(self, cli_id: str) -> str:
        """Return the id of a new item."""
        if cli_id in self._used:
            return self._blocks.mint()
        self._used[cli_id] = None
        return self._blocks.own(cli_id)

    def _read_tool(self, phase: str, cli_id: str, item: dict[str, Any], out: list[bytes]) -> bool:
        call, call_id = read_call(item), self._calls.get(cli_id)
        if call is None or phase == _UPDATED or (phase == _STARTED and call_id is not None):
            return False
        if call_id is None:
            call_id = self._name(cli_id)
            self._blocks.tool_call(call_id, call.name, call.arguments, out)
            self._calls[cli_id] = call_id
            self._unresolved[call_id] = None
        if phase == _COMPLETED:
            self._blocks.tool_result(call_id, read_result(item), has_failed(item), out)
            self._unresolved.pop(call_id, None)
            del self._calls[cli_id]
        return True

    def _read_end(self, line: dict[str, Any], out: list[bytes]) -> None:
        self._blocks.close(out)
        self._blocks.interrupt(self._unresolved, out)
        if self._said is not None:
            out.append(chunk.raw_event(self._said.printed, NAME))
        self._said = self._word(line)
        self._working = False

    def _word(self, line: dict[str, Any]) -> Said:
        """Return what the end of a turn, or an `error`, says."""
        if line["type"] == TURN_COMPLETED:
            return read_completed(line, self._run_id, self._thread_id, self._blocks.model, NAME)
        return read_failed(line, self._run_id, self._blocks.model, NAME)
