"""A connection of a ROUTER: who it is, what is on its way to it, and what comes from it in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq
from memsvc_proto.parts import Whole
from memsvc_proto.wire import Message

from .channels import Channel
from .outgoing import Outgoing
from .peer import Peer

Post = Callable[["SocketPeer", Message, Any], None]


class SocketPeer(Peer):
    """Known by its routing id. Belongs to its router's thread, but for what Peer says."""

    def __init__(self, link: str, identity: bytes, post: Post, most_bytes: int, key: str = "", token: str = "") -> None:
        """`post(peer, message, frame)` sends from any thread; `most_bytes`: of a message in parts."""
        super().__init__(link, key=key, token=token)
        self.identity = identity
        self._post = post
        self.flying: list[tuple[zmq.MessageTracker, int]] = []
        """Large messages that zmq holds, with their bytes."""
        self.whole = Whole(most_bytes)
        """A large message that is coming from it in parts, and"""
        self.outgoing = Outgoing()
        """those that go to it so."""
        self.channel: Channel | None = None
        """Memory shared with it, once it and this side have said SHARED."""

    @property
    def shared(self) -> bool:
        """See Peer."""
        return self.channel is not None

    def slot(self, number: int, size: int) -> Any:
        """See Peer."""
        channel = self.channel  # once: the router's thread may end it
        return channel.slot(number, size) if channel is not None else None

    def send(self, message: Message, frame: Any = None) -> None:
        """See Peer. From the router's own thread at once, from others through its outbox."""
        self._post(self, message, frame)

    def in_flight(self) -> int:
        """See Peer: the frames that zmq still holds."""
        return len(self.outgoing) or self.held()

    def held(self) -> int:
        """Large frames that zmq holds."""
        if not self.flying:
            return 0
        self.flying = [one for one in self.flying if not one[0].done]
        return len(self.flying)
