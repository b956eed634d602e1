"""Hostile messages on every port of a `memsvc serve` while real actors and learners go on; at the end: was anything hurt, and is each accounted for?

    python tests/fuzz/live.py [--messages 1000000] [--seed 1] [--processes 2] [--calm 10]

Raw connections of other protocols, zmq's greeting broken everywhere, frames made from real ones by mutation (with the crc that gets them past the
header), rings in shared memory, packets with descriptors, subscriptions, gRPC calls. Prints what was found; exit status 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from senders import Framed, Stalled
from traffic import STEP

HERE = Path(__file__).resolve().parent
CONFIG = """
[server]
address = "tcp://127.0.0.1:0"
control = "127.0.0.1:0"
http = ""
memory = "32MiB"
[step]
{step}
[[table]]
name = "all"
item = {{ kind = "step" }}
actor = {{ select = "all", linger_ms = 5 }}
sampler = "uniform"
priority = {{ source = "max", exponent = 1.0 }}
[[table]]
name = "caches"
item = {{ kind = "sequence", length = 4, stride = 1, next = ["id"] }}
priority = {{ source = "max", exponent = 0.6 }}
[[table]]
name = "pieces"
item = {{ kind = "sequence", length = 4, stride = 2 }}
actor = {{ select = "all" }}
sampler = "fifo"
limits = {{ max_times_sampled = 2 }}
"""
LONGEST_S = 5.0
"""What a learner's sample or an actor's flush may take while all this goes on: there is no stall."""
GROWTH_BYTES = 24 << 20


class Daemon:
    """`memsvc serve`, and what the system says of it."""

    def __init__(self, folder: Path) -> None:
        config, ready = folder / "memsvc.toml", folder / "ready.json"
        step = "\n".join(f"{name} = {{ dtype = {one['dtype']!r}, shape = {list(one.get('shape', []))} }}" for name, one in STEP.items())
        config.write_text(CONFIG.format(step=step.replace("'", '"')))
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "memsvc.cli", "serve", str(config), "--ready-file", str(ready)]
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        while not ready.exists() or not ready.read_text().rstrip().endswith("}"):
            if self.process.poll() is not None:
                raise SystemExit(f"the server did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        self.addresses = json.loads(ready.read_text())

    def resident(self) -> int:
        """Bytes of memory that it has now, without what it shares with others."""
        pages, shared = (int(one) for one in Path(f"/proc/{self.process.pid}/statm").read_text().split()[1:3])
        return (pages - shared) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> int | None:
        """Ends it; the status that it had ended with before, None: it still ran."""
        ended = self.process.poll()
        self.process.terminate()
        self.process.wait(20)
        return ended


class Honest:
    """A process of real traffic (traffic.py), and the longest times that it told."""

    def __init__(self, address: str, number: int, shared: bool) -> None:
        secret = random.Random(number).getrandbits(63)
        command = [sys.executable, str(HERE / "traffic.py"), address, str(secret), str(number), "shared" if shared else "socket"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.last: dict[str, Any] = {"errors": [], "own": 0, "wrong": 0, "batches": 0, "steps": 0, "foreign": 0}
        self.longest: Counter[str] = Counter()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = json.loads(line)
            for what, seconds in self.last["longest"].items():
                self.longest[what] = max(self.longest[what], seconds)

    def close(self) -> None:
        """Ends it, and reads what it says last."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            if self.process.wait(60) != 0:
                self.last["errors"].append(f"a process of real traffic ended with {self.process.returncode}")
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.last["errors"].append("it did not end")
        self._reader.join(5)


