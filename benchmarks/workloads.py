"""The three workloads of the comparison under the letters that the figures use; memsvc/bench/workloads.py says what they are."""

from __future__ import annotations

from dataclasses import replace

from memsvc.bench.workloads import EPISODE, Workload
from memsvc.bench.workloads import WORKLOADS as BUILT_IN

WORKLOADS = {letter: replace(BUILT_IN[name], name=letter) for letter, name in (("A", "pixels"), ("B", "vector"), ("C", "sequence"))}

__all__ = ["EPISODE", "WORKLOADS", "Workload"]
