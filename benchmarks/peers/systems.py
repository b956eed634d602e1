"""Which systems are compared, in which of the metrics that mean something for them, and what memsvc's ratios to them ought to be."""

from __future__ import annotations

from dataclasses import dataclass

# metric: (what the runner is asked, what it is, unit). Two figures come out of "mixed".
METRICS: dict[str, tuple[str, str, str]] = {
    "A/sample": ("sample", "sample A: batches of 256, 28 KB an item", "items/s"),
    "A/sample_update": ("sample_update", "sample + update A", "items/s"),
    "A/sync": ("sync", "one synchronous batch A, p50", "ms"),
    "A/insert": ("insert", "insert A, one actor process", "items/s"),
    "A/mixed_sample": ("mixed", "mixed A: the learner's rate", "items/s"),
    "A/mixed_insert": ("mixed", "mixed A: the actor's rate", "items/s"),
    "B/sample": ("sample", "sample B: batches of 256, 168 B an item", "items/s"),
    "B/sample_update": ("sample_update", "sample + update B", "items/s"),
    "B/sync": ("sync", "one synchronous batch B, p50", "ms"),
    "B/add": ("add", "insert B, one by one", "items/s"),
    "B/add_batch": ("add_batch", "insert B, 512 at a time", "items/s"),
    "C/sample": ("sample", "sample C: batches of 32, 565 KB an item", "items/s"),
}


@dataclass(frozen=True)
class Entry:
    """A system: its environment (peers/environments.py), its class, and the metrics in which it is compared.

    `freeze`: its processes are stopped while others are measured. memsvc's are not: idle, they exchange heartbeats alone.
    """

    environment: str
    module: str
    kind: str
    metrics: tuple[str, ...]
    freeze: bool = True
    optional: bool = False


_SERVED = tuple(METRICS)
_MIXED = ("A/mixed_sample", "A/mixed_insert")

SYSTEMS: dict[str, Entry] = {
    "memsvc": Entry("memsvc", "peers.memsvc_peer", "Apart", _SERVED, freeze=False),
    "memsvc-tcp": Entry("memsvc", "peers.memsvc_peer", "Sockets", ("A/sample",), freeze=False),
    "memsvc-inside": Entry("memsvc", "peers.memsvc_peer", "Inside", ("A/sample", "B/sample", "B/sample_update"), freeze=False),
    "reverb": Entry("reverb", "peers.reverb_peer", "Reverb", _SERVED),
    "cpprb-shared": Entry("cpprb", "peers.cpprb_peer", "Shared", tuple(name for name in METRICS if name not in ("B/add", "C/sample"))),
    "cpprb": Entry("cpprb", "peers.cpprb_peer", "Inside", ("A/sample", "B/sample", "B/sample_update", "B/add")),
    "tianshou": Entry("tianshou", "peers.tianshou_peer", "Vector", ("A/sample", "B/sample", "B/sample_update")),
    "echo": Entry("echo", "peers.echo_peer", "Queue", ("A/insert", "B/add")),
    "rllib": Entry(
        "rllib", "peers.rllib_peer", "Rllib", ("A/sample", "A/sample_update", "A/insert", *_MIXED, "B/sample", "B/sample_update", "B/add_batch")
    ),
    "transferqueue": Entry("transferqueue", "peers.transferqueue_peer", "TransferQueue", ("A/sample", "A/insert", "B/sample", "B/add_batch")),
    "torchrl": Entry("torchrl", "peers.torchrl_peer", "Prioritized", ("A/sample", "B/sample", "B/sample_update"), optional=True),
    "numpy": Entry("numpy", "peers.floor", "Ring", ("A/sample", "B/sample", "C/sample")),
}

# (metric, memsvc's system, the peers of which the best counts, at least this many times as much)
RATIOS: tuple[tuple[str, str, tuple[str, ...], float], ...] = (
    ("A/sample", "memsvc", ("reverb",), 10),
    ("A/sample", "memsvc", ("cpprb-shared",), 1),
    ("A/sample", "memsvc-tcp", ("reverb",), 3),
    ("A/sample", "memsvc-inside", ("cpprb", "tianshou"), 1),
    ("A/insert", "memsvc", ("reverb",), 8),
    ("A/insert", "memsvc", ("echo",), 2.5),
    ("A/mixed_sample", "memsvc", ("reverb",), 6),
    ("A/mixed_insert", "memsvc", ("reverb",), 6),
    ("B/sample", "memsvc", ("reverb",), 40),
    ("B/sample", "memsvc", ("cpprb-shared",), 2),
    ("B/sample", "memsvc-inside", ("cpprb", "tianshou"), 2.5),
    ("B/sample_update", "memsvc", ("reverb",), 30),
    ("B/sample_update", "memsvc", ("cpprb-shared",), 4),
    ("B/add", "memsvc", ("reverb",), 8),
    ("B/add", "memsvc", ("cpprb",), 4),
    ("B/add_batch", "memsvc", ("reverb",), 80),
    ("C/sample", "memsvc", ("reverb",), 5),
)

# (metric, memsvc's system, field of the row, the bound): at least for rates, at most for milliseconds and CPU seconds per GB; on two idle cores.
BOUNDS: tuple[tuple[str, str, str, float], ...] = (
    ("A/sample", "memsvc", "median", 500e3),
    ("A/sample", "memsvc", "cpu_s_per_gb", 0.08),
    ("A/sample", "memsvc-tcp", "gb_per_s", 3),
    ("A/sample", "memsvc-tcp", "cpu_s_per_gb", 0.45),
    ("A/sync", "memsvc", "median", 0.6),
    ("A/insert", "memsvc", "median", 150e3),
    ("A/insert", "memsvc", "cpu_s_per_gb", 0.4),
    ("B/sample", "memsvc", "median", 3e6),
    ("B/sample", "memsvc-inside", "median", 6e6),
    ("B/sample_update", "memsvc", "median", 1.5e6),
    ("B/sync", "memsvc", "median", 0.15),
    ("B/add", "memsvc", "median", 250e3),
    ("B/add_batch", "memsvc", "median", 2.5e6),
    ("C/sample", "memsvc", "gb_per_s", 14),
)
