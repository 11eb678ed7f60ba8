"""What `outlast doctor` asks of the Docker engine that is to run agents."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from runtime.errors import OutlastError
from runtime.sandboxes.container_engine import UNIX, Engine, Refusal
from runtime.sandboxes.container_python import same_machine

FREE_BYTES = 1 << 30  # one journal may grow so large by default


def examine(address: str, image: str) -> tuple[bool, str]:
    """Return whether containers of this image can run there, and what is or what to do."""
    engine = Engine(address)
    try:
        info = engine.info()
        has_image = engine.has_image(image)
    except OutlastError as error:
        return False, error.message
    except Refusal as refusal:
        return False, f"The Docker engine at {address} refuses: {refusal.message}"
    if not same_machine(str(info["Architecture"])):
        return (
            False,
            f"The engine runs on {info['Architecture']}, and this is {platform.machine()}: use one of the same",
        )
    root = Path(str(info["DockerRootDir"]))
    free = shutil.disk_usage(root).free if address.startswith(UNIX) and root.is_dir() else None
    if free is not None and free < FREE_BYTES:
        return (
            False,
            f"{free >> 20} MiB are free in {root} (1024 are needed): `docker system df` says what takes the room",
        )
    room = "" if free is None else f"; {free >> 20} MiB are free"
    held = "there" if has_image else "not there yet: the first run pulls it (`docker pull` does so now)"
    return True, f"Docker {info['ServerVersion']} at {address}{room}; the image {image} is {held}"
