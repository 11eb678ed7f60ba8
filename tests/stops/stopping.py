"""Stops a process of an instance exactly at a named step, by SIGSTOP to itself, if a test has ordered that.

Nothing in production knows of this: a test gives the instance this folder by PYTHONPATH, `sitecustomize` installs an
import hook, and the hook wraps the functions at which the steps lie, as soon as their module is loaded. An order is a
file `<run>@<step>` in STOPS_DIR; the first process that comes to the step takes the order by renaming it, so each fires
once. What a process asks for and is told after it went on is written down: a trial must show that the sleeper tried.

A step is `<role>.<what>.<when>`. Roles: `driver`, `supervisor`, and `store` for what the log shard does to its file.
When: `before` the call, `after` its answer came and before anybody has seen it, and `inside` where there is such a
place: a sandbox half made or half destroyed, a transaction that is not committed.

On one machine a kill waits in a sleeper's socket, and nothing would be learnt of the fence. So a file `<x>.unkillable`
stands for somebody who cannot be reached, as on a host that is cut off: not killed, and the next one gets another name.
`<x>` is a run, for its drivers, or `supervisor` or `log:0`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

Patch = Callable[[Any], None]
SPARED_TIMEOUT_S = 3.0


class Stopper:
    """This process's part: stops where it is told to, and writes down what it does after that."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.role = ""
        self.unkillable: set[str] = set()  # actor ids of drivers
        self.parts: dict[str, str] = {}  # actor id -> `supervisor` or `log:0`
        self._woke = False
        self._lock = threading.Lock()

    def reach(self, run: str, step: str) -> None:
        """Stop here if that is ordered; return when somebody has sent SIGCONT."""
        order = self.folder / f"{run}@{step}"
        taken = order.with_name(f"{order.name}.taken")
        try:
            order.rename(taken)
        except FileNotFoundError:
            return
        taken.write_text(str(os.getpid()))
        taken.rename(order.with_name(f"{order.name}.stopped"))
        # To this very OS thread: it stops on its way out of the call, before its next instruction.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        self._woke = True
        self.tried(run, step, "woke")

    def tried(self, run: str, what: str, told: str) -> None:
        """Write down what this process asked for and was told, once it has slept."""
        if not self._woke:
            return
        line = json.dumps([run, what, told, time.time_ns()]) + "\n"
        with self._lock, (self.folder / f"{os.getpid()}.tries").open("a") as file:
            file.write(line)

    def is_unkillable(self, who: str) -> bool:
        """Return whether the run's drivers, or that part, are out of everybody's reach."""
        return (self.folder / f"{who}.unkillable").exists()

    def name_of(self, part: str) -> str:
        """Return under which name the part is there now."""
        try:
            return (self.folder / f"{part}.name").read_text()
        except FileNotFoundError:
            return part

    def rename(self, part: str, lost: str) -> None:
        """Let the successor of the part whose actor id is `lost` have another name, once."""
        with suppress(FileExistsError):
            (self.folder / f"{part}.lost.{lost}").touch(exist_ok=False)
            fresh = self.folder / f"{part}.name.{os.getpid()}"
            fresh.write_text(f"{part}:{lost}")
            fresh.rename(self.folder / f"{part}.name")


def install(folder: str) -> None:
    """Wrap the steps of whatever this process imports from now on."""
    sys.meta_path.insert(0, _Hook(_Steps(Stopper(folder)).patches))


