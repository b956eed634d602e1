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
        self.answered = 0  # payloads, of those the memory gave, before the newest one with an acknowledgement
        self._out: deque[tuple[int, int, int]] = deque()  # (seq, bytes, number of the payload)

    def __len__(self) -> int:
        return len(self._out)

    def has_room(self, size: int, most: int = 1 << 62) -> bool:
        """True when a message of `size` bytes may go out, with no more than `most` bytes out then, whatever the limit is."""
        return not self._out or (self.bytes + size <= min(self.limit_bytes, most) and len(self._out) < MOST_MESSAGES)

    def sent(self, seq: int, size: int, number: int = 0) -> None:
        """A push went out, with this payload of the memory's, counted from 1."""
        self._out.append((seq, size, number))
        self.bytes += size

    def settle(self, seq: int) -> None:
        """Everything up to `seq` is acknowledged: messages keep their order, so what was sent before has arrived too, whatever its table."""
        while self._out and self._out[0][0] <= seq:
            _, size, number = self._out.popleft()
            self.bytes -= size
            self.acknowledged += size
            self.answered = max(self.answered, number - 1)

    def settled(self, seq: int) -> bool:
        """True when nothing up to `seq` is out."""
        return not self._out or self._out[0][0] > seq

    def restart(self) -> None:
        """A new server: nothing is out, nothing was acknowledged."""
        self._out.clear()
        self.bytes = self.acknowledged = 0
