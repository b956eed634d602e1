"""Messages too large for one frame: cut into PART messages, between which others go, and put together again.

A frame holds up everything behind it, heartbeats too: one that takes longer than those allow (20 s) never arrives. So what has more than WHOLE_BYTES
travels as parts of PART_BYTES: 5 GB over a link of any speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ProtocolError
from .wire import HEADER_BYTES, MAX_MESSAGE_BYTES, Kind, Message, pack_into

WHOLE_BYTES = 8 << 20
PART_BYTES = 1 << 20
PARTS_AHEAD = 8
"""Parts of one peer that zmq holds at a time."""


class Cut:
    """A frame on its way, in parts. `pieces`: what it consists of; they must not change before `next` has returned None."""

    def __init__(self, seq: int, *pieces: Any) -> None:
        self.seq = seq
        self._pieces = [view for piece in pieces if (view := memoryview(piece).cast("B")).nbytes]
        self.bytes = sum(view.nbytes for view in self._pieces)
        self._at = self._index = self._inside = 0

    @property
    def left(self) -> int:
        """Bytes that `next` has not returned."""
        return self.bytes - self._at

    def restart(self) -> None:
        """`next` begins anew."""
        self._at = self._index = self._inside = 0

    def all(self) -> bytes:
        """The whole frame, where that is small; nothing is left then."""
        self._at = self.bytes
        return b"".join(self._pieces)

    def next(self) -> NDArray[np.uint8] | None:
        """The frame of the next PART; None: that was all."""
        size = min(PART_BYTES, self.left)
        if not size:
            return None
        frame = np.empty(HEADER_BYTES + size, np.uint8)
        at = HEADER_BYTES
        while at < len(frame):
            piece = self._pieces[self._index]
            n = min(piece.nbytes - self._inside, len(frame) - at)
            frame[at : at + n] = np.frombuffer(piece[self._inside : self._inside + n], np.uint8)
            at, self._inside = at + n, self._inside + n
            if self._inside == piece.nbytes:
                self._index, self._inside = self._index + 1, 0
        pack_into(Message(Kind.PART, self.seq, a=self._at, b=self.bytes), frame)
        self._at += size
        return frame


class Whole:
    """What parts of one connection become. They come in their order; a new first part gives up what was not complete, and where one is missing, since
    the connection broke in between, the rest of that message is of no use: its sender knows, and says it again.
    """

    def __init__(self, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._most = most_bytes
        self._frame: NDArray[np.uint8] | None = None
        self._seq = self._at = 0
        self.torn = 0
        """Messages that were given up since a part was missing."""

    @property
    def bytes(self) -> int:
        """Of a message of which not all parts have come: memory that is taken as they come."""
        return 0 if self._frame is None else self._at

    def take(self, part: Message) -> memoryview | None:
        """The whole frame with its last part, else None. Raises ProtocolError for a message that is too large, once."""
        body = memoryview(part.body)
        if part.a == 0:
            self.torn += self._frame is not None
            self._frame, self._seq, self._at = None, part.seq, 0
            if not HEADER_BYTES <= part.b <= self._most:
                raise ProtocolError(f"a message of {part.b:,} bytes; the most is {self._most:,}", bytes=part.b, most=self._most)
            try:
                self._frame = np.empty(part.b, np.uint8)  # the system gives it page by page, as parts come
            except MemoryError:
                raise ProtocolError(f"a message of {part.b:,} bytes, for which this side has no memory") from None
        frame = self._frame
        if frame is None or part.seq != self._seq or part.a != self._at or part.b != len(frame) or not 0 < body.nbytes <= part.b - part.a:
            self.torn += frame is not None or part.seq != self._seq
            self._frame, self._seq = None, part.seq
            return None
        frame[part.a : part.a + body.nbytes] = np.frombuffer(body, np.uint8)
        self._at += body.nbytes
        if self._at < part.b:
            return None
        self._frame = None
        return memoryview(frame)  # type: ignore[arg-type]
