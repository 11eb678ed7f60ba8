"""The composition root below HTTP: which store, sandbox and harness stand behind a name.

Everything is named as `module:attribute`, the built-in ones too, and imported when it is first used: a run actor
loads its own harness and provider and nothing else.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from actors.light import allow_heavy
from runtime.core.result import WorkspaceNotFound
from runtime.engine.host_calls import Lent
from runtime.errors import InputInvalid
from runtime.host_tools import HostTool
from runtime.ports import Harness, Results, SandboxProvider, Store
from runtime.settings import Settings

T = TypeVar("T")

HARNESSES = {
    "shell": "runtime.harnesses.shell:ShellHarness",
    "agui": "runtime.harnesses.agui:AguiHarness",
    "claude-code": "runtime.harnesses.claude_code:ClaudeCodeHarness",
    "codex": "runtime.harnesses.codex:CodexHarness",
}
LOCAL_PROVIDER = "runtime.sandboxes.local:LocalProvider"
LOCAL_RESULTS = "runtime.sandboxes.local_results:LocalResults"
DOCKER_RESULTS = "runtime.sandboxes.docker_results:DockerResults"
HOOK_SET = "runtime.hooks:HookSet"  # no run actor needs it
DOCKER_PROVIDER = "runtime.sandboxes.docker:DockerProvider"
BUILT_IN_PROVIDERS = ("docker", "local")
# What a run actor imports before it can claim: 80 ms of a takeover on a busy machine, unless its worker had it before.
DRIVER_MODULES = (
    "runtime.engine.driver",
    "runtime.engine.shard",  # and `actors.segments`: a handle to the shard loads its class
    "actors.segments",
    "actors.compose",
    "actors.history",
    "actors.identity",
    "actors.shard_client",
)
AGENT_ENV = ("PATH", "HOME", "LANG", "TERM")


class Registry(Mapping[str, T], Generic[T]):
    """Names to things that are made when they are first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], T]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def load_attribute(path: str, setting: str) -> Any:
    """Return what `module:attribute` names. Raises InputInvalid `setting_invalid` if nothing is there."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"OUTLAST_{setting.upper()}: {path!r} cannot be loaded on this node: {error}"
        raise InputInvalid(message, code="setting_invalid", field=setting) from error


def named_paths(settings: Settings, setting: str) -> dict[str, str]:
    """Return a `name=module:attribute,...` setting as a mapping."""
    paths = {}
    for item in settings.listed(setting):
        name, equals, path = item.partition("=")
        if not equals or ":" not in path:
            message = f"OUTLAST_{setting.upper()}: {item!r} is not name=module:attribute."
            raise InputInvalid(message, code="setting_invalid", field=setting)
        paths[name.strip()] = path.strip()
    return paths


def preloaded_modules(sandbox: str) -> list[str]:
    """Return the modules that idle workers import at their start, where `sandbox` is the default provider.

    Never `actors.run_actor` or another actor's own: those block imports (`light`) that a worker which is to be a
    gateway replica needs."""
    chosen = [DOCKER_PROVIDER, "docker:"] if sandbox == "docker" else [LOCAL_PROVIDER]
    return [*DRIVER_MODULES, *(path.partition(":")[0] for path in (*chosen, *HARNESSES.values()))]


def harnesses(settings: Settings) -> Mapping[str, Harness]:
    """Return every harness by name."""
    paths = {**HARNESSES, **named_paths(settings, "harnesses")}
    return Registry({name: partial(_make_harness, path) for name, path in paths.items()})


def _make_harness(path: str) -> Harness:
    harness: Harness = load_attribute(path, "harnesses")()
    return harness


def providers(settings: Settings, deployment: str) -> Mapping[str, SandboxProvider]:
    """Return every sandbox provider by name. A user's own is called with (settings, deployment)."""
    makers: dict[str, Callable[[], SandboxProvider]] = {
        "local": partial(_make_local, settings, deployment),
        "docker": partial(_make_docker, settings, deployment),
    }
    for name, path in named_paths(settings, "providers").items():
        makers[name] = partial(_make_provider, path, settings, deployment)
    return Registry(makers)


def lent_tools(settings: Settings) -> Lent:
    """Return the host tools, each loaded when it is first needed."""
    paths = named_paths(settings, "tools")
    makers = {name: partial(_make_tool, name, path) for name, path in paths.items()}
    return Lent(Registry(makers), settings.tool_timeout_s)


