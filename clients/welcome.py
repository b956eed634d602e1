"""The handshake: HELLO out, WELCOME back, and what it says."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memsvc_core import Schema, TableSpec
from memsvc_proto.errors import ConfigError, Forbidden, MemsvcError, ProtocolError, UnknownTable, Unreachable, WindowFull, from_code
from memsvc_proto.wire import Kind, Message

from .seam import Link
from .waiting import SLICE_S

CHANGEABLE = (
    *("priority.exponent", "importance.beta", "item.gamma", "returns.gamma", "returns.lambda"),
    *("limits.samples_per_insert", "limits.tolerance", "limits.max_staleness", "limits.min_items"),
)
"""Settings of a table that may change while a server runs, as paths inside the table."""

_numbers = itertools.count()


def unique_name(prefix: str) -> str:
    """`prefix-host-pid-number`: no other client of this process or host has it."""
    return f"{prefix}-{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True)
class Welcome:
    """A server's answer to HELLO. `raw_schema` and `tables` are as they came: the schema's fields and the normalised table settings."""

    epoch: str
    actor: int
    streams: list[int]
    resumed: bool
    """An actor's: the server knows its session, so that all that it was told before holds."""
    stored: int
    """Number of the actor's newest push that is stored for good, and which the HELLO knew of where the server's disk is behind."""
    has: int
    """Of the newest that the server has at all."""
    versions: dict[str, int]
    raw_schema: list[tuple[str, str, tuple[int, ...]]]
    tables: list[dict[str, Any]]
    schema: Schema
    specs: list[TableSpec]

    @classmethod
    def read(cls, message: Message) -> Welcome:
        """Raises ProtocolError for a WELCOME that lacks a part, ConfigError where this side's core refuses a table."""
        meta = message.meta
        try:
            fields = [(str(name), str(dtype), tuple(int(n) for n in shape)) for name, dtype, shape in meta["schema"]]
            tables = [dict(settings) for settings in meta["tables"]]
            schema = Schema(fields)
            return cls(
                epoch=str(meta["epoch"]),
                actor=int(meta.get("actor") or 0),
                streams=[int(stream) for stream in meta.get("streams") or ()],
                resumed=meta.get("resumed") is True,
                stored=int(meta.get("stored") or 0),
                has=int(meta.get("has") or 0),
                versions={str(topic): int(version) for topic, version in (meta.get("versions") or {}).items()},
                raw_schema=fields,
                tables=tables,
                schema=schema,
                specs=[TableSpec(schema, settings) for settings in tables],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"a WELCOME lacks a part or has a wrong one: {error!r}") from error

    def same_tables(self, other: Welcome) -> bool:
        """True when steps and batches made for one fit the other: what may change while a server runs may differ."""
        return self.lasting() == other.lasting()

    def lasting(self) -> dict[str, Any]:
        """{"schema", "tables"} without what may change while a server runs."""
        return {"schema": self.raw_schema, "tables": list(map(_lasting, self.tables))}


def _lasting(settings: Mapping[str, Any]) -> dict[str, Any]:
    # Of a changeable setting its kind is left: whether there is one, and of a gamma the field that it names, or how many numbers it has.
    rest = copy.deepcopy(dict(settings))
    for path in CHANGEABLE:
        section, key = path.split(".")
        group = rest.get(section)
        if isinstance(group, dict) and key in group:
            value = group[key]
            group[key] = value if isinstance(value, str) else len(value) if isinstance(value, list) else 1
    return rest


def hello_message(seq: int, role: str, name: str, envs: int = 0, versions: dict[str, int] | None = None, epoch: str = "", **also: Any) -> Message:
    """A HELLO; `versions` are the newest parameters seen, `epoch` the last server's. `also`: what an actor or a learner adds (wire.py)."""
    meta = {"role": role, "name": name, "pid": os.getpid(), "host": socket.gethostname(), "envs": envs, "versions": versions or {}, "epoch": epoch}
    return Message(Kind.HELLO, seq, meta={**meta, **also})


def greet(link: Link, hello: Message, timeout: float, where: str, clock: Callable[[], float] = time.monotonic) -> Welcome:
    """Says HELLO and waits for its WELCOME. Raises Unreachable at the timeout, or the server's refusal as it is."""
    deadline, lost, said = clock() + timeout, (link.renewed, link.breaks), False
    while (left := deadline - clock()) > 0:
        if not said:
            with contextlib.suppress(WindowFull):  # there is no connection now, and no room for what waits for one
                link.send(hello)
                said = True
        message = link.receive(min(left, SLICE_S))
        if message is None:
            if link.refused:
                raise Forbidden(f"the server at {where} does not let this client in: {link.trouble}", key="", role="", asked="HELLO", allowed=[])
            if (link.renewed, link.breaks) != lost:  # a connection that was given up, or broke, has taken the HELLO with it
                lost, said = (link.renewed, link.breaks), False
            continue
        if message.kind is Kind.WELCOME:
            return Welcome.read(message)
        if message.kind is Kind.ERROR and message.seq == hello.seq:
            raise refusal(message)
    if link.trouble:
        raise Unreachable(f"the server at {where} has let nobody in within {timeout:g} s: {link.trouble}", address=where, timeout=timeout)
    raise Unreachable(
        f"no memsvc server answered at {where} within {timeout:g} s: check that `memsvc serve` runs there, that host and port are the ones it "
        f"announces (--ready-file), and that nothing in between blocks them",
        address=where,
        timeout=timeout,
    )


def refusal(message: Message) -> MemsvcError:
    """The exception that an ERROR message carries."""
    details = message.meta.get("details")
    return from_code(str(message.meta.get("code")), str(message.meta.get("message")), details if isinstance(details, dict) else None)


def changed(where: str) -> ConfigError:
    """For a server that came back with another schema or other tables: what this client holds does not fit it."""
    return ConfigError(f"the server at {where} came back with another schema or other tables: make a new client", address=where)


def find_table(welcome: Welcome, table: str | None, where: str) -> int:
    """The index of `table`; None: of the only one. Raises UnknownTable, which lists those there are."""
    names = [str(settings["name"]) for settings in welcome.tables]
    if table in names:
        return names.index(table)
    if table is None and len(names) == 1:
        return 0
    asked = "no table was named" if table is None else f"there is no table {table!r}"
    raise UnknownTable(f"{asked}; the server at {where} has {', '.join(map(repr, names))}", tables=names)


def say_bye(link: Link, seq: int, deadline: float) -> None:
    """Says BYE and waits for its answer, until `deadline` (time.monotonic): what was sent before has arrived then. Raises as link.send."""
    link.send(Message(Kind.BYE, seq))
    while (left := deadline - time.monotonic()) > 0:
        message = link.receive(left)
        if message is not None and message.kind is Kind.BYE:
            return
