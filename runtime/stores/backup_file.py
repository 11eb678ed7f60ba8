"""A backup: one file that holds a store as it was at one moment, whatever kind of store that is.

    OUTLAST-BACKUP 1, and a newline
    frame*          length (u32, big-endian), CRC-32 of the body (u32), body: MessagePack of one of the four below

    BackupHeader    first: whose store, of which generation, made when and by which version
    StoredRun       in the order of creation, each followed by its
    StoredBatch     in the order of its log
    BackupEnd       last: how much there was, and the SHA-256 of every byte before this frame

Heads, specs, transcripts and checkpoints are in it byte for byte as stores keep them, and all stores keep them alike.
What a store derives from them (columns, indexes, what is due) it derives again. So a backup of one kind of store can be
restored into another kind, of another number of shards, or of a newer schema. Not into code that is older than the
records: what it would not read decides something (P12; `core/record.py`, RECORD_FORMAT).

Both ways are streams: what is in memory at a time is one run's record or one batch.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from runtime.core.record import RECORD_FORMAT, Head, Struct
from runtime.errors import StoreRefused
from runtime.stores.codec import decode_head, decode_spec

MAGIC: Final = b"OUTLAST-BACKUP "
FORMAT: Final = 1
_PREFIX_BYTES = 8
_PIECE_BYTES = 1 << 20


class BackupHeader(Struct, frozen=True, kw_only=True, tag="header"):
    """What was backed up. `schema_version` and `shards` are the store's, for people."""

    deployment_id: str
    generation: int
    store: str
    schema_version: int
    shards: int
    made_at: int
    made_by: str
    record_format: int = RECORD_FORMAT


class StoredRun(Struct, frozen=True, kw_only=True, tag="run"):
    """One run but for its log, in stored form. `ordinal` is its place in the order of creation."""

    ordinal: int
    head: bytes
    spec: bytes
    stderr: bytes | None = None
    transcript: bytes | None = None
    checkpoint: bytes | None = None


class StoredBatch(Struct, frozen=True, kw_only=True, tag="batch"):
    """One batch of the log of the run before it. `key` is UTF-8, with surrogates passed."""

    seq: int
    count: int
    epoch: int
    band: str
    first_index: int
    ends: bytes
    data: bytes
    key: bytes | None = None


class BackupEnd(Struct, frozen=True, kw_only=True, tag="end"):
    """How much came before, and its digest."""

    runs: int
    batches: int
    chunks: int
    sha256: bytes


class Contents(Struct, frozen=True, kw_only=True):
    """What a whole backup holds, for people."""

    deployment_id: str
    generation: int
    store: str
    schema_version: int
    shards: int
    made_at: int
    made_by: str
    record_format: int
    runs: int
    unfinished_runs: int
    chunks: int
    bytes: int


Row = StoredRun | StoredBatch
_encode = msgspec.msgpack.Encoder().encode
_Frame = BackupHeader | StoredRun | StoredBatch | BackupEnd
_decoder: msgspec.msgpack.Decoder[_Frame] = msgspec.msgpack.Decoder(_Frame)


