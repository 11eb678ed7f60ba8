"""Outlast's own runs behind the port `RunStore`: for a program that was written against one.

Reading says what is stored. What may be changed is what an outsider may (P3), and goes the way that it always goes:

    cancel_requested   True: the cancel of a person (P21). A recorded one is never taken back
    detached_since     None: somebody came; a time in UTC ms, not before the run's creation: the last viewer left,
                       unless that is known already, or the run has ended. The shard goes on counting viewers by
                       itself (P20), so this is for who reads a log in another way

All other fields are written by the run's driver, under its claim: a patch may repeat what is stored, and is refused for
anything else. Whoever wants to drive a run himself claims it on the shard (`own_log.ClaimedOwnLog`), or keeps a
`RunRecords` of his own beside a log of his own.

Deliberately not here: making a run. A run of ours has a harness and an input, and a driver at once (`POST /api/chat`,
`actors.client.Client.start`); a row without them would be none. `started_at` is the time of that request.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from runtime.core.ids import LOCAL_OWNER, run_key, shown_run_id
from runtime.core.ops import Attach, Detach, RequestCancel
from runtime.core.record import CancelReason, Head
from runtime.delivery.records import RowError, RunPatch, RunRow, reclaimable
from runtime.engine.authority import repeat
from runtime.errors import InputInvalid, OutlastError
from runtime.ports import Cluster


class OwnRunStore:
    """The runs of one owner."""

    def __init__(self, cluster: Cluster, owner: str = LOCAL_OWNER) -> None:
        self._cluster = cluster
        self._owner = owner

    async def create_or_resume(self, run_id: str, thread_id: str, started_at: int) -> RunRow:  # noqa: ARG002 - the port
        """Return the run's row. Raises InputInvalid `run_not_started` for one that is not there; see the module."""
        row = await self.get(run_id)
        if row is None:
            raise InputInvalid(
                f"Run {run_id!r} does not exist. A run of Outlast begins with POST /api/chat or Client.start, which "
                "say what it is to do.",
                code="run_not_started",
                field="runId",
            )
        return row

    async def get(self, run_id: str) -> RunRow | None:
        """Return the row, or None."""
        head = await self._head(run_id)
        return None if head is None else to_row(head)

    async def update(self, run_id: str, patch: RunPatch) -> bool:
        """Change what an outsider may; see the module. False for an unknown run.

        Raises InputInvalid `run_field_refused`, having changed nothing."""
        head = await self._head(run_id)
        if head is None:
            return False
        for op in _ops(head, to_row(head), patch):
            await self._submit(op)
        return True

    async def find_active(self, thread_id: str) -> RunRow | None:
        """Return the thread's active run: there is one at most."""
        head = await repeat(lambda: self._cluster.shards()[0].find_active(self._owner, thread_id))
        return None if head is None else to_row(head)

    async def list_by_thread(self, thread_id: str) -> list[RunRow]:
        """Return the thread's runs, oldest first."""
        runs = await repeat(lambda: self._cluster.shards()[0].list_thread(self._owner, thread_id))
        return [to_row(head) for head, _ in runs]

    async def list_reclaimable(self, now: int, ttl_ms: int) -> list[RunRow]:
        """Return the `running` runs that have been detached for so long. Outlast's own reaper goes by each run's own
        TTL instead (P22), and needs nobody to call this."""
        found = await asyncio.gather(*(repeat(shard.unfinished) for shard in self._cluster.shards()))
        mine = [to_row(head) for heads in found for head in heads if head.owner == self._owner]
        return reclaimable(mine, now, ttl_ms)

    async def _head(self, run_id: str) -> Head | None:
        key = run_key(self._owner, run_id)
        stored = await repeat(lambda: self._cluster.shard(key).record(key))
        return stored[0] if stored is not None and stored[0].owner == self._owner else None

    async def _submit(self, op: RequestCancel | Attach | Detach) -> None:
        await repeat(lambda: self._cluster.shard(op.run_id).submit(op))
        if isinstance(op, RequestCancel):
            with suppress(OutlastError):  # what the supervisor does not hear, it finds (I7)
                await self._cluster.supervisor().cancel(op.run_id)


def to_row(head: Head) -> RunRow:
    """Return a run of ours as the contract's row; a cancel that nobody asked for is: not set."""
    return RunRow(
        run_id=shown_run_id(head.run_id),
        thread_id=head.thread_id,
        started_at=head.created_at,
        status=head.status,
        finished_at=head.finished_at,
        error=None if head.error is None else RowError(message=head.error.message, code=head.error.code),
        usage=head.usage,
        sandbox_key=head.sandbox_key,
        detached_since=head.detached_since,
        cancel_requested=head.cancel_requested or None,
        driver_epoch=head.driver_epoch,
        claimant=head.claims[-1].claimant.claimant if head.claims else None,
    )


def _ops(head: Head, row: RunRow, patch: RunPatch) -> list[RequestCancel | Attach | Detach]:
    """Return what `patch` asks for. Raises InputInvalid for what is not an outsider's to change."""
    ops: list[RequestCancel | Attach | Detach] = []
    for name, value in patch.named().items():
        if value == getattr(row, name) or (name == "cancel_requested" and not value and not row.cancel_requested):
            continue
        if name == "cancel_requested" and value:
            ops.append(RequestCancel(run_id=head.run_id, reason=CancelReason.USER))
        elif name == "detached_since" and value is None:
            ops.append(Attach(run_id=head.run_id))
        elif name == "detached_since" and row.detached_since is None:
            ops.append(Detach(run_id=head.run_id, since=_checked_since(head, row, value)))
        else:
            raise InputInvalid(
                f"{name} of run {row.run_id!r} is written by its driver, under its claim. An outsider may request its "
                "cancel, and say that somebody came or that the last viewer left.",
                code="run_field_refused",
                field=name,
            )
    return ops


def _checked_since(head: Head, row: RunRow, since: int) -> int:
    """Return `since`. Raises InputInvalid if it is no time at which somebody can have left: it would expire the run."""
    if since < head.created_at:
        raise InputInvalid(
            f"detached_since {since} of run {row.run_id!r} is before its creation at {head.created_at}. Times are UTC "
            "milliseconds.",
            code="run_field_refused",
            field="detached_since",
        )
    return since
