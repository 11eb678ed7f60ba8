"""Every setting, once: `OUTLAST_*` in the environment, one class, checked at start (design 8).

An unknown `OUTLAST_*` name is refused with the nearest real one, since a misspelt bound is a missing bound. The
docs table (`docs/settings.md`) is made from this class, and a test holds the two together.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from runtime.core.retention import Retention
from runtime.errors import InputInvalid

PREFIX = "OUTLAST_"
# Read by the test runner, and by the command line as a client: not an instance's.
FOREIGN = frozenset({"OUTLAST_TOKEN", "OUTLAST_TEST_NEED", "OUTLAST_TEST_POSTGRES"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one instance. Seconds and bytes as named; lists are comma-separated."""

    store: Annotated[
        str,
        Meta(
            description="Where records and logs live: `sqlite` (in DATA_DIR), or `postgresql://USER:PASSWORD@HOST/DB`."
        ),
    ] = "sqlite"
    shards: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Log shards, an actor each. SQLite has exactly 1; fixed when the store is made.",
        ),
    ] = 1
    data_dir: Annotated[str, Meta(description="Store, sandboxes, workspaces and `instance.json`.")] = "./.outlast"
    ray_address: Annotated[str, Meta(description="An existing cluster; empty: `serve` starts its own Ray.")] = ""
    ray_temp_dir: Annotated[str, Meta(description="Ray's temp folder; empty: a short path of this instance's own.")] = (
        ""
    )
    namespace: Annotated[str, Meta(min_length=1, description="Ray namespace of the instance's actors.")] = "outlast"
    host: Annotated[str, Meta(description="Address to listen on. Not loopback: refused without tokens.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, description="HTTP port.")] = 8000
    route_prefix: Annotated[str, Meta(pattern=r"^/", description="HTTP path under which everything lies.")] = "/"
    replicas: Annotated[int, Meta(ge=1, le=64, description="Gateway replicas.")] = 2
    sandbox: Annotated[str, Meta(description="Default provider.")] = "local"
    harness: Annotated[str, Meta(description="Default harness.")] = "shell"
    docker_host: Annotated[
        str,
        Meta(
            pattern=r"^(unix:///|tcp://)",
            description="Where the Docker engine of the `docker` provider listens; over `tcp://` without TLS.",
        ),
    ] = "unix:///var/run/docker.sock"
    docker_image: Annotated[
        str, Meta(min_length=1, description="Image of the containers; pulled when the engine does not have it.")
    ] = "debian:bookworm-slim"
    docker_network: Annotated[
        str,
        Meta(min_length=1, description="Network of the containers, as `docker run --network` takes it; `none`: none."),
    ] = "none"
    docker_memory_bytes: Annotated[
        int, Meta(ge=64 << 20, description="Memory of one container, with what the recorder takes (30 MB).")
    ] = 2 << 30
    docker_cpus: Annotated[float, Meta(gt=0, description="CPUs of one container; at most what the engine has.")] = 2.0
    docker_pids: Annotated[int, Meta(ge=16, description="Processes and OS threads of one container.")] = 512
    warm_workers: Annotated[
        int, Meta(ge=0, le=256, description="Idle Ray workers kept ready for run actors (about 43 MB each).")
    ] = 4
    lease_ttl_s: Annotated[
        float, Meta(gt=0, description="A driver that did not renew for this long may be replaced.")
    ] = 3.0
    hang_s: Annotated[
        float, Meta(gt=0, description="A driver whose loop did not move for this long renews nothing.")
    ] = 10.0
    start_ttl_s: Annotated[
        float, Meta(gt=0, description="A run that nobody claimed for this long is started again.")
    ] = 10.0
    heartbeat_s: Annotated[float, Meta(gt=0, description="Silence on a stream after which a comment is sent.")] = 10.0
    disconnect_grace_s: Annotated[
        float, Meta(ge=0, description="Time without a viewer before `onDisconnect: cancel` acts.")
    ] = 15.0
    detached_ttl_s: Annotated[
        int, Meta(ge=0, description="A run nobody came back for ends after this; 0: never while its agent lives.")
    ] = 86400
    run_limit_s: Annotated[int, Meta(ge=0, description="Longest run; 0: none.")] = 0
    idle_limit_s: Annotated[
        int,
        Meta(ge=0, description="Longest silence of an agent, whoever drives it; 0: silence never ends a run."),
    ] = 0
    takeover_attempts: Annotated[
        int, Meta(ge=1, description="Drivers in a row that claimed and stored nothing before `takeover_exhausted`.")
    ] = 8
    reap_interval_s: Annotated[
        float, Meta(gt=0, description="How often the reaper looks: at runs nobody came back for, and at leftovers.")
    ] = 15.0
    log_retention_s: Annotated[
        int,
        Meta(
            ge=0,
            description="How long the log of an ended run is kept; 0: for ever. Its transcript, within bounds, stays.",
        ),
    ] = 30 * 86400
    transcript_retention_s: Annotated[
        int,
        Meta(
            ge=0,
            description="How long the transcript of an ended run is kept, no shorter than its log; 0: for ever.",
        ),
    ] = 0
    keep_alive_s: Annotated[
        int,
        Meta(ge=0, description="How long a completed run's sandbox is kept if it asked for that; 0: of none."),
    ] = 3600
    sandbox_return_s: Annotated[int, Meta(ge=0, description="How long an unreachable sandbox is waited for.")] = 120
    max_runs: Annotated[
        int,
        Meta(
            ge=0,
            description="Runs active at once; beyond it 429. 0: as memory allows, of several nodes all but one.",
        ),
    ] = 0
    owner_max_runs: Annotated[
        int, Meta(ge=0, description="Runs of one owner active at once; 0: no bound of its own.")
    ] = 0
    owner_max_bytes: Annotated[
        int,
        Meta(ge=0, description="Bytes that one owner's logs may hold for a run to begin; beyond it 429. 0: no bound."),
    ] = 0
    max_body_bytes: Annotated[int, Meta(ge=1024, description="Largest request body.")] = 8 << 20
    body_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Longest time that a request body may take to come, and a second more for each 64 KiB that "
            "came; beyond it 408.",
        ),
    ] = 30.0
    max_line_bytes: Annotated[int, Meta(ge=1024, description="Longest journal line that is translated.")] = 64 << 20
    max_log_bytes: Annotated[int, Meta(ge=65536, description="Largest log, and largest journal, of one run.")] = 1 << 30
    max_viewers: Annotated[
        int, Meta(ge=1, description="Streams open at once per replica; beyond it 429 for a start.")
    ] = 2000
    owner_max_viewers: Annotated[
        int,
        Meta(
            ge=0, description="Streams of one owner open at once per replica; beyond it 429 for a start. 0: no bound."
        ),
    ] = 0
    allowed_origins: Annotated[
        str, Meta(description="Origins of pages that may call; same-origin is always allowed.")
    ] = ""
    allowed_hosts: Annotated[str, Meta(description="`Host` names accepted beside loopback names and HOST.")] = ""
    tokens_file: Annotated[
        str,
        Meta(description="Hashes of bearer tokens and whose they are; empty: no tokens, and only loopback HOSTs."),
    ] = ""
    session_ttl_s: Annotated[
        int, Meta(ge=60, le=31_536_000, description="How long a cookie of `POST /api/session` is taken.")
    ] = 43200
    agent_env: Annotated[
        str, Meta(description="Names of environment variables an agent may have, besides PATH, HOME, LANG, TERM.")
    ] = ""
    agent_home: Annotated[
        str,
        Meta(
            pattern="^(thread|user)$",
            description="HOME of agents: `thread`, a folder of its thread's own; `user`, the HOME of `outlast serve`.",
        ),
    ] = "thread"
    workspace_sources: Annotated[
        str,
        Meta(description="Folders, files and beginnings of git URLs that a new workspace may begin with; empty: none."),
    ] = ""
    workspace_max_bytes: Annotated[
        int,
        Meta(ge=1024, description="Largest workspace, and largest changed text of a diff, that is sent as a result."),
    ] = 1 << 30
    file_events: Annotated[
        str,
        Meta(
            pattern="^(off|files|diff)$",
            description="What logs tell of files that agents change: `off`, `files`, or `diff` too, the whole one "
            "at the end included; a run may say.",
        ),
    ] = "off"
    harnesses: Annotated[str, Meta(description="More harnesses: `name=module:attribute,...`.")] = ""
    providers: Annotated[str, Meta(description="More sandbox providers: `name=module:attribute,...`.")] = ""
    tools: Annotated[str, Meta(description="Functions that agents may call: `name=module:attribute,...`.")] = ""
    tool_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest call of such a function; one that says so has a time of its own.")
    ] = 600.0
    hooks: Annotated[
        str, Meta(description="Classes of hooks, called when something happens to a run: `module:attribute,...`.")
    ] = ""
    webhooks_file: Annotated[
        str, Meta(description="Where the ends of runs are posted, and the secrets that sign them; empty: nowhere.")
    ] = ""
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$", description="One of the four.")] = "info"

    def __repr__(self) -> str:
        """Return the settings that are not the defaults, without the password in a store's URL."""
        shown = {
            field.name: value
            for field in msgspec.structs.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        if "store" in shown:
            shown["store"] = f"{str(shown['store']).partition(':')[0]}:..."
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def tokens_path(self) -> Path | None:
        """Return TOKENS_FILE as an absolute path; None without one."""
        return Path(self.tokens_file).expanduser().absolute() if self.tokens_file else None

    @property
    def tells(self) -> bool:
        """Return whether somebody is to be told of the ends of runs."""
        return bool(self.hooks or self.webhooks_file)

    @property
    def webhooks_path(self) -> Path | None:
        """Return WEBHOOKS_FILE as an absolute path; None without one."""
        return Path(self.webhooks_file).expanduser().absolute() if self.webhooks_file else None

    @property
    def data_path(self) -> Path:
        """Return DATA_DIR as an absolute path."""
        return Path(self.data_dir).expanduser().resolve()

    def listed(self, name: str) -> list[str]:
        """Return a comma-separated setting as a list without blanks."""
        return [item.strip() for item in str(getattr(self, name)).split(",") if item.strip()]


def load(env: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Return the settings of `env` (the process's own by default); `overrides` win, and None overrides nothing.

    Raises InputInvalid `setting_invalid` for an unknown name or a value out of range."""
    env = os.environ if env is None else env
    known = set(Settings.__struct_fields__)
    values: dict[str, object] = {}
    for name, text in env.items():
        if not name.startswith(PREFIX) or name in FOREIGN:
            continue
        field = name.removeprefix(PREFIX).lower()
        if field not in known:
            raise _unknown(name, known)
        values[field] = text
    values.update({name: value for name, value in overrides.items() if value is not None})
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("$.")[2].rstrip("`")
        raise InputInvalid(f"{PREFIX}{field.upper()}: {error}", code="setting_invalid", field=field) from None
    Retention(settings.log_retention_s, settings.transcript_retention_s)
    return settings


def _unknown(name: str, known: set[str]) -> InputInvalid:
    names = [PREFIX + field.upper() for field in sorted(known)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]}?" if near else " docs/settings.md lists them all."
    return InputInvalid(f"{name} is not a setting.{hint}", code="setting_unknown", field=name)
