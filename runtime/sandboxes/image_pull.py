"""How far the pull of an image is, from what the engine says of each of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HELD = ("Pull complete", "Already exists")
DOWNLOADED = "Download complete"


class ImagePull:
    """One pull under way. Written by the OS thread that listens, read by any."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._layers: dict[str, tuple[int, int, bool]] = {}  # bytes that came, all its bytes (0: not known), held

    def note(self, event: Mapping[str, Any]) -> None:
        """Take one word of the engine's."""
        layer, status = event.get("id"), event.get("status")
        if not isinstance(layer, str) or not isinstance(status, str):
            return
        done, total, held = self._layers.get(layer, (0, 0, False))
        detail = event.get("progressDetail") or {}
        if status == "Downloading" and isinstance(detail, Mapping):
            done, total = _number(detail.get("current"), done), _number(detail.get("total"), total)
        elif status == DOWNLOADED:
            done = total
        elif status in HELD:
            done, held = total, True
        elif not status.startswith(("Pulling fs", "Waiting", "Verifying", "Extracting")):
            return  # of the image and not of a layer
        self._layers[layer] = (done, total, held)

    def facts(self) -> dict[str, Any]:
        """Return `{image, layers, layersDone, bytes, bytesDone}`: of the layers that the engine has spoken of."""
        layers = list(self._layers.values())
        return {
            "image": self._image,
            "layers": len(layers),
            "layersDone": sum(held for _, _, held in layers),
            "bytes": sum(total for _, total, _ in layers),
            "bytesDone": sum(done for done, _, _ in layers),
        }


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value >= 0 else otherwise
