"""Which settings of one table go together: what each alone allows, and a pair of them forbids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsvc_proto.errors import ConfigError

from .limiter import check_tolerance
from .rules import TABLE, join, shown

ORDERED = ("fifo", "lifo", "max", "min")
"""Samplers whose batches hold the first B items of an order."""

_UNION_ONLY = {
    "sampler": "leave it out",
    "capacity.items": "leave it out: server.memory bounds what is held of caches, actor.max_steps the actors' memories",
    "capacity.per_actor_episodes": "bound the actors' memories by actor.max_episodes",
    "capacity.per_actor_steps": "bound the actors' memories by actor.max_steps",
    "capacity.when_full": "leave it out: actors send caches on demand alone",
    "limits.max_times_sampled": 'write actor.select = "without_replacement", which sends each item at most once',
}


def check_coherence(path: str, table: Mapping[str, Any]) -> None:
    """`table` is normalised, `path` where it stands ("table[0]", or "" for paths inside it). Raises ConfigError, which begins with a key's path."""
    if table["actor"]["select"] != "all":
        for key, instead in _UNION_ONLY.items():
            _refuse_outside_union(path, table, key, instead)
    _check_length(path, table)
    _check_order(path, table)
    _check_capacity(path, table)
    check_tolerance(path, table["limits"])
    _check_ratio(path, table)


def check_durability(server: Mapping[str, Any]) -> None:
    """`server` is the normalised [server] section. Raises ConfigError."""
    mode = server["durability"]
    if mode != "off" and not server["data"]:
        raise _refuse("server", "data", f'is missing: durability = {shown(mode)} needs a folder of its own, as in data = "/var/lib/memsvc"')
    if mode != "journal" and server["fsync_ms"]:
        raise _refuse("server", "fsync_ms", f'{server["fsync_ms"]} needs durability = "journal", got {shown(mode)}; leave it out, or set that')


def at(table: Mapping[str, Any], key: str) -> Any:
    """The value of a path such as "limits.min_items" in a normalised table."""
    value: Any = table
    for part in key.split("."):
        value = value[part]
    return value


def default(key: str) -> Any:
    """What the path has where memsvc.toml says nothing."""
    section, _, name = key.partition(".")
    rule = TABLE[section].default
    return rule[name] if name else rule


def _refuse(path: str, key: str, message: str) -> ConfigError:
    return ConfigError(f"{join(path, key)}: {message}", path=join(path, key))


def _refuse_outside_union(path: str, table: Mapping[str, Any], key: str, instead: str) -> None:
    value = at(table, key)
    if value != default(key):
        raise _refuse(
            path,
            key,
            f'{shown(value)} needs actor.select = "all", where the server holds every item itself; '
            f"this table has select = {shown(table['actor']['select'])}: set that, or {instead}",
        )


def _check_length(path: str, table: Mapping[str, Any]) -> None:
    length, most = table["item"]["length"], table["actor"]["max_steps"]
    if table["item"]["kind"] == "sequence" and length >= most:
        raise _refuse(
            path,
            "actor.max_steps",
            f"{most:,} steps never hold a whole sequence of item.length = {length:,} and the step after it; raise it, or shorten the sequences",
        )


def _check_order(path: str, table: Mapping[str, Any]) -> None:
    if table["sampler"] not in ORDERED:
        return
    for key in ("priority.decay", "actor.step_discount", "actor.episode_weights"):
        if at(table, key) != default(key):
            raise _refuse(
                path,
                key,
                f"{shown(at(table, key))} changes weights, and sampler = {shown(table['sampler'])} goes by order alone; "
                f'leave it out, or write sampler = "prioritized"',
            )


def _check_capacity(path: str, table: Mapping[str, Any]) -> None:
    capacity, limits = table["capacity"], table["limits"]
    if capacity["when_full"] == "block":
        for key in ("per_actor_episodes", "per_actor_steps"):
            if capacity[key]:
                raise _refuse(
                    path,
                    f"capacity.{key}",
                    f'{capacity[key]} removes the oldest items, and with when_full = "block" no item is removed to make room; '
                    f"leave one of the two out, and bound such a table by capacity.items",
                )
    if 0 < capacity["items"] < limits["min_items"]:
        raise _refuse(
            path,
            "limits.min_items",
            f"{limits['min_items']:,} items are never there, since capacity.items is {capacity['items']:,}; "
            f"write {capacity['items']} at most, or raise capacity.items",
        )


def _check_ratio(path: str, table: Mapping[str, Any]) -> None:
    s, most = table["limits"]["samples_per_insert"], table["limits"]["max_times_sampled"]
    why = f"limits.max_times_sampled = {most}"
    if table["actor"]["select"] == "without_replacement":
        most, why = 1, 'actor.select = "without_replacement"'
    if most and s > most:
        raise _refuse(
            path,
            "limits.samples_per_insert",
            f"{s:g} is more than each item can be sampled ({why}), so learners would fall behind until actors stop for good; write {most} at most",
        )
