"""Real traffic beside a fuzzer: one actor and one learner, whose steps say whose they are and carry a checksum. Writes a JSON line now and then.

python traffic.py ADDRESS SECRET NUMBER shared|socket          ends, with a last line, when its standard input does
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np
from memsvc_client import Actor, Learner, ZmqEndpoint
from memsvc_proto.errors import NotReady

EPISODE = 16
WIDE = 256
STEP = {"owner": {"dtype": "uint64"}, "id": {"dtype": "uint64"}, "sum": {"dtype": "uint64"}, "wide": {"dtype": "uint8", "shape": [WIDE]}}
_REPORT_S = 0.1


def wide_of(ids: Any) -> Any:
    """The bytes of steps, uint8[n, WIDE]."""
    return ((np.asarray(ids, np.uint64)[:, None] * np.uint64(2654435761) + np.arange(WIDE, dtype=np.uint64) * np.uint64(97)) >> np.uint64(3)).astype(
        np.uint8
    )


def sum_of(owner: Any, ids: Any, wide: Any) -> Any:
    """Checksums, uint64[n]."""
    return (np.asarray(owner, np.uint64) ^ (np.asarray(ids, np.uint64) * np.uint64(0x9E3779B97F4A7C15))) + wide.astype(np.uint64).sum(1) * np.uint64(
        0x10001
    )


class Traffic:
    """Counts what it has done, and how long it took at the longest since the last report."""

    def __init__(self, address: str, secret: int, number: int, shared: bool) -> None:
        self._endpoint = ZmqEndpoint(address, shared=shared)
        self._secret, self._number = secret, number
        self._done = threading.Event()
        self._streams: set[int] = set()
        self.counts = {"steps": 0, "batches": 0, "own": 0, "foreign": 0, "wrong": 0}
        self.longest = {"flush": 0.0, "sample": 0.0}
        self.errors: list[str] = []

    def run(self) -> None:
        """Until standard input ends."""
        threads = [threading.Thread(target=self._guarded, args=(one,)) for one in (self._act, self._learn)]
        for thread in threads:
            thread.start()
        reader = threading.Thread(target=lambda: (sys.stdin.read(), self._done.set()), daemon=True)
        reader.start()
        while not self._done.wait(_REPORT_S):
            self._report()
        for thread in threads:
            thread.join()
        self._report()

    def _report(self) -> None:
        longest, self.longest = self.longest, {"flush": 0.0, "sample": 0.0}
        print(json.dumps({**self.counts, "longest": longest, "errors": self.errors}), flush=True)

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def _timed(self, what: str, call: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        made = call(*arguments)
        self.longest[what] = max(self.longest[what], time.perf_counter() - began)
        return made

    def _act(self) -> None:
        made = 0
        with Actor(self._endpoint, name=f"honest-{self._number}", timeout=30) as actor:
            while not self._done.is_set():
                ids = np.arange(made, made + EPISODE, dtype=np.uint64)
                wide = wide_of(ids)
                sums = sum_of(np.full(EPISODE, self._secret, np.uint64), ids, wide)
                for i in range(EPISODE):
                    actor.add(owner=np.uint64(self._secret), id=ids[i], sum=sums[i], wide=wide[i])
                actor.end_episode(terminated=True)
                self._timed("flush", actor.flush, 30)
                made += EPISODE
                self.counts["steps"] = made
                self._done.wait(0.005)

    def _learn(self) -> None:
        with Learner(self._endpoint, table="all", batch_size=64, timeout=30) as learner:
            while not self._done.is_set():
                try:
                    batch = self._timed("sample", learner.sample, 30)
                except NotReady:
                    if self._done.is_set():
                        return
                    raise
                self._check(batch)
                self._done.wait(0.002)

    def _check(self, batch: Any) -> None:
        owner, ids, wide, sums = (np.asarray(batch[name]) for name in ("owner", "id", "wide", "sum"))
        streams, numbers = batch.keys >> np.uint64(36), batch.keys & np.uint64((1 << 36) - 1)
        right = (sum_of(owner, ids, wide) == sums) & (numbers == ids // EPISODE * (EPISODE + 1) + ids % EPISODE) & (wide == wide_of(ids)).all(1)
        ours = owner == np.uint64(self._secret)
        self._streams.update(streams[ours].tolist())  # what came once of ours makes its stream one of ours: nothing else belongs there
        of_ours = np.isin(streams, np.fromiter(self._streams, np.uint64, len(self._streams)))
        self.counts["batches"] += 1
        self.counts["own"] += int((of_ours & right).sum())
        self.counts["foreign"] += int((~of_ours).sum())
        self.counts["wrong"] += int((of_ours & ~(right & ours)).sum()) + int((~np.isfinite(batch.weights) | ~np.isfinite(batch.probabilities)).sum())


if __name__ == "__main__":
    Traffic(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "shared").run()
