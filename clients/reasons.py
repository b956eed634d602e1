"""Why a batch does not come, in a sentence: the words for WAIT's reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sentence(why: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """`why` is the meta of a WAIT, {reason, have, need}; `settings` are the table's. It says who is ahead by how much, where one side is."""
    reason, have, need = str(why.get("reason")), _number(why.get("have")), _number(why.get("need"))
    table, limits, item = f"table {settings.get('name')!r}", settings.get("limits", {}), settings.get("item", {})
    rate = f"limits.samples_per_insert = {limits.get('samples_per_insert', 0):g}, limits.tolerance = {limits.get('tolerance', 0):g}"
    words = {
        "min_items": f"{table} has {have:,} of the {need:,} items that limits.min_items asks for",
        "stock": f"{table} has {have:,} draws of its actors in stock, and a batch needs {need:,}",
        "empty": (
            f"{table} has 0 of the {need:,} items that it needs: "
            + (f"the {have:,} that its actors have made are used up, gone, or of weight 0" if have else "no actor has made one yet")
        ),
        "few": f"{table} has {have:,} items that may be drawn now, and a batch needs {need:,} different ones",
        "unread": f"{have:,} batches of {table} are on their way to this learner already, the most is {need:,}: read them first",
        "sending": (
            f"{table} waits for its learners to read: {have:,} bytes of batches are on their way from the server, {need:,} is the most, "
            f"and one learner's share what is free of that; smaller batches fit sooner"
        ),
        "limiter": (
            f"learners of {table} are ahead of its actors by {max(0, need - have):,} items: {have:,} have been inserted, "
            f"and a batch waits for {need:,} ({rate})"
        ),
        "stale": (
            f"all items of {table} are staler than {limits.get('max_staleness', 0)} versions (limits.max_staleness): "
            f"the youngest has version {have:,}, and {need:,} is the oldest that may be drawn; actors have to play with newer parameters"
        ),
        "short": (
            f"all {have:,} episodes that have ended are too short for an item of {table}, which takes {need:,} steps (item.length, tail = "
            f"{item.get('tail')!r}): choose tail = 'pad', or a smaller length"
        ),
        "version": f"the newest item of {table} has version {have:,}, and min_version asks for {need:,}",
    }
    return words.get(reason, f"{table} cannot serve a batch: {reason} ({have:,} of {need:,})")


def _number(value: Any) -> int | float:
    return value if isinstance(value, (int, float)) else 0
