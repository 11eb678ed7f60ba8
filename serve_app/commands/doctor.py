"""`outlast doctor`: whether everything that an instance needs is there, and whether it works."""

from __future__ import annotations

import json
from typing import Any

import click

from runtime.errors import InstanceNotFound
from serve_app.commands.checks import CHECKS, Check, port
from serve_app.commands.exits import Exit
from serve_app.commands.options import json_option, with_instance
from serve_app.http_client import Instance
from serve_app.trials import Refusal

NOT_READY = 503


@click.command("doctor")
@json_option
@with_instance
def doctor(instance: Instance, as_json: bool) -> int:
    """Check this machine, and the instance if one runs. Exit code 1 if a check failed."""
    readiness, found = look(instance)
    ours = readiness is not None
    checks = [check(instance.settings) for check in CHECKS if not (ours and check is port)]
    checks += [found, *instance_checks(readiness or {})]
    actors = instance_actors(readiness or {})
    if as_json:
        click.echo(json.dumps({"actors": actors, "checks": [check._asdict() for check in checks]}))
    else:
        for check in checks:
            click.echo(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<10}  {check.detail}")
        for actor in actors:
            state = "alive" if actor.get("alive") else f"waits: {why}" if (why := actor.get("waitsFor")) else "dead"
            click.echo(f"actor {actor.get('name')}: {state}, pid {actor.get('pid')}, node {actor.get('nodeId')}")
    return Exit.DONE if all(check.ok for check in checks) else Exit.FAILED


def look(instance: Instance) -> tuple[dict[str, Any] | None, Check]:
    """Return what /readyz says, None if nothing answers, and the check that says whether an instance runs."""
    named = instance.named
    try:
        info = instance.info()
        if info is None and not named:
            return None, Check("instance", True, f"none runs in {instance.settings.data_path}: `outlast serve` does")
        readiness = instance.ask("GET", "/readyz", also=frozenset({NOT_READY}))
    except (InstanceNotFound, Refusal) as error:
        if named or instance.lives():
            return None, Check("instance", False, error.message)
        here = f"none runs in {instance.settings.data_path}: the last one was lost without a stop"
        return None, Check("instance", True, f"{here}; `outlast serve` takes its runs over")
    ready = bool(readiness.get("ready"))
    where = named or (info.url if info else "")
    return readiness, Check("instance", ready, f"{where} is {'ready' if ready else 'not ready: see the checks below'}")


def instance_checks(readiness: dict[str, Any]) -> list[Check]:
    """Return the checks that the instance made itself."""
    return [
        Check(f"instance.{check['name']}", bool(check["ok"]), str(check.get("detail", "")))
        for check in readiness.get("checks") or []
    ]


def instance_actors(readiness: dict[str, Any]) -> list[dict[str, Any]]:
    """Return `{name, nodeId, pid, alive}` of each actor of the instance, as far as /readyz lists them."""
    return list(readiness.get("actors") or [])