class _Hook:
    """Finds a module as everybody else does, and patches it right after it was loaded."""

    def __init__(self, patches: dict[str, Patch]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        patch = self._patches.get(name)
        if patch is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            load: Callable[[ModuleType], None] = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# --- the steps -------------------------------------------------------------------------------------------------


class _Steps:
    """Wraps what is wrapped; one method for each module."""

    def __init__(self, stopper: Stopper) -> None:
        self._stopper = stopper
        self.patches: dict[str, Patch] = {
            "runtime.engine.driver": lambda module: self._role(module.Driver, "drive", "driver"),
            "runtime.engine.supervisor": lambda module: self._role(module.Supervisor, "open", "supervisor"),
            "runtime.engine.remote_shard": self._remote_shard,
            "runtime.sandboxes.local": self._local,
            "runtime.stores.sqlite": lambda module: self._store(module, module.SqliteStore),
            "runtime.stores.postgres": lambda module: self._store(module, module.PostgresStore),
            "actors.calls": self._calls,
            "actors.run_actor": self._run_actor,
            "actors.log_shard": self._log_shard,
            "actors.shard_client": self._shard_client,
            "actors.supervisor_actor": self._supervisor_actor,
            "actors.fleet": lambda module: self._around(module.RayFleet, "create", lambda _, run, *__: (run, "make")),
        }

    def _remote_shard(self, module: Any) -> None:
        self._around(module.RemoteShard, "submit", lambda _, op: (_run_of(op), _word(op)))
        self._around(module.RemoteShard, "pulse", lambda _, run, *__: (run, "pulse"))
        self._around(module.RemoteShard, "due", lambda *_: ("", "due"))

    def _local(self, module: Any) -> None:
        self._around(module.LocalProvider, "create", lambda _, key, *__: (_run_of_key(key), "create"))
        self._around(module.LocalProvider, "destroy", lambda _, key: (_run_of_key(key), "destroy"))
        self._around(module.LocalSandbox, "launch", lambda it, _: (_run_of_key(it.key), "launch"))
        self._before(module, "_write_durably", lambda path, _: (_run_of_home(path.parent), "create.inside"))
        self._before(module, "_remove", lambda home: (_run_of_home(home), "destroy.inside"))

    def _store(self, module: Any, store: Any) -> None:
        """Reach `store.<op>.before`, `.inside` (decided, and not committed yet) and `.after` of each operation."""
        stopper = self._stopper
        commit, decide_all = store.commit, module._decide_all
        end = getattr(module, "end_predecessor", None)

        def reach_all(ops: Sequence[Any], when: str) -> None:
            for op in ops:
                stopper.reach(_run_of(op), f"store.{_word(op)}.{when}")

        @wraps(commit)
        def outer(it: Any, shard: int, shard_epoch: int, ops: Sequence[Any], now_ms: int) -> Any:
            reach_all(ops, "before")
            try:
                told = commit(it, shard, shard_epoch, ops, now_ms)
            except BaseException as error:
                stopper.tried("", "store.commit", type(error).__name__)
                raise
            stopper.tried("", "store.commit", "committed")
            reach_all(ops, "after")
            return told

        @wraps(decide_all)
        def inside(view: Any, ops: Sequence[Any], *args: Any) -> Any:
            told = decide_all(view, ops, *args)
            reach_all(ops, "inside")
            return told

        def end_if_reachable(path: Path) -> None:
            if end is not None and not stopper.is_unkillable("log:0"):
                end(path)

        store.commit, module._decide_all = outer, inside
        if end is not None:
            module.end_predecessor = end_if_reachable

    def _calls(self, module: Any) -> None:
        stopper, kill, find = self._stopper, module.kill, module.find

        def kill_if_reachable(handle: Any) -> None:
            who = module.actor_id(handle)
            part = stopper.parts.get(who, "")
            if stopper.is_unkillable(part):
                stopper.rename(part, who)
            elif who not in stopper.unkillable:
                kill(handle)

        def find_by_its_name(name: str, namespace: str) -> Any:
            handle = find(stopper.name_of(name), namespace)
            if handle is not None:
                stopper.parts[module.actor_id(handle)] = name
            return handle

        module.kill, module.find = kill_if_reachable, find_by_its_name

    def _log_shard(self, module: Any) -> None:
        stopper, create = self._stopper, module.create

        def create_by_its_name(shard: int, settings: Any, name: str, *args: Any) -> Any:
            handle = create(shard, settings, stopper.name_of(name), *args)
            stopper.parts[handle._actor_id.hex()] = name
            return handle

        module.create = create_by_its_name

    def _supervisor_actor(self, module: Any) -> None:
        stopper, create, name = self._stopper, module.create, module.SUPERVISOR

        def create_by_its_name(*args: Any) -> Any:
            module.SUPERVISOR = stopper.name_of(name)
            try:
                return create(*args)
            finally:
                module.SUPERVISOR = name

        module.create = create_by_its_name

    def _shard_client(self, module: Any) -> None:
        """Ray tells callers at once that an actor was killed; one that was spared tells nobody, so they ask sooner."""
        stopper, call, usual_s = self._stopper, module.ShardClient._call, module.CALL_TIMEOUT_S

        @wraps(call)
        async def outer(it: Any, method: str, *args: Any) -> Any:
            module.CALL_TIMEOUT_S = SPARED_TIMEOUT_S if stopper.is_unkillable(it.name) else usual_s
            return await call(it, method, *args)

        module.ShardClient._call = outer

    def _run_actor(self, module: Any) -> None:
        stopper, name, create = self._stopper, module.run_name, module.create

        def unreachable_name(run: str) -> str:
            return f"{name(run)}:{time.monotonic_ns()}" if stopper.is_unkillable(run) else str(name(run))

        def create_unreachable(run: str, *args: Any, **kwargs: Any) -> Any:
            handle = create(run, *args, **kwargs)
            if stopper.is_unkillable(run):
                stopper.unkillable.add(handle._actor_id.hex())
            return handle

        module.run_name, module.create = unreachable_name, create_unreachable

    # --- ways to wrap ---

    def _role(self, owner: Any, method: str, role: str) -> None:
        """Let whoever calls this be of the role."""
        inner = getattr(owner, method)

        @wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            self._stopper.role = role
            return inner(*args, **kwargs)

        setattr(owner, method, outer)

    def _around(self, owner: Any, method: str, place_of: Callable[..., tuple[str, str]]) -> None:
        """Reach `before` and `after` of an async method; `place_of` returns run and step."""
        stopper, inner = self._stopper, getattr(owner, method)

        @wraps(inner)
        async def outer(*args: Any, **kwargs: Any) -> Any:
            run, word = place_of(*args)
            step = f"{stopper.role}.{word}"
            stopper.reach(run, f"{step}.before")
            try:
                told = await inner(*args, **kwargs)
            except BaseException as error:
                stopper.tried(run, step, type(error).__name__)
                raise
            stopper.tried(run, step, _named(told))
            stopper.reach(run, f"{step}.after")
            return told

        setattr(owner, method, outer)

    def _before(self, owner: Any, function: str, place_of: Callable[..., tuple[str, str]]) -> None:
        """Reach a step before a function is called."""
        stopper, inner = self._stopper, getattr(owner, function)

        @wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            run, word = place_of(*args)
            stopper.reach(run, f"{stopper.role}.{word}")
            return inner(*args, **kwargs)

        setattr(owner, function, outer)


# --- what is asked of whom ---------------------------------------------------------------------------------------

_WORDS = {"ClaimRun": "claim", "OpenSupervisor": "open", "RequestCancel": "cancel"}


def _word(op: Any) -> str:
    """Return an operation's name in a step."""
    name = type(op).__name__
    if name != "Note":
        return _WORDS.get(name, name.lower())
    if op.sandbox_key is not None:
        return "key"
    if op.launch is not None:
        return "intend"
    return "progress" if op.destroy_pending is None else "given_back"


def _run_of(op: Any) -> str:
    return str(getattr(op, "run_id", ""))


def _run_of_key(key: str) -> str:
    return key.rpartition("/")[2]  # of ids that are their own name


def _run_of_home(home: Path) -> str:
    return home.name.partition("_")[0]  # without `_new` and `_gone`


def _named(told: Any) -> str:
    """Return what an answer is; a pulse may be a refusal too."""
    superseded_by = getattr(told, "superseded_by", None)
    return type(told).__name__ if superseded_by is None else "Superseded"
