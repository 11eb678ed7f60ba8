"""A harness in three versions of its package, as `OUTLAST_HARNESSES=versioned=versioned_harness:<one of them>`.

What translator 2 makes of a line differs from what translator 1 makes of it, so that a wrong one cannot go unseen.
"""

from __future__ import annotations

from collections.abc import Collection

from runtime.core.record import RunSpec
from runtime.harnesses.shell import ShellHarness, ShellTranslator
from runtime.ports import Translator


class LoudTranslator(ShellTranslator):
    """The shell's translator, but louder."""

    def feed(self, line: bytes, torn: bool = False) -> list[bytes]:
        """Return the chunks of one line."""
        return super().feed(line + b"!", torn)


class First(ShellHarness):
    """The package as it was when the run began."""

    name = "versioned"
    translator_version = 1


class KeepsFirst(ShellHarness):
    """The next one: new runs get translator 2, older ones are read to their end."""

    name = "versioned"
    translator_version = 2
    translator_versions: Collection[int] = (1, 2)

    def translator(self, run_id: str, spec: RunSpec) -> Translator:
        """Return a fresh translator of the run's version."""
        make = {1: ShellTranslator, 2: LoudTranslator}[spec.translator_version]
        return make(run_id, str(spec.input.get("threadId", "")))


class ForgotFirst(KeepsFirst):
    """The one after that."""

    translator_versions = (2,)
