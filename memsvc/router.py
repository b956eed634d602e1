"""One ROUTER socket and its thread: frames become the engine's messages, and back. door.py and draws.py each run one."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import zmq
from memsvc_proto import wire
from memsvc_proto.errors import Forbidden, ProtocolError
from memsvc_proto.wire import Kind, Message

from .address import Address
from .binding import bind, remove_ipc
from .channels import SHARE_BYTES, Channels
from .engine import Engine
from .sending import COPY_BYTES, Sending
from .socket_peer import SocketPeer
from .turned import Turned

if TYPE_CHECKING:
    from .guard import Guard

log = logging.getLogger("memsvc")

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
_MOMENT_MS = 2


class Router:
    """Binds in its constructor (errors come at once), then serves from its own thread until `stop`."""

    turn_s = 1.0
    """How often `_turn` runs, and the longest sleep."""

    def __init__(
        self, engine: Engine, context: zmq.Context[zmq.Socket[bytes]], link: str, address: Address, setting: str, guard: Guard | None
    ) -> None:
        """`setting` names the configuration key in bind errors; with a guard clients must show a key. Raises ConfigError when the address cannot be
        bound.
        """
        self.link = link
        self._engine = engine
        self._guard = guard
        self._peers: dict[bytes, SocketPeer] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.channels = Channels(self._take, self._ended, self.wake)
        """Where clients of this host share memory."""
        self.most_bytes = engine.config.server.max_message
        """Of a message in parts."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"memsvc-{link}", daemon=True)
        self._next_sweep = self._next_look = 0.0
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
        self._sending = Sending(engine, self._socket, self.channels, self._forget, self._ended)
        self.handshakes = Turned(self._socket, engine.counts, guard is not None)
        """Whose handshakes have failed."""
        try:
            if guard is not None:
                guard.dress(self._socket)
            self.address = bind(self._socket, address, setting, private=not (guard or engine.config.server.insecure))
        except BaseException:
            self.handshakes.close()
            self._socket.close(0)
            self.channels.close()
            os.close(self._wake)
            raise

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread, which closes its sockets; waits at most timeout_s. Idempotent."""
        self._stopping = self._sending.stopped = True
        if self._thread.ident is None:
            self._close()
            return
        self.wake()
        self._thread.join(timeout_s)

    def wake(self) -> None:
        """Makes the thread go through its loop once more. Thread-safe; nothing happens when it has ended."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is -1 by now
            os.eventfd_write(self._wake, 1)

    def post(self, peer: SocketPeer, message: wire.Message, frame: Any) -> None:
        """Sends now on this router's thread, behind what was queued before, or queues for it. Thread-safe."""
        if threading.get_ident() == self._thread.ident:
            self._sending.queued()
            self._sending.send(peer, message, frame)
            return
        self._sending.queue(peer, message, frame)
        self.wake()

    def queues(self) -> dict[str, int]:
        """Bytes: `outbox` of messages that other threads have queued, `sending` of large ones that zmq holds, `shared` of memory shared with clients.
        Any thread.
        """
        peers = list(self._peers.values())
        flying = sum(size for peer in peers for tracker, size in list(peer.flying) if not tracker.done)
        return {
            "outbox": self._sending.outbox_bytes,
            "sending": flying + sum(peer.outgoing.bytes for peer in peers),
            "shared": self.channels.held_bytes,
        }

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
                # A look at the socket costs more than one at a ring: it is not taken after every small message that came by a ring.
                if rounds % _ROUNDS == 0 or busy >= SHARE_BYTES:
                    self.channels.listen()  # others may have written, or gone, since the last sleep
                    busy = self._receive() or busy
                if not busy and self.channels.sleep():
                    for source, _ in poller.poll(_MOMENT_MS if self._sending.large else int(self.turn_s * 1e3)):
                        if source == self._wake:
                            os.eventfd_read(self._wake)
                            self.channels.admit()
                        elif source == self.channels.fileno():
                            self.channels.listen()
                self._sending.queued()
                self._sending.go_on()
                self._sending.bury()
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
        if now >= self._next_look:
            self._next_look = now + 1.0
            self.handshakes.look(self.address)
            if self._guard is not None:
                self._guard.refresh()
        if now < self._next_sweep:
            return
        self._next_sweep = now + IDLE_S / 10
        for peer in list(self._peers.values()):
            idle = self._engine.clock() - peer.heard
            kept = peer.shared or (peer.member is not None and peer.member.role == "actor") or self._engine.owes(peer)
            if peer.gone or (idle > IDLE_S and not kept):
                self._forget(peer)

    def _receive(self) -> bool:
        """Handles up to _BURST messages that are there, or SHARE_BYTES and then until a client comes again: zmq takes them by turns. True when
        more may be there.
        """
        handled, heard = SHARE_BYTES, set[bytes]()
        for _ in range(_BURST):
            if handled >= SHARE_BYTES:
                # zmq looks at who else has sent something only at every hundredth frame, but also when it is asked for events.
                self._socket.getsockopt(zmq.EVENTS)
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            identity = parts[0].bytes
            channel = self.channels.begun.get(identity)
            if channel is not None:
                self.channels.before_socket(channel)
            key = None if self._guard is None else str(parts[-1].get("User-Id"))
            self._take(identity, parts[-1].bytes if len(parts[-1]) < COPY_BYTES else parts[-1].buffer, len(parts) - 1, key)
            handled += len(parts[-1])
            if handled >= 2 * SHARE_BYTES and identity in heard:
                break
            heard.add(identity)
        return True

    def _take(self, identity: bytes, frame: Any, frames: int = 1, key: str | None = None, whole: bool = False) -> None:
        # `key` None: by shared memory, which is of who has said SHARED. `whole`: it came in parts, and is this process's own.
        peer = self._peers.get(identity)
        if self._guard is not None:
            key = self.channels.key(identity) if key is None else key
            if peer is not None and peer.key != key and not peer.gone:
                self._forget(peer)  # somebody else comes by this identity: nothing of the first one's is theirs
        if peer is None or peer.gone:
            peer = self._peers[identity] = self._new_peer(identity, key or "")
        try:
            if frames != 1:
                raise ProtocolError(f"a message has one frame behind the routing frame, this one has {frames}")
            message = wire.unpack(frame)
            # In memory that its sender still writes to nothing is read twice; of pushes the core sees to it.
            if message.kind is not Kind.PUSH and not whole:
                message.body = bytes(message.body)
        except ProtocolError as error:
            self._engine.counts.add("unreadable")
            self._engine.malformed(peer, error)
            seq = foreign_seq(frame)
            if seq is not None:
                self._engine.refuse(peer, seq, error)
            return
        if self._guard is not None and self._refused(self._guard, peer, message):
            return
        if message.kind is Kind.SHARED:
            self._share(peer)
        elif message.kind is Kind.PART and not whole:
            self._take_part(peer, message)
        else:
            self._engine.handle(peer, message)

    def _take_part(self, peer: SocketPeer, part: Message) -> None:
        peer.heard = self._engine.clock()
        torn = peer.whole.torn
        try:
            frame = peer.whole.take(part)
            if peer.whole.torn != torn:
                self._engine.malformed(peer, ProtocolError("parts of a large message are missing, as after a connection that broke in it"))
        except ProtocolError as error:
            self._engine.malformed(peer, error)
            self._engine.refuse(peer, part.seq, ProtocolError(f"{error.message}; server.max_message says how large one may be", **error.details))
            return
        if frame is not None:
            self._take(peer.identity, frame, key=peer.key, whole=True)

    def _new_peer(self, identity: bytes, key: str) -> SocketPeer:
        token = "" if self._guard is None else self._guard.token(key)
        peer = SocketPeer(self.link, identity, self.post, self.most_bytes, key, token)
        peer.channel = self.channels.begun.get(identity)
        peer.heard = self._engine.clock()
        return peer

    def _refused(self, guard: Guard, peer: SocketPeer, message: Message) -> bool:
        # The one place where every message of every port is asked whether its sender may send it.
        try:
            kind = message.kind if message.kind is not Kind.PART else Kind.PUSH if self.link == "door" else Kind.PUBLISH
            guard.check(peer.key, kind, message.meta.get("role"))
            return False
        except Forbidden as error:
            if message.kind is Kind.PUSH:
                self._engine.turned_away.add("forbidden")
            self._engine.refuse(peer, message.seq, error)
            return True

    def _share(self, peer: SocketPeer) -> None:
        channel = self.channels.begin(peer.identity, peer.key)
        if channel is None:
            return
        self._sending.queued()
        if self._sending.send(peer, Message(Kind.SHARED)):  # the last one by the socket
            peer.channel = channel
        elif not self._sending.buries(peer):
            self.channels.drop(peer.identity)

    def _ended(self, identity: bytes, error: ProtocolError | None) -> None:
        peer = self._peers.get(identity)
        if peer is None:
            self.channels.drop(identity)
            return
        if error is not None:
            self._engine.malformed(peer, error)
        self._forget(peer)

    def _forget(self, peer: SocketPeer) -> None:
        self._engine.lost(peer)
        peer.channel = None
        self.channels.drop(peer.identity)
        if self._peers.get(peer.identity) is peer:
            del self._peers[peer.identity]

    def _close(self) -> None:
        self.handshakes.close()
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
