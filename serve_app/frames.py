r"""Turn stored chunks into the bytes of a response. Chunk path 6/6. Before: `shared_read.py`. After: the wire.

A `Piece` is a stretch of one log as stored: chunks joined by 0x0A. Its frames are made from those bytes without
decoding them (what is sent is what is stored), once per format, and shared by all viewers of the run: with 200
viewers the work per chunk stays that of one.

    SSE       id: <offset after the chunk>\n data: <chunk>\n \n       one data line per id line (contract 1.3)
    NDJSON    {"id":"<offset>","chunk":<chunk>}\n

At the end of a closed log the terminal chunk is sent once more: under its own id, and then without one. A client that
drops every id it has seen, as TanStack's does, takes a stream of nothing else for incomplete (measured).

Canonical chunks hold no raw newline (`core/chunk.py`), so neither format needs escaping.
"""

from __future__ import annotations

from collections.abc import Iterable

from runtime.core import chunk


class Format:
    """One way to write a stream. `heartbeat` is what every client of the format skips; `torn` is the beginning of a
    line, which nobody takes for anything but a stream that was cut."""

    def __init__(self, name: str, media_type: str, heartbeat: bytes, torn: bytes, frame: bytes) -> None:
        self.name = name
        self.media_type = media_type
        self.heartbeat = heartbeat
        self.torn = torn
        self.frame = frame

    def frames(self, generation: int, start: int, chunks: Iterable[bytes]) -> bytes:
        """Return the frames of `chunks`, the first of which lies at position `start`."""
        frame = self.frame.replace(b"GENERATION", b"%016d" % generation)
        return b"".join([frame % (position, data) for position, data in enumerate(chunks, start + 1)])


class Again(Format):
    """`format` for a chunk that its client has seen: with its id, and once more without (`bare`)."""

    def __init__(self, format: Format, bare: bytes) -> None:
        super().__init__(f"{format.name}-again", format.media_type, format.heartbeat, format.torn, format.frame)
        self._bare = bare

    def frames(self, generation: int, start: int, chunks: Iterable[bytes]) -> bytes:
        """Return each chunk's two frames."""
        pairs = [(super(Again, self).frames(generation, at, [data]), data) for at, data in enumerate(chunks, start)]
        return b"".join([tagged + self._bare % data for tagged, data in pairs])


SSE = Format("sse", "text/event-stream", b": \n\n", b":", b"id: GENERATION_%016d\ndata: %b\n\n")
NDJSON = Format("ndjson", "application/x-ndjson", b"\n", b"{", b'{"id":"GENERATION_%016d","chunk":%b}\n')
AGAIN = {SSE: Again(SSE, b"data: %b\n\n"), NDJSON: Again(NDJSON, b"%b\n")}


class Piece:
    """Positions [`start`, `end`) of one log: `data` holds the chunks joined by 0x0A. At least one chunk."""

    __slots__ = ("_frames", "data", "end", "generation", "start")

    def __init__(self, start: int, end: int, data: bytes, generation: int = 0) -> None:
        self.start = start
        self.end = end
        self.data = data
        self.generation = generation
        self._frames: dict[str, bytes] = {}

    def chunks(self) -> list[bytes]:
        """Return the chunks in order. Raises ValueError if there are not `end - start` of them: then every offset
        after would be wrong, and it is better to send nothing."""
        chunks = self.data.split(b"\n")
        if len(chunks) != self.end - self.start:
            raise ValueError(f"{len(chunks)} chunks where [{self.start}, {self.end}) was promised")
        return chunks

    def frames(self, format: Format) -> bytes:
        """Return the frames of the whole piece; made at the first call."""
        frames = self._frames.get(format.name)
        if frames is None:
            frames = self._frames[format.name] = format.frames(self.generation, self.start, self.chunks())
        return frames

    def frames_from(self, position: int, format: Format) -> bytes:
        """Return the frames of what lies past `position`, which may be inside the piece."""
        if position <= self.start:
            return self.frames(format)
        return format.frames(self.generation, position, self.chunks()[position - self.start :])

    def opening(self) -> int | None:
        """Return the position of the first chunk that a strict AG-UI client takes as its first (P26); None if there
        is none in this piece."""
        for position, data in enumerate(self.chunks(), self.start):
            if chunk.chunk_type(data) in (chunk.RUN_STARTED, chunk.RUN_ERROR):
                return position
        return None


def accepted(generation: int) -> Piece:
    """Return the first chunk of every log: what a run's creation has just made durable (P2)."""
    return Piece(0, 1, chunk.run_accepted(), generation)
