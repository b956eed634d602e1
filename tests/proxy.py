"""A TCP proxy between clients and a server, which cuts, freezes, loses and slows down what goes through it; network.py has one for each port."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable

PIECE_BYTES = 1 << 18
UP, DOWN = "up", "down"  # client to server, server to client


class Pipe:
    """One direction of a connection: what was read from `source` and has not gone to `sink` yet."""

    def __init__(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        self.way, self.source, self.sink = way, source, sink
        self.pending = memoryview(b"")
        self.recorded = bytearray()
        self.lost = False  # bytes of it were dropped: it is of no use any more


class Connection:
    """A client's connection and the one to the target that it is forwarded to, which is opened once nothing is frozen."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self.open = False  # the far side is
        self.connecting = False
        self.pipes = [Pipe(UP, near, far), Pipe(DOWN, far, near)]


class Proxy:
    """Forwards connections of `address` to `target` from a thread of its own. Thread-safe; every method takes effect at once."""

    def __init__(self, target: str, port: int = 0, host: str = "127.0.0.1", recording: bool = False) -> None:
        """`target` and `address` are tcp://HOST:PORT. `recording` keeps the bytes of every connection in `recorded`."""
        self.accepted = 0
        self.bytes = {UP: 0, DOWN: 0}
        """Forwarded."""
        self.dropped = {UP: 0, DOWN: 0}
        self.recorded: list[dict[str, bytearray]] = []
        self._recording, self._target = recording, target
        self._frozen, self._dropping, self._rate = False, frozenset[str](), 0.0
        self._allowance, self._filled = 0.0, time.monotonic()
        self._connections: list[Connection] = []
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._closed = False
        self._listener: socket.socket | None = None
        self._holder: socket.socket | None = None
        self._where = (host, port)
        self._listen()
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where clients connect to; stays the same when it listens no more, and when it does again."""
        return f"tcp://{self._where[0]}:{self._where[1]}"

    @property
    def open(self) -> int:
        """Connections that there are now."""
        with self._lock:
            return len(self._connections)

    def retarget(self, target: str) -> None:
        """New connections go there."""
        with self._lock:
            self._target = target

    def cut(self, reset: bool = False, refuse: bool = False) -> None:
        """Ends all connections, by a FIN or a RST. With `refuse` there is nobody at the address until `resume`."""
        with self._lock:
            for connection in list(self._connections):
                self._end(connection, reset)
            if refuse and self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None

    def freeze(self) -> None:
        """Nothing goes on, nothing is lost: connections are accepted and held, and TCP keeps what it has until `resume`."""
        with self._lock:
            self._frozen = True
            self._look()

    def drop(self, *ways: str) -> None:
        """What is sent these ways (both by default) vanishes without a word. Connections that have lost something are reset by `resume`."""
        with self._lock:
            self._dropping = frozenset(ways or (UP, DOWN))
            self._look()

    def throttle(self, bytes_per_s: float) -> None:
        """Both ways of all connections together; 0: as fast as it goes."""
        with self._lock:
            self._rate, self._allowance, self._filled = bytes_per_s, 0.0, time.monotonic()
            self._look()

    def resume(self) -> None:
        """Everything works again: listens, forwards, drops nothing, at full speed."""
        with self._lock:
            self._frozen, self._dropping, self._rate = False, frozenset(), 0.0
            for connection in list(self._connections):
                if any(pipe.lost for pipe in connection.pipes):
                    self._end(connection, True)
            self._listen()
            self._look()

    def close(self) -> None:
        """Ends it, and its connections; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.cut(refuse=True)
            if self._holder is not None:
                self._holder.close()
            self._wake()
        self._thread.join(5)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # The thread.

    def _run(self) -> None:
        while True:
            ready = self._selector.select(0.01 if self._rate else None)
            with self._lock:
                if self._closed:
                    return
                for key, _ in ready:
                    if key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                        key.data()
                if self._rate:
                    now = time.monotonic()
                    self._allowance = min(self._allowance + (now - self._filled) * self._rate, self._rate / 4)
                    self._filled = now
                    self._look()

    def _listen(self) -> None:
        if self._listener is None:
            if self._holder is None:  # the port is this one's also while nobody listens: else an outgoing connection may be given it
                self._holder = socket.socket()
                self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self._holder.bind(self._where)
                self._where = (self._where[0], self._holder.getsockname()[1])
            self._listener = socket.create_server(self._where, backlog=512, reuse_port=True)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._wake()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            assert self._listener is not None
            near, _ = self._listener.accept()
            far = socket.socket()
            for one in (near, far):
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(near, far)
            self.accepted += 1
            self._connections.append(connection)
            if self._recording:
                self.recorded.append({pipe.way: pipe.recorded for pipe in connection.pipes})
            self._look()

    def _look(self) -> None:
        # What each socket is watched for, by what its connection may do now.
        for connection in list(self._connections):
            if not connection.connecting and not self._frozen:
                connection.connecting = True
                host, port = self._target.removeprefix("tcp://").rsplit(":", 1)
                connection.far.connect_ex((host, int(port)))
            wanted = {connection.near: 0, connection.far: 0}
            if connection.connecting and not self._frozen:
                if not connection.open:
                    wanted[connection.far] |= selectors.EVENT_WRITE
                elif not self._rate or self._allowance > 0:
                    for pipe in connection.pipes:
                        side, event = (pipe.sink, selectors.EVENT_WRITE) if pipe.pending else (pipe.source, selectors.EVENT_READ)
                        wanted[side] |= event
            for side, events in wanted.items():
                self._watch(side, events, lambda connection=connection: self._move(connection))
        self._wake()

    def _watch(self, side: socket.socket, events: int, call: Callable[[], None]) -> None:
        known = self._selector.get_map().get(side.fileno())
        if known is None and events:
            self._selector.register(side, events, call)
        elif known is not None and not events:
            self._selector.unregister(side)
        elif known is not None and known.events != events:
            self._selector.modify(side, events, call)

    def _move(self, connection: Connection) -> None:
        if connection not in self._connections or self._frozen:
            return
        if not connection.open:
            if connection.far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return self._end(connection, True)
            connection.open = True
        for pipe in connection.pipes:
            try:
                if not self._forward(pipe):
                    return self._end(connection, False)
            except BlockingIOError:
                pass
            except OSError:
                return self._end(connection, True)
        self._look()

    def _forward(self, pipe: Pipe) -> bool:
        # False: its source has ended.
        if self._rate and self._allowance <= 0:
            return True
        if not pipe.pending:
            piece = pipe.source.recv(PIECE_BYTES if not self._rate else max(1, min(PIECE_BYTES, int(self._allowance))))
            if not piece:
                return False
            self._allowance -= len(piece)
            if pipe.way in self._dropping or pipe.lost:
                self.dropped[pipe.way] += len(piece)
                pipe.lost = True
                return True
            if self._recording:
                pipe.recorded += piece
            pipe.pending = memoryview(piece)
        sent = pipe.sink.send(pipe.pending)
        self.bytes[pipe.way] += sent
        pipe.pending = pipe.pending[sent:]
        return True

    def _end(self, connection: Connection, reset: bool) -> None:
        self._connections.remove(connection)
        for side in (connection.near, connection.far):
            self._watch(side, 0, lambda: None)
            if reset:
                with contextlib.suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            side.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _drain(self) -> None:
        self._woken.recv(4096)
