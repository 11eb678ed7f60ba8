"""The result of a run: in which form somebody may have its workspace, and what may stand against that."""

from __future__ import annotations

from enum import StrEnum

from runtime.core.record import Struct
from runtime.errors import RequestError


class Form(StrEnum):
    """What is sent."""

    FILES = "files"  # JSON: what the run created, modified and deleted
    DIFF = "diff"  # the same as text, in the form of git's
    ARCHIVE = "archive"  # the whole workspace, .tar.gz


class ResultAsk(Struct, frozen=True, kw_only=True):
    """Whose workspace, as its provider knows it, and in which form. `key` is the run's sandbox's."""

    provider: str
    key: str
    thread_key: str
    run_id: str
    form: Form
    max_bytes: int


class WorkspaceNotFound(RequestError):
    """The run has no workspace: its agent was never launched, or its provider keeps none."""

    code = "workspace_not_found"


class WorkspaceGone(RequestError):
    """There was one: `workspace_gone`; `workspace_changed` by a later run; `baseline_gone`: its beginning is."""

    code = "workspace_gone"


class WorkspaceTooLarge(RequestError):
    """It is over a bound, which the message names."""

    code = "workspace_too_large"
