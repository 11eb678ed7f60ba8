"""What a start of Ray and Serve takes from the machine, and what it says when it fails."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest
from ray.exceptions import RayTaskError

from runtime.errors import InstanceError
from serve_app import ray_cluster, ray_environment


def test_an_own_port_is_none_that_the_kernel_may_give_to_a_connection_in_the_meantime() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(ray_environment.free_port() < lowest for _ in range(100))


def test_an_own_port_is_none_that_somebody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ray_environment.free_port()
    monkeypatch.setattr(ray_environment, "_given", set())
    monkeypatch.setattr(ray_environment, "OWN_PORTS", range(first, first + 1))
    with socket.create_server(("127.0.0.1", first)), pytest.raises(InstanceError, match=f"{first} to {first}"):
        ray_environment.free_port()
    assert ray_environment.free_port() == first


def test_an_own_port_is_none_that_was_given_before_and_is_not_bound_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "sample", lambda ports, _count: list(ports))
    given = [ray_environment.free_port() for _ in range(3)]
    assert len(set(given)) == len(given)


def test_a_start_of_serve_that_failed_in_an_actor_tells_the_cause_and_not_only_the_actor() -> None:
    cause = RuntimeError("HAProxy crashed during startup:\n  cannot bind socket (Address already in use)")
    error = RayTaskError("ready", f"ray::HAProxyManager.ready()\n{cause!r}", cause)  # type: ignore[no-untyped-call]
    assert ray_cluster._reason(error) == (
        "HAProxy crashed during startup: cannot bind socket (Address already in use)."
    )
    assert ray_cluster._reason(TimeoutError("after 90 s")) == "after 90 s."
