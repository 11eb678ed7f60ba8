"""A run's transcript is stored with its ending, or not at all (P9, I5)."""

from __future__ import annotations

from collections.abc import Callable

from runtime.core.ops import AlreadyEnded, Finished, MustAbort, SeqConflict, Superseded
from runtime.core.record import ClaimReason, Status
from runtime.ports import Store
from runtime.testing.sample_ops import RUN, cancel, claim, finish
from runtime.testing.store_cases.shard_driver import ShardDriver

SAID = b'{"messages":[{"id":"m","parts":[{"content":"\\u0000 \xe2\x82\xac","type":"text"}],"role":"assistant"}]}'


class TranscriptCases:
    """Transcripts: when there is one, and whose."""

    def test_a_run_has_no_transcript_before_it_ends(self, shard: ShardDriver) -> None:
        shard.start()
        assert shard.store.read_transcript(RUN) is None
        assert shard.store.read_transcript("nobody") is None

    def test_it_comes_with_the_finish_as_it_was(self, shard: ShardDriver) -> None:
        shard.start()
        said = SAID + bytes(range(256)) * 1000
        shard.ask(finish(1, 1, transcript=said), Finished)
        assert shard.store.read_transcript(RUN) == said

    def test_a_refused_finish_leaves_none(self, shard: ShardDriver) -> None:
        shard.start()
        shard.refused(finish(9, 1, transcript=SAID), SeqConflict)
        shard.do(cancel())
        shard.refused(finish(1, 1, transcript=SAID), MustAbort)
        shard.do(claim(1, "next", reason=ClaimReason.CANCEL))
        shard.refused(finish(1, 1, Status.ABORTED, transcript=SAID), Superseded)
        assert shard.store.read_transcript(RUN) is None
        shard.ask(finish(1, 2, Status.ABORTED, transcript=b"the end"), Finished)
        shard.refused(finish(2, 2, Status.ABORTED, transcript=SAID), AlreadyEnded)
        assert shard.store.read_transcript(RUN) == b"the end"

    def test_a_repeat_changes_none(self, shard: ShardDriver) -> None:
        shard.start()
        shard.ask(finish(1, 1, transcript=SAID), Finished)
        assert shard.ask(finish(1, 1, transcript=b"another"), Finished).repeat
        assert shard.store.read_transcript(RUN) == SAID

    def test_an_interrupted_run_keeps_its_own_when_it_is_ended(self, shard: ShardDriver) -> None:
        shard.start()
        shard.ask(finish(1, 1, Status.INTERRUPTED, transcript=SAID), Finished)
        assert shard.store.read_transcript(RUN) == SAID
        assert type(shard.reap_interrupted()[-1]) is Finished
        assert shard.store.read_transcript(RUN) == SAID

    def test_those_of_several_runs_come_in_the_order_of_asking_until_there_are_bytes_enough(
        self, shard: ShardDriver
    ) -> None:
        for name, said in (("a", b"1234"), ("b", b"5678"), ("c", b"90")):
            shard.start(name, name)
            shard.ask(finish(1, 1, run_id=name, transcript=said), Finished)
        shard.start()
        wanted = ["c", "nobody", "b", RUN, "a"]
        all_three = [("c", b"90"), ("b", b"5678"), ("a", b"1234")]
        for max_bytes, count in ((0, 1), (1, 1), (2, 1), (3, 2), (6, 2), (7, 3), (100, 3)):
            found = shard.store.read_transcripts(wanted, max_bytes)
            assert list(found.items()) == all_three[:count], f"{max_bytes} bytes"
        assert shard.store.read_transcripts([], 100) == {}
        assert shard.store.read_transcripts(["nobody", RUN], 100) == {}

    def test_each_run_of_a_group_has_its_own(self, shard: ShardDriver, make_store: Callable[[], Store]) -> None:
        shard.start()
        shard.start("run-2", "thread-2")
        shard.do(finish(1, 1, transcript=b"1"), finish(1, 1, run_id="run-2", transcript=b"2"))
        again = ShardDriver(make_store(), shard.now_ms)
        assert [again.store.read_transcript(run_id) for run_id in (RUN, "run-2")] == [b"1", b"2"]
