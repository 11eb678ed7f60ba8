"""The conformance kit of `ports.Store`: any store passes it, or is none.

A store is run through it by a subclass that says how to make one, and how to look behind it:

    class TestMyStore(StoreKit):
        @pytest.fixture
        def make_store(self, tmp_path): ...           # -> a function; each call opens the same, at first empty, storage
        def raw_log(self, run_id): ...                # the side doors: read past the store under test
        def raw_status(self, run_id): ...

The storage is fresh for each test and set up for shard 0. `make_store()` may be called several times in a test: each
result is what another process would get that opens this storage. The kit closes them.

The cases are in `store_cases/`, by question. `store_model.py` adds a model, `store_stateful.py` a Hypothesis state
machine that compares a store with it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.ports import Store
from runtime.testing.store_cases.appending import AppendCases
from runtime.testing.store_cases.checkpointing import CheckpointCases
from runtime.testing.store_cases.claiming import ClaimCases
from runtime.testing.store_cases.creating import CreateCases
from runtime.testing.store_cases.finishing import FinishCases
from runtime.testing.store_cases.intending import IntentCases
from runtime.testing.store_cases.losing import LossCases
from runtime.testing.store_cases.pruning import PruneCases
from runtime.testing.store_cases.reading import ReadCases
from runtime.testing.store_cases.reaping import ReapCases
from runtime.testing.store_cases.resuming import ResumeCases
from runtime.testing.store_cases.shard_driver import ShardDriver
from runtime.testing.store_cases.sharing import ShardCases
from runtime.testing.store_cases.telling import NoticeCases
from runtime.testing.store_cases.transcribing import TranscriptCases


class StoreKit(
    CreateCases,
    ClaimCases,
    AppendCases,
    CheckpointCases,
    FinishCases,
    TranscriptCases,
    ResumeCases,
    IntentCases,
    LossCases,
    ReapCases,
    PruneCases,
    NoticeCases,
    ShardCases,
    ReadCases,
):
    """All cases. Subclass it with `make_store`, `raw_log` and `raw_status`."""

    @pytest.fixture
    def make_store(self) -> Callable[[], Store]:
        """Return what opens this test's storage."""
        raise NotImplementedError("a subclass of StoreKit has a fixture make_store")

    @pytest.fixture
    def store(self, make_store: Callable[[], Store]) -> Store:
        """Return one opened store."""
        return make_store()

    @pytest.fixture
    def shard(self, store: Store) -> ShardDriver:
        """Return shard 0 of that store, opened."""
        return ShardDriver(store)
