"""What the engine asks of durability, and the answers where it is off (durability/keeper.py has the others)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .engine import Engine

WhenSafe = Callable[[Callable[[], None]], None]
WhenKept = Callable[[str, int, Callable[[], None]], None]


class Keeping(Protocol):
    """Thread-safe. `replay`, `epoch` and `seed` of an earlier server that goes on; None, "" and 0: there was none."""

    replay: Any
    epoch: str
    seed: int

    @property
    def waits(self) -> str:
        """Why nothing is acknowledged now, or ""."""

    @property
    def settles(self) -> WhenSafe | None:
        """Calls back once what learners have confirmed so far is on disk as well: before that no more is given of what may be given only so often.
        None: nothing waits."""

    def attach(self, engine: Engine) -> None:
        """Once, before the engine serves."""

    def when_safe(self, callback: Callable[[], None]) -> None:
        """Calls back, now or on another thread, once what was done so far may be acknowledged. `callback` must not block or raise."""

    def when_kept(self, topic: str, version: int, callback: Callable[[], None]) -> None:
        """The same for a version of parameters."""

    def safe(self, stored: int, known: int) -> int:
        """Number of the newest push that may be told as stored, where `stored` is the core's, and the actor knows of `known`."""

    def configured(self, table: int, settings: dict[str, Any]) -> None:
        """Settings were changed while it serves."""

    def checkpoint(self) -> dict[str, Any]:
        """Takes a snapshot now. ConfigError: durability is off; ServerError: the disk does not take it."""

    def stats(self) -> dict[str, Any]:
        """Its part of the statistics."""

    def close(self, timeout_s: float) -> None:
        """Once, after the engine's last call."""


class Off:
    """Nothing is kept, and nothing waits."""

    replay: Any = None
    epoch = ""
    seed = 0
    waits = ""
    settles: WhenSafe | None = None

    def attach(self, engine: Engine) -> None:
        """See Keeping."""

    def when_safe(self, callback: Callable[[], None]) -> None:
        """See Keeping: at once."""
        callback()

    def when_kept(self, topic: str, version: int, callback: Callable[[], None]) -> None:
        """See Keeping: at once."""
        callback()

    def safe(self, stored: int, known: int) -> int:
        """See Keeping: whatever the core has."""
        return stored

    def configured(self, table: int, settings: dict[str, Any]) -> None:
        """See Keeping."""

    def checkpoint(self) -> dict[str, Any]:
        """See Keeping."""
        from memsvc_proto.errors import ConfigError

        raise ConfigError('server.durability: is "off", so there is nothing to keep a snapshot in; set "snapshot" or "journal", and server.data')

    def stats(self) -> dict[str, Any]:
        """See Keeping."""
        return {"mode": "off"}

    def close(self, timeout_s: float) -> None:
        """See Keeping."""
