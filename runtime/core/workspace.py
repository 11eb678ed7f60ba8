"""What a thread's workspace begins with (`forwardedProps.workspace`): nothing, a folder, an archive or a repository.

    absent, null or {}                          nothing
    {"directory": "/srv/app"}                   a copy of that folder of the host
    {"archive": "/srv/app.tar.gz"}              what is in that file: tar (gzip, bzip2, xz) or zip
    {"git": "https://...", "ref": "main"}       a clone, at that branch, tag or commit

It is read once, when the thread's workspace is made: one that exists is never replaced (P18). Which sources may be
named is the operator's choice (`OUTLAST_WORKSPACE_SOURCES`). A URL is compared as it is written, so what a server may
read in another way is refused: `.` and `..`, `%`, a backslash. So are a password and a query: requests are stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from runtime.core.record import Struct
from runtime.errors import InputInvalid

OPTION = "forwardedProps.workspace"
FILE_EVENTS = "fileEvents"
FILE_EVENT_WORDS = ("off", "files", "diff")

_PRINTED = r"[^\x00-\x1f\x7f\ud800-\udfff]"
_PATH = re.compile(rf"/{_PRINTED}{{1,1023}}")
_URL = re.compile(
    r"(?:https?://|ssh://(?:[A-Za-z0-9._-]+@)?)[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~!$&'()*+,;:=/-]{1,1023})"
)
_REF = re.compile(r"[A-Za-z0-9](?!.*\.\.)[A-Za-z0-9._/+-]{0,254}")


class SourceKind(StrEnum):
    """How the place is to be read."""

    DIRECTORY = "directory"
    ARCHIVE = "archive"
    GIT = "git"


class WorkspaceSource(Struct, frozen=True, kw_only=True):
    """`place` is an absolute path or a URL (git), neither with `.` and `..`; `ref` is git's."""

    kind: SourceKind
    place: str
    ref: str | None = None


def read_source(input: Mapping[str, Any]) -> WorkspaceSource | None:
    """Return what a request says its workspace begins with, or None. Raises InputInvalid `option_invalid`."""
    props = input.get("forwardedProps")
    asked = props.get("workspace") if isinstance(props, Mapping) else None
    if asked is None or asked == {}:
        return None
    kinds = [kind for kind in SourceKind if isinstance(asked, Mapping) and kind.value in asked]
    if len(kinds) != 1 or not asked.keys() <= {kinds[0].value, "ref"}:
        raise _refusal('{"directory": path}, {"archive": path}, {"git": URL or path, "ref": name}, or absent')
    kind, place, ref = kinds[0], asked[kinds[0].value], asked.get("ref")
    if not isinstance(place, str) or not (_is_path(place) or (kind is SourceKind.GIT and _is_url(place))):
        url = ", or an https or ssh URL without those, `%`, a query or a password" if kind is SourceKind.GIT else ""
        raise _refusal(f"an absolute path without `.` and `..`{url}", kind.value)
    if ref is not None and (kind is not SourceKind.GIT or not isinstance(ref, str) or not _REF.fullmatch(ref)):
        raise _refusal("the name of a branch or tag, or a commit, beside git", "ref")
    return WorkspaceSource(kind=kind, place=place, ref=ref)


def read_file_events(input: Mapping[str, Any]) -> str | None:
    """Return what a request says its log shall tell of files (`forwardedProps.fileEvents`), or None.

    Raises InputInvalid `option_invalid`."""
    props = input.get("forwardedProps")
    asked = props.get(FILE_EVENTS) if isinstance(props, Mapping) else None
    if asked is not None and asked not in FILE_EVENT_WORDS:
        field = f"forwardedProps.{FILE_EVENTS}"
        raise InputInvalid(f"{field} must be one of off, files, diff.", code="option_invalid", field=field)
    return asked


def check_allowed(source: WorkspaceSource | None, allowed: Sequence[str]) -> None:
    """Check that a source is one of `allowed` or below one: folders, files and beginnings of URLs.

    Raises InputInvalid `option_invalid`."""
    if source is not None and not any(_is_below(source.place, one) for one in allowed):
        raise InputInvalid(
            f"{OPTION}: {source.place} is not among the sources that this instance takes (OUTLAST_WORKSPACE_SOURCES"
            f"{' is empty' if not allowed else ''}).",
            code="option_invalid",
            field=OPTION,
        )


def _is_path(text: str) -> bool:
    return _PATH.fullmatch(text) is not None and not {"", ".", ".."}.intersection(text[1:].split("/"))


def _is_url(text: str) -> bool:
    found = _URL.fullmatch(text)
    return found is not None and not {".", ".."}.intersection(found[1].split("/"))


def _is_below(place: str, allowed: str) -> bool:
    trimmed = allowed.rstrip("/")
    return place == trimmed or place.startswith(f"{trimmed}/")


def _refusal(hint: str, member: str = "") -> InputInvalid:
    field = f"{OPTION}.{member}" if member else OPTION
    return InputInvalid(f"{field} must be {hint}.", code="option_invalid", field=field)
