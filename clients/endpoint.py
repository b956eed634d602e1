"""Where a server is, and how it is reached there over ZMQ: the Endpoint of seam.py."""

from __future__ import annotations

import os
import re
from typing import cast

from memsvc_proto.errors import ConfigError, Unreachable
from memsvc_proto.wire import Message

from .credentials import Credentials, credentials_of
from .link import ZmqLink
from .seam import Endpoint, Role


def endpoint_of(address: object, keys: str | os.PathLike[str] | None = None) -> Endpoint:
    """The endpoint that an address and a key file name, or `address` itself where it is one. Raises ConfigError for anything else."""
    if isinstance(address, str):
        return ZmqEndpoint(address, keys=keys)
    if callable(getattr(address, "connect", None)):
        if keys is not None:
            raise ConfigError(f"keys: {address} has been made already, with keys or without; write ZmqEndpoint(address, keys=...)", path="keys")
        return cast(Endpoint, address)
    raise ConfigError(f'address {address!r}: expected "tcp://HOST:PORT", "ipc://PATH" or a server\'s endpoint, got {type(address).__name__}')


class ZmqEndpoint:
    """A server behind `tcp://host:port` or `ipc://path`. Pickles as its address. Raises ConfigError for what is no such address.

    `shared`: memory is shared with a server of the same host; False, or MEMSVC_SHARED=0 in the environment, leaves everything to sockets.
    `keys`: path of the key file that `memsvc keys` made for this client; None: what MEMSVC_KEYS names, if anything; "": none. It is read here (a
    ConfigError where others may read it too) and again before a connection that was refused is tried anew; only the path is pickled.
    """

    ahead = True

    def __init__(self, address: str, shared: bool = True, keys: str | os.PathLike[str] | None = None) -> None:
        match = re.fullmatch(r"tcp://.+:(\d{1,5})|ipc://.+", address)
        if match is None or int(match[1] or 1) not in range(1, 65536):
            raise ConfigError(f"address {address!r}: expected tcp://HOST:PORT or ipc://PATH, as `memsvc serve` announces it", address=address)
        self.address = address
        self.beside = ""
        """Name of the socket for shared memory (beside.py) once a WELCOME has told it; "" where there is none, or none is wanted."""
        self.token = ""
        """What the socket for shared memory wants to hear, where the server has keys."""
        self._shared = shared
        self._keys = None if keys is None else os.fspath(keys)
        self._announced: dict[str, str] = {}
        self.credentials()

    def __str__(self) -> str:
        return self.address

    def __reduce__(self) -> tuple[type[ZmqEndpoint], tuple[str, bool, str | None]]:
        return ZmqEndpoint, (self.address, self._shared, self._keys)

    def credentials(self) -> Credentials | None:
        """What the key file holds now; None without one. Raises ConfigError."""
        return credentials_of(self._keys)

    def connect(self, role: Role) -> ZmqLink:
        """See Endpoint. Does not wait for the peer: a name that cannot be resolved yet, or a server not up yet, is tried again behind the scenes."""
        if role == "door":
            return ZmqLink(self, self.address, role)
        try:
            return ZmqLink(self, self._announced["draw"], role)
        except KeyError:
            raise Unreachable(f"the server at {self.address} has not announced where batches are drawn: say HELLO at its door first") from None

    def learn(self, message: Message) -> str:
        """Takes the addresses from a WELCOME; returns the one of parameter notices, or "" when none is announced."""
        for name in ("draw", "params"):
            self._announced[name] = self._through_door(str(message.meta.get(name) or ""))
        wanted = self._shared and os.environ.get("MEMSVC_SHARED", "1") != "0"
        self.beside = str(message.meta.get("beside") or "") if wanted else ""
        self.token = str(message.meta.get("token") or "")
        return self._announced["params"]

    def _through_door(self, announced: str) -> str:
        # A server bound to every interface announces a wildcard; the host by which its door was reached stands in for it.
        match = re.fullmatch(r"tcp://(?:\*|0\.0\.0\.0|\[::\]):(\d+)", announced)
        if match and self.address.startswith("tcp://"):
            return f"{self.address.rsplit(':', 1)[0]}:{match[1]}"
        return announced
