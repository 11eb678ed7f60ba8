"""How long what is left of ended runs is kept, and what asking for a log means that is not kept any more."""

from __future__ import annotations

from runtime.core.ids import Offset, shown_run_id
from runtime.core.record import Head
from runtime.errors import InputInvalid, OffsetGone


class LogPruned(OffsetGone):
    """Every offset of this log is gone: the retention of logs is over. What the run said may still be kept."""

    def __init__(self, head: Head) -> None:
        super().__init__("-1", str(Offset(head.generation, head.next_seq)))
        self.message = (
            f"The log of run {shown_run_id(head.run_id)!r} is not kept any more (OUTLAST_LOG_RETENTION_S). What is "
            f"left of it is in GET /api/chat?threadId={head.thread_id}."
        )
        self.args = (self.message,)


class Retention:
    """How long logs and transcripts are kept after the end of their run, in seconds; 0: for ever."""

    def __init__(self, log_s: int, transcript_s: int) -> None:
        """Raises InputInvalid `setting_invalid` if transcripts would go before logs."""
        if transcript_s and (not log_s or transcript_s < log_s):
            logs = f"{log_s} s" if log_s else "for ever"
            raise InputInvalid(
                f"OUTLAST_TRANSCRIPT_RETENTION_S: transcripts would be kept for {transcript_s} s, shorter than logs, "
                f"which are kept {logs} (OUTLAST_LOG_RETENTION_S). Make it longer, or 0: for ever.",
                code="setting_invalid",
                field="TRANSCRIPT_RETENTION_S",
            )
        self.log_ms = 1000 * log_s
        self.transcript_ms = 1000 * transcript_s

    def logs_before(self, now_ms: int) -> int | None:
        """Return the UTC ms by which a run has ended whose log is not kept now; None: each is."""
        return now_ms - self.log_ms if self.log_ms else None

    def transcripts_before(self, now_ms: int) -> int | None:
        """Return the UTC ms by which a run has ended whose transcript is not kept now; None: each is."""
        return now_ms - self.transcript_ms if self.transcript_ms else None
