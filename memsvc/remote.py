"""Questions to a server in another process, for the command line."""

from __future__ import annotations

import time
from typing import Any

from memsvc_proto.errors import Unreachable, from_code
from memsvc_proto.wire import Kind, Message


def ask_stats(address: str, timeout_s: float) -> dict[str, Any]:
    """The statistics of the server whose door is at `address`. Raises ConfigError for what is no address, Unreachable after timeout_s."""
    from memsvc_client.link import ZmqEndpoint

    link = ZmqEndpoint(address).connect("door")
    try:
        link.send(Message(Kind.STATS, 1))
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            message = link.receive(left)
            if message is not None and message.kind is Kind.STATS:
                return message.meta
            if message is not None and message.kind is Kind.ERROR:
                meta = message.meta
                raise from_code(str(meta.get("code")), str(meta.get("message")), meta.get("details"))
        raise Unreachable(f"no memsvc server answered at {address} within {timeout_s:g} s", address=address)
    finally:
        link.close()
