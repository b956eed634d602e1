"""A network that tests own: TCP proxies between clients and a server, which cut, freeze, lose and slow down what goes through them.

    with Proxies(server.address) as network:     # one proxy for each of the server's ports, as clients hear of them
        learner = Learner(network.endpoint())    # in another process: ProxiedEndpoint(*sys.argv[1:3]), given network.arguments
        network.freeze(); ...; network.resume()

Memory of one host is not shared through such an endpoint, so everything goes by the proxies.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from memsvc_client.link import ZmqEndpoint

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
            self._listener = socket.create_server(self._where, backlog=512)
            self._listener.setblocking(False)
            self._where = (self._where[0], self._listener.getsockname()[1])
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


class Proxies:
    """A proxy for each port of a server, made when a client first hears of it: the door's here, the others' with each WELCOME. All of them do the
    same: `cut`, `freeze`, `drop`, `throttle` and `resume` are those of Proxy, for ports that are announced later too.
    """

    def __init__(self, door: str, recording: bool = False) -> None:
        self._recording = recording
        self._lock = threading.Lock()
        self._proxies: dict[str, Proxy] = {}
        self._state: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []  # calls since everything worked
        self.door = self.through(door)
        network = self

        class Asked(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                target = self.rfile.readline().decode().strip()
                self.wfile.write(f"{network.through(target).address}\n".encode())

        self._desk = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Asked)
        self._desk.daemon_threads = True
        threading.Thread(target=self._desk.serve_forever, kwargs={"poll_interval": 0.05}, name="proxies", daemon=True).start()

    def through(self, target: str) -> Proxy:
        """The proxy before this address."""
        with self._lock:
            if target not in self._proxies:
                made = self._proxies[target] = Proxy(target, recording=self._recording)
                for name, arguments, settings in self._state:
                    getattr(made, name)(*arguments, **settings)
            return self._proxies[target]

    @property
    def arguments(self) -> tuple[str, str]:
        """What makes a ProxiedEndpoint, in any process of this host."""
        return self.door.address, f"127.0.0.1:{self._desk.server_address[1]}"

    def endpoint(self, **settings: Any) -> ProxiedEndpoint:
        """In the place of the server's address; `settings` are ZmqEndpoint's."""
        return ProxiedEndpoint(*self.arguments, **settings)

    def all(self) -> list[Proxy]:
        """Every one."""
        with self._lock:
            return list(self._proxies.values())

    def retarget(self, door: str) -> None:
        """The server has moved: new connections to the door go there."""
        self.door.retarget(door)

    def cut(self, **how: bool) -> None:
        """See Proxy."""
        self._each("cut", **how)

    def freeze(self) -> None:
        """See Proxy."""
        self._each("freeze")

    def drop(self, *ways: str) -> None:
        """See Proxy."""
        self._each("drop", *ways)

    def throttle(self, bytes_per_s: float) -> None:
        """See Proxy; of each port."""
        self._each("throttle", bytes_per_s)

    def resume(self) -> None:
        """See Proxy."""
        self._each("resume")
        self._state.clear()

    def close(self) -> None:
        """Ends all; idempotent."""
        self._desk.shutdown()
        self._desk.server_close()
        for proxy in self.all():
            proxy.close()

    def __enter__(self) -> Proxies:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _each(self, name: str, *arguments: Any, **settings: Any) -> None:
        self._state.append((name, arguments, settings))
        for proxy in self.all():
            getattr(proxy, name)(*arguments, **settings)


class ProxiedEndpoint(ZmqEndpoint):
    """A server whose every address is reached through Proxies. Pickles."""

    def __init__(self, door: str, desk: str, **settings: Any) -> None:
        super().__init__(door, **{"shared": False, **settings})
        self._desk, self._settings = desk, settings

    def __reduce__(self) -> Any:
        return _endpoint, (self.address, self._desk, self._settings)

    def _through_door(self, announced: str) -> str:
        announced = super()._through_door(announced)
        if not announced.startswith("tcp://"):
            return announced
        host, port = self._desk.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 5) as desk:
            desk.sendall(f"{announced}\n".encode())
            return desk.makefile().readline().strip()


def _endpoint(door: str, desk: str, settings: dict[str, Any]) -> ProxiedEndpoint:
    return ProxiedEndpoint(door, desk, **settings)
