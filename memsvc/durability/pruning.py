"""Which segments are still needed: others are removed, and live rows of nearly dead ones are written again, so that disk use is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import snapshots
from .folder import Folder
from .journal import Journal, Slot
from .ranges import Ranges
from .records import Damaged, Record
from .segments import SEGMENT_BYTES, Segment

_CHUNK_BYTES = 4 << 20
_AHEAD = 8
"""Chunks that are written between two looks at whether the disk has them."""
_WAIT_S = 60.0
NEARLY_DEAD = 0.5
"""The share of its bytes that still live below which a segment may be emptied."""
SLACK_BYTES = 2 * SEGMENT_BYTES
"""What the journal may take beyond twice the live rows before segments are emptied."""


class Pruning:
    """Used under Keeper's lock of snapshots."""

    def __init__(self, folder: Folder, journal: Journal, replay: Any, stride: int, there: list[Segment]) -> None:
        self._folder = folder
        self._journal = journal
        self._replay = replay
        self._stride = stride
        self._segments = {one.path: one for one in there}
        self._kept: list[tuple[Path, int, Ranges]] = []  # newest first
        self._moved = self._removed = 0
        self._sizes = (0, 0)

    def wait(self, mark: Slot) -> None:
        """Until the journal is on disk up to there. OSError: it is not in time."""
        if mark.mark is None or not mark.mark.wait(_WAIT_S):
            raise OSError(5, self._journal.trouble or f"the disk has not taken the journal within {_WAIT_S:g} s")
        self._segments |= {one.path: one for one in mark.segments}

    def complete(self, live: Ranges) -> int:
        """Writes those rows of `live` that lie in no segment; returns how many have gone meanwhile."""
        left = live
        for one in self._segments.values():
            left = left.without(one.rows)
        return self._write(left) if len(left) else 0

    def names(self) -> list[str]:
        """Of all segments."""
        return sorted(path.name for path in self._segments)

    def snapshot(self, path: Path, position: int, live: Ranges) -> None:
        """A new snapshot is there: two are kept, and what none of them needs goes."""
        self._kept = [one for one in self._kept if one[0] != path]
        if not self._kept:
            self._kept = self._older(path)
        self._kept.insert(0, (path, position, live))
        del self._kept[snapshots.KEPT :]
        kept = [one[0] for one in self._kept]
        self._folder.tell(snapshots=[one.name for one in kept])
        for one in snapshots.there(self._folder.snapshots):
            if one not in kept:
                one.unlink(missing_ok=True)
        shares = self._shares()
        self._empty(live, shares)

    def stats(self) -> dict[str, int]:
        """Files and bytes as of the last snapshot, and what was done so far."""
        return {
            "files": len(self._segments),
            "bytes": self._sizes[0],
            "live_bytes": self._sizes[1],
            "moved_rows": self._moved,
            "removed": self._removed,
        }

    def _older(self, newest: Path) -> list[tuple[Path, int, Ranges]]:
        for path in snapshots.there(self._folder.snapshots):
            if path != newest:
                try:
                    found = snapshots.read(path)
                    return [(path, found.position, Ranges.of(found.rows))]
                except (Damaged, OSError):
                    self._folder.aside(path)
        return []

    def _shares(self) -> dict[Path, Ranges]:
        # Removes segments that nobody needs; of the others: what of the newest snapshot's rows is found there, and nowhere behind it.
        oldest = min(position for _, position, _ in self._kept)
        order = sorted(self._segments.values(), key=lambda one: one.first, reverse=True)
        needed = {one.path for one in order[:1]} | {one.path for one in order if one.last > oldest}
        shares: dict[Path, Ranges] = {}
        for number, (_, _, live) in enumerate(self._kept):
            left = live
            for one in order:
                share = left.within(one.rows)
                if number == 0:
                    shares[one.path] = share
                if len(share):
                    needed.add(one.path)
                    left = left.without(share)
        gone = [one for one in order if one.path not in needed]
        if gone:
            for one in gone:
                del self._segments[one.path]
            self._folder.gone(*(one.path.name for one in gone))
            for one in gone:  # a file that is listed no more and still there is read, and found needless again
                one.path.unlink(missing_ok=True)
            self._removed += len(gone)
        return {path: share for path, share in shares.items() if path in self._segments}

    def _empty(self, live: Ranges, shares: dict[Path, Ranges]) -> None:
        total, most = sum(one.bytes for one in self._segments.values()), 2 * len(live) * self._stride + SLACK_BYTES
        self._sizes = (total, len(live) * self._stride)
        newest = max(self._segments, default=None)
        for path, share in sorted(shares.items(), key=lambda one: len(one[1])):
            segment = self._segments[path]
            if total <= most:
                return
            if path == newest or len(share) * self._stride > NEARLY_DEAD * segment.bytes:
                continue
            self._write(share)
            self._moved += len(share)
            total -= segment.bytes - len(share) * self._stride

    def _write(self, rows: Ranges) -> int:
        keys = rows.keys()
        chunk = max(1, _CHUNK_BYTES // self._stride)
        gone = 0
        for number, at in enumerate(range(0, len(keys), chunk)):
            some = keys[at : at + chunk]
            out = np.empty((len(some), self._stride), np.uint8)
            here = self._replay.rows(some, out)
            gone += int((~here).sum())
            if here.any():
                self._journal.append(Record("rows", parts={"row_keys": some[here], "rows": out[here]}))
            if number % _AHEAD == _AHEAD - 1:
                self.wait(self._journal.mark())
        self.wait(self._journal.mark())
        return gone
