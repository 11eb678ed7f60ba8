"""One instance and one Chromium for the whole lane; the page is the one that `docs/http.md` shows to its readers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import setup_node
from chat_page import Thread, chat_page, stream_page
from chromium import Chromium
from instance import Instance

from serve_app.ray_environment import free_port


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, Chromium]]:
    """Yield an instance, and a browser whose pages it allows."""
    port = free_port()
    origins = f"http://127.0.0.1:{port},http://localhost:{port}"
    instance = Instance(tmp_path_factory.mktemp("pages"), {"OUTLAST_ALLOWED_ORIGINS": origins})
    pages = {
        "chat": chat_page(),
        "strict-chat": 'import { StrictMode } from "react";'
        + chat_page(("<Chat />", "<StrictMode><Chat /></StrictMode>")),
        "owned-chat": chat_page(("{ reconnect:", '{ credentials: "include", reconnect:')),
        "stream": stream_page(),
        "owned-stream": stream_page(("offset=-1`", "offset=-1`, { withCredentials: true }")),
    }
    browser = Chromium(setup_node.prepare(), tmp_path_factory.mktemp("chromium"), port, pages)
    try:
        instance.start()
        browser.wait_ready()
        yield instance, browser
        assert instance.stop() == 0
    finally:
        instance.close()
        browser.close()


@pytest.fixture
def instance(served: tuple[Instance, Chromium]) -> Instance:
    """Return the instance, with every part of it answering."""
    served[0].wait_ready()
    return served[0]


@pytest.fixture
def thread(served: tuple[Instance, Chromium], instance: Instance) -> Iterator[Thread]:
    """Yield a thread of the test's own."""
    assert instance is served[0]
    own = Thread(served[1], instance.url)
    try:
        yield own
    finally:
        own.close()
