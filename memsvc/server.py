"""The embedded server: `with memsvc.Server(config) as server`. The daemon (cli.py) is this plus signals."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import zmq
from memsvc_proto.errors import ConfigError

from . import machine
from .address import Address, parse_data
from .beside import Beside
from .channels import handing_over
from .config import Config
from .door import Door
from .draws import Draws
from .engine import Engine
from .lending import Lending
from .local import LocalEndpoint

if TYPE_CHECKING:
    from memsvc_client import Actor, Learner

    from .control import Control
    from .durability.keeper import Keeper
    from .guard import Guard

CLOSE_S = 2.0


class Server:
    """Serves from the constructor until close(). Thread-safe.

    Takes `config.server.memory` bytes and touches them, binds three ports (address, draws, parameter notices) and, unless off, gRPC's.
    """

    def __init__(self, config: Config | Mapping[str, Any] | str | os.PathLike[str], on_mismatch: str | None = None) -> None:
        """`config`: a Config, the dictionary that Config.from_dict takes, or a file's path. With durability what server.data holds is restored first;
        `on_mismatch` says what holds where it was written under other steps or tables: "file", the stored ones, or "config", and what fits is kept.

        Raises ConfigError: a setting is wrong, the memory is not there, an address is in use, server.data cannot be used or does not match.
        """
        if isinstance(config, Mapping):
            config = Config.from_dict(config)
        elif not isinstance(config, Config):
            config = Config.load(config)
        self.config = config
        self._closed = False
        self._lock = threading.Lock()
        self._control: Control | None = None
        self._draws: Draws | None = None
        self._door: Door | None = None
        self._beside: Beside | None = None
        self._guard: Guard | None = None
        where = parse_data("server.address", config.server.address)
        machine.checked_footprint(config)
        keeper = _keeper(config, on_mismatch)
        if keeper is not None:
            self.config = config = keeper.config
        try:
            self.engine = Engine(config, keeper=keeper)
        except BaseException:
            if keeper is not None:
                keeper.close(CLOSE_S)
            raise
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, min(65535, int(self._context.get(zmq.SOCKET_LIMIT))))
        try:
            if config.server.keys:
                from .guard import Guard

                self._guard = Guard(self._context, config.server.keys, self.engine.counts)
                self.engine.guarded = self._guard.stats
            self._door = Door(self.engine, self._context, where, self._guard)
            self._draws = Draws(self.engine, self._context, where.beside(".draw"), where.beside(".params"), self._guard)
            self._address, draw, params = (str(self._announced(one)) for one in (self._door.address, self._draws.address, self._draws.params))
            self.engine.measures += [self._door.queues, self._draws.queues]
            self._beside = Beside(self.engine.counts)
            self._beside.handlers["channel"] = handing_over({router.link: router.channels for router in (self._door, self._draws)}, self._guard)
            Lending(self._beside, self.engine, self._guard)
            self.engine.addresses = {"draw": draw, "params": params, "beside": self._beside.name}
            self.endpoint = LocalEndpoint(self.engine, self._address)
            """For Actor and Learner in this process: plain calls instead of sockets."""
            self.engine.measures.append(self.endpoint.queues)
            self._start_control()
            self.engine.about = {"address": self._address, "control": self.control, "http": self.http, "pid": os.getpid(), **self.engine.addresses}
        except BaseException:
            self._shut(CLOSE_S)
            raise
        self.engine.keeper.attach(self.engine)
        self._beside.start()
        self._door.start()
        self._draws.start()

    @property
    def address(self) -> str:
        """What clients connect to: `tcp://host:port` with the real port, or `ipc://path`."""
        return self._address

    @property
    def control(self) -> str | None:
        """gRPC's `host:port`, or None when it is off."""
        return None if self._control is None else str(self._control.address)

    @property
    def http(self) -> str | None:
        """None: metrics over HTTP are not in this version."""
        return None

    def actor(self, **kwargs: Any) -> Actor:
        """An Actor in this process; arguments as memsvc_client.Actor without the address."""
        from memsvc_client import Actor

        return Actor(self.endpoint, **kwargs)

    def learner(self, **kwargs: Any) -> Learner:
        """A Learner in this process; arguments as memsvc_client.Learner without the address."""
        from memsvc_client import Learner

        return Learner(self.endpoint, **kwargs)

    def checkpoint(self) -> dict[str, Any]:
        """Takes a snapshot now, while traffic goes on; returns {"path", "position", "bytes", "seconds", "pause_ms", "items"} once it is on disk.
        ConfigError: durability is off; ServerError: the disk does not take it."""
        return self.engine.keeper.checkpoint()

    def stats(self) -> dict[str, Any]:
        """What is in it, who is connected, what has been counted, bytes of every queue: JSON."""
        return self.engine.stats()

    def close(self) -> None:
        """Stops serving and frees the ports (the memory goes with this object); idempotent, at most 2 s. Blocked in-process clients get Closed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._shut(CLOSE_S)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _announced(self, bound: Address) -> Address:
        advertise = self.config.server.advertise
        if not advertise:
            return bound
        advertised = parse_data("server.advertise", advertise, need_port=False)
        # A port that is advertised belongs to the door; the others are announced as bound.
        is_door = self._door is not None and bound == self._door.address
        return advertised if is_door and advertised.port else advertised.at(bound.port)

    def _start_control(self) -> None:
        where = self.config.server.control_address
        if where is not None:
            from .control import Control

            self._control = Control(self, where, self._guard)

    def _shut(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if hasattr(self, "endpoint"):
            self.endpoint.close()
        if self._control is not None:
            self._control.close()
        for thread in (self._beside, self._door, self._draws):
            if thread is not None:
                thread.stop(max(0.1, deadline - time.monotonic()))
        self.engine.keeper.close(max(0.1, deadline - time.monotonic() - 0.1))
        if self._guard is not None:
            self._guard.close()
        # Sockets are closed by their threads without linger, so this returns at once; a thread that is stuck must not hold up the caller.
        end = threading.Thread(target=self._context.term, name="memsvc-end", daemon=True)
        end.start()
        end.join(max(0.1, deadline - time.monotonic()))


def _keeper(config: Config, on_mismatch: str | None) -> Keeper | None:
    if config.server.durability == "off":
        return None
    try:
        from .durability.keeper import Keeper
    except ImportError as error:
        raise ConfigError(f"server.durability: needs pyarrow ({error}); pip install 'memsvc[server]'", path="server.durability") from error
    return Keeper(config, on_mismatch)