def write_backup(file: BinaryIO, header: BackupHeader, rows: Iterable[Row]) -> None:
    """Write a whole backup. Raises OSError, and what `rows` raises."""
    digest = hashlib.sha256()

    def put(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    put(MAGIC + f"{FORMAT}\n".encode())
    put(_frame(header))
    runs = batches = chunks = 0
    for row in rows:
        if isinstance(row, StoredRun):
            runs += 1
        else:
            batches += 1
            chunks += row.count
        put(_frame(row))
    file.write(_frame(BackupEnd(runs=runs, batches=batches, chunks=chunks, sha256=digest.digest())))


def _frame(value: Struct) -> bytes:
    body = _encode(value)
    return len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body


class Backup:
    """The backup in the file at `path`, open for reading. Raises StoreRefused if it does not begin as one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise StoreRefused(f"{path} cannot be read: {error.strerror}.") from error
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self.header = self._begin()[0]
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def check(self) -> Contents:
        """Read all of it, and return what it holds. Raises StoreRefused if anything of it is not as it was written."""
        unfinished = runs = chunks = 0
        for row in self.rows():
            if isinstance(row, StoredRun):
                runs += 1
                unfinished += not decode_head(row.head).status.terminal
                decode_spec(row.spec)
            else:
                chunks += row.count
        told = msgspec.structs.asdict(self.header)
        return Contents(runs=runs, unfinished_runs=unfinished, chunks=chunks, bytes=self._size, **told)

    def rows(self) -> Iterator[Row]:
        """Yield every run, each followed by its log. May be asked again.

        Raises StoreRefused where it is not as it was written: at the end too, so nothing is to be believed before."""
        _header, digest = self._begin()
        runs = batches = chunks = 0
        log: _Log | None = None
        while True:
            before = digest.digest()
            row = self._next(digest)
            match row:
                case StoredRun():
                    self._check_end(log)
                    log = _Log(decode_head(row.head))
                    runs += 1
                case StoredBatch():
                    if log is None or not log.takes(row):
                        raise self._damaged("a batch is not where its log goes on")
                    batches += 1
                    chunks += row.count
                case BackupEnd():
                    self._check_end(log)
                    told = BackupEnd(runs=runs, batches=batches, chunks=chunks, sha256=before)
                    if row != told or self._file.read(1):
                        raise self._damaged("its end does not fit the rest")
                    return
                case BackupHeader():
                    raise self._damaged("it begins twice")
            yield row

    def _begin(self) -> tuple[BackupHeader, hashlib._Hash]:
        digest = hashlib.sha256()
        self._file.seek(0)
        line = self._file.readline(64)
        digest.update(line)
        if not line.startswith(MAGIC) or not line.endswith(b"\n"):
            raise StoreRefused(f"{self.path} is no backup of Outlast's.")
        if line != MAGIC + f"{FORMAT}\n".encode():
            found = line[len(MAGIC) :].strip().decode(errors="replace")
            raise StoreRefused(
                f"{self.path} is a backup of format {found}; this Outlast knows {FORMAT}. Install the version that "
                "made it, or a newer one."
            )
        header = self._next(digest)
        if not isinstance(header, BackupHeader):
            raise self._damaged("it has no header")
        if header.record_format > RECORD_FORMAT:
            raise StoreRefused(
                f"{self.path} was made by Outlast {header.made_by} and has records of format {header.record_format}; "
                f"this one knows {RECORD_FORMAT}. Install that version, or a newer one."
            )
        return header, digest

    def _next(self, digest: hashlib._Hash) -> _Frame:
        prefix = self._file.read(_PREFIX_BYTES)
        length = int.from_bytes(prefix[:4], "big")
        if len(prefix) < _PREFIX_BYTES or length > self._size - self._file.tell():
            raise self._damaged("its end is missing")
        if length > _PIECE_BYTES:
            self._check_length(length, int.from_bytes(prefix[4:], "big"))
        body = self._file.read(length)
        if zlib.crc32(body) != int.from_bytes(prefix[4:], "big"):
            raise self._not_written()
        digest.update(prefix)
        digest.update(body)
        try:
            return _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise self._damaged(str(error)) from error

    def _check_length(self, length: int, crc: int) -> None:
        """Read the body in pieces and go back: a length that is not what was written must not fill the memory."""
        at, found = self._file.tell(), 0
        for done in range(0, length, _PIECE_BYTES):
            found = zlib.crc32(self._file.read(min(_PIECE_BYTES, length - done)), found)
        if found != crc:
            raise self._not_written()
        self._file.seek(at)

    def _not_written(self) -> StoreRefused:
        return self._damaged(f"the bytes before {self._file.tell()} are not what was written")

    def _check_end(self, log: _Log | None) -> None:
        if log is not None and not log.whole:
            raise self._damaged(f"of {log.head.run_id} it has {log.next_seq} of {log.head.next_seq} chunks")

    def _damaged(self, how: str) -> StoreRefused:
        return StoreRefused(f"{self.path} is damaged: {how}. Nothing was changed; use another backup.")


class _Log:
    """Where the log of one run has come to, in a backup."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.next_seq = 0

    def takes(self, batch: StoredBatch) -> bool:
        """Return whether `batch` is what comes next."""
        fits = batch.seq == self.next_seq and batch.count >= 0
        self.next_seq += batch.count
        return fits

    @property
    def whole(self) -> bool:
        """Return whether it is as long as its record says; of one that was given up, its beginning."""
        return self.next_seq == self.head.next_seq or (self.head.log_gone and self.next_seq < self.head.next_seq)
