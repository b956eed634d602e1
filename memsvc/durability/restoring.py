"""What a folder holds, brought back into a fresh Replay: a snapshot, its rows from the segments, and the records behind it done again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import snapshots
from .again import Again
from .folder import Folder
from .ranges import Ranges
from .records import Damaged, Form, Record
from .segments import SUFFIX, Segment, SegmentReader
from .snapshots import Snapshot

log = logging.getLogger("memsvc")


@dataclass
class Restored:
    """What came back, and what did not."""

    position: int = 0
    """Number of the last record that is contained."""
    snapshot: str = ""
    items: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    """Rows, and with them the dropped items; where none is, those did not fit."""
    bytes: int = 0
    records: int = 0
    """Done again."""
    refused: int = 0
    torn: int = 0
    """Bytes of a last record that was being written."""
    damage: list[str] = field(default_factory=list)
    seconds: float = 0.0
    versions: dict[str, int] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    """Those in which everything verified that was looked at."""


def newest_snapshot(folder: Folder, damage: list[str]) -> Snapshot | None:
    """The newest that verifies; those that do not are put aside."""
    there = snapshots.there(folder.snapshots)
    for name in folder.about["snapshots"]:
        if name not in {path.name for path in there}:
            damage.append(f"snapshot {name} is missing")
    for path in there:
        try:
            return snapshots.read(path)
        except (Damaged, OSError) as error:
            damage.append(f"snapshot {path.name}: {error}; kept as {folder.aside(path).name}")
    return None


class Restoring:
    """One restore."""

    def __init__(self, folder: Folder, form: Form, schema: Any, snapshot: Snapshot | None, settings: list[dict[str, Any]]) -> None:
        self._folder = folder
        self.form = form
        self._schema = schema
        self._snapshot = snapshot
        self.out = Restored(settings=settings)
        self._bad: set[Path] = set()
        self._missing: list[str] = []
        self._began = time.monotonic()

    def run(self, make: Callable[[list[dict[str, Any]]], Any]) -> Any:
        """The Replay with all that verifies. `make(settings)` gives a fresh one, with tables as they were set when the snapshot was taken."""
        out, snapshot = self.out, self._snapshot
        replay = make(out.settings)
        needed = np.zeros(0, np.uint64)
        if snapshot is not None:
            out.snapshot, out.position = f"{snapshot.position:016d}{snapshots.SUFFIX}", snapshot.position
            needed = replay.begin_restore(snapshot.state, [snapshot.items.get(one["name"]) for one in out.settings])
        segments = self._segments()
        missing = self._rows(replay, segments, needed)
        if snapshot is not None:
            kept = replay.finish_restore()
            out.dropped = {one["name"]: n for one, n in zip(out.settings, kept["dropped"], strict=True)}
            out.missing = max(0, missing - snapshot.about.get("rows_left_out", 0))
            if out.missing:
                out.damage.append(f"{missing:,} rows of items are missing, and with them {sum(kept['dropped']):,} items")
        self._again(replay, segments)
        replay.restored()
        stats = replay.stats()
        for actor in stats["actors"]:  # whoever comes back resumes
            replay.leave(actor["actor"])
        out.items = {one["name"]: table["items"] for one, table in zip(out.settings, stats["tables"], strict=True)}
        out.segments = [one for one in segments if one.path not in self._bad]
        out.seconds = time.monotonic() - self._began
        return replay

    def put_aside(self) -> None:
        """Gives damaged segments their new names, once what verifies of them lies elsewhere."""
        self._folder.gone(*(path.name for path in self._bad), *self._missing)
        for path in sorted(self._bad):
            self.out.damage = [line.replace(path.name, f"{path.name} (kept as {self._folder.aside(path).name})", 1) if path.name in line else line
                               for line in self.out.damage]  # fmt: skip

    def _segments(self) -> list[Segment]:
        paths = sorted(self._folder.journal.glob(f"*{SUFFIX}"))
        there = {path.name for path in paths}
        for name in self._folder.about["segments"]:
            if name not in there:
                self._missing.append(name)
                self.out.damage.append(f"segment {name} is missing")
        return [Segment(path, int(path.stem), int(path.stem) - 1, path.stat().st_size) for path in paths]

    def _read(self, segment: Segment) -> Iterator[Any]:
        reader = SegmentReader(segment.path, self.form)
        yield from reader.records()
        for one in reader.damage:
            if one.torn:
                self._cut(segment, reader.end, one.bytes)
            else:
                self._wrong(segment, f"{one.bytes:,} bytes at {one.offset:,} are no records ({one.what})")

    def _rows(self, replay: Any, segments: list[Segment], needed: np.ndarray) -> int:
        # Of what is in no item any more not even the checksum is looked at: pages of large rows are not read.
        left = Ranges.of(needed)
        wanted = np.ones(len(needed), np.bool_)
        for segment in segments:
            for batch in self._read(segment):
                try:
                    segment.last = max(segment.last, self.form.number(batch))
                    keys = self.form.rows_of(batch)
                    if not len(keys):
                        continue
                    segment.lists.append(keys.copy())
                    here = np.flatnonzero(left.has(keys)) if len(left) else np.zeros(0, np.int64)
                    if not len(here):
                        continue
                    place = np.searchsorted(needed, keys[here])
                    here, place = here[wanted[place]], place[wanted[place]]
                    if not len(here):
                        continue
                    rows = self.form.read(batch).part("rows", np.uint8).reshape(len(keys), self.form.stride)
                except Damaged as error:
                    self._wrong(segment, str(error))
                    continue
                whole = len(here) == len(keys)
                replay.restore_rows(keys if whole else keys[here], rows if whole else np.ascontiguousarray(rows[here]))
                wanted[place] = False
                self.out.bytes += len(here) * self.form.stride
        return int(wanted.sum())

    def _again(self, replay: Any, segments: list[Segment]) -> None:
        out = self.out
        again = Again(replay, self._schema, out.settings)
        for segment in segments:
            if segment.last <= out.position and segment is not segments[-1]:
                continue
            for batch in self._read(segment):
                try:
                    if self.form.number(batch) <= out.position:
                        continue
                    record = self.form.read(batch)
                except Damaged as error:
                    self._wrong(segment, str(error))
                    continue
                self._follow(record)
                again.do(record)
                out.bytes += record.bytes
        out.records, out.refused, out.versions = sum(again.done.values()), sum(again.refused.values()), again.versions
        if out.refused:
            out.damage.append(f"{out.refused:,} records are refused now: {dict(again.refused)}")

    def _follow(self, record: Record) -> None:
        missing = record.at - self.out.position - 1
        if missing > 0:
            self._told(f"records {self.out.position + 1:,} to {record.at - 1:,} are missing")
        self.out.position = record.at

    def _wrong(self, segment: Segment, what: str) -> None:
        self._bad.add(segment.path)
        self._told(f"segment {segment.path.name}: {what}")

    def _told(self, line: str) -> None:
        if line not in self.out.damage:  # a segment is read twice
            self.out.damage.append(line)

    def _cut(self, segment: Segment, end: int, size: int) -> None:
        log.warning("segment %s ends in the middle of a record, which was never acknowledged: %d bytes are cut off", segment.path.name, size)
        self.out.torn += size
        with open(segment.path, "r+b") as file:
            file.truncate(end)
        segment.bytes = end
