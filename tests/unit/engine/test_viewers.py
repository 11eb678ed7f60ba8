"""Who watches: a level that corrects itself (P20)."""

from __future__ import annotations

from unit.engine.hand_clock import HandClock

from runtime.engine.viewers import VIEWER_TTL_S, Viewers


def made() -> tuple[HandClock, Viewers]:
    clock = HandClock()
    return clock, Viewers(clock)


def test_the_level_is_the_sum_over_the_senders() -> None:
    _, viewers = made()
    viewers.replace("a", 1, {"run": 2, "other": 1})
    viewers.replace("b", 1, {"run": 3})
    assert (viewers.level("run"), viewers.level("other"), viewers.total()) == (5, 1, 6)


def test_the_highest_number_of_a_sender_wins_whenever_it_comes() -> None:
    _, viewers = made()
    assert viewers.replace("a", 2, {"run": 1})
    assert not viewers.replace("a", 1, {})
    assert not viewers.replace("a", 2, {})
    assert viewers.level("run") == 1


def test_a_set_that_is_not_renewed_is_void() -> None:
    clock, viewers = made()
    viewers.replace("a", 1, {"run": 1})
    clock.now += VIEWER_TTL_S
    assert viewers.level("run") == 1
    clock.now += 0.1
    assert (viewers.level("run"), viewers.total()) == (0, 0)


def test_an_attach_counts_at_once_until_the_next_set() -> None:
    _, viewers = made()
    viewers.replace("a", 1, {})
    viewers.add("a", 2, "run")
    assert viewers.level("run") == 1
    viewers.replace("a", 3, {"run": 1})
    assert viewers.level("run") == 1


def test_an_attach_brings_no_void_set_back() -> None:
    clock, viewers = made()
    viewers.replace("a", 1, {"old": 1})
    clock.now += VIEWER_TTL_S + 1
    viewers.add("a", 2, "run")
    assert (viewers.level("old"), viewers.level("run")) == (0, 1)


def test_a_set_sent_before_an_attach_and_come_after_it_takes_nothing_away() -> None:
    _, viewers = made()
    viewers.add("a", 2, "run")
    assert not viewers.replace("a", 1, {})
    assert viewers.level("run") == 1


def test_a_shard_that_just_started_takes_nobody_for_absent() -> None:
    clock, viewers = made()
    viewers.replace("a", 1, {})
    assert not viewers.settled
    for number in range(2, 8):
        clock.now += 1.0
        viewers.replace("a", number, {})
    assert viewers.settled


def test_without_anybody_who_counts_nobody_is_absent() -> None:
    clock, viewers = made()
    clock.now += 100.0
    assert not viewers.settled


def test_after_a_silence_of_all_senders_the_time_counts_anew() -> None:
    clock, viewers = made()
    for number in range(30):
        clock.now += 1.0
        viewers.replace("a", number, {})
    assert viewers.settled_for(15.0)
    clock.now += 60.0
    assert not viewers.settled
    viewers.replace("b", 1, {})
    assert not viewers.settled_for(0.0)
    for number in range(2, 22):
        clock.now += 1.0
        viewers.replace("b", number, {})
    assert viewers.settled_for(14.0)
    assert not viewers.settled_for(15.0)
