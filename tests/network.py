"""A network that tests own: a proxy (proxy.py) before each port of a server, for clients that hear of its ports only through it.

    with Proxies(server.address) as network:     # one proxy for each of the server's ports, as clients hear of them
        learner = Learner(network.endpoint())    # in another process: ProxiedEndpoint(*sys.argv[1:3]), given network.arguments
        network.freeze(); ...; network.resume()

Memory of one host is not shared through such an endpoint, so everything goes by the proxies.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import Any

from memsvc_client.endpoint import ZmqEndpoint
from proxy import Proxy


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
