"""The `claude-code` harness: how to launch Claude Code for one message. `claude_stream` reads what it prints.

The prompt goes in on stdin (never through an argv or a shell), and every option is checked before it becomes an
argument. Order and names of the arguments: contract 11.1. No launcher files: the recorder (P16) does what they do.

Permission mode, if the request names none: where the agent is shut in, it may do everything (the contract's
`bypassPermissions`); on the `local` provider it runs as the user, so it may edit files of its workspace and no more
(`acceptEdits`). What it then is refused it is told, and its run still ends well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from runtime.core.record import RunSpec
from runtime.errors import InputInvalid
from runtime.harnesses import options, prompt
from runtime.harnesses.blocks import LENT, json_text
from runtime.harnesses.claude_stream import NAME, SESSION_EVENT, ClaudeTranslator
from runtime.ports import LaunchSpec, SessionFile, ToolServer, Translator

EXECUTABLE = "claude"
LOCAL_PROVIDER = "local"
PERMISSION_MODES = ("acceptEdits", "bypassPermissions", "default", "dontAsk", "plan")
MAX_TURNS = 10_000
ASK = "askPermission"  # the option: what the agent is refused is asked of the user (P23)

# A first character that is no "-": none of these can be taken for a flag.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,127}")
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Tool rules are joined by commas into one argument; a rule may hold spaces and parentheses: `Bash(git log *)`.
_TOOL = re.compile(r"[A-Za-z_*][^\x00-\x1f\x7f\ud800-\udfff]{0,511}")


class ClaudeCodeHarness:
    """Runs `claude -p` with the last user text."""

    name = NAME
    translator_version = 1

    def validate(self, input: Mapping[str, Any]) -> None:
        """Check options and messages. Raises InputInvalid `option_invalid`, `message_invalid`."""
        props = options.forwarded(input)
        _argv(input, props, isolated=False)
        options.check_env(props)
        prompt.said_now(input)

    def launch(
        self,
        run_id: str,  # noqa: ARG002 - the port's form
        spec: RunSpec,
        env: Mapping[str, str],
        workspace: str,  # noqa: ARG002 - the port's form
        history: Sequence[Mapping[str, Any]],
    ) -> LaunchSpec:
        """Return the argv, with the prompt on stdin: the last user text alone if a session is resumed, else with the
        conversation before it. Raises InputInvalid as `validate` does."""
        props = options.forwarded(spec.input)
        isolated = spec.provider != LOCAL_PROVIDER
        resumes = _session(props) is not None
        said = prompt.said_now(spec.input) if resumes else prompt.flattened(spec.input, history)
        return LaunchSpec(
            argv=_argv(spec.input, props, isolated=isolated),
            env=_environment(env, isolated=isolated),
            stdin=said.encode("utf-8", "replace"),
            max_log_bytes=spec.limits.max_log_bytes,
        )

    def lend(self, spec: LaunchSpec, server: ToolServer) -> LaunchSpec:
        """Return the launch with the run's host tools, all of them allowed. Every process can read an argv, so the
        token is named there and not said: the CLI puts it in. It would begin without tools that come late."""
        env = {name: f"${{{name}}}" for name in server.env}
        config = {"type": "stdio", "command": server.argv[0], "args": server.argv[1:], "env": env}
        allowed = ",".join(f"mcp__{LENT}__{tool}" for tool in server.tools)
        more = ("--mcp-config", json_text({"mcpServers": {LENT: config}}), "--allowedTools", allowed)
        ours = {"MCP_TOOL_TIMEOUT": str(int(server.patience_s * 1000)), "MCP_CONNECTION_NONBLOCKING": "0"}
        return replace(spec, argv=(*spec.argv, *more), env={**ours, **spec.env})

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        """Return a fresh translator."""
        asks = options.flag(options.forwarded(spec.input), ASK)
        return ClaudeTranslator(run_id, str(spec.input.get("threadId", "")), asks=asks)

    def session_file(self, input: Mapping[str, Any], env: Mapping[str, str]) -> SessionFile | None:
        """Return where in the agent's HOME the session lies that the input names."""
        session = _session(options.forwarded(input))
        if session is None or "CLAUDE_CONFIG_DIR" in env:
            return None
        return SessionFile(".claude/projects", f"{session}.jsonl")

    def with_session(self, input: Mapping[str, Any], session: str) -> dict[str, Any]:
        """Return the input with a session."""
        return options.with_session(input, session)

    def without_session(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input without the session."""
        return options.without_session(input)


def _argv(input: Mapping[str, Any], props: Mapping[str, Any], *, isolated: bool) -> tuple[str, ...]:
    argv = [EXECUTABLE, "--setting-sources", "user", "-p", "--output-format", "stream-json", "--verbose"]
    model = options.text(props, "model", _MODEL, "the name of a model")
    mode = options.choice(props, "permissionMode", PERMISSION_MODES)
    turns = options.integer(props, "maxTurns", 1, MAX_TURNS)
    session = _session(props)
    if model is not None:
        argv += ["--model", model]
    argv.append("--include-partial-messages")
    if session is not None:
        argv += ["--resume", session]
    free = "bypassPermissions" if isolated and not options.flag(props, ASK) else "acceptEdits"
    argv += ["--permission-mode", mode or free]
    if turns is not None:
        argv += ["--max-turns", str(turns)]
    for name, flag in (("allowedTools", "--allowedTools"), ("disallowedTools", "--disallowedTools")):
        tools = options.texts(props, name, _TOOL, 'tool names such as "Read" or "Bash(git log *)"')
        if name == "allowedTools":
            tools = (*tools, *(rule for rule in _granted(input) if rule not in tools))
        if tools:
            argv += [flag, _argument(name, ",".join(tools))]
    system = prompt.system_text(input)
    if system:
        argv += ["--append-system-prompt", _system_argument(system)]
    return tuple(argv)


def _granted(input: Mapping[str, Any]) -> list[str]:
    """Return rules for what the user has just granted: of a command, that one; else the tool, for this run."""
    rules = []
    for answer in input.get("resume") or ():
        asked = answer.get("interrupt") if isinstance(answer, Mapping) else None
        facts = asked.get("metadata") if isinstance(asked, Mapping) else None
        if not isinstance(facts, Mapping) or not prompt.is_granted(answer):
            continue
        tool, given = facts.get("toolName"), facts.get("input")
        command = given.get("command") if isinstance(given, Mapping) else None
        rule = f"{tool}({command})" if isinstance(command, str) else tool
        if isinstance(rule, str) and _TOOL.fullmatch(rule):
            rules.append(rule)
    return rules


def _session(props: Mapping[str, Any]) -> str | None:
    return options.session(props, _SESSION, SESSION_EVENT)


def _argument(name: str, value: str) -> str:
    reason = options.argument_fault(value)
    if reason is not None:
        options.refuse(name, f"shorter: joined it {reason}")
    return value


def _system_argument(system: str) -> str:
    # Never taken for a flag: the program reads what follows --append-system-prompt as its value, whatever it is.
    reason = options.argument_fault(system)
    if reason is not None:
        raise InputInvalid(
            f"The system messages together must fit one argument, and that {reason}.",
            code="message_invalid",
            field="messages",
        )
    return system


def _environment(env: Mapping[str, str], *, isolated: bool) -> dict[str, str]:
    """Return the agent's environment. Telemetry and update checks are off unless the operator says otherwise: they
    leave files behind when they fail, and a run has no use for them."""
    ours = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    if isolated:
        ours |= {"IS_SANDBOX": "1", "CLAUDE_CODE_SANDBOXED": "1"}
    return {**ours, **env}