def _make_tool(name: str, path: str) -> HostTool:
    """Load a function. Raises InputInvalid, whatever its module raises."""
    allow_heavy()
    try:
        return HostTool(name, load_attribute(path, "tools"))
    except InputInvalid:
        raise
    except Exception as error:
        message = f"OUTLAST_TOOLS: {path!r} cannot be loaded on this node: {type(error).__name__}: {error}"
        raise InputInvalid(message, code="setting_invalid", field="tools") from error


def hook_sets(settings: Settings) -> list[Any]:
    """Return the hooks that the settings name, a `runtime.hooks.HookSet` each.

    Raises InputInvalid, whatever their modules or classes raise."""
    allow_heavy()
    return [_make_hooks(path) for path in settings.listed("hooks")]


def _make_hooks(path: str) -> Any:
    try:
        return load_attribute(HOOK_SET, "hooks")(path, load_attribute(path, "hooks"))
    except InputInvalid:
        raise
    except Exception as error:
        message = f"OUTLAST_HOOKS: {path!r} cannot be loaded on this node: {type(error).__name__}: {error}"
        raise InputInvalid(message, code="setting_invalid", field="hooks") from error


def _make_local(settings: Settings, deployment: str) -> SandboxProvider:
    make = load_attribute(LOCAL_PROVIDER, "sandbox")
    root = settings.data_path
    homes = root / "homes" if settings.agent_home == "thread" else None
    local: SandboxProvider = make(
        root / "sandboxes",
        deployment,
        root / "workspaces",
        homes,
        settings.listed("workspace_sources"),
        root / "baselines",
    )
    return local


def _make_docker(settings: Settings, deployment: str) -> SandboxProvider:
    make = load_attribute(DOCKER_PROVIDER, "sandbox")
    limits = load_attribute("runtime.sandboxes.hardening:Limits", "sandbox")(
        network=settings.docker_network,
        memory_bytes=settings.docker_memory_bytes,
        cpus=settings.docker_cpus,
        pids=settings.docker_pids,
    )
    sources, data = settings.listed("workspace_sources"), settings.data_path
    docker: SandboxProvider = make(deployment, settings.docker_image, limits, settings.docker_host, sources, data)
    return docker


def _make_provider(path: str, settings: Settings, deployment: str) -> SandboxProvider:
    provider: SandboxProvider = load_attribute(path, "providers")(settings, deployment)
    return provider


def results(settings: Settings, deployment: str, provider: str) -> Results:
    """Return what reads the results of a provider's runs on this host. Raises WorkspaceNotFound if it keeps none."""
    if provider == "local" and provider not in named_paths(settings, "providers"):
        root = settings.data_path
        local: Results = load_attribute(LOCAL_RESULTS, "sandbox")(root / "workspaces", root / "baselines")
        return local
    if provider == "docker" and provider not in named_paths(settings, "providers"):
        docker: Results = load_attribute(DOCKER_RESULTS, "sandbox")(_make_docker(settings, deployment))
        return docker
    made: object = providers(settings, deployment).get(provider)
    if isinstance(made, Results):
        return made
    raise WorkspaceNotFound(f"The provider {provider!r} keeps no results of its runs.")


def is_postgres(settings: Settings) -> bool:
    """Return whether the store is a PostgreSQL server, and not the SQLite file."""
    return settings.store.startswith(("postgresql://", "postgres://"))


def store_path(settings: Settings) -> Path:
    """Return where the SQLite store lies."""
    return settings.data_path / "outlast.sqlite"


def open_store(settings: Settings, deployment: str | None = None) -> Store:
    """Open the store that the settings name; with `deployment`, only if it is that one's (P12).

    Raises StoreRefused, StoreUnavailable."""
    if is_postgres(settings):
        make = load_attribute("runtime.stores.postgres:PostgresStore", "store")
        server: Store = make(settings.store, shards=settings.shards, deployment_id=deployment)
        return server
    make = load_attribute("runtime.stores.sqlite:SqliteStore", "store")
    store: Store = make(store_path(settings), shards=settings.shards, deployment_id=deployment)
    return store


def agent_env(settings: Settings, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment an agent gets (design 7): a short list, and never Ray's or ours."""
    source = os.environ if env is None else env
    wanted = [*AGENT_ENV, *settings.listed("agent_env")]
    return {name: source[name] for name in wanted if name in source and not name.startswith(("RAY_", "OUTLAST_"))}
