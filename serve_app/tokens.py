"""`OUTLAST_TOKENS_FILE`: which tokens are taken, and whose they are. Read again whenever the file changes.

    # a comment
    alice  sha256:5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8
    alice  sha256:...         another token of hers: to change one, have both for a while
    local  sha256:...         the operator, who sees all

The file holds no token, only what tells one: SHA-256 without salt is right for what is random and long, and nothing
that a person chose is a token. Who can write the file can be anybody, so it must be ours or root's and writable by
nobody else. A file that is broken, or gone, changes nothing: what was read last holds, and everybody is told. To end
all tokens, empty it.

Tokens are looked up by their hashes, in a table that Python orders by a secret of the process: how long that takes says
nothing about any token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
from pathlib import Path
from typing import NamedTuple

from actors.kept_file import read_kept
from actors.ray_access import make_secret
from runtime.core.ids import LOCAL_OWNER, Owner
from runtime.core.record import Struct
from runtime.errors import InputInvalid, RequestError
from serve_app.instance_file import OPERATOR_FILE

log = logging.getLogger("outlast.gateway")

_LINE = re.compile(r"(\S+)[ \t]+sha256:([0-9a-fA-F]{64})")
_WRITABLE = "can be written by others, who could make themselves anybody: chown it, and chmod go-w"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")


class Unauthorized(RequestError):
    """Nobody is named, or nobody that is known; `code` says which: `token_missing`, `token_invalid`. 401."""

    code = "token_missing"


class OperatorOnly(RequestError):
    """What was asked for is about all owners, and the caller is one of them. 403."""

    code = "operator_only"


class Keys(Struct, frozen=True, kw_only=True):
    """What a gateway replica knows of the operator token in the data directory: its hash, and what signs sessions."""

    operator: bytes
    sessions: bytes

    @classmethod
    def of(cls, token: str) -> Keys:
        """Return the keys of an operator token."""
        return cls(operator=digest(token), sessions=hmac.digest(token.encode(), b"outlast sessions", "sha256"))


def digest(token: str) -> bytes:
    """Return what a token is known by."""
    return hashlib.sha256(token.encode()).digest()


def operator_token(data_dir: Path) -> str:
    """Return the token by which `outlast` on this machine is the operator; made once, in a file of mode 600."""
    path = data_dir / OPERATOR_FILE
    make_secret(path)
    return path.read_text().strip()


def bearer(header: str) -> bytes:
    """Return the hash of the token in an `Authorization` header. Raises Unauthorized, which never quotes it."""
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
        raise Unauthorized("Send the header Authorization: Bearer <token>.", code="token_invalid")
    return digest(token)


class _Stamp(NamedTuple):
    """When to read again."""

    inode: int
    size: int
    changed_ns: int
    mode: int


class Tokens:
    """The owners of tokens, as the file says now. Raises InputInvalid `tokens_file_invalid` if it cannot be read."""

    def __init__(self, path: Path, operator: bytes) -> None:
        self.trouble = ""  # why what was read last holds although the file has changed
        self._path = path
        self._operator = operator
        self._stamp = _stamp_of(path)
        self._owners = read_tokens(path)

    def owner_of(self, hashed: bytes) -> str | None:
        """Return whose token has this hash; None if nobody's."""
        return LOCAL_OWNER if hmac.compare_digest(hashed, self._operator) else self._owners.get(hashed)

    def __len__(self) -> int:
        return len(self._owners)

    def reload(self) -> bool:
        """Read the file if it has changed; return whether other tokens are taken than before."""
        try:
            stamp = _stamp_of(self._path)
            if stamp == self._stamp:
                return False
            owners = read_tokens(self._path)
        except InputInvalid as error:
            if error.message != self.trouble:
                log.warning("%s The tokens that were read before it hold.", error.message)
            self.trouble = error.message
            return False
        self._stamp, self.trouble = stamp, ""
        changed, self._owners = owners != self._owners, owners
        log.info("%s was read: %d tokens", self._path, len(owners))
        return changed


def read_tokens(path: Path) -> dict[bytes, str]:
    """Return the owners by the hashes of their tokens. Raises InputInvalid `tokens_file_invalid`."""
    lines = read_kept(path, _invalid, stat.S_IWGRP | stat.S_IWOTH, _WRITABLE)
    owners: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        owner, hashed = _entry(path, number, text)
        if owners.setdefault(hashed, owner) != owner:
            raise _invalid(path, f"gives the token of line {number} to two owners")
    return owners


def _entry(path: Path, number: int, text: str) -> tuple[str, bytes]:
    """Return one line's owner and hash; what is wrong is not quoted: it may be a token."""
    match = _LINE.fullmatch(text)
    if match is None:
        raise _invalid(path, f"has in line {number} no `<owner> sha256:<64 hexadecimal digits>`")
    try:
        return str(Owner.parse(match[1])), bytes.fromhex(match[2])
    except InputInvalid as error:
        raise _invalid(path, f"has in line {number} no owner: {error.message.rstrip('.')}") from None


def open_to_readers(path: Path) -> bool:
    """Return whether others than its owner can read the file: hashes alone let nobody in, but tell who there is."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _stamp_of(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError as error:
        raise _invalid(path, f"cannot be read ({error.strerror})") from None
    return _Stamp(found.st_ino, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns), found.st_mode)


def _invalid(path: Path, why: str) -> InputInvalid:
    return InputInvalid(f"OUTLAST_TOKENS_FILE: {path} {why}.", code="tokens_file_invalid", field="tokens_file")
