"""Every process of an instance killed while agents work, or `serve` ended: agents go on, the next serve picks up, and
tells of the ends that were not told."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import hook_classes
import pytest
from hook_classes import noted
from instance import OUTLAST, Instance
from processes import command_line, kill, wait_dead
from shell_runs import numbered, unique
from waiting import wait_until
from watching import Watch, check_whole
from webhook_receiver import SECRET, Receiver, write_webhooks

pytestmark = pytest.mark.timeout(240)
# Ray's own agents notice only after a minute or so that their raylet is gone; they answer nobody meanwhile.
LINGERING = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
LINES = 400  # at about 100 a second: longer than a restart would be too long, the agents print on meanwhile


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where hooks write what they were called with."""
    return tmp_path_factory.mktemp("notes") / "calls"


@pytest.fixture(scope="module", autouse=True)
def receiver(mortal: Instance, notes: Path) -> Iterator[Receiver]:
    """Yield who is told of the ends of runs: one that is down, and then refuses each end once."""
    receiver = Receiver(500, 200)
    receiver.up()
    receiver.down()
    file = notes.with_name("webhooks")
    write_webhooks(file, f"billing {receiver.url} {SECRET}")
    hooks = "hook_classes:Noting,hook_classes:Raising"
    mortal.configure(OUTLAST_HOOKS=hooks, OUTLAST_WEBHOOKS_FILE=str(file), **{hook_classes.FILE: str(notes)})
    yield receiver
    receiver.down()


def told_in_vain(instance: Instance) -> float:
    """Return how many posts have failed since the process of hooks began."""
    found = [
        line for line in instance.http.get("/metrics").text.splitlines() if line.startswith("outlast_webhook_posts")
    ]
    return sum(float(line.split()[1]) for line in found if 'result="failed"' in line)


def test_agents_go_on_when_every_process_of_the_instance_is_killed_and_each_line_comes_once(
    mortal: Instance, receiver: Receiver
) -> None:
    mortal.start()
    over = unique("over")
    mortal.begin(over, "echo 1")
    mortal.ended(over)
    wait_until(lambda: told_in_vain(mortal), "a post in vain", 30.0)
    runs = [unique(f"all-killed-{number}") for number in range(3)]
    for run in runs[1:]:
        mortal.begin(run, numbered(LINES))
    with Watch(mortal, runs[0], numbered(LINES)) as watch:
        watch.until_lines(20)
        for run in runs:
            mortal.driver(run)
            wait_until(lambda run=run: mortal.agents(run), f"the agent of {run}")  # type: ignore[misc]
        everything = mortal.processes()
        agents = {run: set(mortal.agents(run)) for run in runs}
        mortal.kill_everything()
        wait_dead(everything)
        for run in runs:
            assert set(mortal.agents(run)) & agents[run], "the agent died with the instance"
        receiver.up()
        mortal.start()
        watch.until_end(within_s=90)
    check_whole(watch, LINES)
    wait_until(lambda: len(receiver.ids_of(over)) >= 2, "the end of a run of before", 60.0)
    assert len(set(receiver.ids_of(over))) == 1
    for run in runs:
        record = mortal.ended(run)
        assert (record["status"], record["exitCode"]) == ("completed", 0)
        assert [(claim["epoch"], claim["reason"]) for claim in record["claims"]] == [(1, "start"), (2, "restart")]
        with Watch(mortal, run) as late:
            late.until_end()
        check_whole(late, LINES)


def test_a_kill_of_serve_alone_ends_the_instance_but_no_agent_and_the_next_serve_has_its_port(mortal: Instance) -> None:
    run, lines = unique("serve-killed"), 3 * LINES  # no longer than the restart, and it must not end before all died
    with Watch(mortal, run, numbered(lines)) as watch:
        watch.until_lines(20)
        everything = [who for who in mortal.processes() if not command_line(who.pid).startswith(LINGERING)]
        kill(mortal.info.process)
        wait_dead(everything)
        assert mortal.agents(run)
        mortal.start()
        watch.until_end(within_s=90)
    check_whole(watch, lines)
    assert mortal.ended(run)["status"] == "completed"


def test_sigterm_cuts_streams_in_mid_body_leaves_agents_and_the_next_serve_completes_them(mortal: Instance) -> None:
    run, old = unique("sigterm"), unique("old")
    with Watch(mortal, old, numbered(3)) as early:
        early.until_end()
    with Watch(mortal, run, numbered(LINES)) as watch:
        watch.until_lines(20)
        assert mortal.stop() == 0
        assert watch.cuts >= 1  # it came back at once, and was cut again while streams drained
        assert watch.refusal is None
        assert [command_line(who.pid) for who in mortal.processes()] == []
        assert mortal.agents(run)
        assert "1 run(s) go on without us" in mortal.said
        assert "Traceback" not in mortal.said
        assert not (mortal.data_dir / "instance.json").exists()
        _age(mortal, old, days=40)
        mortal.start()
        watch.until_end(within_s=90)
    check_whole(watch, LINES)
    first, second = mortal.ended(run)["claims"]
    assert [(claim["reason"], claim["end"]) for claim in (first, second)] == [
        ("start", "handed_over"),
        ("restart", "finished"),
    ]
    assert first["endedAt"] < second["claimedAt"]
    assert mortal.sandboxes() == []
    _only_what_it_said_is_kept(mortal, old, early)


