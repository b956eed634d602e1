"""Channel: a link's messages through shared memory, beside the socket that still carries what is large (memsvc/channels.py is the other end).

Two rings of whole frames and the slots of batches lie in one MemoryFile that the client makes. What goes by the socket instead is represented by a
mark in the ring, so that all messages keep one order. A byte on the side connection wakes the other side if it sleeps, and its end is the channel's.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from memsvc_core import Ring
from memsvc_proto.errors import MemsvcError
from memsvc_proto.wire import ALIGN
from numpy.typing import NDArray

from .beside import Side
from .memory_file import MemoryFile
from .slots import Slots

HEAD_BYTES = 256  # of a ring, before its capacity
MOST_SLOTS = 32
MOST_SLOT_BYTES = 1 << 30
LEAST_RING_BYTES = 1 << 15
MOST_RING_BYTES = 1 << 30
ORDER_S = 5.0
"""The longest that a mark waits for its message: sockets of one host lose none unless a process was stopped for very long."""

Raw: TypeAlias = Any
"""A received frame: bytearray, memoryview."""

_PAGE = 4096
_SOON_BYTES = 1 << 20
_SPIN = 3000  # looks before sleeping, 80 us or so: less than it costs both processes to sleep and be woken
_log = logging.getLogger("memsvc_client")


class Plan(NamedTuple):
    """What lies where in a channel's memory; the same on both sides."""

    up: int
    """Capacity of the ring from client to server, bytes."""
    down: int
    slots: int
    slot_bytes: int
    """Bytes of one batch."""

    @classmethod
    def of(cls, up: int, down: int, slots: int, slot_bytes: int) -> Plan:
        """The nearest that is possible. Batches that are too large for slots get none."""
        if not 0 < slot_bytes <= MOST_SLOT_BYTES:
            slots = slot_bytes = 0
        up, down = (min(max(_up(one, _PAGE), LEAST_RING_BYTES), MOST_RING_BYTES) for one in (up, down))
        return cls(up, down, min(slots, MOST_SLOTS), slot_bytes)

    def possible(self) -> bool:
        """Whether these numbers, which came from elsewhere, are a plan."""
        rings = all(type(one) is int and LEAST_RING_BYTES <= one <= MOST_RING_BYTES and one % ALIGN == 0 for one in (self.up, self.down))
        slots = type(self.slots) is int and 0 <= self.slots <= MOST_SLOTS
        return rings and slots and type(self.slot_bytes) is int and 0 <= self.slot_bytes <= MOST_SLOT_BYTES

    @property
    def down_at(self) -> int:
        """Where the ring from server to client begins; the other begins at 0."""
        return HEAD_BYTES + self.up

    @property
    def slots_at(self) -> int:
        """Where the first slot begins."""
        return _up(self.down_at + HEAD_BYTES + self.down, _PAGE)

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return _up(self.slot_bytes, _PAGE)

    @property
    def bytes(self) -> int:
        """Of it all."""
        return self.slots_at + self.slots * self.stride

    def rings(self, memory: MemoryFile) -> tuple[Ring, Ring]:
        """(up, down) in mapped memory."""
        up, down = memory.bytes[: self.down_at], memory.bytes[self.down_at : self.down_at + HEAD_BYTES + self.down]
        return Ring(up), Ring(down)


