"""Batches on their way: drawn for a learner, and not yet returned by its sample() (DEFINITIONS 9, "delivered means acknowledged")."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from .peer import Peer

MAX_OPEN = 64
"""Batches of one learner that may be open; the oldest beyond that counts as returned, so one that never confirms costs bounded memory."""

_Place = tuple[int, int]  # table, seq of the SAMPLE


class Deliveries:
    """Tickets of the core by who was sent the batch. Thread-safe; no core call is made under its lock, which is the last of the service's."""

    def __init__(self, replay: Any) -> None:
        self._replay = replay
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[Peer, dict[_Place, int]] = {}

    def ticket(self) -> int:
        """A number that no other batch has, over all peers and tables."""
        return next(self._numbers)

    def sent(self, peer: Peer, table: int, seq: int, ticket: int) -> None:
        """The batch drawn under `ticket` is about to go to `peer` in answer to `seq`. Where the peer has left meanwhile it is put back at once."""
        settled: list[tuple[int, int]] = []
        with self._lock:
            places = self._open.setdefault(peer, {})
            again = places.pop((table, seq), None)  # a client that gives two requests one number
            if again is not None:
                settled.append((table, again))
            places[(table, seq)] = ticket
            if len(places) > MAX_OPEN:
                oldest = next(iter(places))
                settled.append((oldest[0], places.pop(oldest)))
        for place in settled:
            self._replay.taken(*place)
        if peer.gone:  # it was marked as gone before its deliveries were dropped, so one of the two sees this one
            self.drop(peer)

    def taken(self, peer: Peer, table: int, seq: int) -> bool:
        """sample() has returned the batch. False when it is not open (any more)."""
        ticket = self._pop(peer, table, seq)
        if ticket is None:
            return False
        self._replay.taken(table, ticket)
        return True

    def unsent(self, peer: Peer, table: int, seq: int) -> bool:
        """The batch could not be sent, or was let go by its learner: it is put back. False when it is not open."""
        ticket = self._pop(peer, table, seq)
        if ticket is not None:
            self._replay.put_back(table, ticket)
        return ticket is not None

    def drop(self, peer: Peer) -> set[int]:
        """The peer has left, or begins anew: what it had not confirmed is put back. Returns the tables that this concerns."""
        with self._lock:
            places = self._open.pop(peer, {})
        for (table, _), ticket in places.items():
            self._replay.put_back(table, ticket)
        return {table for table, _ in places}

    def holds(self, peer: Peer) -> bool:
        """True while the peer has open deliveries."""
        return peer in self._open

    def open(self, table: int) -> int:
        """Open deliveries of a table."""
        with self._lock:
            return sum(1 for places in self._open.values() for at, _ in places if at == table)

    def _pop(self, peer: Peer, table: int, seq: int) -> int | None:
        with self._lock:
            places = self._open.get(peer)
            if places is None:
                return None
            ticket = places.pop((table, seq), None)
            if not places:
                del self._open[peer]
            return ticket
