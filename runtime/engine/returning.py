"""Give back what ended runs still hold: sandboxes whose destroy failed, or whose driver died before it (P19).

A finish says on the record that a destroy is pending; whoever destroys takes it back. The record is terminal by then,
so nobody can claim it any more: the note is made under its last epoch, and says only what the sandbox's own host has
just proven. Destroying twice is harmless, so a driver that is still at it does not have to be asked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from runtime.core.ops import Note
from runtime.core.record import Head, Launch
from runtime.engine.preparing import CREATE_DEADLINE_S
from runtime.errors import OutlastError
from runtime.ports import Clock, SandboxProvider, ShardPort

log = logging.getLogger("outlast.supervisor")


async def give_back(shards: Iterable[ShardPort], providers: Mapping[str, SandboxProvider], clock: Clock) -> int:
    """Destroy every sandbox that is pending; return how many are gone now. What fails is tried the next time."""
    gone = 0
    for shard in shards:
        try:
            pending = await shard.destroy_pending()
        except OutlastError as error:
            log.debug("a shard does not answer: %s", error)
            continue
        for head in pending:
            try:
                gone += await _give_back(shard, providers, head, clock.wall_ms())
            except Exception as error:  # noqa: BLE001 - one run's trouble, a plugin's too, holds up no other run
                log.warning("run %s: its sandbox could not be destroyed yet: %s", head.run_id, error)
    return gone


async def _give_back(shard: ShardPort, providers: Mapping[str, SandboxProvider], head: Head, now_ms: int) -> bool:
    stored = await shard.record(head.run_id)
    if stored is None or not stored[0].destroy_pending:
        return False
    provider = providers.get(stored[1].provider)
    if provider is None:
        log.warning("run %s: there is no provider %r here to destroy its sandbox", head.run_id, stored[1].provider)
        return False
    if head.sandbox_key is not None:
        await provider.destroy(head.sandbox_key)
    if head.launch is Launch.KEYED and now_ms - (head.finished_at or now_ms) < CREATE_DEADLINE_S * 1000:
        return False  # a `create` of a lost driver may still be under way: look again (P21)
    await shard.submit(Note(run_id=head.run_id, epoch=head.driver_epoch, destroy_pending=False))
    return True
