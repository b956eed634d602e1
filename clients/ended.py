"""What stands in the place of a client's parts when the client can no longer be used: any use of it raises the reason.

So the hot path needs no check of its own: after close() the parts raise Closed, in a forked child UsedAfterFork.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn, Protocol

from memsvc_proto.errors import MemsvcError


class Ended:
    """Every attribute, call and `with` raises `error(message)`. `kept` is held alive: what a parent's threads may have locked is not destroyed in its
    child.
    """

    def __init__(self, error: type[MemsvcError], message: str, kept: Any = None) -> None:
        self.__dict__["_ended"] = (error, message, kept)

    def __getattr__(self, name: str) -> NoReturn:
        error, message, _ = self.__dict__["_ended"]
        raise error(message)

    def __enter__(self) -> NoReturn:
        self.use()

    def __exit__(self, *exception: object) -> None: ...


class Forkable(Protocol):
    """A client that wants to know when it finds itself in a forked child."""

    def _forked(self) -> None:
        """Called in the child, before anything else runs there."""


_living: weakref.WeakSet[Any] = weakref.WeakSet()


def watch(client: Forkable) -> None:
    """From now on the client's `_forked` is called in every child that this process forks."""
    _living.add(client)


def _after_fork() -> None:
    for client in list(_living):
        client._forked()


os.register_at_fork(after_in_child=_after_fork)
