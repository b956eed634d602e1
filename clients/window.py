"""The bytes that were pushed and have no acknowledgement yet. Its owner's lock guards it."""

from __future__ import annotations

from collections import deque

MOST_MESSAGES = 500
"""Half of what a socket queues: a push that is made is sent, for what it carries counts as held by the server from then on."""


class Window:
    """At most `limit_bytes` in MOST_MESSAGES are out at once, or one message where a single one is larger."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.acknowledged = 0  # bytes, since the server was joined
        self._out: deque[tuple[int, int]] = deque()  # (seq, bytes)

    def __len__(self) -> int:
        return len(self._out)

    def has_room(self, size: int) -> bool:
        """True when a message of `size` bytes may go out."""
        return not self._out or (self.bytes + size <= self.limit_bytes and len(self._out) < MOST_MESSAGES)

    def sent(self, seq: int, size: int) -> None:
        """A push went out."""
        self._out.append((seq, size))
        self.bytes += size

    def settle(self, seq: int) -> None:
        """Everything up to `seq` is acknowledged: messages keep their order, so what was sent before has arrived too, whatever its table."""
        while self._out and self._out[0][0] <= seq:
            size = self._out.popleft()[1]
            self.bytes -= size
            self.acknowledged += size

    def settled(self, seq: int) -> bool:
        """True when nothing up to `seq` is out."""
        return not self._out or self._out[0][0] > seq

    def restart(self) -> None:
        """A new server: nothing is out, nothing was acknowledged."""
        self._out.clear()
        self.bytes = self.acknowledged = 0
