"""What a request may say about its workspace, and what of it the operator allows."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.core.workspace import SourceKind, WorkspaceSource, check_allowed, read_source
from runtime.errors import InputInvalid


def read(workspace: Any) -> WorkspaceSource | None:
    return read_source({"threadId": "t", "forwardedProps": {"workspace": workspace, "model": "m"}})


@pytest.mark.parametrize("input", [{}, {"forwardedProps": None}, {"forwardedProps": {}}, {"forwardedProps": 1}])
def test_without_a_word_a_workspace_begins_empty(input: dict[str, Any]) -> None:
    assert read_source(input) is None
    assert read(None) is read({}) is None


@pytest.mark.parametrize(
    ("workspace", "source"),
    [
        ({"directory": "/srv/a b/é"}, WorkspaceSource(kind=SourceKind.DIRECTORY, place="/srv/a b/é")),
        ({"archive": "/srv/a.tar.gz"}, WorkspaceSource(kind=SourceKind.ARCHIVE, place="/srv/a.tar.gz")),
        ({"git": "/srv/repo.git"}, WorkspaceSource(kind=SourceKind.GIT, place="/srv/repo.git")),
        ({"git": "https://host/~a/b..c"}, WorkspaceSource(kind=SourceKind.GIT, place="https://host/~a/b..c")),
        ({"git": "https://host/a/b.git"}, WorkspaceSource(kind=SourceKind.GIT, place="https://host/a/b.git")),
        (
            {"git": "ssh://git@host:22/a", "ref": "feature/x-1.0"},
            WorkspaceSource(kind=SourceKind.GIT, place="ssh://git@host:22/a", ref="feature/x-1.0"),
        ),
    ],
)
def test_a_source_is_read(workspace: Any, source: WorkspaceSource) -> None:
    assert read(workspace) == source


@pytest.mark.parametrize(
    ("workspace", "field"),
    [
        ("/srv", ""),
        ([], ""),
        ({"folder": "/srv"}, ""),
        ({"directory": "/srv", "git": "/srv"}, ""),
        ({"directory": "/srv", "more": 1}, ""),
        ({"directory": "srv"}, "directory"),
        ({"directory": "/srv/../etc"}, "directory"),
        ({"directory": "/srv/./x"}, "directory"),
        ({"directory": "/srv//x"}, "directory"),
        ({"directory": "/srv/x\0"}, "directory"),
        ({"directory": "/srv/x\n"}, "directory"),
        ({"directory": "/"}, "directory"),
        ({"directory": "/" + "x" * 2000}, "directory"),
        ({"directory": 1}, "directory"),
        ({"directory": None}, "directory"),
        ({"directory": "https://host/x"}, "directory"),
        ({"archive": "https://host/x.zip"}, "archive"),
        ({"git": "--upload-pack=touch /tmp/x"}, "git"),
        ({"git": "ext::sh -c id"}, "git"),
        ({"git": "https://user:secret@host/x"}, "git"),
        ({"git": "https://token@host/x"}, "git"),
        ({"git": "ssh://-oProxyCommand=id/x"}, "git"),
        ({"git": "file:///srv/x"}, "git"),
        ({"git": "https://host/team/../secret/x"}, "git"),
        ({"git": "https://host/team/./x"}, "git"),
        ({"git": "https://host/team/x/.."}, "git"),
        ({"git": "https://host/team/%2e%2e/secret/x"}, "git"),
        ({"git": "https://host/team/..%2fsecret/x"}, "git"),
        ({"git": "https://host/team\\..\\secret/x"}, "git"),
        ({"git": "https://host/../x"}, "git"),
        ({"git": "ssh://host/srv/team/../../x"}, "git"),
        ({"git": "https://host/x?token=secret"}, "git"),
        ({"git": "https://host/x#secret"}, "git"),
        ({"git": "host:x"}, "git"),
        ({"git": "/srv/x", "ref": "-b"}, "ref"),
        ({"git": "/srv/x", "ref": "a..b"}, "ref"),
        ({"git": "/srv/x", "ref": "a b"}, "ref"),
        ({"git": "/srv/x", "ref": ""}, "ref"),
        ({"directory": "/srv/x", "ref": "main"}, "ref"),
    ],
)
def test_a_bad_source_is_refused_with_its_place(workspace: Any, field: str) -> None:
    with pytest.raises(InputInvalid) as refused:
        read(workspace)
    assert refused.value.code == "option_invalid"
    assert refused.value.field == f"forwardedProps.workspace{'.' if field else ''}{field}"
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    ("place", "allowed", "taken"),
    [
        ("/srv/app", ["/srv"], True),
        ("/srv/app", ["/srv/"], True),
        ("/srv/app", ["/home", "/srv/app"], True),
        ("/srv/application", ["/srv/app"], False),
        ("/srv", ["/srv/app"], False),
        ("/srv/app", [], False),
        ("https://host/me/x", ["https://host/me/"], True),
        ("https://host/melody/x", ["https://host/me"], False),
        ("https://host.evil/me/x", ["https://host"], False),
    ],
)
def test_what_is_not_below_an_allowed_source_is_refused(place: str, allowed: list[str], taken: bool) -> None:
    source = WorkspaceSource(kind=SourceKind.GIT, place=place)
    if taken:
        check_allowed(source, allowed)
        return
    with pytest.raises(InputInvalid, match="OUTLAST_WORKSPACE_SOURCES"):
        check_allowed(source, allowed)


def test_nothing_is_always_allowed() -> None:
    check_allowed(None, [])
