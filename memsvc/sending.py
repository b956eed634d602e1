"""Messages from a router to its peers: by shared memory where there is some, else by the socket; large ones in parts, by turns."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from memsvc_proto import wire
from memsvc_proto.errors import ProtocolError
from memsvc_proto.parts import WHOLE_BYTES

from .channels import Channel, Channels
from .engine import Engine
from .socket_peer import SocketPeer

log = logging.getLogger("memsvc")

COPY_BYTES = 1 << 16
"""Frames below this are copied: cheaper than keeping a reference until they have left, and what is received becomes aligned."""
OUTBOX_MESSAGES = 1 << 16
"""Of other threads, to all peers of a router together, that wait for its own; beyond, they are lost as to peers that do not read."""


class Sending:
    """Belongs to the router's thread, but for `queue` and `outbox_bytes`.

    `forget(peer)` is told who cannot be reached any more, `ended(identity, error)` whose memory holds what cannot be.
    """

    def __init__(
        self,
        engine: Engine,
        socket: zmq.Socket[bytes],
        channels: Channels,
        forget: Callable[[SocketPeer], None],
        ended: Callable[[bytes, ProtocolError | None], None],
    ) -> None:
        self._engine = engine
        self._socket = socket
        self._channels = channels
        self._forget = forget
        self._ended = ended
        self.stopped = False
        """What is queued from now on does not go any more."""
        self._outbox: deque[tuple[SocketPeer, wire.Message, Any]] = deque()
        self._large: dict[SocketPeer, None] = {}
        self._unreached: deque[SocketPeer] = deque()

    @property
    def large(self) -> bool:
        """Whether large messages are on their way to somebody."""
        return bool(self._large)

    @property
    def outbox_bytes(self) -> int:
        """Of messages that other threads have queued. Any thread."""
        return sum(memoryview(one.body).nbytes + wire.HEADER_BYTES for _, one, _ in list(self._outbox))

    def queue(self, peer: SocketPeer, message: wire.Message, frame: Any) -> None:
        """For `queued`, from another thread."""
        if len(self._outbox) < OUTBOX_MESSAGES:
            self._outbox.append((peer, message, frame))
        else:
            self._engine.unsent(peer, message)

    def queued(self) -> None:
        """Sends what other threads have queued."""
        while self._outbox and not self.stopped:
            self.send(*self._outbox.popleft())

    def send(self, peer: SocketPeer, message: wire.Message, frame: Any = None) -> bool:
        """True when it went out, or its first parts did."""
        if peer.gone and message.kind is not wire.Kind.BYE:
            return False
        try:
            body = message.body
            if frame is not None:
                wire.pack_into(message, frame)
                pieces = [frame]
            elif isinstance(body, memoryview) and body.nbytes > WHOLE_BYTES:
                pieces = [wire.pack_head(message, body.nbytes), body]
            else:
                pieces = [wire.pack(message)]
            if len(pieces) > 1 or len(pieces[0]) > WHOLE_BYTES:
                peer.outgoing.add(message.seq, *pieces)
                self._large[peer] = None
            else:
                self._put(peer, pieces[0])
            return True
        except zmq.Again:
            self._engine.unsent(peer, message)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            if peer.identity in self._channels.begun:
                self._unreached.append(peer)
            else:
                self._forget(peer)
        except ProtocolError as error:
            self._ended(peer.identity, error)
        except (TypeError, ValueError):
            log.exception("%s could not be packed", message.kind.name)
            self._engine.unsent(peer, message)
        return False

    def go_on(self) -> None:
        """Sends parts of large messages, where there is room."""
        for peer in list(self._large):
            self._go_on(peer)

    def bury(self) -> None:
        """Lets go those who cannot be reached. Not in the middle of a message."""
        # Their connections have broken, and their processes may live: what they have written into memory has arrived.
        while self._unreached:
            peer = self._unreached.popleft()
            self._channels.finish(peer.identity)
            self._forget(peer)

    def buries(self, peer: SocketPeer) -> bool:
        """Whether `bury` will let it go."""
        return peer in self._unreached

    def _put(self, peer: SocketPeer, frame: Any) -> None:
        channel = peer.channel
        if channel is not None and self._through(channel, peer, frame):
            return
        large = len(frame) >= COPY_BYTES
        self._socket.send(peer.identity, zmq.SNDMORE | zmq.NOBLOCK)
        if large:
            peer.flying.append((self._socket.send(frame, zmq.NOBLOCK, copy=False, track=True), len(frame)))
        else:
            self._socket.send(frame, zmq.NOBLOCK)
        if channel is not None and peer.channel is channel:
            channel.mark()

    def _go_on(self, peer: SocketPeer) -> None:
        try:
            if not peer.gone:
                peer.outgoing.go_on(lambda part: self._put(peer, part), peer.held)
        except zmq.Again:
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(peer)
        if peer.gone:
            peer.outgoing.clear()
        if not peer.outgoing:
            self._large.pop(peer, None)

    def _through(self, channel: Channel, peer: SocketPeer, frame: Any) -> bool:
        # True: it went through shared memory. Raises zmq.Again where neither way has room.
        try:
            if channel.send(frame):
                return True
            if channel.room():
                return False
        except ProtocolError as error:
            self._ended(peer.identity, error)
            return True
        raise zmq.Again
