"""Freezing the parts of an instance at named steps (`stops/stopping.py`), and what must be true of a run afterwards."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
from instance import Instance
from processes import state
from shell_runs import unique
from waiting import wait_until
from watching import Watch, check_whole

from runtime import process
from runtime.process import ProcessIdentity
from runtime.stores.sqlite_connection import connect_reader

STEPS = Path(__file__).parent / "stops"
TICK_S = 0.05  # between two lines of an agent


class Tried(NamedTuple):
    """Something that a process asked for after it had slept, and what it was told."""

    run: str
    what: str
    told: str


class Stops:
    """The orders of one instance: its side is `stops/stopping.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @property
    def settings(self) -> dict[str, str]:
        """Return the environment that makes an instance obey."""
        return {"PYTHONPATH": f"{STEPS}:{STEPS.parent}", "STOPS_DIR": str(self.folder)}

    def order(self, run: str, step: str) -> None:
        """Let the first process that comes to the run's step stop there."""
        (self.folder / f"{run}@{step}").touch()

    def make_unkillable(self, who: str) -> None:
        """Let no kill reach the run's drivers, or that part, and no name stand in a successor's way."""
        (self.folder / f"{who}.unkillable").touch()

    @contextmanager
    def unkillable(self, part: str) -> Iterator[None]:
        """Let no kill reach `supervisor` or `log:0` meanwhile."""
        self.make_unkillable(part)
        try:
            yield
        finally:
            (self.folder / f"{part}.unkillable").unlink()

    def stopped(self, run: str, step: str, within_s: float = 30.0) -> ProcessIdentity:
        """Return the process that stands still at the step, once one does."""
        mark = self.folder / f"{run}@{step}.stopped"
        wait_until(mark.exists, f"a process that stops at {step} of {run}", within_s)
        who = process.identify(int(mark.read_text()))
        assert who is not None, f"who stopped at {step} of {run} is gone"
        wait_until(lambda: state(who) in ("T", "gone"), f"the stop at {step} of {run}")
        return who

    def tries(self, who: ProcessIdentity) -> list[Tried]:
        """Return what that process did since it went on; empty while it sleeps."""
        try:
            text = (self.folder / f"{who.pid}.tries").read_text()
        except FileNotFoundError:
            return []
        return [Tried(*json.loads(line)[:3]) for line in text.split("\n")[:-1]]


class Trial:
    """One run whose agent counts its own starts, and prints numbers until it is told to end."""

    def __init__(
        self, instance: Instance, stops: Stops, folder: Path, name: str, thread: str | None = None, **forwarded: Any
    ) -> None:
        self.instance = instance
        self.stops = stops
        self.run = unique(name)
        self._gate = folder / f"{self.run}.gate"
        self._starts = folder / f"{self.run}.starts"
        self._count = folder / f"{self.run}.count"
        self.thread = thread or f"thread-{self.run}"
        self.watch = Watch(instance, self.run, self._script, self.thread, **forwarded)

    @property
    def _script(self) -> str:
        gate, starts, count = (shlex.quote(str(path)) for path in (self._gate, self._starts, self._count))
        loop = f"i=0; while [ ! -e {gate} ]; do i=$((i+1)); echo $i; sleep {TICK_S}; done"
        return f"echo $$ >> {starts}; {loop}; echo $i > {count}"

    def end(self) -> None:
        """Let the agent end."""
        self._gate.touch()

    @property
    def record(self) -> dict[str, Any]:
        """Return the run's record."""
        return self.instance.record(self.run)

    def ending(self, within_s: float = 40.0) -> dict[str, Any]:
        """Wait until the run has ended and nothing of its sandbox is left; return its record, but for what was refused:
        a late try changes nothing else."""
        record = self.instance.ended(self.run, within_s)
        return {name: value for name, value in record.items() if name != "refusals"}

    def cancel(self) -> None:
        """Press Stop."""
        answer = self.instance.http.post("/api/chat/cancel", json={"runId": self.run})
        assert answer.status_code == httpx.codes.NO_CONTENT

    def succeeded(self, sleeper: ProcessIdentity | None) -> bool:
        """Return whether the run's newest claim is of another process than the sleeper, and has stored something."""
        claims = self.record["claims"]
        if not claims:
            return False
        newest = claims[-1]
        return _pid_of(newest) != sleeper and newest["firstAppendAt"] is not None

    def claim_of(self, who: ProcessIdentity) -> dict[str, Any] | None:
        """Return the claim that a process holds or held."""
        return next((claim for claim in self.record["claims"] if _pid_of(claim) == who), None)

    @property
    def starts(self) -> int:
        """Return how many agents have ever begun."""
        return self._starts.read_text().count("\n") if self._starts.exists() else 0

    # --- what must be true ---

    def check_untouched(self) -> None:
        """Check the living successor's sandbox: there, with one agent."""
        assert self.starts <= 1, f"{self.starts} agents of {self.run} were started"
        assert self.instance.sandbox(self.run).is_dir(), f"the sandbox of {self.run} is gone"

    def check_completed(self) -> None:
        """Check a run that went on to its agent's own end."""
        record = self.instance.ended(self.run, within_s=40)
        assert (record["status"], record["exitCode"]) == ("completed", 0), (self.run, record)
        self.watch.until_end()
        assert self.starts == 1, f"{self.starts} agents of {self.run} were started"
        check_whole(self.watch, int(self._count.read_text()))
        self._check_log(record)

    def check_aborted(self) -> None:
        """Check a run that was cancelled: its end is told once, and nothing of it is left."""
        record = self.instance.ended(self.run, within_s=40)
        assert (record["status"], record["error"]["code"]) == ("aborted", "aborted"), (self.run, record)
        self.watch.until_end()
        assert self.starts <= 1, f"{self.starts} agents of {self.run} were started"
        check_whole(self.watch, len(self.watch.lines))
        self._check_log(record)

    def _check_log(self, record: dict[str, Any]) -> None:
        """Check that what is stored is what the client got and a late one gets, and that no epoch wrote after a newer
        one had (I1)."""
        rows = stored_batches(self.instance, self.run)
        assert [seq for seq, _, _, _ in rows] == _running_sums([count for _, count, _, _ in rows]), (self.run, rows)
        epochs = [epoch for _, _, epoch, _ in rows]
        assert epochs == sorted(epochs), f"{self.run}: an old epoch wrote after a newer one: {epochs}"
        told = [claim["epoch"] for claim in record["claims"]]
        assert told == sorted(set(told)), f"{self.run}: claims of {told}"
        for claim in record["claims"]:
            written = sum(count for _, count, epoch, _ in rows if epoch == claim["epoch"])
            assert written == claim["chunks"], f"{self.run}: epoch {claim['epoch']} stored {written}: {claim}"
        stored = [json.loads(line) for _, _, _, data in rows for line in data.split(b"\n")]
        assert stored == self.watch.events, f"{self.run}: the client saw another log than is stored"
        with Watch(self.instance, self.run) as late:
            late.until_end()
        assert (late.ids, late.events) == (self.watch.ids, self.watch.events), f"{self.run}: a late client differs"


@contextmanager
def running(trials: Sequence[Trial]) -> Iterator[None]:
    """Start the trials' runs, each with a client; whatever fails, every sleeper goes on and every agent ends."""
    for trial in trials:
        trial.watch.__enter__()
    try:
        yield
    finally:
        for trial in trials:
            trial.end()
        for trial in trials:
            trial.watch.__exit__(None, None, None)


@contextmanager
def stopped_shard(
    instance: Instance, stops: Stops, folder: Path, step: str
) -> Iterator[tuple[ProcessIdentity, Trial, Trial]]:
    """Yield the shard that stands at a step of a run, the run, and another one that streams meanwhile."""
    trial, other = (Trial(instance, stops, folder, name) for name in ("stored", "other"))
    with running([other]):
        other.watch.until_lines(3)
        stops.order(trial.run, f"store.{step}")
        with running([trial]), ThreadPoolExecutor(1) as somebody:
            operation = step.partition(".")[0]
            if operation in ("cancel", "finish"):
                trial.watch.until_lines(1)
                somebody.submit(trial.cancel if operation == "cancel" else trial.end)
            yield stops.stopped(trial.run, f"store.{step}"), trial, other


def check_both(trial: Trial, other: Trial, *, cancelled: bool) -> None:
    """Check the two runs of a shard that was stopped: to their ends, one of them cancelled if it was."""
    if cancelled:
        trial.check_aborted()
    else:
        trial.watch.until_lines(1)
        trial.end()
        trial.check_completed()
    other.end()
    other.check_completed()


def stored_batches(instance: Instance, run: str) -> list[tuple[int, int, int, bytes]]:
    """Return (seq, count, epoch, data) of each stored batch, read from the store itself past everything of ours."""
    store = instance.env.get("OUTLAST_STORE", "sqlite")
    url = "" if store == "sqlite" else store
    connection = psycopg.connect(url) if url else connect_reader(instance.data_dir / "outlast.sqlite", 5000)
    tables, place = ("outlast.batch JOIN outlast.run", "%s") if url else ("batch JOIN run", "?")
    query = (
        f"SELECT batch.seq, batch.n, batch.epoch, batch.data FROM {tables} ON run.ordinal = batch.run "  # noqa: S608
        f"WHERE run.run_id = {place} ORDER BY batch.seq"
    )
    with closing(connection):
        found: Any = connection.execute(query, (run,))
        return [(int(seq), int(n), int(epoch), bytes(data)) for seq, n, epoch, data in found]


def _pid_of(claim: dict[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(boot_id=claim["bootId"], pid=claim["pid"], pid_started_at=claim["pidStartedAt"])


def _running_sums(counts: Sequence[int]) -> list[int]:
    sums = [0]
    for count in counts:
        sums.append(sums[-1] + count)
    return sums[:-1]
