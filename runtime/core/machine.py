"""The rules that make a run have one writer and one ending: `decide(view, op, now_ms)`.

What exists. A run is a head (one row), an immutable spec, and a log of batches. Drivers come and go; each holds an
epoch, one above the one before. A driver may be paused for an hour between any two of its steps and then go on,
knowing nothing. It must then be refused, and so every operation of a driver names its epoch, and check and write are
one transaction (I1): `decide` reads through a `View` of that transaction and returns what the same transaction is to
write. It never waits, never looks at a clock, and never fails half-way.

Order of checks for append and finish (P7), each before the next, because each answer would be wrong after it:

    1. epoch     a superseded driver learns only that, whatever else is true
    2. repeat    a retry of what is stored is a success, even if the log has been closed since
    3. closed    nothing follows a terminal chunk (I5)
    4. sequence  the batch continues the log, or the caller has a bug

A cancel is an intent on the record: it carries no epoch and moves no status. It binds the finish: with it, `aborted`
is the only ending that can be stored (P9); without it, `aborted` cannot be (I6).

Deliberately not here: leases. They live in a shard's memory and only say when someone may try (P13).
"""

from __future__ import annotations

from runtime.core import creating, intending, noticing, reaping, writing
from runtime.core.decision import Decision, View
from runtime.core.ops import (
    Append,
    Assign,
    Attach,
    ClaimRun,
    Create,
    Detach,
    Finish,
    Note,
    Op,
    OpenSupervisor,
    RequestCancel,
    RequestHandover,
)
from runtime.core.reap_ops import Account, BeginNotice, EndNotice, Expire, Forget, LogDropped, PruneLog


def decide(view: View, op: Op, now_ms: int) -> Decision:
    """Return the decision for one operation against one transaction's view. Total: every op gets an answer."""
    match op:
        case Append():
            return writing.append(view, op, now_ms)
        case ClaimRun():
            return creating.claim(view, op, now_ms)
        case Finish():
            return writing.finish(view, op, now_ms)
        case Note():
            return intending.note(view, op, now_ms)
        case Create():
            return creating.create(view, op, now_ms)
        case RequestCancel():
            return intending.request_cancel(view, op)
        case RequestHandover() | Attach() | Detach():
            return intending.intent(view, op, now_ms)
        case OpenSupervisor():
            return intending.open_supervisor(view, op)
        case Assign():
            return intending.assign(view, op, now_ms)
        case Expire() | Account() | PruneLog() | LogDropped() | Forget():
            return reaping.reap(view, op, now_ms)
        case BeginNotice() | EndNotice():
            return noticing.notice(view, op, now_ms)
