"""Compare everything a store says with everything `store_model` says."""

from __future__ import annotations

from typing import Any

from runtime.core.reap_ops import ReapStage
from runtime.ports import RunQuery, Store
from runtime.testing.store_model import StoreModel

PLACES = (("owner", "t0"), ("owner", "t1"), ("stranger", "t0"))
PAGE = 2


def plain(value: object, name: str) -> Any:
    """Return a field of a head or an outcome in the model's words."""
    found = getattr(value, name)
    if name == "unqueued":
        return found.run_id if found is not None else None
    return getattr(found, "value", found)


def compare(store: Store, model: StoreModel) -> None:
    """Assert that records, logs, lists and pages are the model's."""
    runs = list(model.runs.values())
    for run in runs:
        record = store.read_run(run.run_id)
        assert record is not None
        assert {name: plain(record[0], name) for name in run.facts()} == run.facts()
        assert [entry.claimant.claimant for entry in record[0].claims] == run.claimants
        batches = store.read_batches(run.run_id, 0, 1 << 30)
        assert [piece for batch in batches for piece in batch.chunks()] == ([] if run.dropped else run.chunks)
        assert [batch.epoch for batch in batches] == [batch["epoch"] for batch in run.stored if not run.dropped]
        assert store.read_stderr(run.run_id) == run.stderr
        assert store.read_transcript(run.run_id) == run.transcript
        found = store.read_checkpoint(run.run_id)
        seen = found and {"epoch": found.epoch, "seq": found.seq, "state": found.translator}
        assert seen == run.checkpoint
    for stage, expected_runs in model.reapable(0).items():
        found_runs = store.list_reapable(0, ReapStage(stage), 1 << 60, 100)
        assert [head.run_id for head in found_runs] == expected_runs, stage
    open_runs = [run.run_id for run in runs if run.status not in ("completed", "failed", "aborted")]
    assert [head.run_id for head in store.list_unfinished(0)] == open_runs
    for owner, thread in PLACES:
        mine = [run.run_id for run in model.in_thread(owner, thread)]
        assert [head.run_id for head, _ in store.list_thread(owner, thread)] == mine
        active, expected = store.find_active(owner, thread), model.active(owner, thread)
        assert (active and active.run_id) == (expected and expected.run_id)
    page = store.list_runs(RunQuery(owner="owner", limit=PAGE))
    newest = [run.run_id for run in reversed(runs) if run.owner == "owner"]
    assert [head.run_id for head, _ in page.runs] == newest[:PAGE]
    assert (page.next is None) == (len(newest) <= PAGE)
