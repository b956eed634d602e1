"""One ROUTER socket and its thread: frames become the engine's messages, and back. door.py and draws.py each run one."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
from collections import deque
from typing import Any

import zmq
from memsvc_proto import wire
from memsvc_proto.errors import ProtocolError
from memsvc_proto.wire import Kind, Message

from .address import Address
from .binding import bind, remove_ipc
from .channels import Channel, Channels
from .engine import Engine
from .peer import Peer

log = logging.getLogger("memsvc")

COPY_BYTES = 1 << 16
"""Frames below this are copied: cheaper than keeping a reference until they have left, and what is received becomes aligned."""
MAX_FRAME_BYTES = 1 << 35
QUEUED_MESSAGES = 256
"""Small messages that wait for a peer that does not read; large ones are bounded by Peer.in_flight."""
RECEIVED_MESSAGES = 32
"""Messages of about 1 MB that wait per connection while this side is busy; then the sender's window fills."""
IDLE_S = 600.0
ORDER_S = 5.0
"""The longest that a message by the socket is awaited which shared memory has announced."""
_BURST = 64
_ROUNDS = 16


class ZmqPeer(Peer):
    """A connection of a ROUTER, known by its routing id."""

    def __init__(self, router: Router, identity: bytes) -> None:
        super().__init__(router.link)
        self.identity = identity
        self._router = router
        self.flying: list[zmq.MessageTracker] = []
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

    def send(self, message: wire.Message, frame: Any = None) -> None:
        """See Peer. From the router's own thread at once, from others through its outbox."""
        self._router.post(self, message, frame)

    def in_flight(self) -> int:
        """See Peer: the frames that zmq still holds."""
        if not self.flying:
            return 0
        self.flying = [one for one in self.flying if not one.done]
        return len(self.flying)