class Channel:
    """The client's end. One thread at a time uses it. Where a ring turns out to be broken, methods raise ProtocolError."""

    def __init__(self, side: Side, memory: MemoryFile, plan: Plan, spin: int = 0) -> None:
        """`spin`: looks into the ring before `doze` lets its caller sleep."""
        self.slots = Slots(memory, plan.slots_at, plan.stride, plan.slot_bytes, plan.slots) if plan.slots else None
        self.begun = False
        """The server has said SHARED: the ring goes on where its socket has stopped."""
        self.ended = False
        """The connection has ended: nothing can be sent, what has come before is still to be read."""
        self._up, self._down = plan.rings(memory)
        self._side, self._memory, self._spin = side, memory, spin
        self._owed = 0  # marks read whose messages have not come by the socket; below 0: messages whose marks have not
        self._owed_since = 0.0
        self._opened = time.monotonic()
        self._kept: deque[tuple[int, int]] = deque()  # (seq, place in the ring) of frames that are to stay
        self._held: Raw = None  # came by the socket, and is to wait for what was written into the ring before it

    @classmethod
    def open(cls, name: str, link: str, identity: bytes, plan: Plan, timeout: float = 2.0, token: str = "") -> Channel | None:
        """A channel beside the connection that the server knows by `identity`; None, with one line in the log, where there can be none. Waits at most
        twice `timeout` seconds. `token`: what WELCOME has told, where the server has keys.
        """
        memory = None
        side = Side.connect(name, timeout)
        if side is None:
            _log.info("no memory can be shared with this server, which is not of this host and user, or is elsewhere contained: sockets are used")
            return None
        try:
            memory = MemoryFile.make(plan.bytes, touch=_PAGE)  # the rings are touched as far as they are used
            side.ask({"ask": "channel", "link": link, "identity": identity.hex(), "token": token, **plan._asdict()}, [memory.fd])
            side.socket.setblocking(False)
            # A small batch is there sooner than a sleeper is woken; an actor waits for nothing in particular; on one core nobody else could work.
            soon = link == "draw" and plan.slot_bytes <= _SOON_BYTES and len(os.sched_getaffinity(0)) > 1
            return cls(side, memory, plan, _SPIN if soon else 0)
        except MemsvcError as error:
            _log.info("no memory is shared with this server, sockets are used: %s", error)
            side.close()
            if memory is not None:
                memory.close()
            return None

    def reserve(self, size: int) -> NDArray[np.uint8] | None:
        """Where a frame of at most `size` bytes can be made that `send` does not copy then; None: no room now."""
        return self._up.reserve(size)

    def send(self, raw: Raw, seq: int = 0) -> bool:
        """Sends a whole frame; False where it must go by the socket: then, if there is `room`, it is to be announced by `mark` afterwards.

        `seq` > 0: it stays as it is until `let_go` of it.
        """
        at = self._up.written if seq else 0
        sent = self._up.push(raw)
        if sent == 2:
            self._wake()
        if seq and sent:
            if not self._kept:
                self._up.keep(at)
            self._kept.append((seq, at))
        return sent > 0

    def let_go(self, seq: int) -> None:
        """Frames of messages up to `seq` may be written over, once they have been read."""
        kept = self._kept
        if not kept or kept[0][0] > seq:
            return
        while kept and kept[0][0] <= seq:
            kept.popleft()
        self._up.keep(kept[0][1] if kept else None)

    def room(self) -> bool:
        """Whether a message by the socket can be announced."""
        return self._up.room()

    def mark(self) -> None:
        """A message has just been given to the socket."""
        if self._up.mark() == 2:
            self._wake()

    def next(self, read: Callable[[], Raw]) -> Raw:
        """The next frame in the order in which it was sent, or None; `read` gives the socket's next, or None."""
        if not self.begun:
            if time.monotonic() - self._opened > ORDER_S:  # the server cannot say SHARED: it is gone, or its socket is full
                self.ended = True
            return read()
        while True:
            if self._owed > 0:
                raw = self._held if self._held is not None else read()
                self._held = None
                if raw is not None:
                    self._owed -= 1
                elif self.ended or time.monotonic() - self._owed_since > ORDER_S:
                    self.ended = True
                    self._owed = 0
                    continue
                return raw
            size = self._down.front()
            if size > 0:
                return self._down.take()
            if size == 0:
                self._down.pop()
                self._owed, self._owed_since = self._owed + 1, time.monotonic()
                continue
            if self._held is None:
                self._held = read()
                if self._held is None:
                    return None
                continue  # what is in the ring by now was sent before it
            raw, self._held = self._held, None
            self._owed -= 1
            return raw

    def doze(self) -> bool:
        """Before sleeping until `fileno` or the socket is readable; False: there is something already."""
        return not self.begun or self._owed > 0 or (not self._down.spin(self._spin) and self._down.doze())

    def heard(self) -> None:
        """`fileno` is readable: the server has woken this side, or the connection has ended."""
        try:
            while self._side.socket.recv(64):
                pass
            self.ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def fileno(self) -> int:
        """Of the side connection."""
        return self._side.fileno()

    def close(self) -> None:
        """Ends it; idempotent. Batches in its slots stay as they are."""
        self._side.close()
        self._memory.close()

    def _wake(self) -> None:
        try:
            self._side.socket.send(b"\0")
        except BlockingIOError:  # full of bytes that wake it already
            pass
        except OSError:
            self.ended = True


def _up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit
