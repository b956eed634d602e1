"""Large messages on their way to one peer, in parts: a few at a time, so that others have their turn between them, and heartbeats."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from memsvc_proto.parts import PARTS_AHEAD, Cut


class Outgoing:
    """Belongs to the router's thread, but for what can be read."""

    def __init__(self) -> None:
        self._cuts: deque[Cut] = deque()
        self._part: Any = None  # taken out of the first, and not sent yet

    def __len__(self) -> int:
        """Messages."""
        return len(self._cuts)

    @property
    def bytes(self) -> int:
        """Of parts that zmq has not got yet."""
        return sum(cut.left for cut in list(self._cuts))

    def add(self, seq: int, *pieces: Any) -> None:
        """A frame, in pieces that follow one another and do not change until it has gone."""
        self._cuts.append(Cut(seq, *pieces))

    def go_on(self, send: Callable[[Any], None], held: Callable[[], int]) -> None:
        """Sends what there is room for; `held`: frames that zmq holds. Raises what `send` raises: the part stays the next one."""
        while self._cuts and held() < PARTS_AHEAD:
            if self._part is None:
                self._part = self._cuts[0].next()
            if self._part is None:
                self._cuts.popleft()
                continue
            send(self._part)
            self._part = None

    def clear(self) -> None:
        """Nothing of it goes any more."""
        self._cuts.clear()
        self._part = None
