"""A pull goes on for as long as it moves, and is no wait without an end."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.errors import LaunchFailed, SandboxUnreachable
from runtime.sandboxes import container_engine
from runtime.sandboxes.container_engine import Engine

IMAGE = "registry.example/agent:2"


class Api:
    """The SDK's client: its pull says `events`, then stands still if it is told to."""

    def __init__(self, *events: dict[str, Any], stands_still: bool = False, found: bool = True) -> None:
        self.asked: tuple[str, str] | None = None
        self.released = threading.Event()
        self._events = events
        self._stands_still = stands_still
        self._found = found

    def pull(self, repository: str, *, tag: str, stream: bool, decode: bool) -> Iterator[dict[str, Any]]:
        assert stream
        assert decode
        self.asked = (repository, tag)
        yield from self._events
        if self._stands_still:
            self.released.wait()

    def inspect_image(self, image: str) -> None:
        if not self._found:
            raise importlib.import_module("docker.errors").ImageNotFound(image)


def pull(api: Api) -> None:
    Engine("unix:///nowhere")._pull(api, IMAGE)


def test_a_pull_that_ends_is_one_whatever_it_says() -> None:
    api = Api(*({"status": "Downloading"} for _ in range(100)))
    pull(api)
    assert api.asked == ("registry.example/agent", "2")


def test_a_pull_that_stands_still_is_no_proof_of_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_engine, "PULL_SILENT_S", 0.05)
    api = Api({"status": "Downloading"}, stands_still=True)
    with pytest.raises(SandboxUnreachable, match="stood still"):
        pull(api)
    api.released.set()


def test_an_image_that_cannot_be_had_is_told_with_the_engine_s_own_words() -> None:
    with pytest.raises(LaunchFailed, match="manifest unknown"):
        pull(Api({"status": "Pulling"}, {"error": "manifest unknown"}, found=False))
