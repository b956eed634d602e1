"""Questions to a server in another process, and changes of its settings, for the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from memsvc_proto.errors import UnknownTable, Unreachable, from_code
from memsvc_proto.wire import Kind, Message


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
            message = self._link.receive(left)
            if message is None or message.seq != self._seq:
                continue
            if message.kind is answer:
                return dict(message.meta)
            if message.kind is Kind.ERROR:
                meta = message.meta
                raise from_code(str(meta.get("code")), str(meta.get("message")), meta.get("details"))
        raise Unreachable(f"no memsvc server answered at {self._address} within {self._timeout_s:g} s", address=self._address)


def ask_stats(address: str, timeout_s: float) -> dict[str, Any]:
    """The statistics of the server whose door is at `address`. Raises ConfigError for what is no address, Unreachable after timeout_s."""
    with _connected(address, timeout_s) as server:
        return server.ask(Kind.STATS, Kind.STATS)


def change(address: str, table: str, changes: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Changes settings of a table (changes.py) of the server at `address`; returns all of them. Raises as ask_stats, UnknownTable, ConfigError."""
    with _connected(address, timeout_s) as server:
        names = [one["name"] for one in server.ask(Kind.STATS, Kind.STATS)["tables"]]
        if table not in names:
            raise UnknownTable(f"there is no table {table!r} at {address}; there are: {', '.join(names)}", tables=names)
        return server.ask(Kind.CONFIGURE, Kind.CONFIGURED, names.index(table), changes)


@contextmanager
def _connected(address: str, timeout_s: float) -> Iterator[Remote]:
    from memsvc_client.link import ZmqEndpoint

    link = ZmqEndpoint(address).connect("door")
    try:
        yield Remote(link, address, timeout_s)
    finally:
        link.close()
