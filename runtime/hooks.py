"""Hooks: Python of yours that is called when something happens to a run (docs/hooks.md).

    class Shop(Hooks):
        async def finish(self, run: RunFacts) -> None:
            await orders.done(run.thread_id, run.usage)

    OUTLAST_HOOKS=shop.hooks:Shop

They are called in a process that does nothing else, after what they tell of is stored: whatever a hook does or leaves
undone, no run waits for it. `finish`, `error` and `cancel` come from the store, at least once for each run; the others
at most once.

Deliberately not: prompts, outputs and messages among the facts. A hook that needs them asks for them by the run's id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from runtime.core.ids import shown_run_id
from runtime.core.record import Head, OnDisconnect, RunSpec, Status, Struct
from runtime.errors import InputInvalid

SETTING = "hooks"
TIMEOUT_S = 10.0
# Which hook tells of an end with this status.
ENDINGS = {Status.COMPLETED: "finish", Status.FAILED: "error", Status.ABORTED: "cancel"}
NAMES = ("start", "attach", "detach", "chunk", "finish", "error", "cancel")


class RunFacts(Struct, frozen=True, kw_only=True):
    """What is told of a run: as it was when that happened which a hook is called for. Times are UTC ms."""

    run_id: str
    thread_id: str
    owner: str
    status: str
    code: str | None  # of an end that was no success
    harness: str
    provider: str
    created_at: int
    started_at: int | None
    finished_at: int | None
    exit_code: int | None
    signal: int | None
    usage: dict[str, Any] | None
    epoch: int  # of the driver; above 1: the run has been taken over
    chunks: int
    detachable: bool  # it goes on when nobody watches; False: it was started with `onDisconnect: cancel`
    detached: bool  # nobody watches it

    @classmethod
    def of(cls, head: Head, spec: RunSpec) -> RunFacts:
        """Return the facts of a record."""
        code = head.error.code if head.error is not None else None
        return cls(
            run_id=shown_run_id(head.run_id),
            thread_id=head.thread_id,
            owner=head.owner,
            status=head.status.value,
            code=code,
            harness=spec.harness,
            provider=spec.provider,
            created_at=head.created_at,
            started_at=head.started_at,
            finished_at=head.finished_at,
            exit_code=head.exit_code,
            signal=head.signal,
            usage=head.usage,
            epoch=head.driver_epoch,
            chunks=head.next_seq,
            detachable=spec.on_disconnect is OnDisconnect.DETACH,
            detached=head.detached_since is not None,
        )

    def to_wire(self) -> dict[str, Any]:
        """Return the facts as JSON-ready values."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire


class Hooks:
    """Override what you want to hear of, as a function or an async one. Each call has TIMEOUT_S.

    Made once; its calls come from several OS threads, those of one run in order."""

    def start(self, run: RunFacts) -> Awaitable[None] | None:
        """The first driver has claimed the run; a takeover is no second start."""

    def attach(self, run: RunFacts) -> Awaitable[None] | None:
        """Somebody watches the run, which nobody did before: also the first one at all."""

    def detach(self, run: RunFacts) -> Awaitable[None] | None:
        """The last viewer has gone. `run.detachable` says whether the run goes on all the same."""

    def chunk(self, run: RunFacts, offset: str, event: dict[str, Any]) -> Awaitable[None] | None:
        """A chunk was stored; a client that was given `offset` goes on after it."""

    def finish(self, run: RunFacts) -> Awaitable[None] | None:
        """The run is completed."""

    def error(self, run: RunFacts) -> Awaitable[None] | None:
        """The run has failed; `run.code` says how."""

    def cancel(self, run: RunFacts) -> Awaitable[None] | None:
        """The run was stopped: by somebody, by a limit of its own, or because nobody came back (`run.code`)."""


class HookSet:
    """One object of the setting, and which of its hooks say anything."""

    def __init__(self, path: str, found: object) -> None:
        """`found` is an instance of Hooks, or a class of it. Raises InputInvalid `setting_invalid` for anything else,
        and whatever the class raises."""
        hooks = found() if isinstance(found, type) and issubclass(found, Hooks) else found
        if not isinstance(hooks, Hooks):
            raise _refused(path, "is neither a class derived from runtime.hooks.Hooks nor an instance of one")
        self.path = path
        self._calls = {name: getattr(hooks, name) for name in NAMES if _overridden(hooks, name)}
        if not self._calls:
            raise _refused(path, f"overrides none of {', '.join(NAMES)}")

    @property
    def names(self) -> frozenset[str]:
        """Return the hooks that it overrides."""
        return frozenset(self._calls)

    def call(self, name: str) -> Callable[..., object] | None:
        """Return what is to be called, or None."""
        return self._calls.get(name)


def _overridden(hooks: Hooks, name: str) -> bool:
    return getattr(type(hooks), name) is not getattr(Hooks, name)


def _refused(path: str, why: str) -> InputInvalid:
    return InputInvalid(f"OUTLAST_HOOKS: {path!r} {why}.", code="setting_invalid", field=SETTING)
