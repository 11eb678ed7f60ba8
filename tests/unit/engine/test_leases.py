"""When somebody may try a takeover (P13)."""

from __future__ import annotations

from unit.engine.hand_clock import HandClock

from runtime.engine.leases import Leases

TTL_S, HANG_S, START_S = 3.0, 10.0, 10.0
LATE_S = 2.0


class Acts:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.leases = Leases(self.clock, TTL_S, HANG_S, START_S)
        self.tick = 0

    def after(self, seconds: float, *, renewing: int | None = None, ticking: bool = True) -> list[tuple[str, int]]:
        """Return what expired within so many seconds of sweeps, `renewing` an epoch all the time."""
        found = []
        for _ in range(round(seconds / 0.25)):
            self.clock.now += 0.25
            if renewing is not None:
                self.tick += ticking
                self.leases.renew("run", renewing, self.tick)
            found += self.leases.expired(LATE_S)
        return found


def test_a_driver_that_renews_is_left_alone() -> None:
    acts = Acts()
    acts.leases.grant("run", 1)
    assert acts.after(60.0, renewing=1) == []


def test_a_driver_that_falls_silent_is_told_after_one_ttl() -> None:
    acts = Acts()
    acts.leases.grant("run", 1)
    assert acts.after(TTL_S) == []
    assert acts.after(0.25) == [("run", 1)]


def test_what_was_told_is_told_again_later() -> None:
    acts = Acts()
    acts.leases.grant("run", 1)
    assert acts.after(TTL_S + Leases.REPORT_AGAIN_S + 1.0) == [("run", 1), ("run", 1)]


def test_a_run_that_nobody_claims_has_the_time_of_a_start() -> None:
    acts = Acts()
    acts.leases.grant("run", 0)
    assert acts.after(START_S) == []
    assert acts.after(0.25) == [("run", 0)]


def test_an_older_epoch_renews_nothing() -> None:
    acts = Acts()
    acts.leases.grant("run", 2)
    assert acts.after(TTL_S + 0.25, renewing=1) == [("run", 2)]


def test_a_loop_that_stands_still_renews_nothing_after_its_time() -> None:
    acts = Acts()
    acts.leases.grant("run", 1)
    assert acts.after(HANG_S, renewing=1, ticking=False) == []
    assert acts.after(TTL_S + 0.5, renewing=1, ticking=False) == [("run", 1)]


def test_an_append_shows_life_without_a_tick() -> None:
    acts = Acts()
    acts.leases.grant("run", 1)
    for _ in range(20):
        assert acts.after(2.0, renewing=1, ticking=False) == []
        acts.leases.renew("run", 1, None)


def test_a_sweep_that_comes_late_gives_everybody_a_whole_ttl() -> None:
    acts = Acts()
    acts.leases.grant("run", 1)
    acts.clock.now += 100.0
    assert acts.leases.expired(LATE_S) == []
    assert acts.after(TTL_S) == []
    assert acts.after(0.25) == [("run", 1)]


def test_a_store_outage_gives_everybody_a_whole_ttl() -> None:
    acts = Acts()
    acts.leases.grant("run", 1)
    assert acts.after(2.5) == []
    acts.leases.refresh_all()
    assert acts.after(TTL_S) == []


def test_a_run_that_ended_is_forgotten() -> None:
    acts = Acts()
    acts.leases.grant("run", 1)
    acts.leases.drop("run")
    acts.leases.renew("run", 1, 1)
    assert acts.after(60.0) == []
