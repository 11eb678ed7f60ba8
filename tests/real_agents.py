"""The real coding agents, as tests start them: against the stub of their models, with nothing of this machine's user.

What they are given is what an operator would give: credentials and addresses in the environment, options in the
request. Everything else that they might ask of the world goes to the stub as their proxy, and is refused there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_server import ModelServer

from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.harnesses.codex import CodexHarness
from runtime.ports import Harness

CREDENTIAL = "sk-test-b0b5c0ffee"  # so that it can be looked for where it must not be
_OURS = ("PATH", "HOME", "LANG", "TERM")


@dataclass(frozen=True)
class Agent:
    """One real agent. `free`: the options under which it runs every tool of a script."""

    name: str
    harness: Harness
    session_event: str
    free: Mapping[str, Any] = field(default_factory=dict)


CLAUDE = Agent(
    "claude-code",
    ClaudeCodeHarness(),
    "claude-code.session-id",
    {"allowedTools": ["Bash", "Read", "Write"]},
)
CODEX = Agent("codex", CodexHarness(), "codex.session-id", {"sandboxMode": "danger-full-access"})
AGENTS = (CLAUDE, CODEX)


def environment(models: ModelServer, programs: Path, home: Path) -> dict[str, str]:
    """Return the whole environment of an agent."""
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "ANTHROPIC_API_KEY": CREDENTIAL,
        "ANTHROPIC_BASE_URL": models.url,
        "CLAUDE_CODE_MAX_RETRIES": "2",  # by default 10, over minutes
        "CODEX_API_KEY": CREDENTIAL,
        "OPENAI_BASE_URL": f"{models.url}/v1",
        "HTTP_PROXY": models.url,
        "HTTPS_PROXY": models.url,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def allowed(env: Mapping[str, str]) -> str:
    """Return what an operator puts into OUTLAST_AGENT_ENV for that environment."""
    return ",".join(sorted(set(env) - set(_OURS)))
