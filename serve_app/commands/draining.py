"""`outlast stop --node N`: what runs on a node goes elsewhere, and then the node goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import click

from serve_app.http_client import Instance

LOOK_S = 0.5
WITHIN_S = 120
LONGEST_S = 86400
Report = dict[str, Any]


class StillOn(Exception):
    """Something is on the node that could not be moved in time."""

    def __init__(self, report: Report) -> None:
        left = "; ".join(f"{name}: {why}" for name, why in sorted(report["left"].items()))
        node = str(report["nodeId"])[:12]
        super().__init__(f"Node {node} is still being drained. {left or 'Ray has not ended it yet'}.")


def drain_node(instance: Instance, node: str, within_s: int) -> None:
    """Drain the node and return when it has gone; say what left it. Raises StillOn, Refusal, InstanceNotFound."""

    def ask(name: str) -> Report:
        path = f"/api/nodes/{quote(name, safe='')}/drain"
        report: Report = instance.ask("POST", path, params={"withinS": str(within_s)})
        return report

    follow(ask, node, within_s, lambda text: click.echo(text, err=True))


def follow(ask: Callable[[str], Report], node: str, within_s: float, say: Callable[[str], None]) -> None:
    """Ask until the node has gone, and say what left it. Raises StillOn."""
    deadline = time.monotonic() + within_s
    report = ask(node)
    node_id, on_it = str(report["nodeId"]), set(report["left"])
    say(f"draining node {node_id[:12]}; on it: {', '.join(sorted(on_it)) or 'nothing of this instance'}")
    told: dict[str, str] = {}
    while not report["gone"]:
        on_it |= set(report["left"])
        for name in sorted(on_it - set(report["left"])):
            say(f"{name} is no longer there")
            on_it.discard(name)
        for name, why in report["left"].items():
            if told.get(name) != why:
                say(f"{name}: {why}")
            told[name] = why
        if time.monotonic() > deadline:
            raise StillOn(report)
        time.sleep(LOOK_S)
        report = ask(node_id)
    say(f"node {node_id[:12]} has gone" + (f", with {', '.join(sorted(on_it))} moved" if on_it else ""))
