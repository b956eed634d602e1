"""The same work side by side, memsvc and its peers in turns: `python benchmarks/compare.py [--quick] [--only A/sample ...] [--peers NAME ...]`."""

from __future__ import annotations

import argparse
import fnmatch
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import machine
from peers.environments import interpreter, versions
from peers.picture import draw
from peers.system import Failed, System
from peers.systems import METRICS, SYSTEMS
from peers.verdict import figures, rate, table
from workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results" / "compare.jsonl"


def work(letter: str, smaller: int) -> dict[str, Any]:
    """The workload as the peers take it (peers.peer.Work): plain data, since their environments know nothing of this one."""
    workload = WORKLOADS[letter].smaller(smaller)
    fields = [[name, dtype, list(shape)] for name, dtype, shape in workload.fields]
    if workload.length > 1:
        fields.append(["discount", "float32", []])
    return {
        "name": letter,
        "fields": fields,
        "length": workload.length,
        "items": workload.items,
        "batch": workload.batch,
        "config": workload.config("tcp://127.0.0.1:0"),
    }


class Stage:
    """All systems of one workload, open and filled, one at a time awake. A context manager; leaving it ends every process."""

    def __init__(self, letter: str, names: list[str], metrics: list[str], args: argparse.Namespace) -> None:
        self._args, self._metrics = args, metrics
        self._stack = ExitStack()
        self._live: dict[str, System] = {}
        self._failed: dict[tuple[str, str], str] = {}
        self._runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._memcpy: dict[str, float] = {}
        self.names, self.work = names, work(letter, 20 if args.quick else 1)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def open(self, logs: Path) -> None:
        """Starts and fills each system in turn. One that fails is left out of this stage."""
        for name in self.names:
            entry, start = SYSTEMS[name], time.monotonic()
            if name in self._args.missing:
                self._drop(name, self._args.missing[name])
                continue
            try:
                system = System(name, entry.environment, entry.module, entry.kind, logs / f"{name}.log")
                self._stack.callback(system.close)
                self._live[name] = system
                system.ask(180, do="open", work=self.work)
                system.ask(180, do="fill")
            except Failed as failure:
                self._drop(name, str(failure))
                continue
            self._sleep(name)
            print(f"  {name}: open and full after {time.monotonic() - start:.1f} s", flush=True)

    def _sleep(self, name: str) -> None:
        if SYSTEMS[name].freeze and name in self._live:
            self._live[name].freeze()

    def _drop(self, name: str, reason: str) -> None:
        print(f"  {name} FAILED: {reason}", flush=True)
        self._failed |= {(metric, name): reason for metric in self._metrics if (metric, name) not in self._runs}
        system = self._live.pop(name, None)
        if system is not None:
            system.close()

    def _once(self, name: str, do: str, seconds: float) -> dict[str, Any]:
        system = self._live[name]
        system.thaw()
        before = system.cpu_seconds()
        answer = system.ask(90 + seconds, do=do, seconds=seconds)
        answer["cpu_seconds"] = system.cpu_seconds() - before
        self._sleep(name)
        return answer

    def measure(self, do: str) -> None:
        """One request to every system that has it, in turns: a short one first, then `repeats` rounds. Fills what rows() gives."""
        metrics = [metric for metric in self._metrics if METRICS[metric][0] == do]
        taking = [name for name in self.names if set(SYSTEMS[name].metrics) & set(metrics)]
        self._memcpy |= dict.fromkeys(metrics, machine.memcpy_rate())
        for turn in range(-1, self._args.repeats):
            for name in [name for name in taking if name in self._live]:
                if (metrics[0], name) in self._failed:
                    continue
                try:
                    run = self._once(name, do, min(0.2, self._args.seconds) if turn < 0 else self._args.seconds)
                except Failed as failure:
                    self._failed |= {(metric, name): str(failure) for metric in metrics}
                    print(f"  {name} {do} FAILED: {failure}", flush=True)
                    if failure.lost:
                        self._drop(name, str(failure))
                    else:
                        self._sleep(name)
                    continue
                if turn >= 0:
                    for metric in metrics:
                        self._runs.setdefault((metric, name), []).append(run)
                        print(f"  {metric:<16}{name:<16}{rate(metric, run):14,.{3 if METRICS[metric][2] == 'ms' else 0}f}", flush=True)

    def rows(self, item_bytes: int) -> list[dict[str, Any]]:
        """One row a metric and system, in the order of the tables."""
        made: list[dict[str, Any]] = []
        for metric in self._metrics:
            for name in self.names:
                if metric not in SYSTEMS[name].metrics:
                    continue
                memcpy = self._memcpy[metric]
                row = {"workload": self.work["name"], "metric": metric, "system": name, "unit": METRICS[metric][2], "item_bytes": item_bytes}
                row |= {"table_items": self.work["items"], "seconds": self._args.seconds, "memcpy_bytes_per_s": memcpy}
                if METRICS[metric][0] in ("sample", "sample_update", "sync") or metric.endswith("mixed_sample"):
                    row["batch"] = self.work["batch"]
                if (metric, name) in self._failed:
                    row["failed"] = self._failed[metric, name]
                else:
                    row |= figures(metric, self._runs[metric, name], item_bytes, memcpy)
                made.append(row)
        return made


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="METRIC", help=f"of {', '.join(METRICS)}; * matches all")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help=f"of {', '.join(SYSTEMS)}; memsvc always takes part")
    parser.add_argument("--with-torchrl", action="store_true", help="torchrl too: its torch takes gigabytes")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; in each, every system has its turn")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    parser.add_argument("--quick", action="store_true", help=".3 s a turn, one round, tables a twentieth: a check that it runs, no figures to keep")
    parser.add_argument(
        "--out", type=Path, help=f"JSON lines, and the picture beside them; default: {RESULTS.parent.name}/{RESULTS.name}, or nowhere if --quick"
    )
    args = parser.parse_args(argv)
    if args.quick:
        args.seconds, args.repeats = 0.3, 1
    elif args.out is None:
        args.out = RESULTS
    unknown = [name for name in args.peers or [] if name not in SYSTEMS]
    if unknown:
        parser.error(f"--peers {' '.join(unknown)}: expected some of {', '.join(SYSTEMS)}")
    args.metrics = [metric for metric in METRICS if any(fnmatch.fnmatch(metric, pattern) for pattern in args.only)]
    if not args.metrics:
        parser.error(f"--only {' '.join(args.only)}: expected some of {', '.join(METRICS)}")
    chosen = [name for name, entry in SYSTEMS.items() if not entry.optional or args.with_torchrl]
    args.systems = [name for name in chosen if args.peers is None or name in args.peers or name.startswith("memsvc")]
    return args


