"""What durability costs, and what a restart takes: inserts with and without a journal, the longest pause of a snapshot, saving and restoring.

    python benchmarks/durability.py [--seconds 5] [--items 30000] [--small 1000000] [--what restart pause inserts] [--out FILE]

Inserts: one actor's process and a daemon (memsvc bench, without learners), workloads A and B, data on this disk. Save and restore: items of
workload A put straight into an engine. Pause: the longest push and draw of a thread that does both, while three snapshots of --small items of
workload B are taken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import about, keep
from memsvc_core import Memory, Schema, TableSpec
from workloads import WORKLOADS, Workload

from memsvc.config import Config
from memsvc.durability.keeper import Keeper


def text(workload: Workload, data: Path, durability: str, fsync_ms: int = 0) -> str:
    """The workload's memsvc.toml with a data folder."""
    kept = "" if durability == "off" else f'durability = "{durability}"\ndata = "{data}"\nfsync_ms = {fsync_ms}\n'
    return workload.config("tcp://127.0.0.1:0").replace("[server]\n", f"[server]\n{kept}", 1)


def inserts(letter: str, durability: str, fsync_ms: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Items stored a second by one actor."""
    file, out = folder / "m.toml", folder / "out.json"
    with tempfile.TemporaryDirectory(dir=folder) as data:
        file.write_text(text(WORKLOADS[letter], Path(data), durability, fsync_ms))
        arguments = ["--config", str(file), "--learners", "0", "--seconds", str(seconds), "--json", str(out), "--plain"]
        subprocess.run([sys.executable, "-m", "memsvc", "bench", *arguments], check=True, stdout=subprocess.DEVNULL)
    figures = json.loads(out.read_text())
    kept = {key: figures["in"][key] for key in ("items_per_s", "bytes_per_s", "p50_ms", "p99_ms")}
    kept |= {"cpu_s_per_gb": figures["cpu"]["per_gb"], "memcpy_bytes_per_s": figures["memcpy_bytes_per_s"]}
    return {"what": "inserts", "workload": letter, "durability": durability, "fsync_ms": fsync_ms, **kept}


class Filled:
    """A Replay with a journal, and an actor's memory that fills it."""

    def __init__(self, workload: Workload, data: Path, items: int) -> None:
        self.config = Config.parse(text(workload.of(items), data, "journal", 1000))
        self.keeper = Keeper(self.config)
        schema, specs = self.config.specs()
        self.actor, streams = self.keeper.replay.join("a", 1)
        self.memory = Memory(schema, specs, streams, 1)
        self.spec: TableSpec = specs[0]
        self.step = zeros(schema)

    def add(self, items: int) -> None:
        """Adds and pushes so many steps, in episodes of 500."""
        for done in range(items):
            self.memory.add(0, self.step, 1.0, -1)
            if done % 500 == 499:
                self.memory.end(0, True, self.step)
                self.push()

    def push(self) -> None:
        """Pushes what there is."""
        while (payload := self.memory.draw(0, 0, 1 << 20, 0)) is not None:
            self.keeper.replay.push(self.actor, payload)
            self.memory.settled(1)


def zeros(schema: Schema) -> dict[str, Any]:
    """A step of random bytes."""
    rng = np.random.default_rng(0)
    made = {}
    for name, dtype, shape in schema.fields:
        size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        array = rng.integers(0, 255, size, np.uint8).view(dtype).reshape(shape) if np.dtype(dtype).kind in "iu" else np.ones(shape, dtype)
        made[name] = array if shape else array[()]
    return made


def restart(items: int, data: Path) -> dict[str, Any]:
    """Seconds and bytes of a snapshot of `items` of workload A, and of the start that restores them."""
    filled = Filled(WORKLOADS["A"], data, items)
    filled.add(items)
    filled.keeper.settle()
    taken = filled.keeper.checkpoint()
    filled.keeper.close(60)
    size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
    del filled.keeper
    began = time.monotonic()
    keeper = Keeper(filled.config)
    took = time.monotonic() - began
    restored = keeper.stats()["restored"]
    keeper.close(60)
    return {
        **{"what": "restart", "workload": "A", "items": restored["items"], "save_s": taken["seconds"], "snapshot_bytes": taken["bytes"]},
        **{"data_bytes": size, "start_s": round(took, 3), "restore_s": round(restored["seconds"], 3), "restored_bytes": restored["bytes"]},
    }


def pause(items: int, data: Path) -> dict[str, Any]:
    """The longest call of a thread that pushes and draws while snapshots are taken, and while none is."""
    filled = Filled(WORKLOADS["B"], data, items)
    filled.add(items)
    filled.keeper.settle()
    out = np.empty(int(filled.spec.layout(256)[0]) + 64, np.uint8)
    longest = {"push": 0.0, "draw": 0.0}
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for _ in range(50):
                filled.memory.add(0, filled.step, 1.0, -1)
            payload = filled.memory.draw(0, 0, 1 << 20, 0)
            for name, call in (
                ("push", lambda payload=payload: payload is None or filled.keeper.replay.push(filled.actor, payload)),
                ("draw", lambda: filled.keeper.replay.draw(0, 256, out, 0)),
            ):
                began = time.monotonic()
                call()
                longest[name] = max(longest[name], time.monotonic() - began)
            acknowledged = threading.Event()  # as a client's window waits for it: no faster than the disk
            filled.keeper.when_safe(acknowledged.set)
            acknowledged.wait()

    thread = threading.Thread(target=work)
    thread.start()
    found: dict[str, Any] = {"what": "pause", "workload": "B", "items": items}
    time.sleep(2.0)
    for when in ("quiet", "snapshot"):
        longest.update(push=0.0, draw=0.0)
        if when == "quiet":
            time.sleep(2.0)
        else:
            found["taken"] = [filled.keeper.checkpoint() for _ in range(3)][-1]
        found |= {f"{when}_{name}_ms": round(seconds * 1000, 2) for name, seconds in longest.items()}
    stop.set()
    thread.join()
    filled.keeper.close(60)
    return found


def main() -> None:
    """Measures all of it, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--items", type=int, default=30_000)
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--what", nargs="+", choices=["restart", "pause", "inserts"], default=["restart", "pause", "inserts"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "durability.jsonl")
    options = parser.parse_args()
    head = about("durability.py", sys.argv[1:])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        parts = {"restart": lambda: restart(options.items, where / "a"), "pause": lambda: pause(options.small, where / "b")}
        measures = [measure for name, measure in parts.items() if name in options.what]
        for letter in "AB" if "inserts" in options.what else "":
            for durability, fsync_ms in (("off", 0), ("journal", 10), ("journal", 0)):
                measures.append(lambda a=letter, d=durability, f=fsync_ms: inserts(a, d, f, options.seconds, where))
        for measure in measures:
            rows.append({**head, **measure()})
            print({key: value for key, value in rows[-1].items() if key not in head}, flush=True)
    keep(rows, options.out)


if __name__ == "__main__":
    main()
