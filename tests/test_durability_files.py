"""The journal's files: readable with pyarrow alone, and whatever has happened to them, read without harm."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from durable import House, Player

from memsvc.durability.gate import Gate
from memsvc.durability.journal import Journal
from memsvc.durability.ranges import Ranges
from memsvc.durability.records import Damaged, Form, Record
from memsvc.durability.segments import SegmentReader, SegmentWriter

FORM = Form([("obs", "|u1", (20,)), ("a", "<f4", ())], 24, [("t", 4)])


def test_pyarrow_and_numpy_alone_read_the_steps(tmp_path: Path) -> None:
    with House(tmp_path / "data") as house:
        player = Player(house.engine, "a")
        for _ in range(3):
            player.play(20, priority=2.0)
            player.give()
    found: dict[int, tuple[int, list[float]]] = {}
    priorities = []
    for path in sorted((tmp_path / "data" / "journal").glob("*.arrow")):
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            about = json.loads(stream.schema.metadata[b"memsvc"])
            dtype = np.dtype(
                {
                    "names": [name for name, *_ in about["step"]],
                    "formats": [(dtype, tuple(shape)) for _, dtype, shape, _ in about["step"]],
                    "offsets": [offset for *_, offset in about["step"]],
                    "itemsize": about["stride"],
                }
            )
            item = np.dtype(
                {
                    "names": [one[0] for one in about["item"]],
                    "formats": [one[1] for one in about["item"]],
                    "offsets": [one[2] for one in about["item"]],
                    "itemsize": 32,
                }
            )
            for batch in stream:
                rows = np.frombuffer(batch["rows"].flatten().buffers()[-1] or b"", dtype)
                for key, row in zip(batch["row_keys"].flatten().to_pylist(), rows, strict=True):
                    found[key] = (int(row["id"]), row["obs"].tolist())
                if batch["kind"][0].as_py() == "push":
                    priorities += np.frombuffer(batch["items"].flatten().buffers()[-1] or b"", item)["priority"].tolist()
    assert sorted(i for i, _ in found.values() if i >= 0)[-60:] == list(range(60))
    assert all(obs == [float(i)] * 3 for i, obs in found.values())
    assert priorities == [2.0] * 60


def written(folder: Path, count: int) -> Path:
    """One segment with records of three rows each; row i of record n holds n."""
    folder.mkdir(exist_ok=True)
    journal = Journal(SegmentWriter(folder, FORM, lambda name: None), 0, 0, Gate(), bytes)
    journal.start()
    for n in range(1, count + 1):
        keys = np.arange(10 * n, 10 * n + 3, dtype=np.uint64)
        journal.append(Record("rows", meta={"n": n}, parts={"row_keys": keys, "rows": np.full((3, 24), n % 251, np.uint8)}))
    assert journal.close(10)
    (path,) = folder.glob("*.arrow")
    return path


def read(path: Path) -> tuple[list[int], int, SegmentReader]:
    """(numbers of the records that verify, how many do not, the reader)."""
    reader, good, bad = SegmentReader(path, FORM), [], 0
    for batch in reader.records():
        try:
            FORM.number(batch)
            FORM.rows_of(batch)
            record = FORM.read(batch)
        except Damaged:
            bad += 1
            continue
        assert (record.part("rows", np.uint8) == record.at % 251).all()
        assert record.meta == {"n": record.at}
        good.append(record.at)
    return good, bad, reader


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_costs_the_record_that_it_is_in(tmp_path: Path, seed: int) -> None:
    path = written(tmp_path / "j", 60)
    whole, rng = path.read_bytes(), random.Random(seed)
    for _ in range(50):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        good, _, _ = read(path)
        assert len(good) >= 58
        assert good == sorted(set(good))


def test_a_torn_end_costs_the_last_record_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "j", 30)
    whole, rng = path.read_bytes(), random.Random(1)
    for size in sorted((rng.randrange(len(whole)) for _ in range(40)), reverse=True):
        path.write_bytes(whole[:size])
        good, bad, reader = read(path)
        assert good == list(range(1, len(good) + 1))
        assert not bad
        assert all(one.torn for one in reader.damage)
        path.write_bytes(whole[:size] + bytes(100))  # zeros, as after a power cut
        again = read(path)[0]
        assert again in (good, [*good, len(good) + 1])  # what was cut may have been zeros


def test_a_stretch_of_anything_costs_what_it_covers(tmp_path: Path) -> None:
    path = written(tmp_path / "j", 60)
    whole, rng = path.read_bytes(), random.Random(2)
    for fill in (0x00, 0xFF, 0x5A):
        for _ in range(10):
            data, at = bytearray(whole), rng.randrange(len(whole) - 6000)
            data[at : at + 5000] = bytes([fill]) * 5000
            path.write_bytes(data)
            assert len(read(path)[0]) >= 60 - 5000 // (len(whole) // 61) - 3


def test_checksums_are_as_documented(tmp_path: Path) -> None:
    path = written(tmp_path / "j", 2)
    with pa.memory_map(str(path)) as file:
        for batch in pa.ipc.open_stream(file):
            row = {name: batch[name][0] for name in batch.schema.names}
            fixed = (np.array([row[name].as_py() for name in ("record", "actor", "number")], "<u8").tobytes()
                     + np.array([row["table"].as_py()], "<u4").tobytes())  # fmt: skip
            crc = zlib.crc32(fixed + row["kind"].as_py().encode() + row["meta"].as_py().encode())
            crc = zlib.crc32(np.array(row["row_keys"].as_py(), "<u8"), crc)
            crc = zlib.crc32(b"".join(row["rows"].as_py()), crc)
            assert crc == row["crc"].as_py()


def test_ranges_are_sets() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        a, b = (set(rng.integers(0, 40, rng.integers(0, 30)).tolist()) for _ in range(2))
        one, two = (Ranges.of(np.array(sorted(keys), np.uint64)) for keys in (a, b))
        assert one.keys().tolist() == sorted(a)
        assert len(one) == len(a)
        assert one.common(two) == len(a & b)
        assert one.without(two).keys().tolist() == sorted(a - b)
        assert one.within(two).keys().tolist() == sorted(a & b)
        assert one.joined(two).keys().tolist() == sorted(a | b)
        assert one.has(np.arange(45, dtype=np.uint64)).tolist() == [key in a for key in range(45)]
