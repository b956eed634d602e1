"""Parameters to every process of one host, beside plain ZMQ PUB/SUB: `python benchmarks/parameters.py [--quick]`.

A round is one publication: milliseconds from the call until the last subscriber, each a process of its own, has the arrays. Rounds of memsvc (a
daemon in a process of its own, actors that look again and again) and of PUB/SUB over ipc (one safetensors blob, read without a copy) alternate.
Writes results/parameters.jsonl, a row a size.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import machine
import numpy as np
import safetensors.numpy
import zmq
from memsvc_client import Actor, Learner, NotReady, Params

import memsvc

RESULTS = Path(__file__).parent / "results"
CASES = ((10_000_000, 4, 5.0), (100_000_000, 16, 30.0))  # bytes, subscribers, target in ms
WARM = 3  # rounds that count for nothing: they touch the memory for the first time
ARRAYS = 20
REST_S = 0.05  # before each round, so that what the one before has set going has come to rest and is not timed again
LOOKS_S = 60e-6  # between two looks of all subscribers together: about a fifth of a core goes into them
CONFIG = """
[server]
address = "ipc://{where}/server"
memory  = "8MiB"
control = ""
http    = ""
[step]
x = {{ dtype = "float32" }}
[[table]]
name = "replay"
item = {{ kind = "step" }}
"""

Pipe = Any  # multiprocessing's connection, generic only for the type checker


def serve(where: str, pipe: Pipe) -> None:
    """The daemon's process."""
    with memsvc.Server(memsvc.Config.parse(CONFIG.format(where=where))):
        pipe.send("ready")
        pipe.recv()


def seen(arrays: Mapping[str, Any]) -> tuple[float, float]:
    """The first number and the last: they must be those that were published."""
    return float(arrays["layer0.weight"].flat[0]), float(arrays[f"layer{ARRAYS - 1}.weight"].flat[-1])


def next_params(actor: Actor, pause: float) -> Params | None:
    """What comes within a few hundred looks, or None. It looks again and again, as an actor does that plays."""
    for _ in range(500):
        with suppress(NotReady):
            params = actor.params(timeout=0.25)
            if params is not None:
                return params
        time.sleep(pause)
    return None


def follow(where: str, pipe: Pipe) -> None:
    """An actor that reports when it has which version."""
    pause = pipe.recv()
    with Actor(f"ipc://{where}/server", timeout=60) as actor:
        pipe.send("ready")
        while not pipe.poll(0):
            params = next_params(actor, pause)
            if params is not None:
                pipe.send((params.version, time.monotonic(), seen(params.arrays)))


