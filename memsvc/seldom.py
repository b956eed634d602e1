"""Seldom: what may happen a thousand times a second is logged once a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

_PAUSE_S = 60.0
_MOST = 1024


class Seldom:
    """Thread-safe; remembers the last 1,024 things."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Hashable, tuple[float, int]] = {}

    def due(self, what: Hashable) -> str | None:
        """The end of the line to log: "", or how often it has happened since the last; None: not now."""
        now = time.monotonic()
        with self._lock:
            since, silent = self._seen.pop(what, (-_PAUSE_S, 0))
            if now - since < _PAUSE_S:
                self._seen[what] = (since, silent + 1)
                return None
            self._seen[what] = (now, 0)
            if len(self._seen) > _MOST:
                del self._seen[next(iter(self._seen))]
        return f" ({silent:,} times more in the last minutes)" if silent else ""
