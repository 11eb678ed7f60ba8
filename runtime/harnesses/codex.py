"""The `codex` harness: how to launch the Codex CLI for one message. `codex_stream` reads what it prints.

The prompt goes in on stdin (never through an argv or a shell), system messages before it, and every option is checked
before it becomes an argument. Order and names of the arguments: contract 11.2, but for `--json`, the CLI's present
name of `--experimental-json`, and what the CLI would do to others: no analytics (offline, they hold up its exit for
5 s), no look for updates, and no plugins (it fetches their catalogue from elsewhere at each run, whether there are any
or not). Nor a snapshot of its shell: that writes its whole environment, credentials too, into the agent's home (P18).

Sandbox mode, if the request names none: on the `local` provider the agent runs as the user, so Codex's own sandbox
lets it write its workspace and no more (`workspace-write`); where the provider shuts the agent in, that is the wall,
and Codex's sandbox could not be set up inside it (`danger-full-access`). Nobody is there to approve anything, so the
approval policy is `never`: what the sandbox forbids fails, and the agent is told.

A session is named by its UUID and nothing else: of a name that it does not know the CLI makes a new session without
a word, and the conversation would be lost. An unknown UUID it refuses: `agent_exit`, with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from runtime.core.record import RunSpec
from runtime.harnesses import options, prompt
from runtime.harnesses.blocks import LENT, json_text
from runtime.harnesses.codex_stream import NAME, SESSION_EVENT, CodexTranslator
from runtime.ports import LaunchSpec, SessionFile, ToolServer, Translator

EXECUTABLE = "codex"
LOCAL_PROVIDER = "local"
SANDBOX_MODES = ("read-only", "workspace-write", "danger-full-access")
# Without `untrusted`, which the CLI knows but refuses.
APPROVAL_POLICIES = ("never", "on-request", "on-failure")
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
MAX_DIRECTORIES = 64
BASE_URL = "OPENAI_BASE_URL"

# A first character that is no "-": none of these can be taken for a flag.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,127}")
_SESSION = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_PRINTED = r"[^\x00-\x1f\x7f\ud800-\udfff]"
_INSIDE = re.compile(rf"(?!/)(?!(?:.*/)?\.\.(?:/|\Z)){_PRINTED}{{1,1023}}")
_ABSOLUTE = re.compile(rf"/{_PRINTED}{{0,1023}}")
# With a user or password in it a URL is a secret, and every process can read an argv.
_OPEN_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(?:/[!-?A-~]*)?")


class CodexHarness:
    """Runs `codex exec` with the last user text."""

    name = NAME
    translator_version = 1

    def validate(self, input: Mapping[str, Any]) -> None:
        """Check options and messages. Raises InputInvalid `option_invalid`, `message_invalid`."""
        props = options.forwarded(input)
        _argv(props, {}, "/", isolated=False)
        options.check_env(props)
        prompt.said_now(input)

    def launch(
        self,
        run_id: str,  # noqa: ARG002 - the port's form
        spec: RunSpec,
        env: Mapping[str, str],
        workspace: str,
        history: Sequence[Mapping[str, Any]],
    ) -> LaunchSpec:
        """Return the argv, with the prompt on stdin: the last user text alone if a session is resumed, else with the
        conversation before it. Raises InputInvalid as `validate` does."""
        props = options.forwarded(spec.input)
        resumes = _session(props) is not None
        said = prompt.said_now(spec.input) if resumes else prompt.flattened(spec.input, history)
        system = prompt.system_text(spec.input)
        return LaunchSpec(
            argv=_argv(props, env, workspace, isolated=spec.provider != LOCAL_PROVIDER),
            env=dict(env),
            stdin=(f"{system}\n\n{said}" if system else said).encode("utf-8", "replace"),
            max_log_bytes=spec.limits.max_log_bytes,
        )

    def lend(self, spec: LaunchSpec, server: ToolServer) -> LaunchSpec:
        """Return the launch with the run's host tools. Every process can read an argv, so the token is named there
        and not said: the CLI passes it on. Nobody is asked before a call; who declared the tools has allowed them."""
        config = {
            "command": server.argv[0],
            "args": server.argv[1:],
            "env_vars": list(server.env),
            "tool_timeout_sec": server.patience_s,
            "default_tools_approval_mode": "approve",
        }
        more = [word for name, value in config.items() for word in ("--config", _toml(name, value))]
        head = len((EXECUTABLE, "exec", "--json"))
        return replace(spec, argv=(*spec.argv[:head], *more, *spec.argv[head:]))

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        """Return a fresh translator. Codex prints no model, so the one that was asked for goes for it."""
        model = options.forwarded(spec.input).get("model")
        thread_id = str(spec.input.get("threadId", ""))
        return CodexTranslator(run_id, thread_id, model if isinstance(model, str) else None)

    def session_file(self, input: Mapping[str, Any], env: Mapping[str, str]) -> SessionFile | None:
        """Return where in the agent's HOME the session lies that the input names."""
        session = _session(options.forwarded(input))
        if session is None or "CODEX_HOME" in env:
            return None
        return SessionFile(".codex/sessions", f"*{session.lower()}.jsonl")  # the CLI takes either case, and writes this

    def with_session(self, input: Mapping[str, Any], session: str) -> dict[str, Any]:
        """Return the input with a session."""
        return options.with_session(input, session)

    def without_session(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input without the session."""
        return options.without_session(input)


def _argv(props: Mapping[str, Any], env: Mapping[str, str], workspace: str, *, isolated: bool) -> tuple[str, ...]:
    argv = [EXECUTABLE, "exec", "--json"]
    model = options.text(props, "model", _MODEL, "the name of a model")
    mode = options.choice(props, "sandboxMode", SANDBOX_MODES)
    folder = options.text(props, "workingDirectory", _INSIDE, 'a path inside the workspace, such as "packages/app"')
    if model is not None:
        argv += ["--model", model]
    argv += ["--sandbox", mode or ("danger-full-access" if isolated else "workspace-write")]
    if folder is not None:
        argv += ["--cd", f"{workspace.rstrip('/')}/{folder}"]
    argv.append("--skip-git-repo-check")
    more = options.texts(props, "additionalDirectories", _ABSOLUTE, "absolute paths")
    if len(more) > MAX_DIRECTORIES:
        options.refuse("additionalDirectories", f"an array of at most {MAX_DIRECTORIES} absolute paths")
    for path in more:
        argv += ["--add-dir", path]
    for name, value in _config(props, env).items():
        argv += ["--config", f"{name}={value}"]
    session = _session(props)
    if session is not None:
        argv += ["resume", session]
    return (*argv, "-")


def _config(props: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, str]:
    """Return what is said by `--config`, as TOML; a JSON text is a TOML string too."""
    effort = options.choice(props, "modelReasoningEffort", REASONING_EFFORTS)
    config = {
        "approval_policy": json_text(options.choice(props, "approvalPolicy", APPROVAL_POLICIES) or "never"),
        "analytics.enabled": "false",
        "check_for_update_on_startup": "false",
        "features.plugins": "false",
        "features.shell_snapshot": "false",
    }
    if effort is not None:
        config["model_reasoning_effort"] = json_text(effort)
    if options.flag(props, "networkAccessEnabled"):
        config["sandbox_workspace_write.network_access"] = "true"
    # The CLI no longer reads this variable itself; operators know it from everything else that talks to such an API.
    url = env.get(BASE_URL, "")
    if _OPEN_URL.fullmatch(url):
        config["openai_base_url"] = json_text(url)
    return config


def _toml(name: str, value: Any) -> str:
    """Return a setting of the server of host tools; JSON of texts, numbers and arrays is TOML too."""
    return f"mcp_servers.{LENT}.{name}={json_text(value)}"


def _session(props: Mapping[str, Any]) -> str | None:
    return options.session(props, _SESSION, SESSION_EVENT)
