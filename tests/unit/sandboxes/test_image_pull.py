"""How far a pull is, from an engine's own words."""

from __future__ import annotations

from typing import Any

from runtime.sandboxes.image_pull import ImagePull

SAID: list[dict[str, Any]] = [
    {"status": "Pulling from library/thing", "id": "latest"},
    {"status": "Already exists", "progressDetail": {}, "id": "a"},
    {"status": "Pulling fs layer", "progressDetail": {}, "id": "b"},
    {"status": "Waiting", "progressDetail": {}, "id": "c"},
    {"status": "Downloading", "progressDetail": {"current": 40, "total": 100}, "id": "b"},
    {"status": "Downloading", "progressDetail": {"current": "x", "total": -1}, "id": "c"},
    {"status": "Download complete", "progressDetail": {}, "id": "b"},
    {"status": "Extracting", "progressDetail": {"current": 1, "total": 7}, "id": "b"},
    {"status": "Pull complete", "progressDetail": {}, "id": "b"},
    {"status": "Status: Downloaded newer image"},
    {"errorDetail": {}},
]


def test_layers_and_bytes_are_summed_as_far_as_the_engine_has_said_them() -> None:
    pull = ImagePull("thing:latest")
    seen = []
    for event in SAID:
        pull.note(event)
        facts = pull.facts()
        seen.append((facts["layersDone"], facts["layers"], facts["bytesDone"], facts["bytes"]))
    assert pull.facts()["image"] == "thing:latest"
    assert seen[4] == (1, 3, 40, 100)
    assert seen[6] == (1, 3, 100, 100)
    assert seen[-1] == (2, 3, 100, 100)
