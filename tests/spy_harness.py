"""A harness that an instance loads by its setting: its agent prints the modules of the run actor that launches it.

Named as `OUTLAST_HARNESSES=spy=spy_harness:SpyHarness`, with this folder on PYTHONPATH."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.core.record import RunSpec
from runtime.harnesses.shell import ShellHarness
from runtime.ports import LaunchSpec


class SpyHarness(ShellHarness):
    """The shell harness, but for what it runs."""

    name = "spy"

    def launch(
        self,
        run_id: str,  # noqa: ARG002 - the port's form
        spec: RunSpec,  # noqa: ARG002 - the port's form
        env: Mapping[str, str],
        workspace: str,  # noqa: ARG002 - the port's form
        history: Sequence[Mapping[str, Any]],  # noqa: ARG002 - the port's form
    ) -> LaunchSpec:
        """Print the name of each module that is really there; a None in `sys.modules` only blocks an import."""
        modules: Mapping[str, object] = sys.modules
        loaded = sorted(name for name, module in modules.items() if module is not None)
        return LaunchSpec(argv=("/usr/bin/printf", "%s\\n", *loaded), env=dict(env))