def subscribe(where: str, pipe: Pipe) -> None:
    """A SUB that reports when it has which blob; the first ones, of one byte, say that the subscription stands."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(f"ipc://{where}/plain")
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        version = 0
        while not pipe.poll(0):
            if not socket.poll(100):
                continue
            raw = socket.recv(copy=False).buffer
            if raw.nbytes == 1:
                if not version:
                    pipe.send("ready")
                    version = 1
                continue
            data = np.frombuffer(raw, np.uint8)
            start = 8 + int.from_bytes(raw[:8], "little")
            arrays = {}
            for name, part in json.loads(bytes(raw[8:start])).items():
                begin, end = part["data_offsets"]
                arrays[name] = data[start + begin : start + end].view(np.float32).reshape(part["shape"])
            pipe.send((version, time.monotonic(), seen(arrays)))
            version += 1


@contextmanager
def processes(target: Any, count: int, where: str) -> Iterator[list[Pipe]]:
    """Processes that run `target`, and a pipe to each; they end when it is written to."""
    spawn = multiprocessing.get_context("spawn")
    pairs = [spawn.Pipe() for _ in range(count)]
    started = [spawn.Process(target=target, args=(where, theirs), daemon=True) for _, theirs in pairs]
    for process in started:
        process.start()
    try:
        yield [ours for ours, _ in pairs]
    finally:
        for ours, _ in pairs:
            ours.send("end")
        for process in started:
            process.join(10)
            process.kill()


def ready(pipes: list[Pipe]) -> bool:
    """Whether all say so by now."""
    for pipe in pipes:
        if not pipe.poll(0):
            return False
    return all(pipe.recv() == "ready" for pipe in pipes)


def awaited(pipes: list[Pipe], version: int, numbers: tuple[float, float]) -> float:
    """When the last has this version, which has these numbers; earlier ones that a slow one still reports are passed over."""
    times = []
    for pipe in pipes:
        while True:
            if not pipe.poll(120):
                raise TimeoutError(f"a subscriber has not had version {version} within 120 s")
            got, at, its = pipe.recv()
            if got >= version:
                if its != numbers:
                    raise ValueError(f"version {got} arrived with {its} instead of {numbers}")
                times.append(at)
                break
    return max(times)


def measure(size: int, subscribers: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each round, of both."""
    rows = np.random.default_rng(1).standard_normal((ARRAYS, size // 4 // ARRAYS)).astype(np.float32)
    params = {f"layer{i}.weight": row for i, row in enumerate(rows)}
    shared, plain = [], []
    with ExitStack() as stack:
        where = stack.enter_context(tempfile.TemporaryDirectory())
        (server,) = stack.enter_context(processes(serve, 1, where))
        server.recv()
        context = stack.enter_context(zmq.Context())
        socket = stack.enter_context(context.socket(zmq.PUB))
        socket.bind(f"ipc://{where}/plain")
        learner = stack.enter_context(Learner(f"ipc://{where}/server", table="replay"))
        actors = stack.enter_context(processes(follow, subscribers, where))
        subs = stack.enter_context(processes(subscribe, subscribers, where))
        for pipe in actors:
            pipe.send(LOOKS_S * subscribers)
        for pipe in actors:
            pipe.recv()
        while not ready(subs):
            socket.send(b"-")
            time.sleep(REST_S)
        for i in range(WARM + rounds):
            rows += 1
            time.sleep(REST_S)
            start = time.monotonic()
            version = learner.publish(params)
            shared.append(1e3 * (awaited(actors, version, seen(params)) - start))
            time.sleep(REST_S)
            start = time.monotonic()
            socket.send(safetensors.numpy.save(params), copy=False)
            plain.append(1e3 * (awaited(subs, i + 1, seen(params)) - start))
    return {
        "bytes": size,
        "subscribers": subscribers,
        "first_ms": round(shared[0], 2),
        "ms": [round(one, 2) for one in shared[WARM:]],
        "plain_ms": [round(one, 2) for one in plain[WARM:]],
        "median_ms": round(median(shared[WARM:]), 2),
        "plain_median_ms": round(median(plain[WARM:]), 2),
        "ratio": round(median(plain[WARM:]) / median(shared[WARM:]), 2),
    }


def main(argv: list[str]) -> int:
    """Measures all sizes, prints and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, few rounds: a check that it runs")
    parser.add_argument("--only", type=int, choices=range(len(CASES)), default=None, help="this case alone")
    parser.add_argument("--out", type=Path, default=None, help=f"folder; default: {RESULTS.name}/, nothing with --quick or --only")
    args = parser.parse_args(argv)
    about = machine.about("parameters.py", argv, memcpy_bytes_per_s=round(machine.memcpy_rate()))
    rows = []
    for size, subscribers, target in CASES if args.only is None else CASES[args.only : args.only + 1]:
        row = measure(size // 10, min(subscribers, 4), 3) if args.quick else measure(size, subscribers, 15)
        rows.append(about | row)
        took = f"{row['median_ms']:.2f} ms (first {row['first_ms']:.0f}, best {min(row['ms']):.2f})"
        print(f"{row['bytes'] / 1e6:g} MB to {row['subscribers']}: {took}, PUB/SUB {row['plain_median_ms']:.2f} ms, {row['ratio']:.1f} x", flush=True)
        if not args.quick:
            print(f"    target: {target:g} ms and 5 x, on an idle machine of two cores", flush=True)
    out = args.out or (None if args.quick or args.only is not None else RESULTS)
    if out:
        machine.keep(rows, out / "parameters.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
