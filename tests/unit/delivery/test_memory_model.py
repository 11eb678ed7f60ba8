"""The in-memory log against a model that shares no code with it."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runtime.delivery.memory import MemoryStreams
from runtime.testing.delivery_kit import chunk, drain
from runtime.testing.sim_loop import SimLoop


class MemoryAgainstLists(RuleBasedStateMachine):
    """Whatever is done to a log, it holds what a list would, and every reader gets the rest of it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop(random.Random(1))  # noqa: S311 - a seeded generator is the point
        self.every = MemoryStreams(self.loop)
        self.expected: dict[str, list[bytes]] = {}

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @rule(run=st.sampled_from(["a", "b:c"]), texts=st.lists(st.text(max_size=3), max_size=3))
    def append(self, run: str, texts: list[str]) -> None:
        chunks = [chunk(text) for text in texts]
        start = len(self.expected.get(run, []))
        offsets = self._do(self.every.log(run).append(chunks))
        self.expected.setdefault(run, []).extend(chunks)
        assert offsets == [f"memory:v1:{'b%3Ac' if run == 'b:c' else run}:{start + n + 1}" for n in range(len(chunks))]

    @rule(run=st.sampled_from(["a", "b:c"]))
    def close_and_read_from_everywhere(self, run: str) -> None:
        self._do(self.every.log(run).close())
        stored = self.expected.setdefault(run, [])
        snapshot = self._do(self.every.log(run).snapshot())
        assert [entry.chunk for entry in self._do(drain(self.every.log(run)))] == stored
        for at, entry in enumerate(snapshot, 1):
            assert [after.chunk for after in self._do(drain(self.every.log(run), entry.offset))] == stored[at:]

    @invariant()
    def the_snapshots_agree(self) -> None:
        for run, chunks in self.expected.items():
            assert [entry.chunk for entry in self._do(self.every.log(run).snapshot())] == chunks

    def teardown(self) -> None:
        self.loop.close()


TestMemoryAgainstLists = MemoryAgainstLists.TestCase
TestMemoryAgainstLists.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
