"""The one place where Ray is called: a remote method in, a value or one of our errors out.

Ray's own errors mean one of two things to us. The method raised: then the cause is what it raised. Or, whatever else it
is (the actor is dead or cannot be reached, the object store is full, an argument was lost on the way): there is no
answer, and whoever asked may ask again (`Gone`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from runtime.errors import OutlastError


class Gone(Exception):
    """No answer: the actor is dead, restarting, unreachable or never made, or Ray lost the call. `died` if Ray says
    that it is dead."""

    def __init__(self, name: str, died: bool) -> None:
        super().__init__(name)
        self.died = died


async def call(name: str, method: Any, *args: Any, timeout_s: float | None = None) -> Any:
    """Call `method` (an actor's remote method) and return its value.

    Raises the method's own OutlastError, or Gone. A timeout does not retract the call: it may still be executed."""
    try:
        async with asyncio.timeout(timeout_s):  # not wait_for, which makes a task of its own for each call
            return await method.remote(*args)
    except RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, OutlastError):
            raise cause from None
        raise
    except (RayError, TimeoutError) as error:
        raise Gone(name, isinstance(error, ActorDiedError)) from error


def find(name: str, namespace: str) -> Any | None:
    """Return the actor of that name, or None."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except (ValueError, RayError):
        return None


def kill(handle: Any) -> None:
    """End an actor, best effort, without a restart (P5)."""
    try:
        ray.kill(handle, no_restart=True)
    except (RayError, ValueError):
        return


def actor_id(handle: Any) -> str:
    """Return an actor's id, which no other actor ever has."""
    return str(handle._actor_id.hex())  # noqa: SLF001 - Ray offers no other way from a handle to its id
