"""What actors are told, each of them in the order in which it became true: acknowledgements with demand and allowance, feedback, settings."""

from __future__ import annotations

from typing import Any

from memsvc_proto.wire import Kind, Message

from .members import Members
from .peer import Peer
from .table import Table

RETELL_S = 0.1
"""A hungry actor that does not push is told again after this time."""


class Telling:
    """Thread-safe. Whatever the core is asked for on behalf of an actor is sent under that peer's `order`."""

    def __init__(self, replay: Any, members: Members) -> None:
        self._replay = replay
        self._members = members

    def acknowledge(self, peer: Peer, table: int) -> None:
        """An ACK, to actors alone: draws (or, with when_full = "block", items) wanted, keys asked for and evicted, the rate limiter's allowance."""
        with peer.order:
            if not _lives(peer):
                return
            actor = peer.member.actor if peer.member else -1
            # Before the core is asked: what is told of a moment before a push must not seem to answer it, least of all an allowance it hands back.
            seq, stored = peer.last_push, peer.member.stored if peer.member else 0
            wanted, missing, evicted = self._replay.notices(actor, table)
            allowance = self._replay.allowance(actor, table)
            body = missing.tobytes() + evicted.tobytes() if len(missing) or len(evicted) else b""
            meta = {} if allowance is None else {"allowed": int(allowance[0]), "ahead": float(allowance[1])}
            peer.send(Message(Kind.ACK, seq, table, wanted, len(missing), float(stored), meta, body))

    def feed(self, table: Table, now: float, at_once: bool) -> None:
        """ACKs to the actors of which more draws are wanted, or for which there is room or allowance again."""

        def tell(actor: int) -> None:
            peer = self._members.actor(actor)
            # Once between two pushes, unless it stays silent: its next push is answered with the newest demand anyway.
            if peer is not None and now - peer.told.get(table.index, -RETELL_S) >= RETELL_S:
                peer.told[table.index] = now
                self.acknowledge(peer, table.index)

        table.feed_hungry(now, tell, at_once)

    def feedback(self, actor: int, table: int) -> None:
        """Learners' priorities that have not gone to the actor yet."""
        peer = self._members.actor(actor)
        if peer is None:
            return
        with peer.order:
            if peer.member is None or peer.member.actor != actor:
                return
            taken = self._replay.take_feedback(actor, table)
            if taken is not None:
                number, keys, priorities = taken
                body = keys.tobytes() + priorities.tobytes()
                peer.send(Message(Kind.FEEDBACK, peer.last_push, table, a=number, b=len(keys), body=body))

    def settings(self, table: Table) -> None:
        """SETTINGS to every actor, with an ACK behind since demand and allowance may be others now, and to learners on their draw links."""
        for peer in self._members.peers():
            with peer.order:
                if _lives(peer) or (peer.member is not None and peer.member.role == "learner" and peer.link == "draw"):
                    peer.send(Message(Kind.SETTINGS, table=table.index, meta=table.settings))
            self.acknowledge(peer, table.index)


def _lives(peer: Peer) -> bool:
    return peer.member is not None and peer.member.role == "actor" and not peer.member.replaced
