"""The statistics: core, peers, parameters and queues as one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine


def report(engine: Engine, now: float) -> dict[str, Any]:
    """Everything that can be counted. Keys of "tables": those of Replay.stats (memsvc_core), name, settings as they are now, `waiting` requests,
    `deliveries` that are not confirmed yet.
    """
    core = engine.replay.stats()
    for table, kept in zip(engine.tables, core["tables"], strict=True):
        kept |= {"name": table.name, "settings": table.settings, "waiting": table.waiting, "deliveries": engine.deliveries.open(table.index)}
    members = [(peer.link, peer.member, peer.asking, peer.heard, peer.shared) for peer in engine.members.peers()]
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
        }
        for link, member, asking, heard, shared in members
        if member is not None
    ]
    return {
        **engine.about,
        **core,
        "epoch": engine.epoch,
        "seed": engine.seed,
        "first_stream": engine.first_stream,
        "uptime_s": round(now - engine.started, 3),
        "counts": dict(engine.counts),
        "peers": peers,
        "connections": len(members),
        "shared": sum(shared for *_, shared in members),
        "parameters": engine.parameters.stats(),
        "queues": {"batches_bytes": engine.pool.bytes},
    }
