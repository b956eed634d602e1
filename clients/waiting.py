"""A call that waits: its deadline, slices short enough for Ctrl-C and close(), and its reason in the log every 10 s."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

SLICE_S = 0.25  # longest single wait: Ctrl-C, close() and logging are seen between two of them
LOG_S = 10.0

_log = logging.getLogger("memsvc_client")


class Waiting:
    """One wait of `what` (as in "sample() of table 'replay'") for at most `timeout` seconds."""

    def __init__(self, what: str, timeout: float) -> None:
        self.what = what
        self.timeout = timeout
        self.began = time.monotonic()
        self._log_at = self.began + LOG_S

    @property
    def waited(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def slice(self, reason: Callable[[], str]) -> float:
        """Seconds to wait at once, 0 when the time is over; logs the reason when it is due."""
        now = time.monotonic()
        if now >= self._log_at:
            self._log_at += LOG_S
            _log.warning("%s has waited %.0f s: %s", self.what, now - self.began, reason())
        return max(0.0, min(SLICE_S, self.began + self.timeout - now))
