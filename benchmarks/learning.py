"""Runs the learning proofs of clients/examples/learning/ and draws their curves: `python benchmarks/learning.py [--only dqn] [--seeds 0 1 2] ...`.

Says whether each reaches a greedy mean return of 195 over 100 episodes of CartPole-v1, after how many environment steps, and what it cost.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import machine
import matplotlib
import torch

matplotlib.use("Agg")  # needs no display
from matplotlib import pyplot

RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(Path(__file__).parents[1] / "clients" / "examples" / "learning"))
TITLES = {
    "dqn": "prioritized 3-step double DQN",
    "r2d2": "R2D2-style, velocities hidden",
    "impala": "IMPALA-style: V-trace from a queue",
    "dapo": "DAPO: the newest 20 episodes of the actor",
}
GOAL = 195.0


def runs(only: list[str], seeds: list[int], quick: bool) -> list[dict[str, Any]]:
    """One row a run: the curve and its figures. R2D2's network without memory gets as many steps as the longest run with one."""
    rows = []
    for name in only:
        train = importlib.import_module(name).train
        limit: dict[str, Any] = {"steps": 10_240} if quick else {}
        mine = [row(name, train, seed, **limit) for seed in seeds]
        if name == "r2d2":
            longest = max(mine, key=lambda one: one["steps"][-1])["steps"][-1]
            mine += [row(name, train, seed, steps=longest, recurrent=False) for seed in seeds]
        rows += mine
    return rows


def row(name: str, train: Any, seed: int, **settings: Any) -> dict[str, Any]:
    """One run."""
    cpu = time.process_time()
    curve = train(seed=seed, **settings)
    return {
        "proof": name,
        "algorithm": curve.name,
        "seed": seed,
        "baseline": settings.get("recurrent") is False,
        "steps": curve.steps,
        "returns": [round(mean, 2) for mean in curve.returns],
        "solved_at": curve.solved_at,
        "best": max(curve.returns, default=0.0),
        "seconds": round(curve.seconds, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def draw(rows: list[dict[str, Any]], about: dict[str, Any], path: Path) -> None:
    """One panel a proof, one line a seed; grey is R2D2's learner without a memory."""
    figure, panels = pyplot.subplots(2, 2, figsize=(11, 7), dpi=120, sharey=True)
    for panel, (name, title) in zip(panels.flat, TITLES.items(), strict=True):
        for one in (one for one in rows if one["proof"] == name):
            label = ("feed-forward, as many weights" if one["seed"] == 0 else None) if one["baseline"] else f"seed {one['seed']}"
            style: dict[str, Any] = {"color": "0.6", "linestyle": ":"} if one["baseline"] else {"marker": ".", "color": f"C{one['seed']}"}
            panel.plot(one["steps"], one["returns"], label=label, **style)
        panel.axhline(GOAL, color="tab:green", linestyle="--", linewidth=1)
        panel.set(title=title, xlabel="environment steps", ylabel="greedy mean return (100 episodes)", ylim=(0, 510))
        panel.set_xlim(left=0)
        panel.grid(alpha=0.3)
        if panel.lines[:-1]:
            panel.legend(fontsize="x-small", framealpha=0.5)
    figure.suptitle("CartPole-v1 learned through memsvc (dashed: 195, solved; 500 is perfect)")
    figure.text(0.01, 0.005, f"{about['command']}   {about['commit']}   {about['date']}   {about['machine']['cpu']}", fontsize=6, color="0.4")
    figure.tight_layout(rect=(0, 0.015, 1, 1))
    figure.savefig(path)
    pyplot.close(figure)


def main(argv: list[str]) -> int:
    """Runs what is asked for and writes learning.jsonl and learning.png. 0: every run reached 195, but none without memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(TITLES), help="may be repeated; default: all four")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="10,240 steps a run: a check that it runs, no figures to keep")
    parser.add_argument("--out", type=Path, help="folder; default: results for a whole run, else nowhere")
    args = parser.parse_args(argv)
    whole = not (args.only or args.quick)
    out = args.out or (RESULTS if whole else None)
    torch.set_num_threads(1)
    command = shlex.join(["python", "benchmarks/learning.py", *argv])
    about = {"date": machine.now(), "commit": machine.commit(), "command": command, "machine": machine.describe() | {"torch": torch.__version__}}
    rows = [about | one for one in runs(args.only or list(TITLES), args.seeds, args.quick)]
    for one in rows:
        reached = f"195 after {one['solved_at']:,} steps" if one["solved_at"] is not None else "195 not reached"
        print(f"{one['algorithm']:<20} seed {one['seed']}: {reached}, best {one['best']:.1f}, {one['seconds']:.0f} s, {one['cpu_seconds']:.0f} CPU-s")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "learning.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        draw(rows, about, out / "learning.png")
        print(f"{len(rows)} rows in {out / 'learning.jsonl'}, curves in {out / 'learning.png'}")
    return 0 if args.quick or all((one["solved_at"] is None) == one["baseline"] for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
