"""What a link has to send in parts, since it is too large for one frame, and what must stay behind that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from memsvc_proto.errors import WindowFull
from memsvc_proto.parts import PARTS_AHEAD, WHOLE_BYTES, Cut

MOMENT_S = 0.005
"""How often a receiver that waits looks whether more can go."""
_MOST = 256  # messages: the thread behind a link waits for their answers long before


class Sending:
    """Messages in their order, each in parts or, if it is small, whole. For the thread that owns the link."""

    def __init__(self, send: Callable[[Any], zmq.MessageTracker | None]) -> None:
        """`send` hands a frame over, or raises zmq.Again; it tells when the frame has left, where it was not copied."""
        self._send = send
        self._cuts: deque[Cut] = deque()
        self._flying: deque[zmq.MessageTracker] = deque()
        self._part: Any = None  # taken out of the first, and not sent yet

    @property
    def busy(self) -> bool:
        """There is something to send."""
        return bool(self._cuts)

    def add(self, seq: int, *pieces: Any) -> None:
        """A frame, in pieces that follow one another and do not change until it has gone. WindowFull: nothing was added."""
        if len(self._cuts) >= _MOST:
            raise WindowFull("large messages wait to be sent, and no more can be queued: the server does not take them")
        self._cuts.append(Cut(seq, *pieces))
        self.go_on()

    def go_on(self) -> bool:
        """Sends what there is room for; True when that was anything."""
        while self._flying and self._flying[0].done:
            self._flying.popleft()
        sent = False
        while self._cuts and len(self._flying) < PARTS_AHEAD:
            cut = self._cuts[0]
            if self._part is None:
                self._part = cut.next() if cut.bytes > WHOLE_BYTES else cut.all()
            try:
                tracker = self._send(self._part)
            except zmq.Again:
                break
            self._part, sent = None, True
            if tracker is not None:
                self._flying.append(tracker)
            if not cut.left:
                self._cuts.popleft()
        return sent

    def restart(self) -> None:
        """The connection has broken: some parts of the first message may be lost."""
        self._part = None
        if self._cuts:
            self._cuts[0].restart()

    def withdraw(self, seq: int) -> None:
        """Leaves out what has not gone of the message `seq`."""
        for cut in [one for one in self._cuts if one.seq == seq]:
            if cut is self._cuts[0]:
                self._part = None
            self._cuts.remove(cut)
