"""The Ray under an instance: our own on this machine, or a cluster that exists.

Our own Ray is bound to loopback, has its own temp folder and ports, and ends with us: Ray starts its processes so
that they die with the process that started them, also when that is killed.

Importing this module imports Ray and Serve, which read the environment then: `ray_environment.prepare` comes first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.context import _get_global_client as get_serve_client

from actors import supervisor_actor
from actors.calls import Gone, call, find, kill
from actors.cluster import RayCluster
from actors.compose import preloaded_modules
from actors.names import HOOKS, SUPERVISOR, shard_name
from actors.slots import RUN_MEMORY
from runtime.errors import InstanceError, RayUnreachable
from runtime.settings import Settings
from serve_app.deployment import application
from serve_app.leftovers import end_family, end_leftovers, family_of
from serve_app.ray_environment import folders_of, proxy_folder
from serve_app.tokens import Keys, operator_token

log = logging.getLogger("outlast.serve")

OBJECT_STORE_BYTES = 256 << 20  # segments only, and they spill
START_TIMEOUT_S = 60
REASON_CHARS = 500
CONNECT_S = 5.0
ASK_AGAIN_S = 0.2
HANDOVER_S = 5.0  # a driver needs milliseconds; more only if the store or the machine is slow
DRAIN_S = 12.0  # streams, then drivers; `serve` promises to be gone within 30 s
SPARE_RUN_ACTORS = 16  # a driver that is being replaced holds its room until its process is gone
LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where this machine finds what listens everywhere
# Above what replicas accept as streams, so that our own bound answers with 429 instead of Serve's queue.
SPARE_REQUESTS = 200

T = TypeVar("T")


class RayInstance:
    """Starts and ends Ray, the supervisor and the gateway for one `serve`."""

    def __init__(self, settings: Settings, deployment: str, temp_dir: str) -> None:
        self.settings = settings
        self.deployment = deployment
        self.temp_dir = temp_dir
        self.address = settings.ray_address
        self._own = not settings.ray_address
        self._node_id = ""
        self._started = False
        self._loop = asyncio.new_event_loop()

    # --- up ---

    def start(self) -> None:
        """Start or join Ray, make the supervisor and through it the shards. Raises RayUnreachable, StoreRefused."""
        if not self._own:
            _check_address(self.settings.ray_address)
        try:
            context: Any = ray.init(**self._init_options())
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise RayUnreachable(f"Ray could not be started or reached: {error}") from error
        self._started = True
        self.address = str(context["gcs_address"])
        self._node_id = str(ray.get_runtime_context().get_node_id())
        self._start_supervisor()

    def _init_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "namespace": self.settings.namespace,
            "log_to_driver": False,
            "logging_level": "warning",
            "configure_logging": False,
        }
        if not self._own:
            return {**options, "address": self.settings.ray_address}
        return {
            **options,
            "address": "local",
            "num_cpus": max(2, os.cpu_count() or 2),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_memory": (self.settings.max_runs + SPARE_RUN_ACTORS) * RUN_MEMORY,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": self.temp_dir,
            "_system_config": {
                "num_workers_soft_limit": 300,
                "idle_worker_killing_time_threshold_ms": 600_000_000,
                "preload_python_modules": preloaded_modules(self.settings.sandbox),
                # Ray's own is 15: then drivers, shard and gateway wait behind whatever else the machine does.
                "worker_niceness": 0,
            },
        }

    def _start_supervisor(self) -> None:
        """Make the supervisor, and wait for its answer. One that dies at its start is restarted by Ray: ask again."""
        give_up = time.monotonic() + START_TIMEOUT_S
        while (left_s := give_up - time.monotonic()) > 0:
            handle = supervisor_actor.create(self.settings, self.deployment, self._node_id)
            with suppress(Gone):
                self._run(call("supervisor", handle.ping, timeout_s=left_s))
                return
            time.sleep(ASK_AGAIN_S)
        raise InstanceError(f"The supervisor did not start within {START_TIMEOUT_S} s.")

    def start_application(self) -> str:
        """Start the gateway; return its URL. Raises InstanceError."""
        try:
            self._start_serve()
        except (RayError, RuntimeError, TimeoutError) as error:
            raise InstanceError(f"Ray Serve did not start: {_reason(error)} Try again.") from error
        if self._own:
            Path(self.temp_dir).chmod(0o700)  # Ray's workers open it to everybody as they start
        settings = self.settings
        prefix = settings.route_prefix.rstrip("/")
        host = LOOPBACK_OF.get(settings.host, settings.host)
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{settings.port}{prefix}"

    def _start_serve(self) -> None:
        settings = self.settings
        keys = Keys.of(operator_token(settings.data_path))
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": settings.host, "port": settings.port, "request_timeout_s": None},
        )
        if not self._own:
            _check_serve_port(settings.port)
        serve.run(
            application(settings, self.deployment, self._node_id, keys, settings.max_viewers + SPARE_REQUESTS),
            name=f"outlast-{settings.namespace}",
            route_prefix=settings.route_prefix,
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )

    def healthy(self) -> bool:
        """Return whether every process of our own Ray lives; of another's cluster nothing is known here."""
        node = self._node()
        return node is None or not node.dead_processes()

    def _node(self) -> Any:
        return vars(ray._private.worker).get("_global_node") if self._own else None  # noqa: SLF001 - no public way

    def _pids(self) -> list[int]:
        node = self._node()
        kinds = node.all_processes.values() if node is not None else ()
        return [info.process.pid for processes in kinds for info in processes]

    # --- down ---

    def drain(self) -> int:
        """Cut every stream so that clients reconnect, have every driver hand over; return how many runs go on."""
        cluster = RayCluster(self.settings, self.deployment)

        async def ask() -> int:
            left = 0
            for shard in cluster.shards():
                left += len(await shard.unfinished())
            await cluster.supervisor().drain()
            await cluster.supervisor().leave(HANDOVER_S)
            return left

        try:
            return self._run(asyncio.wait_for(ask(), DRAIN_S))
        except Exception as error:  # noqa: BLE001 - we are going down: say it, and go on
            log.warning("streams could not be told to reconnect, or drivers to hand over: %s", error)
            return 0

    def stop(self) -> None:
        """End what we started: our own Ray whole, on another's cluster our actors only."""
        if not self._started:
            return
        if not self._own:
            self._leave_cluster()
        family = family_of(self._pids())
        ray.shutdown()
        self._loop.close()
        end_family(family)  # the raylet's own helpers take their time after it
        if self._own:
            # and what the raylet started after we had looked: now that it is gone, nobody starts more
            end_leftovers(folders_of(self.temp_dir))
            shutil.rmtree(proxy_folder(self.temp_dir), ignore_errors=True)

    def _leave_cluster(self) -> None:
        serve.delete(f"outlast-{self.settings.namespace}")
        for name in (SUPERVISOR, HOOKS, *(shard_name(shard) for shard in range(self.settings.shards))):
            handle = find(name, self.settings.namespace)
            if handle is not None:
                kill(handle)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _reason(error: Exception) -> str:
    """Return one line: of an error in an actor what went wrong there, not the name that its text begins with."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return " ".join(str(cause).split())[:REASON_CHARS] + "."


def _check_serve_port(port: int) -> None:
    """Raise InstanceError if the cluster's Serve listens on another port: it was there first, and takes no other."""
    client: Any = get_serve_client()
    taken = client.http_config.port
    if taken != port:
        raise InstanceError(f"Ray Serve of this cluster listens on port {taken} already. Set OUTLAST_PORT={taken}.")


def _check_address(address: str) -> None:
    """Raise RayUnreachable if nobody listens at `host:port`: Ray itself would try for longer than a minute.

    Anything else (`auto`) is Ray's own to find."""
    host, _, port = address.rpartition(":")
    if not host or "://" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise RayUnreachable(
            f"No Ray answers at {address} ({why}). Start one, or unset OUTLAST_RAY_ADDRESS."
        ) from error
