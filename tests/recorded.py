"""The recordings of real agents in `tests/recordings`: their lines, and how each agent ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from runtime.core.launch import AgentExit, ExitKind

FOLDER = Path(__file__).resolve().parent / "recordings"

# Recordings without an exit code of their own; README.md there says what they are.
_EXIT_CODES = {"claude-torn-big": -9, "claude-torn-utf8": -9}


@dataclass(frozen=True)
class Recording:
    """One journal. `torn` is its last line if that has no newline."""

    name: str
    data: bytes
    lines: tuple[bytes, ...]
    torn: bytes | None
    exit: AgentExit


def names(agent: str) -> list[str]:
    """Return the names of all recordings of `agent` (`claude`, `codex`), of every version, in order."""
    return sorted(path.name.removesuffix(".ndjson") for path in FOLDER.glob(f"*{agent}-*.ndjson"))


def load(name: str) -> Recording:
    """Return one recording."""
    data = (FOLDER / f"{name}.ndjson").read_bytes()
    *lines, torn = data.split(b"\n")
    return Recording(name, data, tuple(lines), torn or None, _exit(name, len(data)))


def _exit(name: str, length: int) -> AgentExit:
    meta = FOLDER / f"{name}.meta.json"
    known = msgspec.json.decode(meta.read_bytes()) if meta.exists() else {}
    code: int = known.get("rc", _EXIT_CODES.get(name, 0))
    if code < 0:
        return AgentExit(kind=ExitKind.EXITED, journal_length=length, signal=-code)
    return AgentExit(kind=ExitKind.EXITED, journal_length=length, code=code)