class Router:
    """Binds in its constructor (errors come at once), then serves from its own thread until `stop`."""

    turn_s = 1.0
    """How often `_turn` runs, and the longest sleep."""

    def __init__(self, engine: Engine, context: zmq.Context[zmq.Socket[bytes]], link: str, address: Address, setting: str) -> None:
        """`setting` names the configuration key in bind errors. Raises ConfigError when the address cannot be bound."""
        self.link = link
        self._engine = engine
        self._peers: dict[bytes, ZmqPeer] = {}
        self._outbox: deque[tuple[ZmqPeer, wire.Message, Any]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.channels = Channels(self._take, self._ended, self.wake)
        """Where clients of this host share memory."""
        self._unreached: deque[ZmqPeer] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"memsvc-{link}", daemon=True)
        self._next_sweep = 0.0
        self._socket = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 1),
            (zmq.SNDHWM, QUEUED_MESSAGES),
            (zmq.RCVHWM, RECEIVED_MESSAGES),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            (zmq.HEARTBEAT_IVL, 5_000),
            (zmq.HEARTBEAT_TIMEOUT, 30_000),
            (zmq.HEARTBEAT_TTL, 60_000),
            (zmq.BACKLOG, 4096),
        ):
            self._socket.setsockopt(option, value)
        try:
            self.address = bind(self._socket, address, setting)
        except BaseException:
            self._socket.close(0)
            self.channels.close()
            os.close(self._wake)
            raise

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread, which closes its sockets; waits at most timeout_s. Idempotent."""
        self._stopping = True
        if self._thread.ident is None:
            self._close()
            return
        self.wake()
        self._thread.join(timeout_s)

    def wake(self) -> None:
        """Makes the thread go through its loop once more. Thread-safe; nothing happens when it has ended."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is -1 by now
            os.eventfd_write(self._wake, 1)

    def post(self, peer: ZmqPeer, message: wire.Message, frame: Any) -> None:
        """Sends now on this router's thread, behind what was queued before, or queues for it. Thread-safe."""
        if threading.get_ident() == self._thread.ident:
            self._transmit_queued()
            self._transmit(peer, message, frame)
            return
        self._outbox.append((peer, message, frame))
        self.wake()

    def beside(self) -> None:
        """What a derived class does once in every turn of the loop, on its thread."""

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        poller.register(self.channels.fileno(), zmq.POLLIN)
        next_turn, rounds = 0.0, 0
        try:
            while not self._stopping:
                busy = self.channels.serve()
                rounds = rounds + 1 if busy else 0
                # A look at the socket costs more than one at a ring: it is not taken after every message that came by a ring.
                if rounds % _ROUNDS == 0:
                    busy = self._receive() or busy
                if not busy and self.channels.sleep():
                    for source, _ in poller.poll(int(self.turn_s * 1e3)):
                        if source == self._wake:
                            os.eventfd_read(self._wake)
                            self.channels.admit()
                        elif source == self.channels.fileno():
                            self.channels.listen()
                self._transmit_queued()
                self._bury()
                self.beside()
                now = time.monotonic()
                if now >= next_turn:
                    next_turn = now + self.turn_s
                    self._turn(now)
        except Exception:
            log.exception("the %s thread ended", self.link)
        finally:
            self._close()

    def _turn(self, now: float) -> None:
        """Every `turn_s`, on the thread."""
        if self.channels.overdue(now, ORDER_S):
            self._receive()  # this thread may have been stopped, or busy, and the message be there
        for identity in self.channels.overdue(now, ORDER_S):
            self._ended(identity, ProtocolError("a message that shared memory has announced has not come"))
        if now < self._next_sweep:
            return
        self._next_sweep = now + IDLE_S / 10
        for peer in list(self._peers.values()):
            idle = self._engine.clock() - peer.heard
            kept = peer.shared or (peer.member is not None and peer.member.role == "actor") or self._engine.owes(peer)
            if peer.gone or (idle > IDLE_S and not kept):
                self._forget(peer)

    def _receive(self) -> bool:
        """Handles up to _BURST messages that are there. True when it was that many."""
        for _ in range(_BURST):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            identity = parts[0].bytes
            channel = self.channels.begun.get(identity)
            if channel is not None:
                self.channels.before_socket(channel)
            self._take(identity, parts[-1].bytes if len(parts[-1]) < COPY_BYTES else parts[-1].buffer, len(parts) - 1)
        return True

    def _take(self, identity: bytes, frame: Any, frames: int = 1) -> None:
        peer = self._peers.get(identity)
        if peer is None or peer.gone:
            peer = self._peers[identity] = ZmqPeer(self, identity)
            peer.channel = self.channels.begun.get(identity)
            peer.heard = self._engine.clock()
        try:
            if frames != 1:
                raise ProtocolError(f"a message has one frame behind the routing frame, this one has {frames}")
            message = wire.unpack(frame)
        except ProtocolError as error:
            self._engine.malformed(peer, error)
            seq = foreign_seq(frame)
            if seq is not None:
                self._engine.refuse(peer, seq, error)
            return
        if message.kind is Kind.SHARED:
            self._share(peer)
        else:
            self._engine.handle(peer, message)

    def _share(self, peer: ZmqPeer) -> None:
        channel = self.channels.begin(peer.identity)
        if channel is None:
            return
        self._transmit_queued()
        if self._transmit(peer, Message(Kind.SHARED), None):  # the last one by the socket
            peer.channel = channel
        elif peer not in self._unreached:
            self.channels.drop(peer.identity)

    def _ended(self, identity: bytes, error: ProtocolError | None) -> None:
        peer = self._peers.get(identity)
        if peer is None:
            self.channels.drop(identity)
            return
        if error is not None:
            self._engine.malformed(peer, error)
        self._forget(peer)

    def _transmit_queued(self) -> None:
        while self._outbox and not self._stopping:
            self._transmit(*self._outbox.popleft())

    def _transmit(self, peer: ZmqPeer, message: wire.Message, frame: Any) -> bool:
        """True when it went out."""
        if peer.gone and message.kind is not wire.Kind.BYE:
            return False
        try:
            if frame is None:
                frame = wire.pack(message)
            else:
                wire.pack_into(message, frame)
            channel = peer.channel
            if channel is not None and self._through(channel, peer, frame):
                return True
            large = len(frame) >= COPY_BYTES
            self._socket.send(peer.identity, zmq.SNDMORE | zmq.NOBLOCK)
            if large:
                peer.flying.append(self._socket.send(frame, zmq.NOBLOCK, copy=False, track=True))
            else:
                self._socket.send(frame, zmq.NOBLOCK)
            if channel is not None and peer.channel is channel:
                channel.mark()
            return True
        except zmq.Again:
            self._engine.unsent(peer, message)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            if peer.identity in self.channels.begun:
                self._unreached.append(peer)
            else:
                self._forget(peer)
        except ProtocolError as error:
            self._ended(peer.identity, error)
        except (TypeError, ValueError):
            log.exception("%s could not be packed", message.kind.name)
            self._engine.unsent(peer, message)
        return False

    def _through(self, channel: Channel, peer: ZmqPeer, frame: Any) -> bool:
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

    def _bury(self) -> None:
        # Their connections have broken, and their processes may live: what they have written into memory has arrived. Not in the middle of a message.
        while self._unreached:
            peer = self._unreached.popleft()
            self.channels.finish(peer.identity)
            self._forget(peer)

    def _forget(self, peer: ZmqPeer) -> None:
        self._engine.lost(peer)
        peer.channel = None
        self.channels.drop(peer.identity)
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]

    def _close(self) -> None:
        self._socket.close(0)
        self.channels.close()
        wake, self._wake = self._wake, -1  # in this order: a late wake() must not write to a descriptor that is somebody else's by now
        if wake >= 0:
            os.close(wake)
        remove_ipc(self.address)


def foreign_seq(frame: Any) -> int | None:
    """The seq of a frame that is ours but for its wire version, so that its sender can be told; None for anything else."""
    view = memoryview(frame).cast("B")
    if view.nbytes < wire.HEADER_BYTES:
        return None
    magic, version, _, seq = struct.unpack_from("<4sHHQ", view)
    return int(seq) if magic == b"MSV1" and version != wire.VERSION else None
