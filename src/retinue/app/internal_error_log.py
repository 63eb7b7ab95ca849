"""The log of internal errors."""

import traceback
from pathlib import Path

from retinue.app.log_file import append_log_line
from retinue.domain.clock import Clock
from retinue.domain.redaction import Redactor
from retinue.domain.timestamps import iso_timestamp


class InternalErrorLog:
    """Writes tracebacks of internal errors, of which users see only a short message."""

    def __init__(self, home: Path, redact: Redactor, clock: Clock) -> None:
        self._home = home
        self._redact = redact
        self._clock = clock

    def record(self, error: BaseException, **fields: str) -> None:
        """Write the traceback of an internal error to the log, with secrets redacted."""
        details = self._redact("".join(traceback.format_exception(error)))
        logged_at = iso_timestamp(self._clock.now())
        append_log_line(self._home, {"at": logged_at, "level": "error", **fields, "error": details})

    def record_run_crash(self, run_id: str, error: BaseException) -> None:
        self.record(error, run=run_id)
