"""What nobody comes back for is ended, and told of once; whoever came back wins (P20, P22).

The contract's scenarios 12.3 (16 to 24), 12.4 (25 to 30), 12.16 (199 to 216) and 12.17 (217 to 238), by the test that
holds each; `returning` is `test_returning.py`, `kit` the store kit's `ReapCases`.

    16, 17, 199       returning: test_a_sandbox_whose_driver_died_before_its_destroy_is_destroyed_once
    18, 200, 201, 203 returning: test_no_sandbox_of_a_run_that_is_not_over_or_not_known_is_an_orphan
    22, 224           test_a_detached_run_that_ended_by_itself_is_told_of_once
    23, 222           test_a_run_that_goes_on_is_not_touched
    25 to 30          test_a_record_has_every_field_of_a_reaped_run, and the kit's and `IntentCases`
    202               returning: test_a_sandbox_is_kept_while_the_store_does_not_say_whose_it_is
    210               returning: test_a_destroy_that_is_pending_is_not_done_twice
    211               returning: test_one_turn_destroys_so_many_orphans_and_the_next_goes_on
    212, 213          returning: test_a_host_that_does_not_answer_is_asked_once_and_holds_up_no_other
    219               kit: test_a_run_expires_when_its_own_ttl_is_over_and_not_before (the moment itself counts)
    221, 228          test_a_shard_that_does_not_say_holds_up_no_other
    223, 233          test_what_cannot_be_asked_is_unknown
    226               test_the_cancel_is_recorded_before_anything_is_done
    227, 234          test_a_run_that_does_not_end_in_time_is_left_and_told_of_later
    229               test_a_run_that_somebody_cancelled_is_left_alone
    230               test_a_viewer_between_the_list_and_the_decision_wins
    232               kit: test_only_the_newest_supervisor_reaps
    235               test_a_sandbox_that_is_not_given_back_is_told_as_that, and the one after it
    237, 238          returning: test_a_destroy_that_fails_stays_pending and the one after it

Without a place here: 19 to 21, 204 to 209 and 216 (ages of journals: what no store knows is kept, however old), 24 and
215 (no shell: `tests/unit/core/test_names.py`), 217, 218, 220, 225, 231, 236 (a reaper that probes, claims and drives).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from unit.engine.stage import RUN, claim, create, finish, spec
from unit.engine.yard import TTL_S, Yard, told

from runtime.core.ops import Attach, Note, Op, RequestCancel
from runtime.core.reap_ops import Expire, ReapStage
from runtime.core.record import CancelReason, Limits, Reaped, Status, to_wire
from runtime.engine import reaping
from runtime.engine.pruning import Pruner
from runtime.engine.reaping import Reaper, ReapOutcome
from runtime.errors import StoreUnavailable
from runtime.ports import ShardPort
from runtime.testing.sim_loop import elapse, play


def test_a_run_that_goes_on_is_not_touched() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(10.0)
        before, commits = yard.acts.stage.head(), len(yard.acts.stage.commits)
        report = await yard.reaper.sweep()
        assert told(report) == [(RUN, "producing", None)]
        assert (report.considered, report.outcomes["producing"]) == (1, 1)
        assert yard.acts.stage.head() == before
        assert len(yard.acts.stage.commits) == commits
        assert not yard.reaper.counts
        await yard.close()

    play(1, acts())


def test_a_run_that_nobody_came_back_for_is_ended_by_its_driver() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(TTL_S + 0.1)
        sweeping = asyncio.create_task(yard.reaper.sweep())
        await elapse(2.0)
        assert yard.acts.fleet.made[-1].cancelled >= 1
        assert yard.acts.stage.head().cancel_reason is CancelReason.DETACHED_EXPIRED
        since = yard.acts.stage.head().detached_since
        await yard.end(Status.ABORTED)
        assert told(await sweeping) == [(RUN, "expired", "aborted")]
        assert yard.acts.stage.head().reaped is Reaped.EXPIRED
        assert yard.acts.stage.head().detached_since == since is not None
        assert len(yard.acts.fleet.made) == 1
        assert told(await yard.reaper.sweep()) == []
        assert yard.reaper.counts == {"expired": 1}
        await yard.close()

    play(1, acts())


def test_without_an_answering_driver_one_is_made_to_end_it() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        yard.acts.fleet.made[-1].receipt = False
        await elapse(TTL_S + 0.1)
        sweeping = asyncio.create_task(yard.reaper.sweep())
        await elapse(5.0)
        assert yard.acts.made == [(0, "start"), (1, "reap")]
        await yard.acts.shard.submit(claim(1, "2"))
        await yard.end(Status.ABORTED)
        assert told(await sweeping) == [(RUN, "expired", "aborted")]
        await yard.close()

    play(1, acts())


def test_the_cancel_is_recorded_before_anything_is_done() -> None:
    """A supervisor that dies right after the record: the shard has another one finish what was begun."""

    async def acts() -> None:
        yard = await Yard.open()
        await elapse(TTL_S + 0.1)
        await yard.acts.shard.submit(Expire(run_id=RUN, supervisor_epoch=yard.acts.supervisor.epoch))
        assert yard.acts.fleet.made[-1].cancelled == 0
        await elapse(3.0)
        assert yard.acts.fleet.made[-1].cancelled >= 1
        await yard.close()

    play(1, acts())


def test_a_viewer_between_the_list_and_the_decision_wins() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(TTL_S + 0.1)

        class Late:
            """A shard whose list is answered, and then somebody comes."""

            def __getattr__(self, name: str) -> Any:
                return getattr(yard.acts.shard, name)

            async def reapable(self, *args: Any) -> Any:
                found = await yard.acts.shard.reapable(*args)
                await yard.acts.shard.attach(RUN, "another", 1)
                return found

        report = await yard.another(Late()).sweep()
        assert told(report) == [(RUN, "not-claimed", None)]
        assert not yard.acts.stage.head().cancel_requested
        assert yard.acts.stage.head().detached_since is None
        await yard.close()

    play(1, acts())


def test_a_viewer_in_the_moment_of_the_decision_wins() -> None:
    """Who comes while a transaction runs is among the viewers before the next one, although the record is not yet."""

    async def acts() -> bool:
        yard = await Yard.open(slow_s=0.5)
        await elapse(TTL_S + 0.1)
        commits = yard.acts.stage.commits
        done = len(commits)
        busy = asyncio.create_task(yard.acts.shard.submit(claim(7, "nobody")))
        while len(commits) == done:
            await elapse(0.001)
        expire = Expire(run_id=RUN, supervisor_epoch=yard.acts.supervisor.epoch)
        expiring = asyncio.create_task(yard.acts.shard.submit(expire))
        await elapse(0.001)
        attaching = asyncio.create_task(yard.acts.shard.attach(RUN, "another", 1))
        await elapse(0.001)
        met = not busy.done()
        await asyncio.gather(busy, expiring, attaching)
        if not met:
            return False
        assert not yard.acts.stage.head().cancel_requested
        assert yard.acts.stage.head().detached_since is None
        await yard.close()
        return True

    assert any(play(seed, acts()) for seed in range(1, 20))


def test_a_shard_that_has_just_started_expires_nobody() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(TTL_S + 0.1)
        anew = await yard.acts.stage.open()
        reaper = yard.another(anew)
        assert told(await reaper.sweep()) == [(RUN, "not-claimed", None)]
        await anew.set_viewers("replica", 1 << 40, {})
        assert told(await reaper.sweep()) == [(RUN, "not-claimed", None)]
        assert not yard.acts.stage.head().cancel_requested
        yard.replica.cancel()
        for number in range(6):
            await elapse(1.0)
            await anew.set_viewers("replica", (1 << 40) + number + 1, {})
        await anew.submit(Expire(run_id=RUN, supervisor_epoch=yard.acts.supervisor.epoch))
        assert yard.acts.stage.head().cancel_requested
        await yard.close()

    play(1, acts())


def test_a_run_without_a_ttl_is_never_ended() -> None:
    async def acts() -> None:
        yard = await Yard.open(None)
        await elapse(500.0)
        assert told(await yard.reaper.sweep()) == []
        await yard.close()

    play(1, acts())


def test_a_detached_run_that_ended_by_itself_is_told_of_once() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(10.0)
        await yard.end()
        since = yard.acts.stage.head().detached_since
        dry = await yard.reaper.sweep(dry_run=True)
        assert told(dry) == [(RUN, "finalized", "completed")]
        assert yard.acts.stage.head().reaped is None
        assert told(await yard.reaper.sweep()) == [(RUN, "finalized", "completed")]
        assert (yard.acts.stage.head().reaped, yard.acts.stage.head().detached_since) == (Reaped.FINALIZED, since)
        assert told(await yard.reaper.sweep()) == []
        await yard.close()

    play(1, acts())


def test_a_run_that_ended_while_somebody_watched_is_nothing_to_tell() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await yard.acts.shard.submit(Attach(run_id=RUN))
        await yard.end()
        assert told(await yard.reaper.sweep()) == []
        await yard.close()

    play(1, acts())


def test_a_sandbox_that_is_kept_keeps_nothing_from_being_told() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(10.0)
        await yard.end(keep_s=3600)
        assert told(await yard.reaper.sweep()) == [(RUN, "finalized", "completed")]
        assert yard.acts.stage.head().reaped is Reaped.FINALIZED
        await elapse(61.0)
        assert told(await yard.reaper.sweep()) == []
        assert yard.acts.stage.head().sandbox_kept_until is not None
        await yard.close()

    play(1, acts())


def test_a_sandbox_that_is_not_given_back_is_told_as_that() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(10.0)
        await yard.end(given_back=False)
        assert told(await yard.reaper.sweep()) == []  # its driver may be at it
        await elapse(61.0)
        assert told(await yard.reaper.sweep()) == [(RUN, "reclaim-failed", "completed")]
        await yard.acts.shard.submit(Note(run_id=RUN, epoch=1, destroy_pending=False))
        assert told(await yard.reaper.sweep()) == [(RUN, "finalized", "completed")]
        await yard.close()

    play(1, acts())


def test_a_run_behind_ones_whose_sandboxes_are_not_given_back_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "MAX_RUNS", 1)

    async def acts() -> None:
        yard = await Yard.open()
        await yard.end(given_back=False)
        shard = yard.acts.shard
        await shard.submit(create("run-2", "thread-2"))
        await shard.submit(claim(0, "another", "run-2"))
        await shard.submit(finish(yard.acts.stage.head("run-2").next_seq, run_id="run-2"))
        await shard.submit(Note(run_id="run-2", epoch=1, destroy_pending=False))
        await elapse(61.0)
        report = await yard.reaper.sweep()
        assert sorted(told(report)) == [(RUN, "reclaim-failed", "completed"), ("run-2", "finalized", "completed")]
        assert told(await yard.reaper.sweep()) == [(RUN, "reclaim-failed", "completed")]
        await yard.close()

    play(1, acts())


def test_sandboxes_that_a_shard_does_not_list_hold_up_no_run() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(10.0)
        await yard.end()

        class Mute:
            """A shard that does not say what is pending."""

            def __getattr__(self, name: str) -> Any:
                return getattr(yard.acts.shard, name)

            async def destroy_pending(self) -> Any:
                raise StoreUnavailable("not now")

        report = await yard.another(Mute()).sweep()
        assert told(report) == [(RUN, "finalized", "completed")]
        assert len(report.failures) == 1
        await yard.close()

    play(1, acts())


def test_a_run_that_does_not_end_in_time_is_left_and_told_of_later() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(TTL_S + 0.1)
        assert told(await yard.reaper.sweep(budget_s=3.0)) == [(RUN, "budget-exceeded", None)]
        assert told(await yard.reaper.sweep()) == []
        await yard.end(Status.ABORTED)
        assert told(await yard.reaper.sweep()) == [(RUN, "expired", "aborted")]
        await yard.close()

    play(1, acts())


def test_a_run_that_somebody_cancelled_is_left_alone() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(TTL_S + 0.1)
        await yard.acts.shard.submit(RequestCancel(run_id=RUN, reason=CancelReason.USER))
        assert told(await yard.reaper.sweep()) == []
        assert yard.acts.stage.head().cancel_reason is CancelReason.USER
        await yard.close()

    play(1, acts())


def test_what_cannot_be_asked_is_unknown() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(TTL_S + 0.1)

        class Deaf:
            """A shard that lists, and hears of nothing."""

            async def reapable(self, stage: ReapStage, before_ms: int, limit: int) -> Any:
                return await yard.acts.shard.reapable(stage, before_ms, limit)

            async def destroy_pending(self) -> Any:
                return await yard.acts.shard.destroy_pending()

            async def submit(self, op: Op) -> Any:
                raise RuntimeError(f"a bug with {op}")

        class Silent(Deaf):
            async def submit(self, op: Op) -> Any:
                raise StoreUnavailable(f"it does not answer to {op}")

        failed = await yard.another(Deaf()).sweep()
        assert [(run.outcome, "a bug" in str(run.error)) for run in failed.runs] == [(ReapOutcome.FAILED, True)]
        silent = await yard.another(Silent()).sweep(budget_s=1.0)
        assert [run.outcome for run in silent.runs] == [ReapOutcome.UNKNOWN]
        await yard.close()

    play(1, acts())


def test_a_shard_that_does_not_say_holds_up_no_other() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        await elapse(10.0)

        class Hung:
            async def reapable(self, *_args: Any) -> Any:
                await elapse(3600.0)

        both = {0: cast("ShardPort", yard.acts.shard), 1: cast("ShardPort", Hung())}
        supervisor, clock = yard.acts.supervisor, yard.acts.stage.loop
        pruner = Pruner(supervisor, both, clock, yard.retention)
        reaper = Reaper(supervisor, both, lambda _run_id: both[0], clock, yard.orphans, pruner)
        begun = yard.acts.stage.loop.time()
        report = await reaper.sweep()
        assert yard.acts.stage.loop.time() - begun < 10.0
        assert told(report) == [(RUN, "producing", None)]
        assert [failure.partition(" ")[0] for failure in report.failures] == ["log:1"] * 2  # nor what is to be pruned
        await yard.close()

    play(1, acts())


def test_a_record_has_every_field_of_a_reaped_run() -> None:
    async def acts() -> None:
        yard = await Yard.open()
        record = to_wire(yard.acts.stage.head(), spec(Limits(detached_ttl_s=TTL_S)), claims=False)
        names = ("cancelRequested", "detachedSince", "sandboxKey", "driverEpoch", "reaped")
        assert [record[name] for name in names] == [False, yard.acts.stage.head().created_at, None, 1, None]
        await yard.close()

    play(1, acts())
