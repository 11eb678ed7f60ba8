"""From what somebody asks to the operation that creates the run: one way for HTTP and for Python.

What a run is gets fixed here, once (`RunSpec`), from the request, the settings and the harness. `digest` decides
whether a repeated request is the same one (I9): it is made of what is stored as the run's input, without the run id,
which is the key and may have come another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime import host_tools
from runtime.core import chunk
from runtime.core.ops import Create
from runtime.core.record import Limits, OnDisconnect, RunSpec, Struct
from runtime.core.workspace import check_allowed, read_file_events, read_source
from runtime.errors import InputInvalid
from runtime.ports import Harness
from runtime.settings import Settings


class Options(Struct, frozen=True, kw_only=True):
    """What `forwardedProps` may say about the run itself; None means as the settings say."""

    harness: str | None = None
    on_disconnect: OnDisconnect | None = None
    on_busy: str | None = None
    detached_ttl_s: int | None = None
    run_limit_s: int | None = None
    keep_alive: bool | None = None
    destroy_on_complete: bool | None = None  # the opposite of `keep_alive`, for who says it so


def create_op(
    run_id: str,
    thread_id: str,
    owner: str,
    stored: Mapping[str, Any],
    options: Options,
    settings: Settings,
    harness: Harness,
) -> Create:
    """Return the operation that creates the run of the key `run_id`. `stored` is its input as it will be kept: no
    secrets in it.

    Raises InputInvalid `option_invalid` for a workspace that begins with what is not allowed, for tools that are not
    declared, for what is no word for file events, and for a sandbox that is to be kept and destroyed."""
    check_allowed(read_source(stored), settings.listed("workspace_sources"))
    host_tools.chosen(stored, [item.partition("=")[0].strip() for item in settings.listed("tools")])
    read_file_events(stored)
    return Create(
        run_id=run_id,
        thread_id=thread_id,
        owner=owner,
        spec=RunSpec(
            harness=harness.name,
            translator_version=harness.translator_version,
            provider=settings.sandbox,
            input=dict(stored),
            on_disconnect=options.on_disconnect or OnDisconnect.DETACH,
            limits=limits(options, settings),
            keep_alive_s=settings.keep_alive_s if keeps(options) else 0,
        ),
        digest=digest(stored),
        on_busy=options.on_busy or "reject",
        max_runs=settings.max_runs,
        owner_max_runs=settings.owner_max_runs,
        owner_max_bytes=settings.owner_max_bytes,
        resumes=bool(stored.get("resume")),
    )


def limits(options: Options, settings: Settings) -> Limits:
    """Return the run's bounds. A `detachedTtlS` of 0 means never, and is stored as None (P22)."""
    ttl_s = settings.detached_ttl_s if options.detached_ttl_s is None else options.detached_ttl_s
    return Limits(
        run_limit_s=settings.run_limit_s if options.run_limit_s is None else options.run_limit_s,
        idle_limit_s=settings.idle_limit_s,
        detached_ttl_s=ttl_s or None,
        max_log_bytes=settings.max_log_bytes,
        max_line_bytes=settings.max_line_bytes,
    )


def keeps(options: Options) -> bool:
    """Return whether the sandbox shall be kept for a time if the run completes (P19). Raises InputInvalid."""
    keep, destroy = options.keep_alive, options.destroy_on_complete
    if keep is not None and keep is destroy:
        raise InputInvalid(
            "keepAlive and destroyOnComplete are opposites: send one of them.",
            code="option_invalid",
            field="forwardedProps.keepAlive",
        )
    return destroy is False if keep is None else keep


def digest(stored: Mapping[str, Any]) -> str:
    """Return the hex SHA-256 of what a request asks for."""
    return chunk.digest(chunk.encode({key: value for key, value in stored.items() if key != "runId"}))


def find_harness(name: str, harnesses: Mapping[str, Harness]) -> Harness:
    """Return the harness. Raises InputInvalid `harness_unknown`, naming those that there are."""
    harness = harnesses.get(name)
    if harness is None:
        raise InputInvalid(
            f"There is no harness {name!r}; there are {', '.join(sorted(harnesses))}.",
            code="harness_unknown",
            field="forwardedProps.harness",
        )
    return harness
