"""What an older version stored is read by this one, and what a newer one stores does not stop this one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import store_golden

from runtime.core import checkpoint, chunk
from runtime.core.ops import Appended
from runtime.core.reap_ops import ReapStage
from runtime.core.record import RECORD_FORMAT, Head, RunSpec, Status, to_wire
from runtime.stores import codec
from runtime.stores.sqlite import SqliteStore, create_store
from runtime.testing.sample_ops import OWNER, append, claim, live
from runtime.testing.store_cases.shard_driver import ShardDriver


def _restore(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(store_golden.STORE.read_text())


def test_a_store_of_schema_1_is_served(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    _restore(path)
    create_store(path, "golden")
    with closing(SqliteStore(path)) as old:
        record = old.read_run("run-1")
        assert record is not None
        head, spec = record
        assert spec == store_golden.A_SPEC
        assert (head.error, head.usage) == (store_golden.A_HEAD.error, store_golden.A_HEAD.usage)
        assert (head.exit_code, head.driver_epoch, head.next_seq, head.detached_since) == (3, 2, 6, None)
        assert [(entry.claimant.claimant, entry.chunks) for entry in head.claims] == [("a", 3), ("b", 2)]
        first, *middle, last = old.read_batches("run-1", 0, 1 << 20)
        assert middle == store_golden.BATCHES
        assert (first.chunks(), last.seq, last.count) == ([chunk.run_accepted()], 5, 1)
        assert old.read_stderr("run-1") == b"\xff\x00tail"
        assert [head.run_id for head in old.list_unfinished(0)] == ["run-2"]
        assert [old.list_reapable(0, ReapStage.PRUNE, 1 << 60, 9), head.transcript] == [[], False]
        assert [head.run_id for head in old.list_reapable(0, ReapStage.FORGET, 1 << 60, 9)] == ["run-1"]
        assert [head.run_id for head, _ in old.list_thread(OWNER, "thread-1")] == ["run-1", "run-2"]
        shard = ShardDriver(old)
        assert shard.epoch == 2
        assert shard.head("run-1").status is Status.FAILED
        shard.do(claim(0, "c", "run-2"))
        shard.ask(append(live(1, 1, "goes on", run_id="run-2")), Appended)


def test_the_golden_heads_and_specs_are_read() -> None:
    for golden, head in store_golden.HEADS:
        assert codec.decode_head(golden.read_bytes()) == head, golden.name
    for golden, spec in store_golden.SPECS:
        assert codec.decode_spec(golden.read_bytes()) == spec, golden.name


def test_the_newest_golden_head_is_of_the_format_that_backups_name() -> None:
    numbers = [int(path.stem.rpartition("v")[2]) for path in store_golden.GOLDEN.glob("head-v*.json")]
    assert max(numbers) == RECORD_FORMAT
    newest = store_golden.GOLDEN / f"head-v{RECORD_FORMAT}.json"
    assert set(chunk.decode(newest.read_bytes())) == set(Head.__struct_encode_fields__)


def test_claims_of_version_1_have_no_end_and_no_pause() -> None:
    head, spec = codec.decode_head(store_golden.HEAD.read_bytes()), codec.decode_spec(store_golden.SPEC.read_bytes())
    told = [
        (claim["end"], claim["lastAppendAt"], claim["pauseMs"]) for claim in to_wire(head, spec, claims=True)["claims"]
    ]
    assert told == [(None, None, None)] * 2


def test_the_golden_checkpoint_is_read() -> None:
    stored = store_golden.CHECKPOINT.read_bytes()
    assert checkpoint.decode(stored) == store_golden.A_CHECKPOINT
    assert checkpoint.encode(store_golden.A_CHECKPOINT) == stored


def test_a_checkpoint_that_is_not_understood_is_none() -> None:
    stored = store_golden.CHECKPOINT.read_bytes()
    flipped = [stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :] for at in range(len(stored))]
    cut = [stored[:end] for end in range(len(stored))]
    for damaged in (*flipped, *cut, stored + b"x", b"2" + stored[1:]):
        assert checkpoint.decode(damaged) is None


def test_the_golden_head_says_something_of_every_field() -> None:
    for struct in (store_golden.A_KEEPING_HEAD, store_golden.A_KEEPING_SPEC, store_golden.A_KEEPING_SPEC.limits):
        for field in msgspec.structs.fields(struct):
            assert getattr(struct, field.name) != field.default, f"{type(struct).__name__}.{field.name}"


def test_fields_of_a_newer_version_are_passed_over() -> None:
    newer = chunk.decode(store_golden.HEAD.read_bytes())
    newer |= {"flavour": "sour", "nested": {"x": [1]}}
    newer["claims"][0]["mood"] = "good"
    assert codec.decode_head(chunk.encode(newer)) == store_golden.A_HEAD


@pytest.mark.parametrize("struct", [Head, RunSpec])
def test_fields_that_an_older_version_did_not_have_get_their_defaults(struct: type[Head | RunSpec]) -> None:
    golden = store_golden.HEAD if struct is Head else store_golden.SPEC
    full = chunk.decode(golden.read_bytes())
    required = {field.encode_name for field in msgspec.structs.fields(struct) if field.required}
    oldest = chunk.encode({name: value for name, value in full.items() if name in required})
    read = codec.decode_head(oldest) if struct is Head else codec.decode_spec(oldest)
    for field in msgspec.structs.fields(struct):
        if not field.required:
            assert getattr(read, field.name) == field.default


def test_what_is_stored_is_what_is_read() -> None:
    for value in (store_golden.A_HEAD, msgspec.structs.replace(store_golden.A_HEAD, error=None)):
        assert codec.decode_head(codec.encode(value)) == value
    assert codec.decode_spec(codec.encode(store_golden.A_SPEC)) == store_golden.A_SPEC