def test_a_backup_of_a_living_instance_is_restored_and_what_came_after_it_is_refused_then_told_again(
    mortal: Instance, tmp_path: Path
) -> None:
    """The agent's journal lives, so its log is made again; its offsets of after the backup may name other chunks."""
    run, ended, file = unique("backed-up"), unique("ended"), tmp_path / "the.backup"
    if mortal.serve is None:  # by itself, without the tests before it
        mortal.start()
    with Watch(mortal, ended, numbered(3)) as whole:
        whole.until_end()
    with Watch(mortal, run, numbered(LINES)) as watch:
        watch.until_lines(20)
        _outlast(mortal, "backup", str(file))
        kept = mortal.record(ended)["chunks"]
        watch.until_lines(len(watch.lines) + 20)
        assert mortal.stop() == 0
        seen = len(watch.events)
        _outlast(mortal, "restore", "--force", str(file))
        mortal.start()
        wait_until(lambda: watch.refusal, "the refusal of its last offset", 90)
    assert watch.refusal is not None
    assert watch.refusal[0] == 410, watch.refusal
    assert "offset_gone" in watch.refusal[1]
    assert mortal.ended(run, within_s=60)["status"] == "completed"
    with Watch(mortal, run) as again:
        again.until_end()
    check_whole(again, LINES)
    assert again.ids[0].partition("_")[0] != watch.ids[0].partition("_")[0]
    assert again.events[:20] == watch.events[:20]
    assert seen > 40
    reader = mortal.http.get("/api/chat", params={"runId": ended, "offset": whole.ids[0]})
    assert (reader.status_code, mortal.record(ended)["chunks"]) == (200, kept), "its offsets are good: it had ended"
    with Watch(mortal, unique("after"), numbered(5)) as after:
        after.until_end()
    check_whole(after, 5)


def test_an_end_is_posted_until_it_is_taken_and_hooks_are_called_although_supervisor_and_hooks_are_killed(
    mortal: Instance, receiver: Receiver, notes: Path, tmp_path: Path
) -> None:
    receiver.down()
    before = told_in_vain(mortal)
    run, go_on = unique("told"), tmp_path / "go-on"
    mortal.begin(run, f"echo 1; while [ ! -e {go_on} ]; do sleep 0.05; done; exit 3")
    wait_until(lambda: "detach" in [name for name, _facts in noted(notes, run)], "the hook of the detach", 60.0)
    go_on.touch()
    assert mortal.ended(run)["exitCode"] == 3
    wait_until(lambda: told_in_vain(mortal) > before, "a post in vain", 30.0)
    kill(mortal.the_process("ray::SupervisorActor"))
    kill(mortal.the_process("ray::HookActor"))
    receiver.up()
    wait_until(lambda: len(receiver.ids_of(run)) >= 2, "the post again", 90.0)
    mortal.wait_ready(40.0)
    (id_,) = set(receiver.ids_of(run))
    told = [message for message in receiver.messages() if message["data"]["runId"] == run]
    assert all(message == told[0] for message in told)
    assert told[0]["type"] == "run.ended"
    data = told[0]["data"]
    assert (data["status"], data["code"], data["exitCode"]) == ("failed", "agent_exit", 3)
    assert id_.startswith("msg_")
    calls = noted(notes, run)
    names = [name for name, _facts in calls]
    assert [names.count(name) for name in ("start", "detach", "finish", "cancel")] == [1, 1, 0, 0]
    assert names.index("start") < names.index("detach") < names.index("error")
    assert dict(calls)["detach"]["detachable"]
    chunks = [facts for name, facts in calls if name == "chunk"]
    assert [facts["event"]["type"] for facts in chunks][:2] == ["RUN_STARTED", "TEXT_MESSAGE_START"]
    assert [facts["offset"] for facts in chunks] == sorted({facts["offset"] for facts in chunks})


def _age(stopped: Instance, run: str, days: int) -> None:
    """Let a run have ended so many days earlier."""
    earlier = days * 86_400_000
    with closing(sqlite3.connect(stopped.data_dir / "outlast.sqlite")) as connection, connection:
        row = connection.execute("SELECT ordinal, head FROM run WHERE run_id = ?", (run,)).fetchone()
        head = json.loads(row[1])
        head["finishedAt"] -= earlier
        connection.execute("UPDATE run SET head = ? WHERE ordinal = ?", (json.dumps(head).encode(), row[0]))
        connection.execute("UPDATE reap SET due = due - ? WHERE run = ?", (earlier, row[0]))


def _only_what_it_said_is_kept(instance: Instance, run: str, before: Watch) -> None:
    """A log that is older than its retention goes with the next sweep, and its transcript stays."""

    def pruned() -> bool:
        instance.http.post("/api/reap", timeout=40.0).raise_for_status()
        return bool(instance.record(run)["kept"] == "transcript")

    wait_until(pruned, "the log's removal", 60.0)
    for offset in ("-1", before.ids[1]):
        gone = instance.http.get("/api/chat", params={"runId": run, "offset": offset})
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "offset_gone")
    shown = instance.http.get("/api/chat", params={"threadId": instance.record(run)["threadId"]}).json()
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert instance.metric('outlast_pruned_total{what="log"}') == 1.0
    with closing(sqlite3.connect(instance.data_dir / "outlast.sqlite")) as connection:
        left = connection.execute(
            "SELECT count(*) FROM batch JOIN run ON run = ordinal WHERE run_id = ?", (run,)
        ).fetchone()
    assert left == (0,)


def _outlast(instance: Instance, *args: str) -> None:
    done = subprocess.run([OUTLAST, *args], env=instance.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
