"""Memory of batches that are on their way to learners, bounded over all of them together: who asks and never reads must not fill the host."""

from __future__ import annotations

import threading
import weakref
from collections import deque

from .peer import Peer
from .pool import Frame, Pool

COUNTED_BYTES = 1 << 18
"""Frames from this size on are counted; smaller ones are bounded by their number for each peer."""


class UnderWay:
    """Gives frames of the pool. One counts from when it is given until nothing refers to it any more: it has left this process, or was not used.

    A peer may have as much under way as is free: however many do not read, each has what is left over to all others, and nobody finds nothing.
    Thread-safe.
    """

    def __init__(self, pool: Pool, most: int) -> None:
        """`most`: bytes of all frames that are counted."""
        self.most = most
        self._pool = pool
        self._lock = threading.Lock()
        self._total = 0
        self._of: dict[Peer, int] = {}
        # Frames end in any thread, at any moment, also under the lock: that only leaves a note.
        self._ended: deque[tuple[Peer, int]] = deque()

    @property
    def bytes(self) -> int:
        """Counted now."""
        with self._lock:
            self._settle()
            return self._total

    def frame(self, peer: Peer, size: int) -> Frame | None:
        """As Pool.take; None while there is no room for it."""
        if size < COUNTED_BYTES or peer.within:
            return self._pool.take(size)
        with self._lock:
            self._settle()
            own = self._of.get(peer, 0)
            if own + size > self.most - self._total:
                return None
            self._of[peer] = own + size
            self._total += size
        try:
            frame = self._pool.take(size).view()
        except MemoryError:
            self._ended.append((peer, size))
            raise
        weakref.finalize(frame, self._ended.append, (peer, size)).atexit = False
        return frame

    def _settle(self) -> None:
        while self._ended:
            peer, size = self._ended.popleft()
            self._total -= size
            left = self._of[peer] - size
            if left:
                self._of[peer] = left
            else:
                del self._of[peer]
