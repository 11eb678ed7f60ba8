"""An answer that was lost, and a question that comes late: nothing is twice, or behind anybody's back (P7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import waiting
from holding_proxy import HoldingProxy
from postgres_server import PostgresServer

from runtime.core.ops import Appended, Finished
from runtime.core.record import Status
from runtime.errors import StoreUnavailable
from runtime.stores.postgres import PostgresStore
from runtime.testing.sample_ops import append, claim, create, finish, live, text
from runtime.testing.store_cases.shard_driver import ShardDriver

Open = Callable[..., PostgresStore]


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[HoldingProxy]:
    proxy = HoldingProxy(server.port)
    yield proxy
    proxy.close()


def test_a_commit_whose_answer_was_lost_is_found_by_its_repeat(
    server: PostgresServer, proxy: HoldingProxy, one_shard: Open
) -> None:
    shard = ShardDriver(one_shard(server.url_at(proxy.port)))
    shard.start()
    first, last = append(live(1, 1, "a")), finish(2, 1)
    proxy.lose_answers()
    with pytest.raises(StoreUnavailable):
        shard.do(first)
    proxy.heal()
    assert proxy.lost == 1
    assert shard.ask(first, Appended).repeat, "it had happened"
    proxy.lose_answers()
    with pytest.raises(StoreUnavailable):
        shard.do(last)
    proxy.heal()
    assert shard.ask(last, Finished).repeat
    assert shard.log()[1] == text("a")
    assert shard.head().status is Status.COMPLETED


def test_a_creation_whose_answer_was_lost_is_joined(
    server: PostgresServer, proxy: HoldingProxy, one_shard: Open
) -> None:
    shard = ShardDriver(one_shard(server.url_at(proxy.port)))
    proxy.lose_answers()
    with pytest.raises(StoreUnavailable):
        shard.do(create(), claim())
    proxy.heal()
    assert proxy.lost == 1
    outcomes = shard.do(create(), claim())
    assert [type(outcome).__name__ for outcome in outcomes] == ["Joined", "Claimed"]
    assert shard.head().driver_epoch == 1


def test_a_question_that_arrives_after_its_repeat_was_answered_does_nothing(
    server: PostgresServer, proxy: HoldingProxy, one_shard: Open
) -> None:
    """The bytes of a commit lie in the network while the shard gives up, reads back, and goes on."""
    shard = ShardDriver(one_shard(server.url_at(proxy.port)))
    shard.start()
    proxy.keep_questions()
    with pytest.raises(StoreUnavailable, match="no answer within"):
        shard.do(append(live(1, 1, "late")))
    proxy.heal()
    assert proxy.kept == 1
    shard.do()  # whoever asked is gone; the shard itself comes back, and ends the session before
    proxy.deliver()
    with server.admin() as admin:
        names = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'outlast log:0 %'"
        waiting.wait_until(lambda: len(admin.execute(names).fetchall()) == 1, "one session of the shard is left")
    assert shard.log()[1:] == []
    assert not shard.ask(append(live(1, 1, "in time")), Appended).repeat
    assert shard.log()[1:] == [text("in time")]
