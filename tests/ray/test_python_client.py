"""`actors.client` from a process of its own: the same runs, the same offsets, as over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from instance import Instance
from shell_runs import unique

# Writes one JSON value a line, to a file, since Ray prints what it likes. A process of its own, since a process joins
# one Ray only.
PROGRAM = """
import asyncio, json, sys
from actors.client import Client, SyncClient

told = open(sys.argv.pop(), "w")
def say(value):
    print(json.dumps(value), file=told, flush=True)

async def main(data_dir, run, thread):
    client = Client(data_dir=data_dir)
    words = "for i in 1 2 3 4; do echo $i; sleep 0.2; done"
    assert await client.start(words, run_id=run, thread_id=thread) == run
    assert await client.start(words, run_id=run, thread_id=thread) == run
    first, rest, last = [], [], None
    async for last, chunk in client.attach(run):
        first.append(chunk)
        if chunk.get("delta") == "2\\n":
            break
    say(await client.find(thread))
    async for offset, chunk in client.attach(run, last):
        rest.append(chunk)
    say([chunk["delta"] for chunk in first + rest if "delta" in chunk])
    say(rest[-1]["type"])
    say((await client.status(run))["status"])
    for call in (client.status("nobody"), client.start("other words", run_id=run, thread_id=thread)):
        try:
            await call
        except Exception as error:
            say(type(error).__name__)
    long = await client.start("sleep 600", run_id=run + "-long")
    await client.cancel(long)
    say([chunk async for _, chunk in client.attach(long)][-1]["code"])
    say([chunk async for _, chunk in client.attach(run, "now")])
    await client.close()

asyncio.run(main(*sys.argv[1:]))
sync = SyncClient(data_dir=sys.argv[1])
run = sync.start("seq 1 3")
say([chunk["delta"] for _, chunk in sync.attach(run) if "delta" in chunk])
sync.close()
ann, run = SyncClient(data_dir=sys.argv[1], owner="ann"), sys.argv[2]
ann.start("echo hers", run_id=run)
say([chunk["delta"] for _, chunk in ann.attach(run) if "delta" in chunk])
say([ann.status(run)[name] for name in ("runId", "owner")])
ann.close()
"""


@pytest.mark.timeout(90)
def test_python_starts_attaches_returns_and_cancels_like_http(instance: Instance, tmp_path: Path) -> None:
    run, thread = unique("python"), unique("thread")
    told = tmp_path / "told"
    program = [sys.executable, "-P", "-c", PROGRAM, str(instance.data_dir), run, thread, str(told)]
    done = subprocess.run(program, capture_output=True, timeout=80, check=False, env=instance.env, cwd="/")
    assert done.returncode == 0, done.stderr.decode()
    assert [json.loads(line) for line in told.read_text().splitlines()] == [
        run,
        ["1\n", "2\n", "3\n", "4\n"],
        "RUN_FINISHED",
        "completed",
        "RunNotFound",
        "RunExists",
        "aborted",
        [],
        ["1\n", "2\n", "3\n"],
        ["hers\n"],
        [run, "ann"],
    ]
    assert instance.record(f"ann@{run}")["owner"] == "ann"


JOIN_S = 20.0
JOIN = """
import json, sys
import ray
info = json.load(open(sys.argv[1]))
ray.init(address=info["rayAddress"], namespace=info["namespace"], log_to_driver=False)
print("joined")
"""


@pytest.mark.timeout(90)
def test_nobody_joins_the_instance_s_ray_without_its_token(instance: Instance) -> None:
    """Some of Ray's ports listen on every address; whoever joins can run code."""
    token = instance.data_dir / "ray-token"
    assert token.stat().st_mode & 0o777 == 0o600
    where = str(instance.data_dir / "instance.json")
    for env in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        program = [sys.executable, "-P", "-c", JOIN, where]
        assert b"joined" not in _printed(program, {**instance.env, **env})


def _printed(program: list[str], env: dict[str, str]) -> bytes:
    """Return what it printed; Ray tries a wrong token for a minute, and is given the time that a join takes."""
    try:
        done = subprocess.run(program, capture_output=True, timeout=JOIN_S, check=False, env=env, cwd="/")
    except subprocess.TimeoutExpired as late:
        return late.stdout or b""
    assert done.returncode != 0
    return done.stdout
