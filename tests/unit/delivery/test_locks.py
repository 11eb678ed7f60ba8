"""A lock that cannot cross hosts says so, once (contract 4.4)."""

from __future__ import annotations

import pytest

from runtime.delivery.locks import MemoryLocks


@pytest.mark.parametrize(("one_process", "said"), [(False, 1), (True, 0)])
async def test_locks_in_memory_warn_once_unless_there_is_one_process(
    caplog: pytest.LogCaptureFixture, one_process: bool, said: int
) -> None:
    locks = MemoryLocks(one_process=one_process)
    for key in ("a", "b", "a"):
        async with locks.hold(key):
            pass
    assert caplog.text.count("of this process") == said
