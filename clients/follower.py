"""Which parameters a client has, and which it should fetch. No thread, no socket: its owner guards it and carries its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memsvc_proto.wire import Kind, Message

from .params import Params, decode
from .waiting import SLICE_S


class Follower:
    """One topic as one client sees it: the newest version known to exist, the newest blob fetched, and the version last handed out."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.newest = 0  # known to exist
        self.newest_bytes = -1  # of its blob; < 0: not known
        self.returned = 0  # last handed out by take()
        self.asked_at = -1.0  # when a FETCH that is not answered yet was sent; < 0: none is
        self._blob: tuple[int, Any] | None = None
        self._asked_first = float("-inf")
        self._before = 0

    def notice(self, version: int, size: int = -1) -> None:
        """A version is said to exist, of `size` bytes where that is known."""
        if version > self.newest:
            self.newest, self.newest_bytes = version, size

    def heard(self, message: Message) -> None:
        """Takes a NOTICE or PARAMS; other topics' are ignored."""
        if message.meta.get("topic") != self.topic:
            return
        self.notice(message.a, message.b if message.kind is Kind.NOTICE else -1)
        if message.kind is Kind.PARAMS:
            self.asked_at = -1.0
            if message.a > max(self.returned, self.held):
                self._blob = (message.a, message.body)

    def restarted(self, versions: dict[str, int]) -> None:
        """A new server answers from now on: what it has counts, and an unanswered FETCH is lost."""
        self._before = self.seen
        self.newest, self.newest_bytes = versions.get(self.topic, 0), -1
        self.asked_at = -1.0

    @property
    def seen(self) -> int:
        """The newest version that this client has ever known of, of earlier servers too: later ones count on from it."""
        return max(self.returned, self.held, self.newest, self._before)

    @property
    def held(self) -> int:
        """Version of the blob that take() would return, 0 when there is none."""
        return self._blob[0] if self._blob else 0

    @property
    def held_bytes(self) -> int:
        """Bytes of that blob."""
        return memoryview(self._blob[1]).nbytes if self._blob else 0

    def fetch(self, next_seq: Callable[[], int], now: float) -> Message | None:
        """The FETCH to send now, or None: nothing newer is known to exist, or one is on its way.

        The first notice may come before the subscription stands, so until something was fetched it is asked for again and again; the answer "none" is
        tiny.
        """
        first = not self.returned and not self.held and now - self._asked_first >= SLICE_S
        if self.asked_at >= 0 or not (first or self.newest > max(self.returned, self.held)):
            return None
        self.asked_at = self._asked_first = now
        return Message(Kind.FETCH, next_seq(), meta={"topic": self.topic})

    def take(self) -> tuple[int, Any] | None:
        """(version, blob) when newer than what was last returned, else None."""
        blob, self._blob = self._blob, None
        if blob is None or blob[0] <= self.returned:
            return None
        self.returned = blob[0]
        return blob

    @staticmethod
    def read(blob: tuple[int, Any]) -> Params:
        """The parameters in what take() gave."""
        return Params(blob[0], decode(blob[1]))
