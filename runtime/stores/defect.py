"""What a store answers when one operation fails on its own account: a refusal and a line in the log (P7)."""

from __future__ import annotations

import logging

from runtime.core.ops import Op, Unstorable

_log = logging.getLogger("outlast.store")


def unstorable(op: Op, error: BaseException) -> Unstorable:
    """Return the refusal of `op`, which hit a defect of ours or a value no store can hold; log it with its stack.

    Never raises, however malformed `op` is. `run_id` is "" where there is none."""
    try:
        run_id = str(getattr(op, "run_id", ""))
    except Exception:  # noqa: BLE001 - `run_id` may be a property that meets the same defect
        run_id = ""
    _log.error("the operation %s of run %r cannot be stored", type(op).__name__, run_id, exc_info=error)
    return Unstorable(run_id=run_id, detail=f"{type(op).__name__}: {type(error).__name__}: {error}")
