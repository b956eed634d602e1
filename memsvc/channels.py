"""The server's ends of channels (clients/channel.py): rings in memory that clients of this host share with a router, and who of them is heard."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memsvc_client.beside import close_all
from memsvc_client.channel import MOST_RING_BYTES, Plan
from memsvc_client.memory_file import MemoryFile
from memsvc_proto.errors import ProtocolError
from memsvc_proto.wire import ALIGN, Kind
from numpy.typing import NDArray

from .beside import Caller, Handler

if TYPE_CHECKING:
    from .guard import Guard

IN_PLACE_BYTES = 1 << 16
"""Messages from this size on are read where they are; smaller ones are copied first, so that nothing changes while it is read."""
SHARE_BYTES = 1 << 16
"""After so much of one client the others have their turn: of what is large a single message (memsvc/README.md, "Who waits")."""
_BURST = 64


class Channel:
    """One client's memory. Its methods belong to the router's thread."""

    def __init__(
        self,
        identity: bytes,
        connection: socket.socket,
        pidfd: int,
        memory: MemoryFile,
        plan: Plan,
        key: str = "",
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`key`: of who has handed it over, where the server has keys. `closed` is called once it is."""
        self.identity = identity
        self.up, self._down = plan.rings(memory)
        self.owed = 0
        """Marks read whose messages have not come by the socket; below 0: messages whose marks have not been read."""
        self.owed_since = 0.0
        self.most = plan.up // ALIGN
        """Messages that the ring holds at the most: who reads so many has read what was there."""
        self.offered = time.monotonic()
        self.bytes = plan.bytes
        self._slot_bytes = plan.slot_bytes
        places = [plan.slots_at + number * plan.stride for number in range(plan.slots)]
        self._slots = [memory.bytes[at : at + plan.slot_bytes] for at in places]
        self._connection, self._pidfd = connection, pidfd
        self.key = key
        self._closed = closed

    def slot(self, number: int, size: int) -> NDArray[Any] | None:
        """Where batch `number` is drawn into, if it has `size` bytes."""
        return self._slots[number] if 0 <= number < len(self._slots) and size == self._slot_bytes else None

    def send(self, raw: Any) -> bool:
        """Puts a frame into the ring; False where it does not fit, or the ring is full."""
        sent = self._down.push(raw)
        if sent == 2:
            self._wake()
        return sent > 0

    def room(self) -> bool:
        """Whether a message by the socket could be announced."""
        return self._down.room()

    def mark(self) -> None:
        """Announces the message that has just been given to the socket."""
        if self._down.mark() == 2:
            self._wake()

    def sources(self) -> tuple[int, int]:
        """Descriptors that become readable when the client has written or ended its connection, and when it has died."""
        return self._connection.fileno(), self._pidfd

    def heard(self) -> bool:
        """Reads what woke this side; False: the connection has ended."""
        try:
            while self._connection.recv(64):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """The client sees the end, and goes on by sockets; idempotent."""
        self._connection.close()
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            close_all([pidfd])
            self._closed()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full of what wakes it already, or ended: that is seen elsewhere
            self._connection.send(b"\0")


