"""Questions to a server in another process, and changes of its settings, for the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from memsvc_proto.errors import Forbidden, ServerError, UnknownTable, Unreachable, from_code
from memsvc_proto.wire import Kind, Message

_LOOK_S = 0.25


class Remote:
    """A door link to the server at `address`; every answer comes within `timeout_s` of the start, or Unreachable is raised."""

    def __init__(self, link: Any, address: str, timeout_s: float) -> None:
        self._link = link
        self._address = address
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._seq = 0

    def ask(self, kind: Kind, answer: Kind, table: int = 0, meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The meta of the answer. Raises the server's error, Unreachable."""
        self._seq += 1
        self._link.send(Message(kind, self._seq, table, meta=dict(meta or {})))
        while (left := self._deadline - time.monotonic()) > 0:
            message = self._link.receive(min(left, _LOOK_S))
            if self._link.refused:
                raise Forbidden(f"the server at {self._address} does not let this client in: {self._link.trouble}", asked=kind.name)
            if message is None or message.seq != self._seq:
                continue
            if message.kind is answer:
                return dict(message.meta)
            if message.kind is Kind.ERROR:
                meta = message.meta
                raise from_code(str(meta.get("code")), str(meta.get("message")), meta.get("details"))
        trouble = self._link.trouble
        why = f": {trouble}" if trouble else ""
        raise Unreachable(f"no memsvc server answered at {self._address} within {self._timeout_s:g} s{why}", address=self._address)


def ask_stats(address: str, timeout_s: float, keys: str | None = None) -> dict[str, Any]:
    """The statistics of the server whose door is at `address`. `keys`: see ZmqEndpoint. Raises ConfigError for what is no address,
    Unreachable after timeout_s, Forbidden.
    """
    with _connected(address, timeout_s, keys) as server:
        return server.ask(Kind.STATS, Kind.STATS)


def change(address: str, table: str, changes: Mapping[str, Any], timeout_s: float, keys: str | None = None) -> dict[str, Any]:
    """Changes settings of a table (changes.py) of the server at `address`; returns all of them. Raises as ask_stats, UnknownTable, ConfigError."""
    with _connected(address, timeout_s, keys) as server:
        names = [one["name"] for one in server.ask(Kind.STATS, Kind.STATS)["tables"]]
        if table not in names:
            raise UnknownTable(f"there is no table {table!r} at {address}; there are: {', '.join(names)}", tables=names)
        return server.ask(Kind.CONFIGURE, Kind.CONFIGURED, names.index(table), changes)


def checkpoint(address: str, timeout_s: float, keys: str | None = None) -> dict[str, Any]:
    """Has the server take a snapshot (Control.Checkpoint of control.proto); returns what it says of it. `address`: its door's, or gRPC's "host:port".
    Raises as ask_stats; ServerError: it is refused, with the server's reason.
    """
    import grpc
    from memsvc_client.credentials import credentials_of
    from memsvc_proto import control_pb2, control_pb2_grpc

    from .permits import control_channel

    pb: Any = control_pb2  # its classes come into being at import, where no checker sees them
    pb_grpc: Any = control_pb2_grpc
    control = ask_stats(address, timeout_s, keys)["control"] if "://" in address else address
    if not control:
        raise ServerError(f'the server at {address} has no gRPC (server.control = ""), by which snapshots are asked for')
    with control_channel(control, credentials_of(keys)) as channel:
        try:
            done = pb_grpc.ControlStub(channel).Checkpoint(pb.CheckpointRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise Forbidden(str(error.details()), asked="gRPC's Checkpoint") from None
            raise ServerError(f"the server at {control} took no snapshot: {error.details()}") from None
    return {name: getattr(done, name) for name in ("path", "position", "bytes", "seconds", "pause_ms")} | {"items": dict(done.items)}


@contextmanager
def _connected(address: str, timeout_s: float, keys: str | None) -> Iterator[Remote]:
    from memsvc_client.endpoint import ZmqEndpoint

    link = ZmqEndpoint(address, keys=keys).connect("door")
    try:
        yield Remote(link, address, timeout_s)
    finally:
        link.close()
