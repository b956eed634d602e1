"""What a table's settings amount to, in sentences: `memsvc check` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .changes import CHANGEABLE
from .limiter import largest_batch

_SELECT = {
    "prioritized": "actors send caches of draws by weight; over all of them P = w / W",
    "uniform": "actors send caches of draws, each of their items with the same weight",
    "all": "every item is sent once and the server draws from all of them",
    "without_replacement": "caches, each item sent at most once; actors in proportion to what they have queued, so P is not w / W",
}
_SAMPLER = {
    "prioritized": "by weight",
    "uniform": "each item with the same probability",
    "fifo": "the oldest items, each once a batch, in order",
    "lifo": "the newest items, each once a batch, in order",
    "max": "the items of largest priority, each once a batch, in order",
    "min": "the items of smallest positive priority, each once a batch, in order",
}


def explained(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(topic, sentence) for what a normalised table's settings bring about; settings that do nothing are left out."""
    lines = [("select", f"{table['actor']['select']}: {_SELECT[table['actor']['select']]}")]
    if table["actor"]["select"] == "all":
        lines.append(("sampler", f"{table['sampler']}: {_SAMPLER[table['sampler']]}"))
        lines.append(("capacity", "; ".join(_capacity(table["capacity"]))))
    lines += [("weights", one) for one in _weights(table)]
    lines += [("limits", one) for one in _limits(table)]
    lines.append(("changeable", ", ".join(key for key in CHANGEABLE if table[key.split(".")[0]] is not None)))
    return lines


def _capacity(capacity: Mapping[str, Any]) -> Iterator[str]:
    yield f"{capacity['items']:,} items at most" if capacity["items"] else "as many items as server.memory holds"
    if capacity["per_actor_episodes"]:
        yield f"of each actor the newest {capacity['per_actor_episodes']:,} episodes"
    if capacity["per_actor_steps"]:
        yield f"of each actor the newest {capacity['per_actor_steps']:,} steps"
    yield "writers wait while it is full" if capacity["when_full"] == "block" else "the oldest items give way"


def _weights(table: Mapping[str, Any]) -> Iterator[str]:
    actor, priority = table["actor"], table["priority"]
    if priority["decay"] != 1:
        yield f"times {priority['decay']:g} each time an item is drawn"
    if actor["step_discount"] != 1:
        yield f"times {actor['step_discount']:g}^t, t an item's first step in its episode"
    if actor["episode_weights"]:
        yield "times what end_episode(weight=...) says"


def _limits(table: Mapping[str, Any]) -> Iterator[str]:
    limits = table["limits"]
    if limits["min_items"] > 1:
        yield f"batches from {limits['min_items']:,} items on"
    if limits["samples_per_insert"]:
        yield (
            f"{limits['samples_per_insert']:g} items sampled for each one inserted, +- {limits['tolerance']:g}: "
            f"who is ahead waits; batches of {int(largest_batch(table)):,} at most"
        )
    if limits["max_times_sampled"]:
        yield f"each item is delivered {limits['max_times_sampled']:,} times at most"
    if limits["max_staleness"] >= 0:
        yield f"items of the newest {limits['max_staleness'] + 1:,} versions of the parameters alone"
        if limits["samples_per_insert"]:
            yield (
                "items that grow too stale before they are sampled still count as inserted: "
                "if all do, actors and learners wait until tolerance is raised"
            )