class Channels:
    """Those of one router. An idle one costs its thread nothing: only who has been heard since the last sleep is looked at.

    `take(identity, frame)` handles one message; `gone(identity, error)` is told when a client has ended or died, or its ring cannot be (`error`).
    """

    def __init__(self, take: Callable[[bytes, Any], None], gone: Callable[[bytes, ProtocolError | None], None], wake: Callable[[], None]) -> None:
        self.begun: dict[bytes, Channel] = {}
        self._take, self._gone, self._wake = take, gone, wake
        self._epoll = select.epoll()
        self._offers: deque[Channel] = deque()
        self._guard = threading.Lock()
        self._closed = False
        self._waiting: dict[bytes, Channel] = {}  # handed over; their clients have not said SHARED yet
        self._sources: dict[int, Channel] = {}
        self._hot: dict[Channel, None] = {}

    def fileno(self) -> int:
        """Readable when a client that was not looked at has written, or has gone."""
        return self._epoll.fileno()

    @property
    def held_bytes(self) -> int:
        """Of the memory that clients share with this router, as far as they may use it. Any thread."""
        return sum(one.bytes for one in [*self.begun.values(), *self._waiting.values()])

    def offer(self, channel: Channel) -> None:
        """A client has handed memory over. Any thread."""
        with self._guard:
            if self._closed:
                channel.close()
                return
            self._offers.append(channel)
        self._wake()

    def key(self, identity: bytes) -> str:
        """Of whoever has said SHARED."""
        channel = self.begun.get(identity)
        return "" if channel is None else channel.key

    def begin(self, identity: bytes, key: str = "") -> Channel | None:
        """The client with this key has said SHARED: what it writes is read from now on. None: it has handed nothing over."""
        self.admit()
        channel = self._waiting.get(identity)
        if channel is None or channel.key != key:
            return None
        del self._waiting[identity]
        self.begun[identity] = channel
        self._hot[channel] = None
        return channel

    def admit(self) -> None:
        """Takes over what was offered."""
        while self._offers:
            channel = self._offers.popleft()
            if channel.identity in self._waiting or channel.identity in self.begun:
                channel.close()
                continue
            self._waiting[channel.identity] = channel
            for fd in channel.sources():
                self._sources[fd] = channel
                self._epoll.register(fd, select.EPOLLIN)

    def serve(self) -> int:
        """Handles messages of those that are looked at, by turns; returns their bytes, 0 when there were none."""
        return sum([self._read(channel, _BURST, SHARE_BYTES) for channel in list(self._hot)])

    def sleep(self) -> bool:
        """Before the thread sleeps until `fileno` is readable; False: somebody has written meanwhile."""
        for channel in list(self._hot):
            try:
                if channel.owed <= 0 and not channel.up.doze():
                    return False
            except ProtocolError as error:
                self._gone(channel.identity, error)
            self._hot.pop(channel, None)
        return True

    def listen(self) -> None:
        """`fileno` is readable."""
        for fd, _ in self._epoll.poll(0):
            channel = self._sources.get(fd)
            if channel is None:
                continue
            if fd == channel.sources()[0] and channel.heard():
                if channel.identity in self.begun:
                    self._hot[channel] = None
            else:
                self.finish(channel.identity)  # what it had written before is whole
                self._gone(channel.identity, None)

    def finish(self, identity: bytes) -> None:
        """Handles what a client has written, before it is dropped."""
        channel = self.begun.get(identity)
        if channel is not None:
            self._read(channel, channel.most)

    def before_socket(self, channel: Channel) -> None:
        """A message of this client has come by the socket: what it wrote before that is handled first."""
        if channel.owed <= 0:
            self._read(channel, channel.most)
        channel.owed -= 1
        self._hot[channel] = None

    def drop(self, identity: bytes) -> None:
        """Forgets and closes a client's memory; does nothing for those that have none."""
        channel = self.begun.pop(identity, None) or self._waiting.pop(identity, None)
        if channel is None:
            return
        self._hot.pop(channel, None)
        for fd in channel.sources():
            if self._sources.pop(fd, None) is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._epoll.unregister(fd)
        channel.close()

    def overdue(self, now: float, longest_s: float) -> list[bytes]:
        """Who has announced messages by the socket that have not come for so long, or has not said SHARED: they will not."""
        late = [one.identity for one in self.begun.values() if one.owed > 0 and now - one.owed_since > longest_s]
        return late + [one.identity for one in self._waiting.values() if now - one.offered > longest_s]

    def close(self) -> None:
        """Drops all; later offers are refused."""
        with self._guard:
            self._closed = True
        self.admit()
        for identity in [*self.begun, *self._waiting]:
            self.drop(identity)
        self._epoll.close()

    def _read(self, channel: Channel, most: int, most_bytes: int = MOST_RING_BYTES) -> int:
        # Returns the bytes that were handled; a mark counts as a header.
        served = handled = 0
        ring = channel.up
        try:
            while served < most and handled < most_bytes and channel.owed <= 0 and self.begun.get(channel.identity) is channel:
                size = ring.front()
                if size < 0:
                    break
                served += 1
                handled += size or ALIGN
                if size == 0:
                    ring.pop()
                    channel.owed, channel.owed_since = channel.owed + 1, time.monotonic()
                elif size < IN_PLACE_BYTES:
                    self._take(channel.identity, ring.take())
                else:
                    self._take(channel.identity, ring.view())
                    ring.pop()
        except ProtocolError as error:
            self._gone(channel.identity, error)
        return handled


def handing_over(channels: Mapping[str, Channels], guard: Guard | None = None) -> Handler:
    """What Beside does with {"ask": "channel"}: `channels` are those of each link's router."""

    def handle(caller: Caller, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], Sequence[int]]:
        key = "" if guard is None else guard.bearer(request.get("token"), Kind.SHARED)
        link, identity = request.get("link"), request.get("identity")
        plan = Plan(*(request.get(name) for name in Plan._fields))  # type: ignore[arg-type]
        if not plan.possible():
            raise ProtocolError(f"a channel's {', '.join(Plan._fields)} are numbers of bytes, got {tuple(plan)!r:.120}")
        if not isinstance(link, str) or link not in channels or not isinstance(identity, str) or len(identity) != 32 or not _is_hex(identity):
            raise ProtocolError(f"a channel needs a link and the identity of its connection, got {link!r:.40} and {identity!r:.40}")
        if len(fds) != 1:
            raise ProtocolError(f"a channel comes with the descriptor of its memory, {len(fds)} came")
        memory = MemoryFile.of(fds[0], plan.bytes, touch=False)
        memory.close()  # it stays mapped
        channel = Channel(bytes.fromhex(identity), caller.socket, caller.pidfd, memory, plan, key, caller.left)
        caller.release()
        channels[link].offer(channel)
        return {"shared": True}, ()

    return handle


def _is_hex(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True
