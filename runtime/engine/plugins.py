"""Harnesses and providers by name, and the translator that a run began with; one that cannot be loaded is one that is
not there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

from runtime.core.ids import shown_run_id
from runtime.core.record import RunSpec
from runtime.errors import JournalUnavailable
from runtime.ports import Harness, Translator

log = logging.getLogger("outlast.driver")

T = TypeVar("T")


def pick(registry: Mapping[str, T], name: str) -> T | None:
    """Return what has the name; None if nothing has, or if loading it fails: a run must be able to end without it."""
    try:
        return registry.get(name)
    except Exception:
        log.exception("%r cannot be loaded here", name)
        return None


def translator_of(harness: Harness, run_id: str, spec: RunSpec) -> Translator:
    """Return a fresh translator of the version that the run began with: another one could not continue its log (P24).

    Raises JournalUnavailable if the harness does not keep it."""
    # Whoever has never had but one version need not say which ones there are.
    kept = getattr(harness, "translator_versions", (harness.translator_version,))
    if spec.translator_version not in kept:
        have = ", ".join(map(str, sorted(kept)))
        raise JournalUnavailable(
            f"The run began with translator {spec.translator_version} of the harness {spec.harness!r}, which has "
            f"{have} here: what the agent printed cannot be read as before. What is stored stays. Serve runs to their "
            "end with a version that keeps their translator before you go on to one that does not."
        )
    return harness.translator(shown_run_id(run_id), spec)
