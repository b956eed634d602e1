"""Parameters that stay where their publisher wrote them: taken from a client of this host, lent to others of this host, read for the rest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memsvc_client.params import check_head
from memsvc_client.segments import hold, mapped, numbers
from memsvc_proto.errors import ProtocolError
from memsvc_proto.wire import Kind

from .beside import Beside, Caller
from .parameters import checked_topic

if TYPE_CHECKING:
    from .engine import Engine
    from .guard import Guard


class Held:
    """A publication in shared memory: its writer leaves it alone as long as this object, a view of it, or a reader it was lent to, lives."""

    def __init__(self, fd: int, size: int) -> None:
        """Takes a hold of its own. Raises ProtocolError where that is no memory of this size, sealed, or where no parameters begin in it."""
        self._size = size
        self._view: memoryview | None = None
        self.fd = hold(fd, size)
        try:
            check_head(os.pread(self.fd, 9, 0), size)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._size

    def view(self) -> memoryview:
        """The blob, without a copy; not to be written to."""
        if self._view is None:
            self._view = memoryview(mapped(self.fd, self._size))
        return self._view

    def close(self) -> None:
        """Lets go; idempotent. Views stay what they are, and hold it by themselves."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()


class _Lent(list[int]):
    """A held descriptor on its way, which is open while this lives."""

    def __init__(self, held: Held) -> None:
        super().__init__([held.fd])
        self._held = held


class Lending:
    """Answers "publish" {topic, size, once} and one descriptor with {version}; "fetch" {topic, newer_than} with {version, size} and one descriptor,
    or with {version} alone where nothing is newer, or what is newer came by a message. Runs on Beside's thread.
    """

    def __init__(self, beside: Beside, engine: Engine, guard: Guard | None = None) -> None:
        """With a guard a request has the "token" that its client's WELCOME has told."""
        self._engine = engine
        self._guard = guard
        beside.handlers |= {"publish": self.publish, "fetch": self.fetch}

    def publish(self, caller: Caller, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        """Raises ProtocolError for what cannot be taken, Forbidden."""
        if self._guard is not None:
            self._guard.bearer(request.get("token"), Kind.PUBLISH)
        topic = checked_topic(request.get("topic"))
        if len(fds) != 1:
            raise ProtocolError(f'"publish" comes with one descriptor, got {len(fds)}')
        once = str(request.get("once") or "")[:64]
        return {"version": self._engine.publish(topic, Held(fds[0], *numbers(request, "size")), once)}, []

    def fetch(self, caller: Caller, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        """Raises ProtocolError for what is no request, Forbidden."""
        if self._guard is not None:
            self._guard.bearer(request.get("token"), Kind.FETCH)
        version, blob = self._engine.parameters.newest(checked_topic(request.get("topic")))
        if version <= numbers(request, "newer_than")[0] or not isinstance(blob, Held):
            return {"version": version}, []
        return {"version": version, "size": len(blob)}, _Lent(blob)
