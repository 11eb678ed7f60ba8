"""What a seed draws before anything happens: runs, agents, and which kinds of trouble there will be.

Every schedule has its own kinds: a history in which everything breaks at once explores less than many in which a few
things break often.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from runtime.core.ops import Create
from runtime.core.record import Limits, OnDisconnect, RunSpec
from runtime.testing.sim_agent import MAX_LINE_BYTES, Script, write_script
from runtime.testing.sim_asking import SHARE, let_ask
from runtime.testing.sim_net import NetWeather
from runtime.testing.sim_world import Weather

# How often each kind of trouble is drawn among those that a schedule has; and in how many of 100 schedules it is had.
KINDS = {
    "crash driver": (10, 60),
    "hold driver": (16, 70),
    "kill shard": (4, 45),
    "hold shard": (4, 45),
    "kill supervisor": (3, 40),
    "hold supervisor": (4, 40),
    "store outage": (2, 30),
    "host away": (2, 25),
    "cancel": (3, 40),
    "take over": (4, 35),
    "hand over": (4, 25),
    "post again": (3, 25),
    "emit": (6, 35),
    "another viewer": (3, 30),
    "hold viewer": (3, 25),
    "lose segments": (4, 25),
    "sandbox lost": (1, 8),
    "recorder dies": (1, 8),
    "host crashes": (1, 8),
}


@dataclass(frozen=True, slots=True)
class Post:
    """What is posted: when, how often, and for how long nobody watches the run then."""

    at: float
    times: int
    unwatched_s: float
    create: Create
    leaves_at: float | None = None  # when everybody who watches the run leaves for good


@dataclass(slots=True)
class Plan:
    """What a seed draws before anything happens. Seconds are virtual."""

    seconds: float
    pace_s: float  # between two troubles, on average
    kinds: dict[str, int]
    net: NetWeather
    weather: Weather
    store_before: float
    store_after: float
    store_reading: float
    spared: float
    takeover_attempts: int
    shards: int
    checkpoint_chunks: int  # between two checkpoints, at least
    damaged: float  # share of checkpoints that are not read as they were written
    late_cancels: bool  # Stop is pressed just when an agent has exited
    postgres: bool  # the store is a server's; else it is the one that was given
    crossing: float  # share of the moments at which another shard's commit may come between, those at which one does
    store_slow_s: float
    asking: dict[str, Create] = field(default_factory=dict)  # runs whose agents ask at their end
    losses: int = 0  # times at which the store loses its end
    log_retention_s: int = 0  # 0: nothing is old enough to go
    transcript_retention_s: int = 0
    posts: list[Post] = field(default_factory=list)
    scripts: dict[str, Script] = field(default_factory=dict)


def draw_plan(rng: random.Random) -> Plan:
    """Return the plan of a seed."""

    def sometimes(most: float) -> float:
        return most * rng.random() ** 2 if rng.randrange(2) else 0.0

    kinds = {kind: weight for kind, (weight, share) in KINDS.items() if rng.randrange(100) < share}
    plan = Plan(
        seconds=10.0 + 40.0 * rng.random() ** 2,
        pace_s=0.2 + 2.0 * rng.random(),
        kinds=kinds or {"crash driver": 1},
        net=NetWeather(0.002 + sometimes(0.3), sometimes(0.1), sometimes(0.1), sometimes(0.15)),
        weather=Weather(sometimes(0.5), sometimes(0.2), sometimes(0.2), sometimes(0.2)),
        store_before=sometimes(0.2),
        store_after=sometimes(0.2),
        store_reading=sometimes(0.1),
        spared=rng.choice([0.0, 0.9, 0.9]),
        takeover_attempts=rng.choice([4, 8, 30]),
        shards=rng.choice([1, 2, 3]),
        checkpoint_chunks=rng.choice([1, 3, 10, 30, 1 << 60]),
        damaged=sometimes(1.0),
        late_cancels=rng.randrange(4) == 0,
        postgres=rng.randrange(3) == 0,
        crossing=rng.choice([0.0, 0.3, 0.6]),
        store_slow_s=rng.choice([0.0, 0.2, 1.0]),
    )
    one_thread = rng.randrange(3) == 0
    together = rng.randrange(4) == 0
    at = 0.0
    for number in range(1, rng.choice([2, 2, 3, 4])):
        run_id = f"run-{number}{rng.choice('abcdefgh')}"  # whose shards are any
        create = _draw_create(rng, run_id, "thread-1" if one_thread else f"thread-{number}")
        unwatched_s = rng.choice([0.0, 0.0, 30.0]) * (1 - rng.random() ** 2)
        at = at if together and plan.posts else plan.seconds * 0.4 * rng.random() ** 3
        script = write_script(rng, rng.randrange(120), plan.seconds * (0.1 + rng.random()))
        leaves_at = None
        if create.spec.limits.detached_ttl_s is not None and rng.randrange(2):
            leaves_at = plan.seconds * rng.random()
            if rng.randrange(2):  # an agent that never ends
                middle = rng.randrange(len(script.pieces) + 1)
                script = replace(script, pieces=[*script.pieces[:middle], (1e6, b""), *script.pieces[middle:]])
        plan.posts.append(Post(at, 1 + rng.randrange(2), unwatched_s, create, leaves_at))
        plan.scripts[run_id] = script
    if plan.postgres:
        # Of its own, so that the histories without losses stay what they are.
        plan.losses = random.Random(plan.seconds).choice([0, 0, 0, 1, 1, 2])
    # Of its own, too.
    asking = random.Random(plan.seconds * plan.pace_s)
    if asking.randrange(SHARE) == 0:
        let_ask(plan, asking)
    # Likewise: in some histories what has ended is soon too old to be kept.
    plan.log_retention_s = random.Random(plan.seconds + 1).choice([0, 0, 0, 0, 0, 5])
    return plan


def _draw_create(rng: random.Random, run_id: str, thread_id: str) -> Create:
    limits = Limits(
        max_line_bytes=MAX_LINE_BYTES,
        max_log_bytes=rng.choice([1 << 30] * 9 + [4000]),
        run_limit_s=rng.choice([0] * 7 + [25]),
        idle_limit_s=rng.choice([0] * 7 + [15]),
        detached_ttl_s=rng.choice([None, None, 4, 10, 25]),
    )
    spec = RunSpec(
        harness="sim",
        translator_version=1,
        provider="sim",
        input={"threadId": thread_id, "messages": []},
        on_disconnect=rng.choice([OnDisconnect.DETACH, OnDisconnect.DETACH, OnDisconnect.CANCEL]),
        limits=limits,
    )
    on_busy = rng.choice(["reject", "enqueue", "enqueue", "cancel-previous"])
    return Create(run_id=run_id, thread_id=thread_id, owner="", spec=spec, digest=run_id, on_busy=on_busy)
