"""What is asked of a simulated deployment, what breaks in it, and when. Every schedule draws its own kinds of trouble:
a history in which everything breaks at once explores less than many in which a few things break often.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from runtime.core.ops import Create
from runtime.core.record import Limits, OnDisconnect, RunSpec
from runtime.testing.sim_agent import MAX_LINE_BYTES, Script, write_script
from runtime.testing.sim_deployment import Deployment
from runtime.testing.sim_net import NetWeather, Process
from runtime.testing.sim_world import PREFIX, Weather

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
HUNG_S = 4.0  # how long a held shard or supervisor keeps its name (P6)


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
    posts: list[tuple[float, int, Create]] = field(default_factory=list)  # when, how often, what
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
    )
    one_thread = rng.randrange(3) == 0
    for number in range(1, rng.choice([2, 2, 3, 4])):
        run_id = f"run-{number}"
        create = _draw_create(rng, run_id, "thread-1" if one_thread else f"thread-{number}")
        plan.posts.append((plan.seconds * 0.4 * rng.random() ** 3, 1 + rng.randrange(2), create))
        plan.scripts[run_id] = write_script(rng, rng.randrange(120), plan.seconds * (0.1 + rng.random()))
    return plan


def _draw_create(rng: random.Random, run_id: str, thread_id: str) -> Create:
    limits = Limits(
        max_line_bytes=MAX_LINE_BYTES,
        max_log_bytes=rng.choice([1 << 30] * 9 + [4000]),
        run_limit_s=rng.choice([0] * 7 + [25]),
        idle_limit_s=rng.choice([0] * 7 + [15]),
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


class Chaos:
    """Does what the plan says, then lets peace come."""

    def __init__(self, plan: Plan, deployment: Deployment) -> None:
        self.posting = len(plan.posts)  # posts that have no answer yet
        self._plan = plan
        self._loop = deployment.loop
        self._rng = deployment.loop.rng
        self._net = deployment.net
        self._trouble = deployment.trouble
        self._world = deployment.world
        self._shards = deployment.shards
        self._supervisors = deployment.supervisors
        self._fleet = deployment.fleet
        self._outside = deployment.outside
        self._checker = deployment.checker
        self._effects = 0
        self._deeds: dict[str, Callable[[], None]] = {
            "crash driver": self._crash_driver,
            "hold driver": self._hold_driver,
            "kill shard": self._kill_shard,
            "hold shard": self._hold_shard,
            "kill supervisor": self._kill_supervisor,
            "hold supervisor": self._hold_supervisor,
            "store outage": self._store_outage,
            "host away": self._host_away,
            "cancel": lambda: self._ask(self._outside.cancel),
            "take over": lambda: self._ask(self._outside.take_over),
            "hand over": lambda: self._ask(self._outside.hand_over),
            "post again": self._post_again,
            "emit": self._emit,
            "another viewer": self._another_viewer,
            "hold viewer": self._hold_viewer,
            "lose segments": self._lose_segments,
            "sandbox lost": self._sandbox_lost,
            "recorder dies": self._recorder_dies,
            "host crashes": self._host_crashes,
        }

    @property
    def over(self) -> bool:
        """Return whether everything that was asked for has come to its end."""
        runs = self._checker.runs.values()
        return not self.posting and not self._outside.watching and all(run.status.terminal for run in runs)

    async def rage(self) -> None:
        """Return when trouble is over; what it has set in motion may go on."""
        plan = self._plan
        self._storm()
        self._loop.start("", self._keep())
        for at, times, create in plan.posts:
            for again in range(times):
                self._loop.start("client", self._post(at + again * self._rng.random(), create, first=not again))
        while self._loop.time() < plan.seconds and not self.over:
            await asyncio.sleep(self._rng.expovariate(1 / plan.pace_s))
            kind = self._rng.choices(list(plan.kinds), list(plan.kinds.values()))[0]
            self._checker.note(f"chaos: {kind}")
            self._deeds[kind]()
        self._calm()

    def _storm(self) -> None:
        plan = self._plan
        self._net.weather = plan.net
        self._world.weather = plan.weather
        self._trouble.before = plan.store_before
        self._trouble.after = plan.store_after
        self._trouble.reading = plan.store_reading
        self._fleet.spared = plan.spared

    def _calm(self) -> None:
        self._checker.note("chaos: peace")
        self._net.weather = NetWeather()
        self._world.weather = Weather()
        self._trouble.before = self._trouble.after = self._trouble.reading = 0.0
        self._trouble.down = False

    async def _keep(self) -> None:
        """Give the names of shard and supervisor to new ones when the old are dead or hung (P6). Best effort: a hung
        one is not always ended, and may wake up beside its successor."""
        silent_s = {"shard": 0.0, "supervisor": 0.0}
        while True:
            await asyncio.sleep(0.5)
            shard, office = self._shards.current, self._supervisors.current
            for role, holder in (("shard", shard), ("supervisor", office)):
                process = None if holder is None else holder.process
                runs = process is not None and self._loop.runs(process.name)
                silent_s[role] = 0.0 if runs else silent_s[role] + 0.5
                if silent_s[role] > (HUNG_S if process is not None and process.alive else 0.5):
                    self._replace(role, process)
                    silent_s[role] = 0.0

    def _replace(self, role: str, old: Process | None) -> None:
        self._checker.note(f"keeper: a new {role} instead of {old.name if old else 'none'}")
        if old is not None and self._rng.random() >= self._plan.spared:
            old.kill()
        if role == "shard":
            self._shards.open()
        else:
            self._supervisors.open()

    # --- what is asked ---

    async def _post(self, at: float, create: Create, *, first: bool) -> None:
        await asyncio.sleep(at)
        accepted = await self._outside.post(create)
        if first:
            self.posting -= 1
            if accepted:
                self._outside.view(create.run_id)

    def _ask(self, what: Callable[[str], Awaitable[None]]) -> None:
        async def ask(run_id: str) -> None:
            await what(run_id)

        run_id = self._some_run()
        if run_id is not None:
            self._loop.start("client", ask(run_id))

    def _some_run(self) -> str | None:
        runs = list(self._checker.runs)
        return self._rng.choice(runs) if runs else None

    def _post_again(self) -> None:
        _, _, create = self._rng.choice(self._plan.posts)
        if create.run_id in self._checker.runs:
            self._loop.start("client", self._post(0.0, create, first=False))

    def _emit(self) -> None:
        self._effects += 1
        key = f"effect-{self._effects}"
        self._ask(lambda run_id: self._outside.emit(run_id, key))

    def _another_viewer(self) -> None:
        run_id = self._some_run()
        if run_id is not None:
            self._outside.view(run_id)

    # --- what breaks ---

    def _hold(self, process: Process) -> None:
        """Freeze a process for a while that is often longer than every lease."""
        seconds = self._rng.expovariate(1 / 6)
        self._checker.note(f"chaos: {process.name} is held for {seconds:.1f} s")
        process.hold()
        self._loop.call_later(seconds, process.resume)

    def _crash_driver(self) -> None:
        living = self._fleet.living()
        if living:
            self._rng.choice(living).process.kill()

    def _hold_driver(self) -> None:
        living = self._fleet.living()
        if living:
            self._hold(self._rng.choice(living).process)

    def _kill_shard(self) -> None:
        if self._shards.current is not None:
            self._shards.current.process.kill()

    def _hold_shard(self) -> None:
        if self._shards.current is not None:
            self._hold(self._shards.current.process)

    def _kill_supervisor(self) -> None:
        if self._supervisors.current is not None:
            self._supervisors.current.process.kill()

    def _hold_supervisor(self) -> None:
        if self._supervisors.current is not None:
            self._hold(self._supervisors.current.process)

    def _hold_viewer(self) -> None:
        if self._outside.viewers:
            self._hold(self._rng.choice(self._outside.viewers))

    def _store_outage(self) -> None:
        self._trouble.down = True
        self._loop.call_later(self._rng.expovariate(1 / 2), self._store_returns)

    def _store_returns(self) -> None:
        self._trouble.down = False

    def _host_away(self) -> None:
        self._world.weather.unreachable = True
        self._loop.call_later(self._rng.expovariate(1 / 8), self._host_returns)

    def _host_returns(self) -> None:
        self._world.weather.unreachable = False

    def _lose_segments(self) -> None:
        for incarnation in self._shards.all:
            incarnation.segments.lose()

    def _sandbox_lost(self) -> None:
        run_id = self._some_run()
        if run_id is not None:
            self._loop.start("", self._world.destroy(PREFIX + run_id, "chaos"))

    def _host_crashes(self) -> None:
        box = self._world.boxes.get(PREFIX + (self._some_run() or ""))
        if box is not None:
            self._world.crash(box)

    def _recorder_dies(self) -> None:
        box = self._world.boxes.get(PREFIX + (self._some_run() or ""))
        if box is not None and box.lock_held:
            box.lock_held = False
            box.changed()
