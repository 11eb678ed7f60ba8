"""The actor `run:<runId>`: one driver, one epoch, one life (P1).

The drive begins in the constructor, on an OS thread with an event loop of its own: Ray's loop stays free for `status`
and `cancel`, and no first call has to arrive before work starts. When the drive has ended the process goes, a little
later, so that whoever watches can still read how.
"""

from __future__ import annotations

from actors import light

light.keep_light()

import asyncio  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import threading  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from concurrent.futures import Future  # noqa: E402
from functools import cache  # noqa: E402
from typing import Any  # noqa: E402

import ray  # noqa: E402

from actors.compose import agent_env, harnesses, lent_tools, providers  # noqa: E402
from actors.history import thread_history  # noqa: E402
from actors.identity import this_claimant  # noqa: E402
from actors.names import run_name, shard_of  # noqa: E402
from actors.shard_client import ShardClient  # noqa: E402
from actors.slots import RUN_MEMORY  # noqa: E402
from runtime.core.record import ClaimReason  # noqa: E402
from runtime.engine.clock import SystemClock  # noqa: E402
from runtime.engine.concluding import DriveEnd  # noqa: E402
from runtime.engine.driver import Driver  # noqa: E402
from runtime.engine.tools import Tools  # noqa: E402
from runtime.errors import LogClosedError  # noqa: E402
from runtime.settings import Settings  # noqa: E402

log = logging.getLogger("outlast.run")

OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "memory": RUN_MEMORY,  # what an autoscaler sees, and what keeps a node from being filled beyond what it bears
    "lifetime": "detached",
    "max_restarts": 0,
    "max_task_retries": 0,
    "max_concurrency": 1000,
}
PARK_S = 5.0
LINGER_S = 10.0  # after the drive's end, for whoever asks how it ended


class RunActor:
    """Drives one run at the epoch that a claim on `expected_epoch` gives."""

    def __init__(
        self,
        run_id: str,
        expected_epoch: int,
        reason: str,
        settings: Settings,
        deployment: str,
        home: str | None = None,
    ) -> None:
        logging.basicConfig(level=settings.log_level.upper())
        self._run_id = run_id
        self._settings = settings
        self._end: Future[DriveEnd] = Future()
        self._parked: asyncio.Future[DriveEnd] | None = None  # the same, on Ray's loop
        self._loop = asyncio.new_event_loop()
        self._driver = Driver(run_id, self._tools(deployment, home), this_claimant())
        work = (expected_epoch, ClaimReason(reason))
        self._thread = threading.Thread(target=self._run, args=work, name=f"drive {run_id}", daemon=True)
        self._thread.start()

    def _tools(self, deployment: str, home: str | None) -> Tools:
        settings = self._settings
        shard = ShardClient(shard_of(self._run_id, settings.shards), settings.namespace)
        return Tools(
            log=shard,
            clock=SystemClock(),
            providers=providers(settings, deployment),
            harnesses=harnesses(settings),
            agent_env=agent_env(settings),
            history=thread_history(settings),
            lease_ttl_s=settings.lease_ttl_s,
            sandbox_return_s=settings.sandbox_return_s,
            home=home,
            lent=lent_tools(settings),
            file_events=settings.file_events,
        )

    def _run(self, expected_epoch: int, reason: ClaimReason) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            end = self._loop.run_until_complete(self._driver.drive(expected_epoch, reason))
            self._end.set_result(end)
        except BaseException as error:
            log.exception("run %s: the drive failed", self._run_id)
            self._end.set_exception(error)
        timer = threading.Timer(LINGER_S, os._exit, (0,))
        timer.daemon = True
        timer.start()

    async def ready(self) -> str:
        """Return the id of this actor's node once it runs."""
        return str(ray.get_runtime_context().get_node_id())

    async def ended(self) -> DriveEnd | None:
        """Park until the drive has ended; return how, or None after PARK_S: ask again.

        Ray lets a process that is told to go (SIGTERM, graceful exit) end its calls first: one that parks for as long
        as its run would keep a process that takes no other call any more."""
        if self._parked is None:
            self._parked = asyncio.wrap_future(self._end)
        await asyncio.wait((self._parked,), timeout=PARK_S)
        return self._parked.result() if self._parked.done() else None

    async def status(self) -> dict[str, Any]:
        """Return `{runId, epoch, ending, ended, pid, nodeId}`."""
        return {
            "runId": self._run_id,
            "epoch": self._driver.epoch,
            "ending": self._driver.ending,
            "ended": self._end.done(),
            "pid": os.getpid(),
            "nodeId": ray.get_runtime_context().get_node_id(),
        }

    async def cancel(self) -> bool:
        """Act on a recorded cancel now; True is the receipt (P21). Changes nothing if none is recorded."""
        if self._end.done() or self._driver.ending:
            return True
        asked = asyncio.run_coroutine_threadsafe(self._driver.look(), self._loop)
        return await asyncio.wrap_future(asked)

    async def emit(self, name: str, value: Any, emit_id: str) -> int:
        """Append a CUSTOM live chunk once; return the position after it (P8)."""
        if self._end.done():
            raise LogClosedError(self._run_id)
        asked = asyncio.run_coroutine_threadsafe(self._driver.emit(name, value, emit_id), self._loop)
        return await asyncio.wrap_future(asked)


@cache
def _actor() -> Any:
    """Return the actor class, made once: Ray pickles and exports each new one anew, 10 ms of every start."""
    return ray.remote(**OPTIONS)(RunActor)


def create(
    run_id: str,
    expected_epoch: int,
    reason: ClaimReason,
    settings: Settings,
    deployment: str,
    home: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Make the run's actor; `home` is the host that it is bound to. Raises ActorAlreadyExistsError (a ValueError) while
    the name is taken."""
    named = {"scheduling_strategy": "SPREAD", **(options or {}), "name": run_name(run_id)}
    actor = _actor().options(**named, namespace=settings.namespace)
    return actor.remote(run_id, expected_epoch, reason.value, settings, deployment, home)
