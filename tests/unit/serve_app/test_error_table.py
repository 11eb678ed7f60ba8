"""Every error has a status, and every error is sent in one shape."""

from __future__ import annotations

import pytest
from unit.serve_app.asgi_client import fetch, post
from unit.serve_app.local_cluster import world

from runtime import errors
from serve_app import error_table


def test_every_leaf_of_the_error_tree_has_a_row() -> None:
    without_children = [cls for cls in errors.leaves() if not cls.__subclasses__()]
    assert without_children
    assert [cls.__name__ for cls in without_children if cls not in error_table.STATUS] == []


def test_a_class_without_a_row_has_that_of_the_class_above() -> None:
    class StoreAsleep(errors.StoreUnavailable):
        pass

    assert error_table.status_of(StoreAsleep("x")) == 503
    assert error_table.status_of(errors.StoreError("x")) == 503
    assert error_table.status_of(errors.OutlastError("x")) == 500
    StoreAsleep.__bases__ = (errors.StoreUnavailable,)  # nothing of this test stays in the tree of other tests
    del StoreAsleep


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (errors.TooMany("x", retry_after_s=7), "7"),
        (errors.StoreUnavailable("x"), "2"),
        (errors.StoreFull("x"), "30"),
        (errors.StoreRefused("x"), "30"),
        (errors.ShardSuperseded(0, 1, 2), "2"),
    ],
)
def test_what_can_be_asked_again_says_when(error: errors.OutlastError, seconds: str) -> None:
    assert error_table.response(error).headers["retry-after"] == seconds


async def test_a_bug_is_answered_without_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    async with world(lifespan=False) as w:
        w.shard.hung = None  # type: ignore[assignment]  # the next call meets a TypeError
        call = post(w.app)
        with pytest.raises(TypeError):  # for the server's log
            await call.task  # type: ignore[misc]
        w.shard.hung = set()
    assert call.status == 500
    assert call.json() == {"error": {"code": "internal", "message": error_table._INTERNAL}}


async def test_an_error_that_no_request_should_meet_is_a_bug_too(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:

        async def misled(run_id: str) -> None:
            raise errors.SequenceConflictError(run_id, 1, 2)

        w.shard.real.record = misled  # type: ignore[method-assign]
        call = await fetch(w.app, "GET", "/api/runs/r-1")
    assert (call.status, call.code) == (500, "internal")
    assert "SequenceConflictError" in caplog.text
