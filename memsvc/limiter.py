"""The arithmetic of the rate limiter (DEFINITIONS 9), as far as settings and batch sizes are concerned; the counting is the core's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsvc_proto.errors import ConfigError

from .rules import join


def least_tolerance(samples_per_insert: float, batch: int) -> float:
    """The smallest `limits.tolerance` with which one side can always move: a batch takes `batch`, an insert gives `samples_per_insert`."""
    return batch + samples_per_insert


def largest_batch(table: Mapping[str, Any]) -> float:
    """The largest batch that the limits of a normalised table allow; infinite where nothing limits it."""
    limits = table["limits"]
    return float(limits["tolerance"] - limits["samples_per_insert"]) if limits["samples_per_insert"] > 0 else float("inf")


def refuse_batch(table: Mapping[str, Any], batch: int) -> None:
    """ConfigError, with the arithmetic, where batches of this size could stop learners and actors of a normalised table alike."""
    limits = table["limits"]
    s, e = limits["samples_per_insert"], limits["tolerance"]
    if s > 0 and e < least_tolerance(s, batch):
        need = least_tolerance(s, batch)
        raise ConfigError(
            f"limits.tolerance: table {table['name']!r} has {e:g}, and a batch of {batch:,} needs at least batch + samples_per_insert = "
            f"{batch} + {s:g} = {need:g}, or learners and actors could stop each other; "
            f"raise it (it can be changed while the server runs), or sample batches of {max(0, int(e - s))} at most",
            path="limits.tolerance",
            have=e,
            need=need,
        )


def check_tolerance(path: str, limits: Mapping[str, Any]) -> None:
    """ConfigError where samples_per_insert and tolerance do not go together; `path` is the table's."""
    s, e = limits["samples_per_insert"], limits["tolerance"]
    where = join(path, "limits.tolerance")
    if s == 0 and e > 0:
        raise ConfigError(
            f"{where}: {e:g} without limits.samples_per_insert bounds nothing; write how often each new item is to be sampled, or leave it out",
            path=where,
        )
    if s > 0 and e < least_tolerance(s, 1):
        raise ConfigError(
            f"{where}: expected at least 1 + samples_per_insert = 1 + {s:g} = {least_tolerance(s, 1):g}, else not even batches of 1 and "
            f"single inserts could take turns, and both sides would stop; got {e:g}: write at least your learners' batch + samples_per_insert",
            path=where,
            have=e,
            need=least_tolerance(s, 1),
        )
