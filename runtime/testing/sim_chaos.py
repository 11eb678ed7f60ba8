"""What breaks in a simulated deployment, and when; and what is asked of it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from runtime.core.ops import Create
from runtime.engine.checkpointing import Pace
from runtime.testing.sim_asking import People
from runtime.testing.sim_deployment import Deployment
from runtime.testing.sim_loop import THREAD_SLOW_S
from runtime.testing.sim_net import NetWeather, Process
from runtime.testing.sim_plan import Plan, Post
from runtime.testing.sim_shards import Incarnation
from runtime.testing.sim_world import PREFIX, Weather

SUPERVISOR = -1  # among the shards' numbers
HUNG_S = 4.0  # how long a held shard or supervisor keeps its name (P6)


class Chaos:
    """Does what the plan says, then lets peace come."""

    def __init__(self, plan: Plan, deployment: Deployment) -> None:
        self.posting = len(plan.posts)  # posts that have no answer yet
        self._plan = plan
        self._loop = deployment.loop
        self._rng = deployment.loop.rng
        self._net = deployment.net
        self._trouble = deployment.trouble
        self._crossing = deployment.crossing
        self._world = deployment.world
        self._shards = deployment.shards
        self._supervisors = deployment.supervisors
        self._fleet = deployment.fleet
        self._outside = deployment.outside
        self._checker = deployment.checker
        self._effects = 0
        self._lose_the_end = deployment.lose_the_end
        self._people = People(self._loop, plan, self._outside, self._checker.questions)
        self._checker.questions.heard = self._people.hear
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
        waiting = self.posting or self._people.busy or self._outside.watching
        return not waiting and all(run.status.terminal for run in runs)

    async def rage(self) -> None:
        """Return when trouble is over; what it has set in motion may go on."""
        plan = self._plan
        self._storm()
        self._loop.start("", self._keep())
        for _ in range(plan.losses):
            self._loop.start("", self._lose(plan.seconds))
        for post in plan.posts:
            self._loop.start("client", self._first_post(post))
            for _ in range(post.times - 1):
                self._loop.start("client", self._post(post.at + self._rng.random(), post.create))
        while self._loop.time() < plan.seconds and not self.over:
            await asyncio.sleep(self._rng.expovariate(1 / plan.pace_s))
            kind = self._rng.choices(list(plan.kinds), list(plan.kinds.values()))[0]
            self._checker.write(f"chaos: {kind}")
            self._deeds[kind]()
        self._calm()

    async def _lose(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._rng.random())
        self._lose_the_end(2.0 * self._rng.random() ** 2)

    def _agent_exited(self, run_id: str) -> None:
        if self._plan.late_cancels and self._rng.randrange(2):
            self._loop.start("client", self._cancel_after(0.02 * self._rng.random() ** 3, run_id))

    async def _cancel_after(self, seconds: float, run_id: str) -> None:
        await asyncio.sleep(seconds)
        await self._outside.cancel(run_id)

    def _storm(self) -> None:
        plan = self._plan
        self._world.ended = self._agent_exited
        self._net.weather = plan.net
        self._world.weather = plan.weather
        self._trouble.before = plan.store_before
        self._trouble.after = plan.store_after
        self._trouble.reading = plan.store_reading
        self._trouble.damaged = plan.damaged
        self._crossing.share = plan.crossing
        self._crossing.slow_s = THREAD_SLOW_S + plan.store_slow_s
        self._fleet.spared = plan.spared
        self._fleet.pace = Pace(chunks=plan.checkpoint_chunks)

    def _calm(self) -> None:
        self._checker.write("chaos: peace")
        self._net.weather = NetWeather()
        self._world.weather = Weather()
        self._trouble.before = self._trouble.after = self._trouble.reading = self._trouble.damaged = 0.0
        self._trouble.rise()
        self._crossing.slow_s = THREAD_SLOW_S

    async def _keep(self) -> None:
        """Give the names of shard and supervisor to new ones when the old are dead or hung (P6). Best effort: a hung
        one is not always ended, and may wake up beside its successor."""
        silent_s = dict.fromkeys([*self._shards.current, SUPERVISOR], 0.0)
        while True:
            await asyncio.sleep(0.5)
            holders = {**self._shards.current, SUPERVISOR: self._supervisors.current}
            for role, holder in holders.items():
                process = None if holder is None else holder.process
                runs = process is not None and self._loop.runs(process.name)
                silent_s[role] = 0.0 if runs else silent_s[role] + 0.5
                if silent_s[role] > (HUNG_S if process is not None and process.alive else 0.5):
                    self._replace(role, process)
                    silent_s[role] = 0.0

    def _replace(self, role: int, old: Process | None) -> None:
        what = "supervisor" if role == SUPERVISOR else "shard"
        self._checker.write(f"keeper: a new {what} instead of {old.name if old else 'none'}")
        if old is not None and self._rng.random() >= self._plan.spared:
            old.kill()
        if role == SUPERVISOR:
            self._supervisors.open()
        else:
            self._shards.open(role)

    # --- what is asked ---

    async def _first_post(self, post: Post) -> None:
        if post.leaves_at is not None:
            self._outside.leaves_at[post.create.run_id] = post.leaves_at
        if await self._post(post.at, post.create):
            await asyncio.sleep(post.unwatched_s)
            self._outside.view(post.create.run_id)
        self.posting -= 1

    async def _post(self, at: float, create: Create) -> bool:
        await asyncio.sleep(at)
        return await self._outside.post(create)

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
        create = self._rng.choice(self._plan.posts).create
        if create.run_id in self._checker.runs:
            self._loop.start("client", self._post(0.0, create))

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
        self._checker.write(f"chaos: {process.name} is held for {seconds:.1f} s")
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

    def _some_shard(self) -> list[Incarnation]:
        living = [each for each in self._shards.current.values() if each is not None]
        return [self._rng.choice(living)] if living else []

    def _kill_shard(self) -> None:
        for incarnation in self._some_shard():
            incarnation.process.kill()

    def _hold_shard(self) -> None:
        for incarnation in self._some_shard():
            self._hold(incarnation.process)

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
        self._trouble.fall()
        self._loop.call_later(self._rng.expovariate(1 / 2), self._trouble.rise)

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
