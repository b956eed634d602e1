"""The peers of an engine, and which of them is which actor."""

from __future__ import annotations

import threading
from typing import Any

from memsvc_proto.errors import Closed

from .hello import Hello
from .peer import Membership, Peer


class Members:
    """Peers by connection, actors by the core's number. Thread-safe; nothing is sent under its lock, which comes before the core's."""

    def __init__(self, replay: Any) -> None:
        self._replay = replay
        self._lock = threading.Lock()
        self._peers: dict[Peer, None] = {}
        self._actors: dict[int, Peer] = {}
        self._complained: set[Peer] = set()

    def note(self, peer: Peer) -> None:
        """A message of this peer has come."""
        if peer not in self._peers:
            with self._lock:
                self._peers[peer] = None

    def peers(self) -> list[Peer]:
        """Everybody who has sent something and has not left."""
        with self._lock:
            return list(self._peers)

    def actors(self) -> list[Peer]:
        """The actors among them."""
        with self._lock:
            return list(self._actors.values())

    def actor(self, number: int) -> Peer | None:
        """The peer of the core's actor `number`, None when it has left."""
        return self._actors.get(number)

    def first_complaint(self, peer: Peer) -> bool:
        """True once per peer."""
        with self._lock:
            if peer in self._complained:
                return False
            self._complained.add(peer)
            return True

    def join(self, peer: Peer, member: Membership, hello: Hello) -> tuple[list[int], bool, list[Peer]]:
        """(the actor's streams, whether its session was known, the peers that it replaces: its own, over a connection that it has given up, or
        another client of its name). Raises Closed for a peer that was replaced itself.
        """
        if peer.member is not None and peer.member.replaced:
            raise replaced(peer.member)  # else two clients of one name would take turns
        with self._lock:
            resumed, member.session = False, hello.session
            if hello.session:
                who = (hello.name, hello.envs, hello.topic, hello.session, list(hello.streams), hello.first, hello.fed)
                number, streams, member.stored, resumed = self._replay.resume(*who)
                member.taken = max(member.stored, hello.first - 1)
            else:
                number, streams = self._replay.join(member.name, hello.envs, member.topic)
            before = peer.member
            if before is not None and before.role == "actor":
                self._actors.pop(before.actor, None)
            namesakes = [other for other in self._actors.values() if other.member is not None and other.member.name == member.name]
            for other in namesakes:
                if other.member is not None:
                    other.member.replaced = True
                    del self._actors[other.member.actor]
            member.actor = int(number)
            peer.member = member
            self._actors[member.actor] = peer
            if before is not None and before.role == "actor" and before.name != member.name:
                self._replay.leave(before.actor)
        return [int(stream) for stream in streams], bool(resumed), namesakes

    def enter(self, peer: Peer, member: Membership) -> list[Peer]:
        """A learner or viewer has said who it is. Returns the links of this very client that the new one replaces."""
        self._leave(peer)
        peer.member = member
        same = (member.role, member.name, member.host, member.pid)
        return [
            other
            for other in self.peers()
            if other is not peer
            and other.link == peer.link
            and (was := other.member) is not None
            and member.table is not None
            and (was.role, was.name, was.host, was.pid) == same
        ]

    def batches(self, table: int) -> set[int]:
        """Sizes of the batches that learners of this table have announced."""
        members = [peer.member for peer in self.peers()]
        return {member.batch for member in members if member is not None and member.table == table}

    def remove(self, peer: Peer) -> bool:
        """The peer is gone; an actor's queue is used up, then its weight leaves. False when it was gone already."""
        with self._lock:
            if peer.gone:
                return False
            peer.gone = True
            self._peers.pop(peer, None)
            self._complained.discard(peer)
        self._leave(peer)
        return True

    def _leave(self, peer: Peer) -> None:
        member = peer.member
        if member is None or member.role != "actor":
            return
        with self._lock:  # over both: its session may be resumed over another connection at this moment
            if self._actors.get(member.actor) is peer:
                del self._actors[member.actor]
                self._replay.leave(member.actor)


def replaced(member: Membership) -> Closed:
    """What a client is told whose name a newer one has taken."""
    return Closed(f"actor {member.name!r} was replaced by a newer client of that name; give each actor a name of its own")
