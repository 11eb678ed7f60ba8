"""Harnesses and providers by name; one that cannot be loaded is one that is not there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

log = logging.getLogger("outlast.driver")

T = TypeVar("T")


def pick(registry: Mapping[str, T], name: str) -> T | None:
    """Return what has the name; None if nothing has, or if loading it fails: a run must be able to end without it."""
    try:
        return registry.get(name)
    except Exception:
        log.exception("%r cannot be loaded here", name)
        return None
