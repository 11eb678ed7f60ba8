"""SIGSTOP of each part past its bound, then SIGCONT: the sleeper changes nothing, and its writes are refused (I1)."""

from __future__ import annotations

import asyncio

import pytest
from instance import Instance
from processes import kill, pause, resume, state, wait_dead
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole

from actors.cluster import RayCluster
from runtime.core.ops import Claimed, ClaimRun
from runtime.core.record import Claimant, ClaimReason
from runtime.errors import StoreUnavailable

pytestmark = pytest.mark.timeout(120)
LINES = 120
PAUSE_AT = 30
TRIALS = 5  # the sleeper's renewal may learn of its end before an append of its does


def test_a_run_actor_that_slept_past_its_lease_changes_nothing(instance: Instance) -> None:
    run = unique("sleeper")
    with Watch(instance, run, numbered(2 * LINES)) as watch:
        watch.until_lines(PAUSE_AT)
        sleeper = instance.driver(run)
        pause(sleeper)
        instance.driver(run, epoch=2)
        watch.until_lines(2 * PAUSE_AT)
        resume(sleeper)  # or Ray has killed it by now
        watch.until_end()
        wait_dead([sleeper])
    check_whole(watch, 2 * LINES)
    assert instance.ended(run)["status"] == "completed"
    assert instance.claims(run) == [(1, "start"), (2, "lease_expired")]


def test_a_superseded_run_actor_that_wakes_up_tries_to_append_and_is_refused(
    instance: Instance, cluster: RayCluster
) -> None:
    run = unique("tries")
    refused = instance.metric("outlast_appends_refused_total")
    with Watch(instance, run, numbered(4 * LINES)) as watch:
        watch.until_lines(PAUSE_AT)
        for _ in range(TRIALS):
            _supersede_while_asleep(instance, cluster, run)
            if instance.metric("outlast_appends_refused_total") > refused:
                break
        watch.until_end(within_s=60)
    check_whole(watch, 4 * LINES)
    assert instance.metric("outlast_appends_refused_total") > refused, "no sleeper tried"
    record = instance.ended(run)
    assert record["status"] == "completed"
    assert "append" in {refusal["tried"] for refusal in record["refusals"]}
    assert next(claim["chunks"] for claim in record["claims"] if claim["claimant"] == "test") == 0


def _supersede_while_asleep(instance: Instance, cluster: RayCluster, run: str) -> None:
    """Stop the driver, take its run away, and let it go on: nobody kills it, so it does whatever it was about to do."""
    epoch = instance.record(run)["driverEpoch"]
    sleeper = instance.driver(run, epoch)
    pause(sleeper)
    claim = ClaimRun(run_id=run, expected_epoch=epoch, claimant=Claimant(claimant="test"), reason=ClaimReason.OPERATOR)
    outcome = asyncio.run(cluster.shard(run).submit(claim))
    assert isinstance(outcome, Claimed)
    assert resume(sleeper), "somebody killed it"
    instance.driver(run, epoch + 2)  # the supervisor learns of the refusal and makes another


def test_a_shard_that_slept_past_its_bound_is_replaced_and_no_chunk_is_lost(instance: Instance) -> None:
    run = unique("shard-sleeps")
    with Watch(instance, run, numbered(LINES)) as watch:
        watch.until_lines(PAUSE_AT)
        sleeper = instance.the_process("ray::LogShard")
        pause(sleeper)
        wait_until(
            lambda: [who for who in instance.processes("ray::LogShard") if who != sleeper], "another shard", 30.0
        )
        resume(sleeper)
        watch.until_end(within_s=40)
        wait_dead([sleeper])
    check_whole(watch, LINES)
    assert instance.ended(run)["status"] == "completed"


def test_a_supervisor_that_slept_past_its_bound_is_replaced_and_decides_nothing_more(
    instance: Instance, cluster: RayCluster
) -> None:
    run = unique("supervisor-sleeps")
    epoch = _supervisor_epoch(cluster)
    with Watch(instance, run, numbered(LINES)) as watch:
        watch.until_lines(PAUSE_AT)
        sleeper = instance.the_process("ray::SupervisorActor")
        pause(sleeper)
        wait_until(
            lambda: [who for who in instance.processes("ray::SupervisorActor") if who != sleeper],
            "another supervisor",
            30.0,
        )
        resume(sleeper)
        watch.until_end(within_s=40)
        wait_dead([sleeper])
    check_whole(watch, LINES)
    assert instance.ended(run)["status"] == "completed"
    assert instance.claims(run) == [(1, "start")]
    assert _supervisor_epoch(cluster) == epoch + 1


def _supervisor_epoch(cluster: RayCluster) -> int:
    def asked() -> int | None:
        try:
            epoch: int = asyncio.run(cluster.supervisor().status())["epoch"]
        except StoreUnavailable:
            return None
        return epoch

    return wait_until(asked, "the supervisor's epoch") or 0


def test_a_replica_that_slept_sends_what_is_left_once(instance: Instance) -> None:
    runs = [unique(f"replica-sleeps-{number}") for number in range(2)]
    with Watch(instance, runs[0], numbered(LINES)) as one, Watch(instance, runs[1], numbered(LINES)) as other:
        one.until_lines(PAUSE_AT)
        other.until_lines(PAUSE_AT)
        sleeper = instance.processes("ray::ServeReplica")[0]
        pause(sleeper)
        wait_until(lambda: one.terminal or other.terminal, "the end at the replica that is awake", 20.0)
        assert state(sleeper) == "T"
        assert resume(sleeper)
        one.until_end()
        other.until_end()
    check_whole(one, LINES)
    check_whole(other, LINES)


def test_a_run_outlives_a_log_shard_that_hangs_while_the_supervisor_dies(instance: Instance) -> None:
    """The new supervisor must replace the shard before it can ask it for anything (P6)."""
    run = unique("both")
    with Watch(instance, run, numbered(LINES)) as watch:
        watch.until_lines(PAUSE_AT)
        sleeper = instance.the_process("ray::LogShard")
        pause(sleeper)
        kill(instance.the_process("ray::SupervisorActor"))
        watch.until_end(within_s=60)
        wait_dead([sleeper])
    check_whole(watch, LINES)
    assert instance.ended(run)["status"] == "completed"
