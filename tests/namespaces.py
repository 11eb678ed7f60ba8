"""Doing one thing in another network namespace: what is opened there stays there, whoever then uses it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000


def inside_network(namespace: Path, make: Callable[[], T]) -> T:
    """Return what `make` makes on an OS thread that is in `namespace`. Raises OSError, and what `make` raises."""
    made: Future[T] = Future()

    def enter() -> None:
        descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            made.set_exception(error)
        finally:
            os.close(descriptor)

    thread = threading.Thread(target=enter, name=f"inside {namespace}")
    thread.start()
    thread.join()
    return made.result()
