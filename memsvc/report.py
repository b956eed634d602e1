"""The statistics: core, peers, parameters and queues as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine


def report(engine: Engine, now: float) -> dict[str, Any]:
    """Everything that can be counted. Keys of "tables": those of Replay.stats (memsvc_core), name, settings as they are now, `waiting` requests,
    `deliveries` that are not confirmed yet. "pushes": {received, stored, refused {reason: number}}, where received is the sum of all the others;
    "actors" has those of each actor that is here.
    """
    core = engine.replay.stats()
    turned_away = engine.turned_away.values()
    pushes = _pushes(core.pop("pushes"), turned_away)
    actors = [{"name": one["name"], "actor": one["actor"], "number": one["number"], "pushes": _pushes(one)} for one in core.pop("actors")]
    for table, kept in zip(engine.tables, core["tables"], strict=True):
        kept |= {"name": table.name, "settings": table.settings, "waiting": table.waiting, "deliveries": engine.deliveries.open(table.index)}
    members = [(peer.link, peer.member, peer.asking, peer.heard, peer.shared, peer.messages) for peer in engine.members.peers()]
    peers = [
        {
            "link": link,
            "role": member.role,
            "name": member.name,
            "host": member.host,
            "pid": member.pid,
            "waiting": asking,
            "silent_s": round(now - heard, 3),
            "shared": shared,
            "messages": messages,
        }
        for link, member, asking, heard, shared, messages in members
        if member is not None
    ]
    return {
        **engine.about,
        **core,
        "epoch": engine.epoch,
        "seed": engine.seed,
        "first_stream": engine.first_stream,
        "uptime_s": round(now - engine.started, 3),
        "counts": engine.counts.values(),
        "pushes": pushes,
        "actors": actors,
        "peers": peers,
        "connections": len(members),
        "shared": sum(shared for *_, shared, _ in members),
        "parameters": engine.parameters.stats(),
        "durability": engine.keeper.stats(),
        "keys": None if engine.guarded is None else engine.guarded(),
        "queues": _queues(engine, core["tables"]),
    }


def _queues(engine: Engine, tables: list[dict[str, Any]]) -> dict[str, int]:
    # Bytes of what waits for somebody, and of what is kept for reuse: memsvc/README.md, "What is bounded, and how".
    queues = {
        "batches": engine.pool.bytes,
        "underway": engine.underway.bytes,
        "parameters": sum(topic["bytes"] for topic in engine.parameters.stats().values()),
    }
    for measured in [measure() for measure in engine.measures]:
        for name, size in measured.items():
            queues[name] = queues.get(name, 0) + size
    for name in ("feedback", "told", "changes", "notes"):
        queues[name] = sum(table[f"{name}_bytes"] for table in tables)
    return {f"{name}_bytes": size for name, size in queues.items()}


def _pushes(counts: Mapping[str, Any], more: Mapping[str, int] = MappingProxyType({})) -> dict[str, Any]:
    refused = {reason: counts[reason] for reason in ("duplicate", "gap", "malformed", "failed", "unknown")} | dict(more)
    return {"received": counts["stored"] + sum(refused.values()), "stored": counts["stored"], "refused": refused}
