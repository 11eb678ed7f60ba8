"""A store answers questions in full, and to those whom it should (I3, P12, design 4 and 8)."""

from __future__ import annotations

import pytest

from runtime.core.ops import Done, Note
from runtime.core.record import Head, Status
from runtime.errors import InputInvalid
from runtime.ports import RunQuery
from runtime.testing.sample_ops import OWNER, RUN, THREAD, append, cancel, claim, create, finish, journal, live, spec
from runtime.testing.store_cases.shard_driver import ShardDriver

HUGE = 1 << 40


class ReadCases:
    """Records, logs, lists and pages. `raw_log` and `raw_status` are the side doors of the kit."""

    def test_an_unknown_run_is_nothing(self, shard: ShardDriver) -> None:
        store = shard.store
        assert store.read_run("nobody") is None
        assert store.read_batches("nobody", 0, HUGE) == []
        assert store.read_stderr("nobody") is None
        assert store.find_active(OWNER, "nothing") is None
        assert store.list_thread(OWNER, "nothing") == []
        assert store.list_unfinished(0) == []
        assert store.list_runs(RunQuery(owner=OWNER)).runs == []

    def test_stderr_is_there_from_the_finish_on(self, shard: ShardDriver) -> None:
        shard.start()
        assert shard.store.read_stderr(RUN) is None
        shard.end()
        assert shard.store.read_stderr(RUN) == b""

    @pytest.mark.parametrize("after", range(9))
    def test_a_window_holds_what_lies_past_a_position(self, shard: ShardDriver, after: int) -> None:
        shard.start()
        shard.do(append(journal(1, 1, "a", "b", "c")), append(live(4, 1, "d")), append(live(5, 1, "e", "f")))
        batches = shard.store.read_batches(RUN, after, HUGE)
        stored = shard.store.read_batches(RUN, 0, HUGE)
        assert batches == [batch for batch in stored if batch.next_seq > after]
        chunks = [chunk for batch in batches for chunk in batch.chunks()]
        skipped = after - batches[0].seq if batches else 0
        assert chunks[skipped:] == shard.log()[after:]

    def test_a_window_is_bounded_in_bytes(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(*(append(live(seq, 1, "x" * 100)) for seq in range(1, 6)))
        size = len(live(1, 1, "x" * 100).data)
        counts = [len(shard.store.read_batches(RUN, 1, bound)) for bound in (0, 1, size, size + 1, 2 * size, 9 * size)]
        assert counts == [1, 1, 1, 2, 2, 5]
        assert shard.store.read_batches(RUN, 6, 1) == []

    def test_windows_in_a_row_read_the_whole_log(self, shard: ShardDriver) -> None:
        shard.start()
        for seq in range(1, 40, 3):
            shard.do(append(live(seq, 1, "a", "b", "c")))
        after, chunks = 0, list[bytes]()
        while batches := shard.store.read_batches(RUN, after, 300):
            chunks += [chunk for batch in batches for chunk in batch.chunks()]
            after = batches[-1].next_seq
        assert chunks == shard.log()
        assert after == shard.head().next_seq

    def test_a_log_is_its_own_run_s(self, shard: ShardDriver) -> None:
        shard.start()
        shard.start("run-10", "thread-2")
        shard.do(append(live(1, 1, "a")), append(live(1, 1, "b", run_id="run-10")), append(live(2, 1, "c")))
        assert all(batch.run_id == RUN for batch in shard.store.read_batches(RUN, 0, HUGE))
        assert len(shard.log()) == 3
        assert len(shard.log("run-10")) == 2

    def test_the_side_doors_agree(self, shard: ShardDriver) -> None:
        shard.start()
        shard.do(append(journal(1, 1, "a", "b")), append(live(3, 1, "c")))
        assert self.raw_log(RUN) == shard.log()
        assert self.raw_status(RUN) == "running"
        shard.end(status=Status.FAILED)
        assert self.raw_log(RUN) == shard.log()
        assert len(self.raw_log(RUN)) == shard.head().next_seq
        assert self.raw_status(RUN) == "failed"

    def test_a_page_is_the_newest_first(self, shard: ShardDriver) -> None:
        names = _start_many(shard, 7)
        page = shard.store.list_runs(RunQuery(owner=OWNER))
        assert [head.run_id for head, _ in page.runs] == names[::-1]
        assert page.runs[0] == (shard.head(names[-1]), spec())
        assert page.next is None

    @pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8])
    def test_pages_in_a_row_list_every_run_once(self, shard: ShardDriver, limit: int) -> None:
        names = _start_many(shard, 7)
        seen: list[str] = []
        cursor = None
        while True:
            page = shard.store.list_runs(RunQuery(owner=OWNER, limit=limit, cursor=cursor))
            assert 1 <= len(page.runs) <= limit
            seen += [head.run_id for head, _ in page.runs]
            cursor = page.next
            if cursor is None:
                break
            shard.start(f"late-{len(seen)}", f"late-{len(seen)}")
        assert seen == names[::-1]

    def test_runs_of_one_millisecond_keep_the_order_of_creation(self, shard: ShardDriver) -> None:
        names = [f"run-{place}" for place in (5, 9, 1, 7)]
        shard.do(*(create(name, name) for name in names))
        pages = [shard.store.list_runs(RunQuery(owner=OWNER, limit=2))]
        pages.append(shard.store.list_runs(RunQuery(owner=OWNER, limit=2, cursor=pages[0].next)))
        assert [head.run_id for page in pages for head, _ in page.runs] == names[::-1]
        assert [head.run_id for head in shard.store.list_unfinished(0)] == names

    def test_a_page_is_filtered(self, shard: ShardDriver) -> None:
        for place in range(6):
            shard.start(f"run-{place}", f"thread-{place % 2}")
            if place < 4:
                shard.end(f"run-{place}", (Status.COMPLETED, Status.FAILED)[place // 2])

        def names(**query: object) -> list[str]:
            found: list[str] = []
            cursor = None
            while True:
                page = shard.store.list_runs(RunQuery(owner=OWNER, limit=1, cursor=cursor, **query))  # type: ignore[arg-type]
                found += [head.run_id for head, _ in page.runs]
                cursor = page.next
                if cursor is None:
                    return found

        assert names(status=Status.RUNNING) == ["run-5", "run-4"]
        assert names(status=Status.FAILED) == ["run-3", "run-2"]
        assert names(thread_id="thread-1") == ["run-5", "run-3", "run-1"]
        assert names(thread_id="thread-0", status=Status.COMPLETED) == ["run-0"]
        assert names(status=Status.INTERRUPTED) == []

    @pytest.mark.parametrize("cursor", ["", "x", "r", "r-1", "r1 ", "1", "r" + "9" * 40, "r\u0663", "r1;drop", "\x00"])
    def test_a_cursor_that_was_not_sent_is_refused(self, shard: ShardDriver, cursor: str) -> None:
        with pytest.raises(InputInvalid) as refusal:
            shard.store.list_runs(RunQuery(owner=OWNER, cursor=cursor))
        assert refusal.value.code == "cursor_invalid"

    @pytest.mark.parametrize("limit", [0, -1, 10**9])
    def test_a_page_is_bounded_whatever_is_asked(self, shard: ShardDriver, limit: int) -> None:
        _start_many(shard, 2)
        assert 1 <= len(shard.store.list_runs(RunQuery(owner=OWNER, limit=limit)).runs) <= 2

    def test_another_owner_sees_nothing(self, shard: ShardDriver) -> None:
        shard.start()
        shard.start("run-2", THREAD, owner="stranger")
        store = shard.store
        for owner, run_id in ((OWNER, RUN), ("stranger", "run-2")):
            assert [head.run_id for head, _ in store.list_runs(RunQuery(owner=owner)).runs] == [run_id]
            assert [head.run_id for head, _ in store.list_thread(owner, THREAD)] == [run_id]
            active = store.find_active(owner, THREAD)
            assert active == shard.head(run_id)
        assert store.list_runs(RunQuery(owner="nobody")).runs == []
        everybodys = store.list_runs(RunQuery(owner=None, thread_id=THREAD, limit=1))
        assert [head.run_id for head, _ in everybodys.runs] == ["run-2"]
        older = store.list_runs(RunQuery(owner=None, cursor=everybodys.next))
        assert [head.run_id for head, _ in older.runs] == [RUN]
        assert store.find_active("nobody", THREAD) is None

    def test_a_thread_lists_its_runs_oldest_first(self, shard: ShardDriver) -> None:
        for run_id in ("run-3", "run-1"):
            shard.start(run_id)
            shard.end(run_id)
        shard.start("run-2")
        shard.enqueue("run-0")
        names = ["run-3", "run-1", "run-2", "run-0"]
        assert shard.store.list_thread(OWNER, THREAD) == [(shard.head(name), spec()) for name in names]

    def test_the_active_run_is_running_and_not_queued(self, shard: ShardDriver) -> None:
        def active() -> Head | None:
            return shard.store.find_active(OWNER, THREAD)

        assert active() is None
        shard.do(create())
        assert active() == shard.head()
        shard.enqueue("run-2")
        shard.do(cancel())
        assert active() == shard.head()
        shard.do(claim(), finish(1, 1, Status.ABORTED))
        assert active() == shard.head("run-2")
        shard.do(claim(run_id="run-2"), finish(1, 1, Status.INTERRUPTED, "run-2"))
        assert active() is None
        shard.reap_interrupted("run-2")
        assert active() is None

    def test_the_unfinished_runs_are_listed_oldest_first(self, shard: ShardDriver) -> None:
        for place in range(5):
            shard.start(f"run-{place}", f"thread-{place}")
        shard.enqueue("run-5", "thread-4")
        shard.end("run-1", Status.FAILED)
        shard.end("run-2", Status.INTERRUPTED)
        expected = [shard.head(f"run-{place}") for place in (0, 2, 3, 4, 5)]
        assert shard.store.list_unfinished(0) == expected

    def test_ended_runs_whose_sandbox_is_not_destroyed_are_listed(self, shard: ShardDriver) -> None:
        for place in range(3):
            shard.start(f"run-{place}", f"thread-{place}")
            shard.end(f"run-{place}", Status.COMPLETED if place else Status.INTERRUPTED)
        shard.start("run-3", "thread-3")
        pending = [head.run_id for head in shard.store.list_destroy_pending(0)]
        assert pending == ["run-0", "run-1", "run-2"]
        shard.ask(Note(run_id="run-1", epoch=1, destroy_pending=False), Done)
        assert [head.run_id for head in shard.store.list_destroy_pending(0)] == ["run-0", "run-2"]

    def test_a_check_states_facts(self, shard: ShardDriver) -> None:
        shard.start()
        facts = shard.store.check()
        assert facts["runs"] == 1
        assert facts["shards"] >= 1
        assert isinstance(facts["store"], str)
        assert isinstance(facts["durable"], bool)

    def raw_log(self, run_id: str) -> list[bytes]:
        """Return the stored chunks of a run, read past the store."""
        raise NotImplementedError

    def raw_status(self, run_id: str) -> str:
        """Return the stored status of a run, read past the store."""
        raise NotImplementedError


def _start_many(shard: ShardDriver, count: int) -> list[str]:
    names = [f"run-{place}" for place in range(count)]
    for name in names:
        shard.start(name, f"thread-of-{name}")
    return names
