"""A gate that many may be inside of at once, or one alone: so that a snapshot falls between two records."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Calls that change the memory pass it shared; a snapshot takes it alone. Thread-safe; not to be entered twice by one thread."""

    def __init__(self) -> None:
        self._news = threading.Condition(threading.Lock())
        self._inside = 0
        self._shut = False

    def enter(self) -> None:
        """Waits while somebody has it alone."""
        with self._news:
            while self._shut:
                self._news.wait()
            self._inside += 1

    def leave(self) -> None:
        """The end of `enter`."""
        with self._news:
            self._inside -= 1
            if self._shut and not self._inside:
                self._news.notify_all()

    @contextmanager
    def alone(self, patience_s: float = 0.01) -> Iterator[None]:
        """Nobody is inside meanwhile. Where one stays inside for longer than `patience_s`, the others are let in again before the next try, so
        that nobody waits longer than that for the slowest."""
        self._close(patience_s)
        try:
            yield
        finally:
            self._open()

    def _close(self, patience_s: float) -> None:
        while True:
            with self._news:
                self._shut = True
                if self._news.wait_for(lambda: not self._inside, patience_s):
                    return
            self._open()
            time.sleep(patience_s)

    def _open(self) -> None:
        with self._news:
            self._shut = False
            self._news.notify_all()
