"""One of several shards on the model of a PostgreSQL server."""

from __future__ import annotations

from runtime.core.ops import Op, Outcome
from runtime.stores.postgres import PostgresStore
from runtime.testing.postgres_model import ModelServer
from runtime.testing.sample_ops import claim, create

THREAD = "thread-1"


class Side:
    """One shard in a process of its own."""

    def __init__(self, server: ModelServer, shard: int) -> None:
        self.store: PostgresStore = server.store()
        self.shard = shard
        self.epoch = self.store.open_shard(shard, f"side {shard}")

    def do(self, *ops: Op) -> list[Outcome]:
        """Commit; return the outcomes."""
        return self.store.commit(self.shard, self.epoch, ops, 1000)

    def start(self, run_id: str, on_busy: str = "reject") -> None:
        """Create a run and claim it."""
        self.do(create(run_id, THREAD, on_busy=on_busy), claim(0, "driver", run_id))
