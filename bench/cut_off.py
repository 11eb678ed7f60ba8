"""Start runs whose drivers the supervisor cannot end. Used by `stale.py`; prints nothing.

    python cut_off.py DATA_DIR < JSON array of [run id, prompt]

When a supervisor replaces a driver, it also kills the old one. On one machine that kill waits in the sleeper's socket
and ends it before it can do anything, so nothing would be learnt about the fence. Where it does not arrive (another
host, cut off or paused), the fence alone protects the run. So these drivers are production run actors in every respect
but their name, under which neither the supervisor nor Ray finds them. The supervisor is not told of the runs either: it
finds them by their leases.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import ray

from actors import run_actor
from actors.cluster import RayCluster
from actors.compose import harnesses
from actors.ray_access import use_token
from runtime.core.ops import Create, Created
from runtime.core.record import ClaimReason
from runtime.engine.admission import Options, create_op
from runtime.engine.authority import repeat
from runtime.settings import Settings

HARNESS = "claude-code"
OWNER = "local"


async def start(data_dir: Path, wanted: list[tuple[str, str]]) -> None:
    """Create each run and its driver. The actors are detached: they outlive this program."""
    use_token(data_dir)
    instance = json.loads((data_dir / "instance.json").read_text())
    ray.init(address=instance["rayAddress"], namespace=instance["namespace"], log_to_driver=False)
    cluster = RayCluster(Settings(namespace=instance["namespace"]), deployment="")
    settings = await repeat(cluster.supervisor().settings)
    deployment = (data_dir / "deployment").read_text().strip()
    actor: Any = ray.remote(**run_actor.OPTIONS)(run_actor.RunActor)
    for run_id, prompt in wanted:
        outcome = await repeat(partial(cluster.shard(run_id).submit, _create(run_id, prompt, settings)))
        assert isinstance(outcome, Created), outcome
        named = actor.options(name=f"cut-off:{run_id}", namespace=settings.namespace)
        driver = named.remote(run_id, 0, ClaimReason.START.value, settings, deployment)
        await driver.ready.remote()


def _create(run_id: str, prompt: str, settings: Settings) -> Create:
    asked = {"threadId": run_id, "messages": [{"role": "user", "content": prompt}]}
    return create_op(run_id, run_id, OWNER, asked, Options(), settings, harnesses(settings)[HARNESS])


if __name__ == "__main__":
    asyncio.run(start(Path(sys.argv[1]), json.load(sys.stdin)))
