"""Errors of delivery logs keep their facts over a process boundary."""

from __future__ import annotations

import pickle

import pytest

from runtime.delivery.errors import (
    LogGone,
    LogNotQuietError,
    NoFirstChunk,
    NotAcquired,
    RunClaimNotAcquiredError,
    RunDriverPipeOutsideClaimError,
)
from runtime.errors import OutlastError, OwnershipLost, RequestError, RunClaimLostError

EVERY = [
    LogGone("r"),
    NoFirstChunk("r", 100),
    LogNotQuietError("r", 6, 5000),
    RunDriverPipeOutsideClaimError("r"),
    RunClaimLostError("r", 1, None),
    RunClaimLostError("r", 1, 2),
    *(RunClaimNotAcquiredError("r", reason) for reason in NotAcquired),
]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: f"{type(error).__name__}")
def test_an_error_pickles_with_its_facts(error: OutlastError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert copy.__dict__ == error.__dict__
    assert (str(copy), copy.code) == (str(error), error.code)


def test_the_branch_says_what_the_handler_does() -> None:
    assert [reason.value for reason in NotAcquired] == ["unknown", "terminal", "superseded"]
    for error in EVERY[4:]:
        assert isinstance(error, OwnershipLost)
    assert issubclass(NoFirstChunk, LogGone)
    assert issubclass(LogGone, RequestError)
    assert "lock" in str(EVERY[4])
    assert "epoch 2" in str(EVERY[5])
