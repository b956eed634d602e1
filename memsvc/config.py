"""memsvc.toml, checked: `Config.load(path)`. Precedence: flags, then MEMSVC_SERVER_* variables, then the file, then the defaults (rules.py)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from memsvc_proto.errors import ConfigError

from . import address as addresses
from . import rules
from .coherence import check_coherence, check_durability

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ENVIRONMENT = "MEMSVC_SERVER_"
_RESERVED = ("env", "envs", "active", "priority", "version", "terminated", "truncated", "final")  # arguments of Actor.add and add_batch
_ALWAYS_MADE = ("keys", "probabilities", "weights", "versions", "population")  # every batch has them
_KIND_KEYS = {
    "step": ("n_step", "frame_stack", "stack", "next", "length", "stride", "burn_in", "tail", "initial"),
    "transition": ("length", "stride", "burn_in", "tail", "initial"),
    "sequence": ("n_step",),
}


@dataclass(frozen=True)
class ServerConfig:
    """The [server] section. `control` and `http` are None where the file leaves them to the defaults."""

    address: str
    advertise: str
    insecure: bool
    memory: int
    """Bytes: the hard budget of the step store."""
    max_message: int
    """Bytes of the largest message that is taken in parts: of parameters, or of a push."""
    control: str | None
    """gRPC's host:port; None: the port after address's; "" is off."""
    http: str | None
    """Not served in this version: None or ""."""
    seed: int
    """0: from the system."""
    durability: str
    """"off", "snapshot" or "journal"."""
    data: str
    """Where it lies: a folder of this server alone."""
    fsync_ms: int
    """Of what was acknowledged, the newest so many milliseconds may be lost with the machine; 0: nothing is acknowledged before it is on disk."""
    snapshot_s: float
    """How often a snapshot is taken."""
    keys: str
    """Folder of `memsvc keys`; "": none are asked for."""

    @property
    def control_address(self) -> addresses.Address | None:
        """Where gRPC listens, the default worked out; None when it is off. Port 0 picks a free one."""
        if self.control == "":
            return None
        if self.control is not None:
            return addresses.parse_control("server.control", self.control)
        door = addresses.parse_data("server.address", self.address)
        if door.is_ipc:
            return addresses.Address("127.0.0.1", 0)
        return door.at(door.port + 1 if 0 < door.port < 65535 else 0)


@dataclass(frozen=True)
class Config:
    """A whole checked configuration; immutable by convention (tables are plain dictionaries, sent as JSON). Made by load, parse or from_dict."""

    server: ServerConfig
    schema: list[tuple[str, str, tuple[int, ...]]]
    """What a step is: (name, little-endian numpy dtype string, shape)."""
    tables: list[dict[str, Any]]
    """Normalised [[table]] settings: every key is there."""
    source: str = field(default="", compare=False)
    """The file's path, or ""."""

    @staticmethod
    def load(path: str | os.PathLike[str], flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Config:
        """Reads a file. `flags` maps "server.address" and the like to values; environ None: the process's. Raises ConfigError, OSError."""
        with open(path, "rb") as file:
            data = file.read()
        try:
            settings = tomllib.loads(data.decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{os.fspath(path)}: is not TOML: {error}") from None
        return _checked(settings, flags or {}, os.environ if environ is None else environ, os.fspath(path))

    @staticmethod
    def parse(text: str, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Config:
        """As load, from the file's text; variables count only where `environ` is given."""
        try:
            settings = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"the configuration is not TOML: {error}") from None
        return _checked(settings, flags or {}, environ or {}, "")

    @staticmethod
    def from_dict(settings: Mapping[str, Any], flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Config:
        """As parse, from the dictionary that the TOML would give: {"server": {...}, "step": {name: {"dtype", "shape"}}, "table": [{...}]}."""
        return _checked(settings, flags or {}, environ or {}, "")

    def specs(self) -> tuple[Any, list[Any]]:
        """(memsvc_core.Schema, [memsvc_core.TableSpec]) of this configuration."""
        return _specs(self.schema, self.tables)


def _checked(settings: Mapping[str, Any], flags: Mapping[str, Any], environ: Mapping[str, str], source: str) -> Config:
    for key in settings:
        if key not in ("server", "step", "table"):
            raise rules.unknown("", str(key), ("server", "step", "table"))
    server = _server(settings.get("server", {}), flags, environ)
    schema = _schema(settings.get("step"))
    tables = _tables(settings.get("table"))
    _refuse_made_names(schema, tables)
    _specs(schema, tables)
    return Config(server, schema, tables, source)


def _server(given: Any, flags: Mapping[str, Any], environ: Mapping[str, str]) -> ServerConfig:
    values = rules.section(rules.SERVER)("server", given)
    for variable, value in environ.items():
        if not variable.startswith(_ENVIRONMENT):
            continue
        key = variable[len(_ENVIRONMENT) :].lower()
        if key not in rules.SERVER:
            names = [_ENVIRONMENT + name.upper() for name in rules.SERVER]
            raise rules.unknown("", variable, names)
        values[key] = rules.SERVER[key].check(variable, _from_text(value, values[key]))
    for path, value in flags.items():
        section, _, key = path.partition(".")
        if section != "server" or key not in rules.SERVER:
            raise rules.unknown("", path, [f"server.{name}" for name in rules.SERVER])
        if value is not None:
            values[key] = rules.SERVER[key].check(path, value)
    server = ServerConfig(**values)
    _check_addresses(server)
    check_durability(values)
    return server


def _from_text(value: str, default: Any) -> Any:
    if isinstance(default, bool):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    if isinstance(default, int | float) and re.fullmatch(r"-?\d+", value):
        return int(value)
    if isinstance(default, float) and re.fullmatch(r"-?\d*\.\d+", value):
        return float(value)
    return value


def _check_addresses(server: ServerConfig) -> None:
    door = addresses.parse_data("server.address", server.address)
    if server.advertise:
        advertised = addresses.parse_data("server.advertise", server.advertise, need_port=False)
        if advertised.is_ipc or door.is_ipc:
            raise ConfigError(f"server.advertise: is for tcp alone, got {server.advertise!r} for address {server.address!r}", path="server.advertise")
    if server.http:
        raise rules.later("server.http", server.http, "")
    for path, where in (("server.address", door), ("server.control", server.control_address)):
        if where is not None and not where.is_loopback and not server.keys and not server.insecure:
            raise ConfigError(
                f"{path}: {where.host_port} can be reached from other machines, and without keys whoever reaches it may do anything; make some with "
                f'`memsvc keys DIR` and set server.keys = "DIR", use a loopback address such as 127.0.0.1, or set server.insecure = true on a '
                f"network that you trust",
                path=path,
            )


def _schema(given: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    if not given:
        raise ConfigError('step: is missing; write what an actor records, as in [step] with obs = { dtype = "float32", shape = [4] }', path="step")
    if not isinstance(given, Mapping):
        raise rules.wrong("step", "a table of fields", given)
    one = rules.section(
        {"dtype": rules.Rule(None, _dtype, required=True), "shape": rules.Rule([], rules.several(rules.integer(0), "a list of integers"))}
    )
    schema = []
    for name, value in given.items():
        path = f"step.{name}"
        if not name.isidentifier():
            raise ConfigError(f"{path}: a field's name is a Python identifier, since it is an argument of add()", path=path)
        if name in _RESERVED:
            raise ConfigError(f"{path}: is an argument of add() and no field; choose another name", path=path)
        checked = one(path, value)
        schema.append((name, checked["dtype"], tuple(checked["shape"])))
    return schema


def _dtype(path: str, value: Any) -> str:
    phrase = 'a dtype such as "uint8", "bool", "int32", "float32", "complex64"'
    if not isinstance(value, str):
        raise rules.wrong(path, phrase, value)
    try:
        dtype = np.dtype(value)
    except TypeError:
        raise rules.wrong(path, phrase, value) from None
    if dtype.kind not in "biufc" or dtype.subdtype is not None or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise rules.wrong(path, phrase + " (bool, int, uint, float, complex alone)", value)
    if dtype.byteorder == ">":
        raise ConfigError(f"{path}: data are little endian; write {shown_dtype(dtype)!r}, got {value!r}", path=path)
    return str(dtype.newbyteorder("<").str)


def shown_dtype(dtype: np.dtype[Any]) -> str:
    """A dtype's name without byte order, as it stands in memsvc.toml."""
    return str(dtype.newbyteorder("=").name)


def _tables(given: Any) -> list[dict[str, Any]]:
    if not given:
        raise ConfigError('table: is missing; write at least one [[table]] with name = "replay"', path="table")
    if not isinstance(given, (list, tuple)):
        raise rules.wrong("table", "a list of tables ([[table]])", given)
    tables = [rules.section(rules.TABLE)(f"table[{i}]", one) for i, one in enumerate(given)]
    for i, table in enumerate(tables):
        _check_item(f"table[{i}].item", table["item"])
        check_coherence(f"table[{i}]", table)
        if table["actor"]["max_episodes"] and all(one["actor"]["select"] == "all" for one in tables):
            raise ConfigError(
                f'table[{i}].actor.max_episodes: {table["actor"]["max_episodes"]} bounds what actors draw caches from, and with actor.select = "all" '
                f"they draw none; write capacity.per_actor_episodes = {table['actor']['max_episodes']} instead",
                path=f"table[{i}].actor.max_episodes",
            )
        for j, other in enumerate(tables[:i]):
            if other["name"] == table["name"]:
                raise ConfigError(f"table[{i}].name: {table['name']!r} is the name of table[{j}] already", path=f"table[{i}].name")
        for key in ("max_steps", "max_episodes"):
            mine, first = table["actor"][key], tables[0]["actor"][key]
            if mine != first:
                path = f"table[{i}].actor.{key}"
                raise ConfigError(
                    f"{path}: {mine} differs from table[0]'s {first}; an actor has one memory for all tables, so write the same", path=path
                )
    return tables


def _check_item(path: str, item: Mapping[str, Any]) -> None:
    for key in _KIND_KEYS[item["kind"]]:
        if item[key] != rules.ITEM[key].default:
            raise ConfigError(f"{path}.{key}: does not apply to kind {rules.shown(item['kind'])}; leave it out", path=f"{path}.{key}")


def _made(table: Mapping[str, Any]) -> set[str]:
    item = table["item"]
    made = set(_ALWAYS_MADE)
    if item["kind"] != "step":
        made |= {"discount"} | {f"next_{name}" for name in item["next"]}
    if item["kind"] == "sequence":
        made |= {"mask", "length"} | {f"initial_{name}" for name in item["initial"]}
    if table["returns"] is not None:
        made |= {"return", "advantage"}
    return made


def _refuse_made_names(schema: list[tuple[str, str, tuple[int, ...]]], tables: list[dict[str, Any]]) -> None:
    for i, table in enumerate(tables):
        made = _made(table)
        for name, _, _ in schema:
            if name in made:
                kind = table["item"]["kind"]
                raise ConfigError(
                    f"step.{name}: table[{i}] ({table['name']!r}, kind {kind!r}) makes a column of this name itself; choose another",
                    path=f"step.{name}",
                )


def _specs(schema: list[tuple[str, str, tuple[int, ...]]], tables: list[dict[str, Any]]) -> tuple[Any, list[Any]]:
    from memsvc_core import Schema, TableSpec

    try:
        core = Schema(schema)
    except ValueError as error:
        raise ConfigError(f"step: {error}", path="step") from None
    specs = []
    for i, table in enumerate(tables):
        try:
            specs.append(TableSpec(core, table))
        except ValueError as error:
            raise ConfigError(f"table[{i}].{error}", path=f"table[{i}]") from None
    return core, specs
