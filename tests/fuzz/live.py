"""Hostile messages on every port of a `memsvc serve` while real actors and learners go on; at the end: was anything hurt, and is each accounted for?

    python tests/fuzz/live.py [--messages 1000000] [--seed 1] [--calm 10]

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq
from mutate import METAS
from senders import BURST, Framed, Raw, Side, Stalled, Subscribers
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
GROWTH_BYTES = 64 << 20


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


class Calls:
    """gRPC requests whose settings and names are none."""

    def __init__(self, address: str, rng: random.Random) -> None:
        import grpc
        from memsvc_proto import control_pb2, control_pb2_grpc

        self._rng, self._pb, self._error = rng, control_pb2, grpc.RpcError
        self._channel = grpc.insecure_channel(address)
        self._stub: Any = control_pb2_grpc.ControlStub(self._channel)
        self.sent: Counter[str] = Counter()

    def call(self) -> int:
        """One request, and its answer's status."""
        rng, pb = self._rng, self._pb
        name = rng.choice(("all", "caches", "", "x" * 10_000, "all\0"))
        text = rng.choice(METAS).decode("utf-8", "replace")
        requests = (
            (self._stub.Configure, pb.ConfigureRequest(name=name, settings_json=text)),
            (self._stub.TableInfo, pb.TableInfoRequest(name=name)),
        )
        call, request = rng.choice(requests)
        try:
            call(request, timeout=30)
            self.sent["OK"] += 1
        except self._error as error:
            self.sent[error.code().name] += 1
        return 1

    def close(self) -> None:
        """Ends the channel."""
        self._channel.close()


class Attack:
    """All senders, and the order in which they take their turns."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        rng = random.Random(seed)
        self._rng = rng
        self._context = zmq.Context()
        addresses = dict(daemon.addresses)
        self.framed = Framed(self._context, addresses, rng)
        addresses |= {name: self.stats()[name] for name in ("draw", "params", "beside")}
        ports = [_port(addresses[name]) for name in ("address", "draw", "params", "control")]
        self.raw = Raw(ports, rng)
        self.subscribers = Subscribers(self._context, addresses["params"], rng)
        self.side = Side(addresses["beside"], self.framed, self._context, addresses["address"], rng)
        self.calls = Calls(addresses["control"], rng)

    def stats(self) -> dict[str, Any]:
        """The server's, by a message that counts like any other."""
        return self.framed.stats()

    def run(self, messages: int) -> None:
        """So many, or a few more. Raises Stalled."""
        sent, burst = 0, min(BURST, max(messages // 40, 20))
        while sent < messages:
            choice = self._rng.random()
            if choice < 0.35:
                sent += self.framed.connection("door", burst)
            elif choice < 0.65:
                sent += self.framed.connection("draw", burst)
            elif choice < 0.8:
                sent += sum(self.raw.connection() for _ in range(max(burst // 8, 4)))
            elif choice < 0.88:
                sent += sum(self.side.connection() for _ in range(max(burst // 20, 2)))
            elif choice < 0.94:
                sent += self.side.channel(max(burst // 4, 8))
            elif choice < 0.98:
                sent += self.subscribers.connection(burst)
            else:
                sent += sum(self.calls.call() for _ in range(4))

    def close(self) -> None:
        """Ends what is open."""
        self.raw.close()
        self.calls.close()
        self._context.destroy(0)


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
    parser.add_argument("--calm", type=float, default=10.0, help="seconds of traffic alone, before")
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.messages:,} messages", flush=True)
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder, _running(Path(folder)) as (daemon, honest):
        _await(lambda: all(one.last["batches"] > 5 for one in honest) or any(one.last["errors"] for one in honest))
        attack = Attack(daemon, asked.seed)
        for one in honest:
            one.longest.clear()
        time.sleep(asked.calm)
        calm = {what: max(one.longest[what] for one in honest) for what in ("sample", "flush")}
        stalled = ""
        try:
            attack.run(asked.messages // 20)  # what is needed once is there now
            before, began = daemon.resident(), time.monotonic()
            for one in honest:
                one.longest.clear()
            attack.run(asked.messages - asked.messages // 20)
        except Stalled as error:
            stalled = str(error)
        took = time.monotonic() - began
        hard = {what: max(one.longest[what] for one in honest) for what in ("sample", "flush")}
        attack.raw.close()
        verdict.say("it answers", not stalled, stalled or f"after {took:.0f} s; the longest wait of the attacker {attack.framed.longest:.2f} s")
        alive = daemon.process.poll() is None
        if alive and not stalled:
            for one in honest:
                one.process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)  # what they had sent has been handled then
            after, stats = daemon.resident(), attack.stats()
            for one in honest:
                one.process.send_signal(signal.SIGCONT)
            _balance(verdict, attack, stats, honest)
            verdict.say("memory is flat", after - before < GROWTH_BYTES, f"{before >> 20} MiB, then {after >> 20} MiB")
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


def _balance(verdict: Verdict, attack: Attack, stats: dict[str, Any], honest: list[Honest]) -> None:
    counts, sent, raw = stats["counts"], attack.framed.sent, sum(attack.raw.sent.values())
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
    print(f"     answers: {dict(attack.framed.answers.most_common())}")
    print(f"     raw connections: {dict(attack.raw.sent)}; packets beside: {dict(attack.side.sent)}")
    print(f"     subscriptions: {attack.subscribers.sent:,}; gRPC: {dict(attack.calls.sent)}")


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


def _port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition("/")[2].rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
