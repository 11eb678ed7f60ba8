"""What a store becomes when acknowledged chunks are known to be lost: a generation later (P10).

A store is lost in one way only: it is, all of it, as it was at an earlier moment (a standby that lacked the end, a copy
that was put back). What came after that moment is gone, and whoever saw it may be alive. So everything that could be
taken for something of before gets a number that was never given:

    offsets         of every log that is not closed, and of every run to come. A closed log lacks nothing: nothing could
                    follow its terminal chunk. Its offsets stay good.
    driver epochs   of every run that is not terminal: a claim may be lost, and its driver alive. It is superseded, and
                    the next one replays the journal against what is stored, so what was lost of it is stored again.
                    And of every run to come: one that is lost may be made again by its client while its driver lives.
    shard epochs, supervisor's epoch   likewise: they start anew, with nothing in memory.

One number serves for all of them. It is the time in ms, or more: two lives that go out from one and the same copy give
no number twice, as long as none of them gives one each ms.
"""

from __future__ import annotations

from runtime.core.ops import (
    Append,
    Assign,
    Finish,
    Note,
    Op,
    Outcome,
    SeqConflict,
    Superseded,
    SupervisorStale,
)
from runtime.core.record import Head, Launch


def next_generation(stored: int, now_ms: int, above: int = 0) -> int:
    """Return the generation after `stored`, and after `above`: whatever else is known to have been given."""
    return max(stored + 1, above + 1, now_ms)


def next_epoch(epoch: int, generation: int) -> int:
    """Return an epoch that no life of before `generation` has given."""
    return max(epoch + 1, generation)


def claimed_epoch(expected: int, generation: int) -> int:
    """Return what a claim on the epoch `expected` gives to a run of `generation`."""
    return max(expected, generation) + 1


def raised(head: Head, generation: int) -> Head:
    """Return the head of a run that is not terminal as it is in `generation`.

    What happened since the store's moment is not known: its driver may have launched the agent (P15), and a viewer may
    have come and gone, so the time to come back begins anew (P22). A generation is no earlier than now."""
    return head.with_(
        driver_epoch=next_epoch(head.driver_epoch, generation),
        generation=head.generation if head.closed else generation,
        launch=Launch.INTENDED if head.claims else head.launch,
        detached_since=None if head.detached_since is None else max(head.detached_since, generation),
    )


def witnessed(op: Op, outcome: Outcome) -> int | None:
    """Return an epoch to be past, if `op` comes from somebody who was told what the store does not know; else None.

    Epochs and places come from answers, and an answer is durable. So one that is ahead of the store shows that the
    store's end is lost, also to a shard that began since and knows nothing."""
    match op, outcome:
        case Append() | Finish() | Note(), Superseded(held_epoch=held, current_epoch=current) if held > current:
            return held
        case Assign(), Superseded(held_epoch=held, current_epoch=current) if held > current:
            return held
        case Append() | Finish(), SeqConflict(seq=seq, next_seq=next_seq) if seq > next_seq:
            return op.batch.epoch
        case _, SupervisorStale(held_epoch=held, current_epoch=current) if held > current:
            return held
    return None