class Attackers:
    """Processes (attackers.py), and the sum of what they say. Its own messages, those that ask for statistics, count like any other."""

    def __init__(self, daemon: Daemon, seed: int, processes: int) -> None:
        self._context = zmq.Context()
        self._framed = Framed(self._context, daemon.addresses, random.Random(seed))
        addresses = daemon.addresses | {name: self.stats()[name] for name in ("draw", "params", "beside")}
        command = [sys.executable, str(HERE / "attackers.py"), json.dumps(addresses)]
        self._processes = [
            subprocess.Popen([*command, str(seed + i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for i in range(processes)
        ]
        self.of: dict[str, Counter[str]] = {}
        self.longest = 0.0

    def stats(self) -> dict[str, Any]:
        """The server's."""
        return self._framed.stats()

    def run(self, messages: int, meanwhile: Callable[[], None]) -> None:
        """So many, or some more; `meanwhile` is called a few times a second. Raises Stalled."""
        for one in self._processes:
            assert one.stdin is not None
            one.stdin.write(f"{messages // len(self._processes)}\n")
            one.stdin.flush()
        told: list[str] = []
        readers = [threading.Thread(target=lambda one=one: told.append(one.stdout.readline())) for one in self._processes]
        for reader in readers:
            reader.start()
        for reader in readers:
            while reader.is_alive():
                reader.join(0.2)
                meanwhile()
        accounts = [json.loads(line) for line in told if line]
        if len(accounts) < len(readers):
            raise Stalled("a process of attackers has ended")
        self.of = {name: Counter() for name in ("sent", "answers", "raw", "side", "calls", "subscriptions")}
        for account in accounts:
            for name, numbers in self.of.items():
                numbers.update(account[name])
            self.longest = max(self.longest, account["longest"])
        if stalled := [account["stalled"] for account in accounts if account["stalled"]]:
            raise Stalled("; ".join(stalled))

    @property
    def sent(self) -> Counter[str]:
        """What the server must have counted."""
        return self.of["sent"] + self._framed.sent

    def close(self) -> None:
        """Ends them."""
        for one in self._processes:
            one.kill()
            one.wait()
        self._context.destroy(0)


class Memory:
    """What the server takes while it is attacked: its slope, once what is needed once is there; frames that are kept for reuse are told apart."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._seen: list[tuple[float, int]] = []
        self._queues: dict[str, int] = {}

    def begin(self, stats: dict[str, Any]) -> None:
        """From now on."""
        self._queues = stats["queues"]
        self.look()

    def look(self) -> None:
        """Now."""
        with contextlib.suppress(OSError, ValueError):  # it has ended
            self._seen.append((time.monotonic(), self._daemon.resident()))

    def judge(self, verdict: Verdict, stats: dict[str, Any]) -> None:
        """Says what was found."""
        self.look()
        times, sizes = (np.array(one, float) for one in zip(*self._seen, strict=True))
        slope = np.polyfit(times - times[0], sizes, 1)[0] if len(times) > 2 else 0.0
        fitted = slope * (times[-1] - times[0])
        pool = stats["queues"]["batches_bytes"] - self._queues["batches_bytes"]
        mib = [f"{sizes[int(at)] / 2**20:.0f}" for at in np.linspace(0, len(sizes) - 1, min(10, len(sizes)))]
        more = {name: size - self._queues[name] for name, size in stats["queues"].items() if size != self._queues[name]}
        verdict.say(
            "memory is flat",
            fitted - pool < GROWTH_BYTES,
            f"{' '.join(mib)} MiB; a line through it rises by {fitted / 2**20:.1f} MiB, of which {pool / 2**20:.1f} are frames kept for reuse",
        )
        print(f"     queues have grown by: {more}")


class Verdict:
    """Promises, and whether they were kept."""

    def __init__(self) -> None:
        self.kept = True

    def say(self, promise: str, kept: bool, found: str) -> None:
        """Prints one."""
        self.kept = self.kept and kept
        print(f"{'ok  ' if kept else 'FAIL'} {promise}: {found}", flush=True)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="of attackers")
    parser.add_argument("--calm", type=float, default=10.0, help="seconds of traffic alone, before")
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.messages:,} messages", flush=True)
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder, _running(Path(folder)) as (daemon, honest):
        _await(lambda: all(one.last["batches"] > 5 for one in honest) or any(one.last["errors"] for one in honest))
        attack = Attackers(daemon, asked.seed, asked.processes)
        for one in honest:
            one.longest.clear()
        time.sleep(asked.calm)
        calm = {what: max(one.longest[what] for one in honest) for what in ("sample", "flush")}
        stalled, began = "", time.monotonic()
        memory = Memory(daemon)
        try:
            attack.run(asked.messages // 4, lambda: None)  # what is needed once is there now
            memory.begin(attack.stats())
            for one in honest:
                one.longest.clear()
            attack.run(asked.messages - asked.messages // 4, memory.look)
        except Stalled as error:
            stalled = str(error)
        took = time.monotonic() - began
        hard = {what: max(one.longest[what] for one in honest) for what in ("sample", "flush")}
        verdict.say("it answers", not stalled, stalled or f"after {took:.0f} s; the longest wait of an attacker {attack.longest:.2f} s")
        alive = daemon.process.poll() is None
        if alive and not stalled:
            for one in honest:
                one.process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)  # what they had sent has been handled then
            stats = attack.stats()
            for one in honest:
                one.process.send_signal(signal.SIGCONT)
            _balance(verdict, attack, stats, honest)
            memory.judge(verdict, stats)
        for one in honest:
            one.close()
        attack.close()
        verdict.say("it lives", alive, "yes" if alive else f"ended with {daemon.process.poll()}")
        text = daemon.log.read_text(errors="replace")
        verdict.say(
            "nothing failed in it",
            "Traceback" not in text,
            text[text.find("Traceback") :][:3000] if "Traceback" in text else "no traceback in its log",
        )
        wrong, errors = sum(one.last["wrong"] for one in honest), [error for one in honest for error in one.last["errors"]]
        own, foreign = (sum(one.last[what] for one in honest) for what in ("own", "foreign"))
        verdict.say(
            "no wrong item", wrong == 0 and own > 0, f"{own:,} items of the honest checked, {wrong} wrong; {foreign:,} of the attacker's drawn"
        )
        verdict.say("nobody else noticed", not errors, "; ".join(errors) or f"{sum(one.last['steps'] for one in honest):,} steps acknowledged")
        for what in ("sample", "flush"):
            verdict.say(f"no stall: longest {what}", hard[what] < LONGEST_S, f"{hard[what] * 1e3:.0f} ms, {calm[what] * 1e3:.0f} ms when calm")
    return 0 if verdict.kept else 1


def _balance(verdict: Verdict, attack: Attackers, stats: dict[str, Any], honest: list[Honest]) -> None:
    counts, sent, raw = stats["counts"], attack.sent, sum(attack.of["raw"].values())
    pids = {one.process.pid for one in honest}
    of_honest = sum(peer["messages"] for peer in stats["peers"] if peer["pid"] in pids)
    arrived = counts["messages"] - of_honest
    verdict.say("every frame that was one is counted", arrived == sent["messages"], f"{sent['messages']:,} sent, {arrived:,} counted")
    unread, told = counts["unreadable"], counts["refused"]
    # What begins unlike zmq's greeting of today is taken for its first one, and then some of what follows for frames.
    first = unread - sent["unreadable"]
    verdict.say(
        "every frame that was none is counted", 0 <= first <= raw, f"{sent['unreadable']:,} sent, and {first:,} of {raw:,} connections that broke off"
    )
    verdict.say("no request has failed in the server", counts["failures"] == 0, f"{counts['failures']} failures")
    carried, frames = sent["carried"], sum(sent.values())
    print(f"     {frames:,} frames = {arrived:,} messages + {unread - first:,} unreadable + {carried:,} SHARED or PART; {told:,} refused")
    print(f"     counted: {counts}")
    print(f"     answers: {dict(attack.of['answers'].most_common())}")
    print(f"     raw connections: {dict(attack.of['raw'])}; packets beside: {dict(attack.of['side'])}")
    print(f"     subscriptions: {attack.of['subscriptions']['sent']:,}; gRPC: {dict(attack.of['calls'])}")


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[tuple[Daemon, list[Honest]]]:
    daemon, honest = Daemon(folder), []
    try:
        honest = [Honest(daemon.addresses["address"], number, number % 2 == 0) for number in range(2)]
        yield daemon, honest
    finally:
        for one in honest:
            if one.process.poll() is None:
                one.process.kill()
        daemon.close()


def _await(done: Any, timeout_s: float = 60.0) -> None:
    end = time.monotonic() + timeout_s
    while not done() and time.monotonic() < end:
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
