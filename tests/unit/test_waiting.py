"""The one place that sleeps gives what the condition gave, or says what it waited for."""

from __future__ import annotations

import pytest
from waiting import until, wait_until


def test_a_condition_that_holds_at_once_is_returned_without_a_pause() -> None:
    assert wait_until(lambda: "value", "nothing", within_s=0) == "value"


def test_the_error_says_what_was_waited_for() -> None:
    with pytest.raises(TimeoutError, match="still not: the moon"):
        wait_until(lambda: None, "the moon", within_s=0.01)


async def test_plain_and_awaited_conditions_are_both_waited_for() -> None:
    seen: list[int] = []

    async def awaited() -> int:
        seen.append(1)
        return len(seen) // 3

    assert await until(awaited, "three calls") == 1
    assert await until(lambda: len(seen), "any call") == 3
    with pytest.raises(TimeoutError, match="still not: the moon"):
        await until(lambda: None, "the moon", within_s=0.01)
