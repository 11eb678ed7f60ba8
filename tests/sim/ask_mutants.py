"""Deliberate faults about runs that ask, made like those in `mutants.py`."""

from __future__ import annotations

import msgspec
from sim.mutants import Patch

from runtime.core import creating
from runtime.core.decision import Decision, View
from runtime.core.ops import Create
from runtime.core.record import Head


def answer_what_is_being_ended(patch: Patch) -> None:
    """An answer that comes after Stop is taken all the same."""
    resume = creating._resume

    def lenient(view: View, op: Create, holder: Head | None, now_ms: int) -> Decision:
        return resume(view, op, holder and msgspec.structs.replace(holder, cancel_requested=False), now_ms)

    patch.setattr(creating, "_resume", lenient)


def answer_beside_the_question(patch: Patch) -> None:
    """The run that asked goes on waiting when it was answered, for ever."""
    resume = creating._resume

    def keeping(view: View, op: Create, holder: Head | None, now_ms: int) -> Decision:
        decision = resume(view, op, holder, now_ms)
        return msgspec.structs.replace(decision, heads=()) if decision.created is not None else decision

    patch.setattr(creating, "_resume", keeping)


def drive_what_waits(patch: Patch) -> None:
    """A run that waits for an answer gets a driver like one that runs."""
    patch.setattr(Head, "needs_driver", property(lambda head: head.active))
