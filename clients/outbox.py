"""Outbox: the pushes of an actor that the server has not acknowledged, each with what is needed to send it again. Its owner's lock guards it.

sent = acknowledged + pending + refused + lost        in pushes, in items and in bytes; of those acknowledged, `gone` went with a server's state
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Protocol

from .outlet import Frame

MOST_MESSAGES = 500
"""Half of what a socket queues: a push that is made is sent, for what it carries counts as held by the server from then on."""

REMEMBERED = 4096
"""Acknowledged pushes whose size is remembered."""

TRIES = 4
"""How often a push is sent to a server that fails over it, before it counts as refused."""

_NOTHING: tuple[int, Frame | None] = (0, None)


class Spool(Protocol):
    """Where frames lie that must outlive this process (spool.py): it gives them back by number."""

    def append(self, number: int, seq: int, table: int, steps: int, frame: Frame) -> bool:
        """Keeps a frame; False: it has no room."""

    def frame(self, number: int) -> Frame | None:
        """A frame again, with 64 free bytes at its front; None: it was damaged."""

    def acknowledged(self, number: int) -> None:
        """Those up to this number are not needed any more."""

    def why(self) -> str:
        """Why it has no room, in words."""


@dataclass(slots=True)
class Count:
    """How many pushes, with how much in them."""

    pushes: int = 0
    items: int = 0
    bytes: int = 0

    def add(self, items: int, size: int) -> None:
        """One push more."""
        self.pushes += 1
        self.items += items
        self.bytes += size

    def grow(self, other: Count) -> None:
        """Those of another count too."""
        self.pushes += other.pushes
        self.items += other.items
        self.bytes += other.bytes


@dataclass(slots=True)
class Push:
    """One that went out, or is to."""

    number: int
    seq: int
    table: int
    steps: int
    """Added so far, as the payload says."""
    items: int
    size: int
    payload: int
    """Its number among the payloads that the memory gave, from 1."""
    frame: Frame | None
    """None: it is in the spool."""
    refused: bool = False
    tries: int = 0


@dataclass
class Totals:
    """Since the actor was made."""

    sent: Count = field(default_factory=Count)
    acknowledged: Count = field(default_factory=Count)
    refused: Count = field(default_factory=Count)
    lost: Count = field(default_factory=Count)
    """Without an acknowledgement when a server came that has no place for the streams they are of."""
    gone: Count = field(default_factory=Count)
    """Acknowledged, by a server that came back without its state."""


class Outbox:
    """Numbers are consecutive. What was sent is sent again from where `rewind` says, in the same order. At most `limit_bytes`, in MOST_MESSAGES, are
    on their way at once, or one push where a single one is larger; without a spool none is made beyond that.
    """

    def __init__(self, limit_bytes: int, last: int = 0, spool: Spool | None = None) -> None:
        """`last`: number of the newest push before the first one here."""
        self.limit_bytes = limit_bytes
        self.totals = Totals()
        self.resent = 0
        self.answered = 0
        """Payloads, of those the memory gave, before the newest one with an acknowledgement."""
        self.joined = Count()
        """Acknowledged since the server of now was joined."""
        self.last = last
        self.bytes = 0
        """Without an acknowledgement."""
        self.held = 0
        """Of these, bytes in memory."""
        self.spool = spool
        self._items = 0
        self._out: deque[Push] = deque()
        self._held: deque[Push] = deque()  # of these, the newest ones, which the spool has not taken
        self._past: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)  # of pushes that were acknowledged
        self._went = 0  # pushes at the front that were sent over the connection of now
        self._flying = 0  # bytes of these
        self._newest = last  # the newest number that was ever sent
        self._fresh = _NOTHING  # the push that was spooled last, if it was not sent yet: it need not be read again

    def __len__(self) -> int:
        return len(self._out)

    @property
    def first(self) -> int:
        """Number of the oldest push without an acknowledgement; of the next one where there is none."""
        return self._out[0].number if self._out else self.last + 1

    @property
    def flown(self) -> int:
        """Number of the newest push that was sent over this connection."""
        return self.first + self._went - 1

    @property
    def behind(self) -> bool:
        """True while something waits to be sent, or sent again."""
        return self._went < len(self._out)

    def has_room(self, size: int, most: int = 1 << 62, away: bool = False) -> bool:
        """True when a message of `size` bytes may be made, with no more than `most` bytes out then, whatever the limit is. With a spool, where the
        server is `away` or there is more to send than a window already, what the spool takes: else it would be read again at once.
        """
        window = min(self.limit_bytes, most)
        if self.spool is None or not (away or self.bytes > window + size):
            return not self._out or (self.bytes + size <= window and len(self._out) < MOST_MESSAGES)
        if self.held + size > self.limit_bytes:
            self._spool_held()
        return not self.held or self.held + size <= self.limit_bytes

    def add(self, seq: int, table: int, steps: int, items: int, frame: Frame, payload: int = 0) -> Push:
        """A push that was just made; its frame belongs to the outbox from now on, or, with a spool, until `let_go`."""
        self.last += 1
        size = frame.nbytes
        push = Push(self.last, seq, table, steps, items, size, payload, frame)
        self.held += size
        self._out.append(push)
        if self.spool is not None:
            self._held.append(push)
            self._spool_held()
        self.bytes += size
        self._items += items
        self.totals.sent.add(items, size)
        return push

    def load(self, pushes: Iterable[Push]) -> None:
        """What an earlier process has left in the spool: pushes with consecutive numbers from `first` on."""
        for push in pushes:
            self._out.append(push)
            self.last = push.number
            self.bytes += push.size
            self._items += push.items
            self.totals.sent.add(push.items, push.size)
        self._newest = self.last

    def let_go(self) -> None:
        """The newest push's frame is its maker's again: it is in the spool, or copied."""
        self._fresh = _NOTHING
        if self._held and (push := self._held[-1]).number == self.last and push.frame is not None:
            push.frame = push.frame.copy()

    def _spool_held(self) -> None:
        # What finds no room in the spool is kept in memory, as without one, until there is some; in the file numbers grow.
        while self._held and self.spool is not None:
            push = self._held[0]
            if push.frame is None or not self.spool.append(push.number, push.seq, push.table, push.steps, push.frame):
                return
            self._held.popleft()
            self._fresh = (push.number, push.frame)
            push.frame = None
            self.held -= push.size

    def due(self, most: int = 1 << 62) -> Push | None:
        """The push to be sent next, if it may be on its way together with those that are."""
        if self._went >= len(self._out):
            return None
        push = self._out[self._went]
        fits = self._flying + push.size <= min(self.limit_bytes, most) and self._went < MOST_MESSAGES
        return push if fits or not self._went else None

    def frame(self, push: Push) -> Frame | None:
        """What is sent; None where the spool has found it damaged."""
        if push.frame is not None or self.spool is None:
            return push.frame
        number, frame = self._fresh
        return frame if number == push.number else self.spool.frame(push.number)

    def went(self, push: Push) -> None:
        """The push that was due has been sent."""
        self._went += 1
        self._fresh = _NOTHING
        self._flying += push.size
        if push.number <= self._newest:
            self.resent += 1
        self._newest = max(self._newest, push.number)

    def rewind(self, number: int) -> None:
        """From this push on everything is to be sent again."""
        at = max(0, number - self.first)
        if at < self._went:
            self._flying -= sum(push.size for push in islice(self._out, at, self._went))
            self._went = at

    def find(self, seq: int) -> Push | None:
        """The push of this seq, if it has no acknowledgement."""
        return next((push for push in self._out if push.seq == seq), None)

    def settle(self, number: int) -> int:
        """The server has dealt with everything up to this number. Returns the seq of the newest push that this settles, 0 for none."""
        seq, totals = 0, self.totals
        while self._out and self._out[0].number <= number:
            push = self._out.popleft()
            seq, size = push.seq, push.size
            self.bytes -= size
            self._items -= push.items
            if push.frame is not None:
                self.held -= size
            if self._held and self._held[0] is push:
                self._held.popleft()
            if self._went:
                self._went -= 1
                self._flying -= size
            self._past.append((push.items, size))
            if push.refused:
                totals.refused.add(push.items, size)
            else:
                totals.acknowledged.add(push.items, size)
                self.joined.add(push.items, size)
            self.answered = max(self.answered, push.payload - 1)
        if seq and self.spool is not None:
            self.spool.acknowledged(self.first - 1)
            self._spool_held()
        return seq

    def settled(self, number: int) -> bool:
        """True when nothing up to `number` is out."""
        return self.first > number

    def forgotten(self, stored: int) -> Count:
        """The server of now has nothing of what was acknowledged but the pushes up to `stored`. Returns how much is gone: of items and bytes what is
        remembered, of the last REMEMBERED pushes, where it has some; where it has nothing, all since the server of before was joined.
        """
        if stored == 0:
            gone, self.joined = self.joined, Count()
        else:
            past = list(islice(reversed(self._past), max(0, self.first - 1 - stored)))
            gone = Count(max(0, self.first - 1 - stored), sum(items for items, _ in past), sum(size for _, size in past))
            had = self.joined
            self.joined = Count(max(0, had.pushes - gone.pushes), max(0, had.items - gone.items), max(0, had.bytes - gone.bytes))
        self.totals.gone.grow(gone)
        return gone

    def drop(self) -> Count:
        """Nothing that is out can be stored any more; numbers go on. Returns how much is lost."""
        lost = self.pending
        self._out.clear()
        self._held.clear()
        self.bytes = self.held = self._items = self._went = self._flying = 0
        self.totals.lost.grow(lost)
        if self.spool is not None:
            self.spool.acknowledged(self.last)
        return lost

    @property
    def pending(self) -> Count:
        """Made, and not acknowledged."""
        return Count(len(self._out), self._items, self.bytes)

    def stats(self) -> dict[str, Any]:
        """Counts as {"pushes", "items", "bytes"}; `resent` pushes in all, `number` of the newest push."""
        counts = {**vars(self.totals), "pending": self.pending}
        return {**{name: asdict(count) for name, count in counts.items()}, "resent": self.resent, "number": self.last}
