"""The exception tree of memsvc. Every error has a `code` that crosses the wire; nothing branches on message text.

MemsvcError
  ConfigError          a setting is wrong (message begins with its path)
  SchemaError          an array does not match the step's schema
  PriorityError        a priority is NaN, infinite or negative; `.keys` says which, where keys are known
  UnknownTable         no table of that name; the message lists those there are
  ProtocolError        a message is malformed, or of another wire version
  Forbidden            the server refuses this client's key, or its role may not do this (`.key`, `.role`, `.asked`, `.allowed`)
  Gap                  a numbered push has come before another that it follows (`.expected`)
  Closed               the object was closed, or the server is going down
  UsedAfterFork        a client was used in a child process
  TimedOut             a blocking call ran out of time; also a TimeoutError
    Unreachable        the server has not answered
    NotReady           the table cannot give a batch yet (`.reason`, `.have`, `.need`)
    WindowFull         too much is sent and not yet acknowledged, or actors are too far ahead of learners (`.table`, `.ahead`, `.setting`)
  ServerError          the server failed while it handled a request
"""

from __future__ import annotations

from typing import Any, ClassVar


class MemsvcError(Exception):
    """Base of all errors. `details` holds the numbers and names that the message tells."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["details"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    def __reduce__(self) -> Any:
        return (from_code, (self.code, self.message, self.details))


class ConfigError(MemsvcError, ValueError):
    """A setting is wrong; the message begins with its path, as in `table[0].item.n_step: ...`."""

    code = "config"


class SchemaError(MemsvcError, ValueError):
    """A step or array does not match the schema: field missing, unknown, or of another dtype, shape or byte order."""

    code = "schema"


class PriorityError(MemsvcError, ValueError):
    """A priority is NaN, infinite or negative. The rest of the call has been applied where `keys` are known."""

    code = "priority"


class UnknownTable(MemsvcError, LookupError):
    """The server has no table of that name."""

    code = "unknown_table"


class ProtocolError(MemsvcError):
    """A message is malformed, foreign, or of another wire version."""

    code = "protocol"


class Forbidden(MemsvcError):
    """The server does not know this client's key, or the key's role may not do what was asked: `key`, `role`, `asked`, `allowed` (roles) tell."""

    code = "forbidden"


class Gap(MemsvcError):
    """A numbered push has come, and one before it has not: `expected` is the number that the server waits for."""

    code = "gap"


class Closed(MemsvcError):
    """The object was closed, by `close()` or because the server went down."""

    code = "closed"


class UsedAfterFork(MemsvcError):
    """A client was made in a parent process and used in its child; make a new one there."""

    code = "used_after_fork"


class TimedOut(MemsvcError, TimeoutError):
    """A blocking call ran out of time; the message says what it waited for. The object stays usable."""

    code = "timed_out"


class Unreachable(TimedOut):
    """The server has not answered within the timeout."""

    code = "unreachable"


class NotReady(TimedOut):
    """The table cannot give a batch yet: `reason`, `have` and `need` tell why."""

    code = "not_ready"


class WindowFull(TimedOut):
    """There was no room within the timeout: as much is sent as may be without an acknowledgement, or actors are ahead of learners by as much as a
    table's limits allow; then `table`, `ahead` (items) and `setting` (the one that holds them) tell so."""

    code = "window_full"


class ServerError(MemsvcError):
    """The server failed while it handled a request; it goes on serving."""

    code = "server"


def _tree(cls: type[MemsvcError]) -> dict[str, type[MemsvcError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found.update(_tree(child))
    return found


def from_code(code: str, message: str, details: dict[str, Any] | None = None) -> MemsvcError:
    """The exception of `code` as it arrived on the wire; an unknown code gives ServerError."""
    return _tree(MemsvcError).get(code, ServerError)(message, **(details or {}))
