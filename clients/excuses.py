"""What a learner says of a call that waits, or has waited in vain: the half of a conversation that makes sentences."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from memsvc_proto.errors import MemsvcError, NotReady, Unreachable

from .follower import Follower
from .reasons import sentence
from .waiting import Waiting


class Excuses(ABC):
    """Its owner has the turn."""

    where: str
    follower: Follower
    _why: dict[str, Any]  # meta of the last WAIT
    _heard: float  # when the server was last heard

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The table's settings, as the server last told them."""

    @property
    @abstractmethod
    def silent(self) -> bool:
        """True where the server has not been heard for so long that it may be gone."""

    def reason(self) -> str:
        """Why a batch, or an answer, has not come yet."""
        if not self._why or self.silent:
            return self._silence()
        return sentence(self._why, self.settings)

    def no_batch(self, waiting: Waiting) -> MemsvcError:
        """The error of a sample() whose time is over."""
        if self.silent:
            return self.unreachable(waiting)
        why = {"reason": self._why.get("reason", "unknown"), "have": self._why.get("have", 0), "need": self._why.get("need", 0)}
        return NotReady(f"{self.reason()}; {waiting.what} waited {waiting.timeout:g} s", **why)

    def no_params(self, waiting: Waiting) -> MemsvcError:
        """The error of a params() whose time is over."""
        if self.follower.newest or self.silent:
            return self.unreachable(waiting)
        text = f"nothing has been published on topic {self.follower.topic!r} yet: {waiting.what} waited {waiting.timeout:g} s for a publish()"
        return NotReady(text, reason="unpublished", have=0, need=1)

    def unreachable(self, waiting: Waiting) -> Unreachable:
        """The error of a wait in which the server did not answer."""
        return Unreachable(f"{waiting.what} waited {waiting.timeout:g} s: {self._silence()}", address=self.where, timeout=waiting.timeout)

    def _silence(self) -> str:
        trouble = self._trouble()
        return f"the server at {self.where} was last heard {time.monotonic() - self._heard:.1f} s ago" + (f": {trouble}" if trouble else "")

    @abstractmethod
    def _trouble(self) -> str:
        """What the links' handshakes say; "" for nothing."""