def about(argv: list[str]) -> dict[str, Any]:
    """What all rows share."""
    command = shlex.join(["python", "benchmarks/compare.py", *argv])
    return {"date": machine.now(), "commit": machine.commit(), "command": command, "machine": machine.describe()}


def prepared(names: list[str]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Makes missing environments before anything is timed: versions by system, and reasons by system whose environment is not to be had."""
    found: dict[str, dict[str, str]] = {}
    missing: dict[str, str] = {}
    for name in names:
        environment = SYSTEMS[name].environment
        try:
            interpreter(environment)
            found[name] = versions(environment)
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            found[name], missing[name] = {}, str(error)
    return found, missing


def main(argv: list[str]) -> int:
    """Workload by workload: opens the systems, measures, ends them. Writes rows and picture at the end of each; prints the table last."""
    args = parse(argv)
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    shared, (named, args.missing) = about(argv), prepared(args.systems)
    rows: list[dict[str, Any]] = []
    for letter, workload in WORKLOADS.items():
        metrics = [metric for metric in args.metrics if metric.startswith(f"{letter}/")]
        names = [name for name in args.systems if set(SYSTEMS[name].metrics) & set(metrics)]
        if not metrics:
            continue
        print(f"workload {letter}, {workload.item_bytes:,} B an item", flush=True)
        with tempfile.TemporaryDirectory(prefix="compare-") as logs, Stage(letter, names, metrics, args) as stage:
            stage.open(Path(logs))
            for do in dict.fromkeys(METRICS[metric][0] for metric in metrics):
                stage.measure(do)
            rows += [shared | {"versions": named[row["system"]]} | row for row in stage.rows(workload.item_bytes)]
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
            draw(rows, args.out.with_suffix(".png"))
    print("\n".join(table(rows)))
    if args.out:
        print(f"{len(rows)} rows in {args.out}, picture in {args.out.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
