"""Give back what ended runs still hold: sandboxes whose destroy failed, or whose driver died before it (P19).

A finish says on the record that a destroy is pending; whoever destroys takes it back. The record is terminal by then,
so nobody can claim it any more: the note is made under its last epoch, and says only what the sandbox's own host has
just proven. Destroying twice is harmless, so a driver that is still at it does not have to be asked.

A sandbox that its run asked to keep is pending too, and passed over until its time (P19). It holds the thread's
workspace, so it is kept only while no run of the thread is under way: whoever makes the next one's driver ends the
keeping before that (`end_keeping`), and a turn ends what that missed.

And one that nobody remembers: a driver that stood still just before its `create`, and went on after its run had ended,
makes a sandbox that no record tells of. It holds the thread's workspace, so the thread's next run would wait for it in
vain (P18). `Orphans` asks each provider what there is, on every host, and the store whose that is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from runtime.core.names import Flaw, decode_name
from runtime.core.ops import Done, Note
from runtime.core.record import Head, Launch
from runtime.engine.authority import repeat
from runtime.engine.plugins import pick
from runtime.engine.preparing import CREATE_DEADLINE_S
from runtime.errors import AgentError, OutlastError, SandboxUnreachable, StoreError
from runtime.ports import Clock, SandboxProvider, ShardPort

log = logging.getLogger("outlast.supervisor")

MAX_ENDED = 200  # orphans of one turn
DESTROY_S = 45.0  # above what a provider and the way to its host give themselves
END_KEPT_S = 10.0  # for the destroy of a kept sandbox that a new run waits for; the next turn goes on with it


async def give_back(shards: Iterable[ShardPort], providers: Mapping[str, SandboxProvider], clock: Clock) -> int:
    """Destroy every sandbox that is pending; return how many are gone now. What fails is tried the next time.

    Hosts hold one another up by nothing, a run those of its host by DESTROY_S at most: one that was not reached is not
    asked again in this turn."""
    listed = await asyncio.gather(*(_pending(shard, clock.wall_ms()) for shard in shards))
    places: dict[str, list[tuple[ShardPort, Head]]] = {}
    for shard, head in (one for found in listed for one in found):
        places.setdefault((head.sandbox_key or "").rpartition("/")[0], []).append((shard, head))
    return sum(await asyncio.gather(*(_give_back_all(there, providers, clock) for there in places.values())))


async def end_keeping(shard: ShardPort, provider: SandboxProvider, head: Head) -> None:
    """Destroy the sandbox that the ended run of `head` keeps, since its thread goes on (P18).

    That it is kept no longer is stored first: what cannot be destroyed now is pending as after any other run."""
    log.info("run %s: its sandbox is not kept any more: its thread goes on", head.run_id)
    note = Note(run_id=head.run_id, epoch=head.driver_epoch, destroy_pending=True)
    outcome = await repeat(lambda: shard.submit(note))
    if not isinstance(outcome, Done) or not outcome.changed or head.sandbox_key is None:
        return
    try:
        async with asyncio.timeout(END_KEPT_S):
            await provider.destroy(head.sandbox_key)
    except Exception as error:  # noqa: BLE001 - a plugin's trouble, too, is met again by the next turn
        log.warning("run %s: its sandbox could not be destroyed yet: %r", head.run_id, error)
        return
    await repeat(lambda: shard.submit(Note(run_id=head.run_id, epoch=head.driver_epoch, destroy_pending=False)))


async def _is_kept(shard: ShardPort, head: Head, now_ms: int) -> bool:
    if head.sandbox_kept_until is None or head.sandbox_kept_until <= now_ms:
        return False
    return await shard.find_active(head.owner, head.thread_id) is None


async def _pending(shard: ShardPort, now_ms: int) -> list[tuple[ShardPort, Head]]:
    try:
        async with asyncio.timeout(DESTROY_S):
            found = await shard.destroy_pending()
            return [(shard, head) for head in found if not await _is_kept(shard, head, now_ms)]
    except (OutlastError, TimeoutError) as error:
        log.debug("a shard does not answer: %r", error)
        return []


async def _give_back_all(
    there: Iterable[tuple[ShardPort, Head]], providers: Mapping[str, SandboxProvider], clock: Clock
) -> int:
    gone = 0
    for shard, head in there:
        try:
            async with asyncio.timeout(DESTROY_S):
                gone += await _give_back(shard, providers, head, clock.wall_ms())
        except (SandboxUnreachable, TimeoutError) as error:
            log.warning("run %s: its sandbox, and what else is on its host: not destroyed yet: %r", head.run_id, error)
            break
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


class Kept(StrEnum):
    """Why a sandbox that is no run's known one was left; the names are those of the contract's table 7.7."""

    UNDECODABLE_NAME = "undecodable-name"
    UNKNOWN_RUN = "unknown-run"
    STORE_ERROR = "store-error"
    NON_TERMINAL = "non-terminal"
    MAX_DELETES = "max-deletes"
    DELETE_FAILED = "delete-failed"


class Orphans:
    """Ends sandboxes of our own deployment whose run the store says has ended and given everything back, or names
    another sandbox, which is there beside this one (P22).

    Deliberately not: an age. An ended run is ended for ever (I5), and a key that is on a record stays there; so nothing
    may be made under the orphan's key any more, and whoever waits for the workspace would wait for that age. What the
    store does not know, or does not answer about, is kept and reported once; so is a sandbox whose run names one that
    is not seen, since a provider that calls one thing by two names must lose nothing by it. What is kept is in `kept`,
    with why; a journal is a part of its sandbox, so that no other sweep looks for journals."""

    def __init__(self, shard_of: Callable[[str], ShardPort], providers: Mapping[str, SandboxProvider]) -> None:
        self._shard_of = shard_of
        self._providers = providers
        self._reported: set[str] = set()
        self.kept: dict[str, Kept] = {}  # as of the newest turn, sandboxes that are somebody's excepted
        self.ended = 0  # since this supervisor began
        self._left = 0

    async def end(self) -> int:
        """Destroy every orphan; return how many there were. What fails is tried the next time.

        Hosts hold one another up by the deadline of one destroy at most: all are dealt with at once, and one that was
        not reached is not asked again in this turn."""
        ended = 0
        self._left = MAX_ENDED
        before, self.kept = self.kept, {}
        for name in self._providers:
            provider = pick(self._providers, name)
            try:
                keys = [] if provider is None else await provider.list()
            except Exception as error:  # noqa: BLE001 - a plugin's trouble is no other provider's
                log.warning("provider %s does not say what there is: %s", name, error)
                self.kept |= before  # of whom nothing was heard, the last word stands
                continue
            if provider is not None:
                hosts = _by_host(provider, keys)
                ended += sum(await asyncio.gather(*(self._end_all(provider, host, set(keys)) for host in hosts)))
        self.ended += ended
        return ended

    async def _end_all(self, provider: SandboxProvider, keys: list[str], there: set[str]) -> int:
        ended = 0
        for key in keys:
            try:
                ended += await self._end(provider, key, there)
            except SandboxUnreachable as error:
                self.kept[key] = Kept.DELETE_FAILED
                log.warning("sandbox %s, and what else is on its host: not looked after: %s", key, error)
                break
            except Exception as error:  # noqa: BLE001 - one run's trouble, a plugin's too, holds up no other run
                self.kept[key] = Kept.STORE_ERROR if isinstance(error, StoreError) else Kept.DELETE_FAILED
                log.warning("sandbox %s: not looked after: %s", key, error)
        return ended

    async def _end(self, provider: SandboxProvider, key: str, there: set[str]) -> bool:
        run_id = decode_name(key.rpartition("/")[2])
        if isinstance(run_id, Flaw) or not await asyncio.to_thread(_names, provider, key, run_id):
            self._report(key, Kept.UNDECODABLE_NAME, "its key does not say whose it is")
            return False
        stored = await self._shard_of(run_id).record(run_id)
        if stored is None:
            self._report(key, Kept.UNKNOWN_RUN, "the store does not know its run")
            return False
        head = stored[0]
        ours = head.sandbox_key in (None, key)
        if not head.status.terminal and not ours and head.sandbox_key not in there:
            self._report(key, Kept.NON_TERMINAL, f"its run is on {head.sandbox_key}, which is not seen")
            return False
        if head.destroy_pending if head.status.terminal else ours:
            return False  # `give_back`'s, or somebody's
        if self._left <= 0:
            self._report(key, Kept.MAX_DELETES, "enough was destroyed in this turn")
            return False
        self._left -= 1
        await provider.destroy(key)
        why = "it was made after its run had ended" if head.status.terminal else f"its run is on {head.sandbox_key}"
        log.warning("sandbox %s: %s, and is destroyed", key, why)
        return True

    def _report(self, key: str, kept: Kept, why: str) -> None:
        self.kept[key] = kept
        if key not in self._reported:
            self._reported.add(key)
            log.warning("sandbox %s is kept: %s", key, why)


def _by_host(provider: SandboxProvider, keys: Iterable[str]) -> list[list[str]]:
    """Return the keys, those of one host together."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(provider.host(key) if provider.capabilities.one_host else "", []).append(key)
    return [*found.values()]


def _names(provider: SandboxProvider, key: str, run_id: str) -> bool:
    """Return whether `key` is that of the run's sandbox, here or, if it begins with its host, on another one.

    May ask an engine, and block. Where the provider makes nothing here there is no key to compare with: the key's own
    host has told it, and tells only what is this deployment's."""
    try:
        here = provider.key(run_id)
    except AgentError:
        return provider.capabilities.one_host
    if key == here:
        return True
    if not provider.capabilities.one_host:
        return False
    its_host, our_host = provider.host(key), provider.host(here)
    return key.startswith(its_host) and here.startswith(our_host) and key[len(its_host) :] == here[len(our_host) :]
