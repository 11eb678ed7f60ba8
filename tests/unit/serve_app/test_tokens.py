"""What a file of tokens may be, and who may have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.errors import InputInvalid
from runtime.settings import load
from serve_app.instance import check_access
from serve_app.tokens import Keys, Tokens, digest, open_to_readers, operator_token, read_tokens

HEX = digest("a" * 43).hex()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    return path


def test_a_line_is_an_owner_and_a_hash(path: Path) -> None:
    path.write_text(f"# who\n\nalice sha256:{HEX}\n bob\tsha256:{HEX[::-1].upper()}  # his\n")
    assert read_tokens(path) == {bytes.fromhex(HEX): "alice", bytes.fromhex(HEX[::-1]): "bob"}


@pytest.mark.parametrize(
    "text",
    [
        "alice secret-token",
        f"sha256:{HEX}",
        f"alice sha256:{HEX}0",
        f"alice sha512:{HEX}",
        f"al@ice sha256:{HEX}",
        f"{'a' * 65} sha256:{HEX}",
        f"alice sha256:{HEX}\nbob sha256:{HEX}",
    ],
)
def test_a_file_with_a_bad_line_is_refused_and_not_quoted(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(InputInvalid) as refused:
        read_tokens(path)
    assert refused.value.code == "tokens_file_invalid"
    assert "line" in refused.value.message
    assert "secret-token" not in refused.value.message


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(InputInvalid, match="written by others"):
        read_tokens(path)


def test_a_file_that_others_can_read_is_told_of(path: Path) -> None:
    assert not open_to_readers(path)
    path.chmod(0o644)
    assert open_to_readers(path)
    assert read_tokens(path) == {}


def test_a_file_that_is_gone_changes_nothing(path: Path) -> None:
    path.write_text(f"alice sha256:{HEX}\n")
    tokens = Tokens(path, b"")
    path.unlink()
    assert not tokens.reload()
    assert "cannot be read" in tokens.trouble
    assert tokens.owner_of(bytes.fromhex(HEX)) == "alice"


def test_a_file_becomes_trusted_again_by_its_mode_alone(path: Path) -> None:
    tokens = Tokens(path, b"")
    path.write_text(f"alice sha256:{HEX}\n")
    path.chmod(0o666)
    assert not tokens.reload()
    path.chmod(0o600)
    assert tokens.reload()
    assert (tokens.trouble, len(tokens)) == ("", 1)


def test_the_operators_token_is_made_once_and_for_nobody_else_to_read(tmp_path: Path) -> None:
    token = operator_token(tmp_path)
    assert token == operator_token(tmp_path)
    assert len(token) == 64
    assert (tmp_path / "operator-token").stat().st_mode & 0o777 == 0o600
    assert token not in repr(Keys.of(token))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "box"])
def test_a_host_that_is_not_loopback_needs_tokens(path: Path, host: str) -> None:
    with pytest.raises(InputInvalid, match="OUTLAST_TOKENS_FILE") as refused:
        check_access(load({}, host=host))
    assert refused.value.code == "host_refused"
    path.write_text(f"alice sha256:{HEX}\n")
    check_access(load({}, host=host, tokens_file=str(path)))


def test_a_broken_file_of_tokens_keeps_an_instance_from_starting(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="cannot be read"):
        check_access(load({}, tokens_file=str(tmp_path / "absent")))
