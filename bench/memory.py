"""What one run costs in memory: `run_actor_uss_mb`.

Pages that are the run actor's alone (Private_Clean + Private_Dirty of `/proc/<pid>/smaps_rollup`), after it has
appended 1,000 chunks at full speed and while its agent still runs. In MB of 10^6 bytes; the largest of the trials.
"""

from __future__ import annotations

from pathlib import Path

from rows import Figure, Figures
from served import Served, new_run

TRIALS = 3
CHUNKS = 1_000
RATE = 2


async def run_actor(served: Served, quick: bool) -> Figures:
    """Measure."""
    found = []
    for _ in range(1 if quick else TRIALS):
        run_id = new_run()
        stream = await served.replay(run_id, CHUNKS + 200, rate=RATE, burst=CHUNKS)
        await stream.until(b"@@%07d" % (CHUNKS - 10))
        found.append(uss_bytes(await served.driver_pid(run_id)) / 1e6)
        await served.end(run_id, stream)
    return {"run_actor_uss_mb": Figure(max(found), len(found))}


def uss_bytes(pid: int) -> int:
    """Return the bytes that only this process holds."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n"):
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total
