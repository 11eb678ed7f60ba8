"""A run's transcript: what is kept of its log when the log is gone (P9, I5).

It is `fold` of the whole log, stored in the transaction that ends the run, so it is there when the terminal status is.
Its bytes follow from the log alone: whoever makes them, and in whatever pieces, makes the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from runtime.core import chunk
from runtime.core.fold import Fold
from runtime.core.messages import Message
from runtime.core.record import Struct


class Transcript(Struct, frozen=True, kw_only=True):
    """What a run said. `stated`: ids of messages that it restated from earlier runs (a MESSAGES_SNAPSHOT);
    `interrupts`: what it asks (P23); `session`: the agent's own, to be resumed."""

    messages: list[Message] = msgspec.field(default_factory=list)
    stated: list[str] = msgspec.field(default_factory=list)
    interrupts: list[dict[str, Any]] = msgspec.field(default_factory=list)
    session: str | None = None


def of_fold(folding: Fold) -> Transcript:
    """Return the transcript of a log that was fed."""
    messages = folding.messages()
    return Transcript(
        messages=messages,
        stated=sorted(folding.from_snapshot & {message["id"] for message in messages}),
        interrupts=folding.interrupts,
        session=folding.session,
    )


def of_log(chunks: Iterable[bytes]) -> Transcript:
    """Return the transcript of a log, whole or so far."""
    folding = Fold()
    folding.feed(chunks)
    return of_fold(folding)


def encode(transcript: Transcript) -> bytes:
    """Return the stored form."""
    return chunk.encode(
        {
            "messages": transcript.messages,
            "stated": transcript.stated,
            "interrupts": transcript.interrupts,
            "session": transcript.session,
        }
    )


def decode(stored: bytes) -> Transcript:
    """Return the transcript of its stored form; what a later version has added is passed over.

    Raises ValueError for bytes that are none."""
    value = chunk.decode_chunk(stored)
    return Transcript(
        messages=value["messages"],
        stated=value.get("stated", []),
        interrupts=value.get("interrupts", []),
        session=value.get("session"),
    )
