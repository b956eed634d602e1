"""What a learner tells its server over the draw link: batches taken, priorities, requests; and how it waits where the queue is full."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import deque

import numpy as np
from memsvc_proto.errors import WindowFull
from memsvc_proto.wire import HEADER_BYTES, Kind, Message
from numpy.typing import NDArray

from .excuses import Excuses
from .seam import Link
from .stock import Ready
from .updates import Updates
from .waiting import Waiting

_MOST_UNREAD = 64  # answers to priorities that are left to the next call which waits for something


class Telling(Excuses):
    """A conversation's half that speaks. Whoever calls it has the turn."""

    draw: Link
    table: int

    def __init__(self, name: str, timeout: float) -> None:
        """`timeout`: the longest that anything waits for room in the queue."""
        self.counts = {"sampled": 0, "updates": 0, "applied": 0, "stale": 0, "refused": 0, "errors": 0}
        self.updates = Updates()
        self._name, self._timeout = name, timeout
        self._taken: deque[tuple[int, bool]] = deque()  # seqs of SAMPLEs whose batches were returned, or let go, which the server has not heard yet
        self._seq = 1

    @abstractmethod
    def mend(self) -> None:
        """Greets the server anew where a connection has broken."""

    @abstractmethod
    def take(self, wait: float) -> None:
        """Waits for a message of the draw link."""

    @abstractmethod
    def listen(self, wait: float) -> None:
        """The same for the door link."""

    @abstractmethod
    def look_around(self, waiting: Waiting) -> None:
        """While a call waits: greets a server that has been silent for too long."""

    def next(self) -> int:
        """The seq of the next message."""
        self._seq += 1
        return self._seq

    def returned(self, one: Ready) -> None:
        """This batch is its caller's now. Where the table counts what was delivered, the server hears so; else it would give the items out again when
        this learner leaves.
        """
        self.counts["sampled"] += 1
        self._tell(one, False)

    def grown_stale(self, one: Ready) -> bool:
        """Whether a batch was asked for before a version came that makes an item of it too stale (limits.max_staleness, by the learner's own topic).
        It is let go, and counts as not sampled. What was asked for since is the server's judgement, whatever topics the actors follow.
        """
        most = self.settings["limits"].get("max_staleness", -1)
        if most < 0:
            return False
        self.listen(0)
        newest = self.follower.newest
        if one.newest >= newest or int(one.batch.versions.min()) >= newest - most:
            return False
        self._tell(one, True)
        return True

    @property
    def _counted(self) -> bool:
        # Whether the server counts what was delivered.
        limits = self.settings["limits"]
        return bool(limits.get("max_times_sampled", 0) > 0 or limits.get("samples_per_insert", 0) > 0)

    def _tell(self, one: Ready, back: bool) -> None:
        if one.seq and self._counted:
            self._taken.append((one.seq, back))
        self._tell_taken()

    def _tell_taken(self) -> None:
        with contextlib.suppress(WindowFull):  # then with the next batch, or at the end
            while self._taken:
                seq, back = self._taken[0]
                self.draw.send(Message(Kind.TAKEN, self.next(), self.table, seq, int(back)))
                self._taken.popleft()

    def update(self, frame: NDArray[np.uint8]) -> None:
        """Sends new priorities: frame[64:] has u64[n] keys, then f64[n]. Waits as `send`; WindowFull: they were not sent, nor will be."""
        waiting: Waiting | None = None
        self.mend()
        if self.updates.unanswered >= _MOST_UNREAD:
            self.take(0)
        self.updates.add(frame)
        while not self._send_updates():
            waiting = waiting or Waiting(f"update_priorities() of learner {self._name!r}", self._timeout)
            try:
                self._make_room(waiting)
            except BaseException as error:
                if self.updates.withdraw(frame) or not isinstance(error, WindowFull):
                    raise

    def _send_updates(self) -> bool:
        # False: what is left can be sent when the queue has room.
        due = self.updates.due
        try:
            while due:
                frame, seq = due[0], self.next()
                body = frame[HEADER_BYTES:]
                self.draw.send(Message(Kind.UPDATE, seq, self.table, b=body.nbytes // 16, body=body), frame)
                self.updates.sent(seq)
        except WindowFull:
            return False
        return True

    def send(self, message: Message, frame: NDArray[np.uint8] | None = None) -> None:
        """Sends over the draw link, and waits where its queue is full; WindowFull when that lasts for the learner's timeout."""
        waiting: Waiting | None = None
        while True:
            try:
                return self.draw.send(message, frame)
            except WindowFull:
                waiting = waiting or Waiting(f"{message.kind.name} of learner {self._name!r}", self._timeout)
                self._make_room(waiting)

    def _make_room(self, waiting: Waiting) -> None:
        # Waits until more can be sent, perhaps.
        wait = waiting.slice(self.reason)
        if wait <= 0:
            raise WindowFull(f"{waiting.what} waited {waiting.timeout:g} s for its queue, which is full: {self._silence()}")
        self.take(wait)
        self.look_around(waiting)
