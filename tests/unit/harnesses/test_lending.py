"""How agents are told of the MCP server of their host tools: its token is said in no argv."""

from __future__ import annotations

import json
import tomllib

import pytest
from agent_runs import RUN, spec

from runtime.harnesses.claude_code import ClaudeCodeHarness
from runtime.harnesses.codex import CodexHarness
from runtime.ports import Harness, LaunchSpec, LendsTools, ToolServer

SECRET = "the-token"
SERVER = ToolServer(
    argv=("/bin/python", "-I", "/a b/server.py", '/with "quotes"'),
    env={"AGENT_TOOLS": "/bin/python ...", "AGENT_TOOLS_TOKEN": SECRET},
    tools=("add", "who"),
    patience_s=900.0,
)


def lent(harness: Harness, **forwarded: object) -> LaunchSpec:
    run = spec(harness.name, "hello", "docker", **forwarded)
    launch = harness.launch(RUN, run, {"PATH": "/bin", **SERVER.env}, "/workspace", [])
    assert isinstance(harness, LendsTools)
    return harness.lend(launch, SERVER)


@pytest.mark.parametrize("harness", [ClaudeCodeHarness(), CodexHarness()], ids=lambda harness: harness.name)
def test_the_token_is_in_the_environment_alone(harness: Harness) -> None:
    launch = lent(harness)
    assert SECRET not in " ".join(launch.argv)
    assert launch.env["AGENT_TOOLS_TOKEN"] == SECRET


def test_claude_is_given_the_server_and_may_call_what_it_has() -> None:
    launch = lent(ClaudeCodeHarness(), allowedTools=["Read"])
    at = launch.argv.index("--mcp-config")
    server = json.loads(launch.argv[at + 1])["mcpServers"]["outlast"]
    assert (server["command"], *server["args"]) == SERVER.argv
    assert server["env"] == {name: f"${{{name}}}" for name in SERVER.env}
    assert launch.argv[at + 2 :] == ("--allowedTools", "mcp__outlast__add,mcp__outlast__who")
    assert "Read" in launch.argv[:at]
    assert launch.env["MCP_TOOL_TIMEOUT"] == "900000"


def test_codex_is_given_the_server_before_what_it_is_to_do() -> None:
    launch = lent(CodexHarness(), sessionId="0" * 8 + "-0000-0000-0000-" + "0" * 12)
    said = [value for word, value in zip(launch.argv, launch.argv[1:], strict=False) if word == "--config"]
    server = tomllib.loads("\n".join(said))["mcp_servers"]["outlast"]
    assert (server["command"], *server["args"]) == SERVER.argv
    assert (server["env_vars"], server["tool_timeout_sec"]) == (list(SERVER.env), 900.0)
    assert server["default_tools_approval_mode"] == "approve"
    assert (launch.argv[:3], launch.argv[-3], launch.argv[-1]) == (("codex", "exec", "--json"), "resume", "-")
