"""The door ROUTER: the one address that clients must know. Hello, cache pushes, acknowledgements, priority feedback, parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from .address import Address
from .engine import Engine
from .router import Router

if TYPE_CHECKING:
    from .guard import Guard


class Door(Router):
    """Actors' side, and everybody's first stop."""

    def __init__(self, engine: Engine, context: zmq.Context[zmq.Socket[bytes]], address: Address, guard: Guard | None = None) -> None:
        """Raises ConfigError when the address cannot be bound."""
        super().__init__(engine, context, "door", address, "server.address", guard)
