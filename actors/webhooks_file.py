"""`OUTLAST_WEBHOOKS_FILE`: where the end of each run is posted, and with what it is signed. Read again when it changes.

    # name     address                              secrets, the newest first
    billing    https://billing.example.org/outlast  whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
    audit      http://10.0.0.7:9000/runs            whsec_...  whsec_...

A secret is what Standard Webhooks makes of one: `whsec_` and 24 to 64 random bytes in base64. With two of them each
post is signed twice, so that a receiver can change from one to the other. The file holds secrets: only its owner may
read it. A file that is broken, or gone, changes nothing: what was read last holds, and everybody is told. So is one
without any line: that nobody is meant is said by a comment.
"""

from __future__ import annotations

import base64
import binascii
import re
import stat
from pathlib import Path
from urllib.parse import urlsplit

from actors.kept_file import read_kept
from runtime.core.record import Struct
from runtime.errors import InputInvalid

MOST = 32  # each run's end is told to all of them
SECRET_BYTES = range(24, 65)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PREFIX = "whsec_"
_OPEN = "can be read or written by others, and it holds secrets: chown it, and chmod 600"


class Endpoint(Struct, frozen=True, kw_only=True):
    """One receiver. Its name is what the store remembers it by: a new name is a new receiver."""

    name: str
    url: str
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        """Return it without what is secret."""
        return f"Endpoint({self.name})"


def read_webhooks(path: Path) -> tuple[Endpoint, ...]:
    """Return the receivers. Raises InputInvalid `webhooks_file_invalid`, which quotes no secret."""
    lines = read_kept(path, _invalid, stat.S_IRWXG | stat.S_IRWXO, _OPEN)
    if not any(line.strip() for line in lines):
        raise _invalid(path, "is empty; if nobody is meant, write a comment into it")
    found: dict[str, Endpoint] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        endpoint = _endpoint(path, number, words)
        if endpoint.name in found:
            raise _invalid(path, f"has the name {endpoint.name} twice")
        found[endpoint.name] = endpoint
    if len(found) > MOST:
        raise _invalid(path, f"names more than {MOST} receivers")
    return tuple(found.values())


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return what tells one content of the file from the next; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns)


def _endpoint(path: Path, number: int, words: list[str]) -> Endpoint:
    if len(words) < 3 or not _NAME.fullmatch(words[0]):  # noqa: PLR2004 - a name, an address, a secret
        raise _invalid(path, f"has in line {number} no `<name> <address> <secret>`")
    name, url, *secrets = words
    if not _is_address(url):
        raise _invalid(path, f"has in line {number} no http or https address (without user, password and fragment)")
    if not all(map(_is_secret, secrets)):
        raise _invalid(path, f"has in line {number} a secret that is not `whsec_` and 24 to 64 bytes in base64")
    return Endpoint(name=name, url=url, secrets=tuple(secrets))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(
            parts.scheme in ("http", "https")
            and parts.hostname
            and "@" not in parts.netloc
            and not parts.fragment
            and parts.port != 0
        )
    except ValueError:
        return False


def _is_secret(text: str) -> bool:
    try:
        return text.startswith(_PREFIX) and len(base64.b64decode(text[len(_PREFIX) :], validate=True)) in SECRET_BYTES
    except (binascii.Error, ValueError):
        return False


def _invalid(path: Path, why: str) -> InputInvalid:
    return InputInvalid(f"OUTLAST_WEBHOOKS_FILE: {path} {why}.", code="webhooks_file_invalid", field="webhooks_file")
