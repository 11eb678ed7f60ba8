"""Alignment without bands, for logs of others (contract 6.3; scenarios 40 to 66)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.align import MAX_SKIP, align_out_of_band, is_custom
from runtime.core.fingerprint import fingerprint
from runtime.errors import JournalReplayDivergedError, JournalReplayThreadIdMismatchError

Event = dict[str, Any]


def text(n: int, **more: Any) -> Event:
    return {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": f"d{n}", **more}


def custom(n: int) -> Event:
    return {"type": "CUSTOM", "name": "file.changed", "value": n}


def texts(*numbers: int) -> list[Event]:
    return [text(n) for n in numbers]


def customs(count: int) -> list[Event]:
    return [custom(n) for n in range(count)]


def strict(stored: list[Event], replay: list[Event]) -> list[Event]:
    return list(align_out_of_band(stored, replay))


def tolerant(stored: list[Event], replay: list[Event], max_skip: int = MAX_SKIP) -> list[Event]:
    return list(align_out_of_band(stored, replay, is_custom, max_skip))


def diverges(stored: list[Event], replay: list[Event], tolerate: bool = True, max_skip: int = MAX_SKIP) -> Any:
    """Return the error with which the replay is refused, and check that nothing came before it was needed."""
    yielded: list[Event] = []
    with pytest.raises(JournalReplayDivergedError) as caught:
        yielded.extend(align_out_of_band(stored, replay, is_custom if tolerate else None, max_skip))
    assert yielded == []
    return caught.value


# --- scenarios -------------------------------------------------------------------------------------------------


def test_40_with_an_empty_log_everything_is_forwarded() -> None:
    assert strict([], texts(1, 2)) == texts(1, 2)


def test_41_only_what_follows_the_stored_prefix_is_yielded() -> None:
    assert strict(texts(1, 2), texts(1, 2, 3, 4)) == texts(3, 4)


def test_42_a_replay_that_is_stored_whole_yields_nothing() -> None:
    assert strict(texts(1, 2), texts(1, 2)) == []


def test_43_timestamps_and_key_order_do_not_matter() -> None:
    replay = [dict(reversed(text(n, timestamp=9).items())) for n in (1, 2)]
    assert strict([text(1, timestamp=1), text(2)], replay) == []


def test_44_a_difference_in_the_first_chunk_is_at_index_0() -> None:
    assert diverges(texts(1), texts(2), tolerate=False).index == 0


def test_45_an_error_has_the_index_and_both_fingerprints() -> None:
    error = diverges(texts(1, 2, 3), texts(1, 7, 3), tolerate=False)
    assert (error.index, error.stored, error.replayed) == (1, fingerprint(text(2)), fingerprint(text(7)))


def test_46_nothing_is_yielded_before_a_divergence() -> None:
    diverges(texts(1, 2, 3), texts(1, 2, 9, 10, 11), tolerate=False)


def test_47_a_replay_shorter_than_the_log_is_refused() -> None:
    error = diverges(texts(1, 2, 3), texts(1), tolerate=False)
    assert error.index == 1
    assert "2 stored chunks left" in str(error)


def test_48_an_empty_replay_of_a_log_that_holds_something_is_refused() -> None:
    assert diverges(texts(1), [], tolerate=False).index == 0


def test_49_a_log_that_still_grows_is_aligned_as_it_was() -> None:
    stored = texts(1, 2)
    aligned = align_out_of_band(stored, iter(texts(1, 2, 3)))
    stored += texts(3, 4, 5)
    assert list(aligned) == texts(3)


def test_50_the_log_is_read_once_and_before_the_replay() -> None:
    order = []

    class Log(list[Event]):
        def __iter__(self) -> Iterator[Event]:
            order.append("log")
            return super().__iter__()

    def replay() -> Iterator[Event]:
        order.append("replay")
        yield from texts(1, 2)

    assert list(align_out_of_band(Log(texts(1)), replay())) == texts(2)
    assert order == ["log", "replay"]


def test_51_without_a_predicate_a_stored_custom_is_a_divergence() -> None:
    assert diverges([custom(1), text(1)], texts(1), tolerate=False).index == 0


def test_52_with_it_one_stored_custom_is_passed_over() -> None:
    assert tolerant([text(1), custom(1), text(2)], texts(1, 2, 3)) == texts(3)


def test_53_and_several_in_a_row() -> None:
    assert tolerant([text(1), *customs(5), text(2)], texts(1, 2, 3)) == texts(3)


def test_54_and_those_at_the_end() -> None:
    assert tolerant([text(1), *customs(5)], texts(1)) == []


def test_55_a_real_divergence_is_refused_all_the_same() -> None:
    assert diverges([text(1), custom(1), text(2)], texts(1, 9)).index == 2


def test_56_more_in_a_row_than_the_maximum_are_refused() -> None:
    assert diverges([*customs(4), text(1)], texts(1), max_skip=3).index == 3


def test_57_the_count_begins_again_after_a_match() -> None:
    stored = [*customs(3), text(1), *customs(3), text(2)]
    assert tolerant(stored, texts(1, 2, 3), max_skip=3) == texts(3)


def test_58_the_default_maximum_is_64() -> None:
    assert MAX_SKIP == 64
    assert tolerant([*customs(64), text(1)], texts(1)) == []
    diverges([*customs(65), text(1)], texts(1))


def test_59_the_predicate_matches_custom_and_nothing_else() -> None:
    assert is_custom(custom(1))
    for kind in ("RAW", "custom", "", None, ["CUSTOM"]):
        assert not is_custom({"type": kind, "name": "CUSTOM"})
    assert not is_custom({})


STARTED = {"type": "RUN_STARTED", "runId": "r", "threadId": "t1"}


def test_60_a_difference_of_threads_alone_has_both_ids() -> None:
    error = diverges([STARTED], [{**STARTED, "threadId": "t2"}])
    assert type(error) is JournalReplayThreadIdMismatchError
    assert (error.stored_thread_id, error.replayed_thread_id) == ("t1", "t2")


def test_60_a_thread_that_one_side_does_not_name_differs_too() -> None:
    error = diverges([STARTED], [{"type": "RUN_STARTED", "runId": "r"}])
    assert type(error) is JournalReplayThreadIdMismatchError
    assert (error.stored_thread_id, error.replayed_thread_id) == ("t1", "")


def test_61_it_is_a_divergence_as_well() -> None:
    assert issubclass(JournalReplayThreadIdMismatchError, JournalReplayDivergedError)


def test_62_a_difference_of_content_is_the_plain_divergence() -> None:
    assert type(diverges(texts(1), texts(2))) is JournalReplayDivergedError


def test_63_with_the_same_thread_and_other_content_too() -> None:
    assert type(diverges([STARTED], [{**STARTED, "runId": "s"}])) is JournalReplayDivergedError


def test_64_with_both_different_too() -> None:
    assert type(diverges([STARTED], [{**STARTED, "runId": "s", "threadId": "t2"}])) is JournalReplayDivergedError


# --- the table of edge cases -----------------------------------------------------------------------------------


def test_edge_64_custom_in_a_row_then_a_match_is_ok() -> None:
    assert tolerant([*customs(64), text(1)], texts(1, 2)) == texts(2)


def test_edge_65_custom_in_a_row_throw_at_index_64() -> None:
    assert diverges([*customs(65), text(1)], texts(1)).index == 64


@pytest.mark.parametrize("count", [1, 64])
def test_edge_a_log_of_custom_alone_hides_a_divergence(count: int) -> None:
    assert tolerant(customs(count), texts(9)) == texts(9)


def test_edge_200_custom_after_the_end_of_the_replay_are_ok() -> None:
    assert tolerant([text(1), *customs(200)], texts(1)) == []


def test_edge_a_replayed_custom_that_the_log_lacks_throws() -> None:
    assert diverges(texts(1), [custom(1), text(1)]).index == 0


def test_edge_a_replayed_custom_equal_to_the_stored_one_is_suppressed() -> None:
    assert tolerant([custom(1), text(1)], [custom(1), text(1), text(2)]) == texts(2)


def test_edge_a_replayed_custom_may_lie_behind_another_stored_one() -> None:
    assert tolerant([custom(2), custom(1), text(1)], [custom(1), text(1)]) == []


def test_edge_run_accepted_at_the_start_is_passed_over() -> None:
    accepted = {"type": "CUSTOM", "name": "run.accepted", "value": {}, "timestamp": 1}
    assert tolerant([accepted, text(1)], texts(1, 2)) == texts(2)


def test_edge_an_empty_replay_of_a_log_of_custom_is_ok() -> None:
    assert tolerant(customs(3), []) == []


def test_edge_an_empty_replay_of_a_log_with_others_is_shorter() -> None:
    error = diverges([custom(1), text(1), custom(2)], [])
    assert error.index == 1
    assert "2 stored chunks left" in str(error)


def test_edge_an_empty_log_forwards_everything() -> None:
    assert tolerant([], [custom(1), text(1)]) == [custom(1), text(1)]


# --- laws ------------------------------------------------------------------------------------------------------

stories = st.lists(st.one_of(st.integers(0, 9).map(text), st.integers(0, 3).map(custom)), max_size=12)


@given(stories, stories)
def test_a_replay_of_the_log_itself_yields_only_what_follows(stored: list[Event], new: list[Event]) -> None:
    assert strict(stored, stored + new) == new
    assert tolerant(stored, stored + new) == new


@given(stories, st.lists(st.tuples(st.integers(0, 12), st.integers(100, 103).map(custom)), max_size=8))
def test_custom_chunks_put_anywhere_into_the_log_change_nothing(
    story: list[Event], extra: list[tuple[int, Event]]
) -> None:
    stored = list(story)
    for place, event in extra:
        stored.insert(place, event)
    assert tolerant(stored, story) == []
