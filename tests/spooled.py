"""What tests of a spool's files put into it, and what the next process finds."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from memsvc_client.reel import Reel
from memsvc_client.spool import Spool
from memsvc_client.volume import RECORD_BYTES

LASTING: dict[str, Any] = {"schema": [["obs", "<f4", [3]]], "tables": [{"name": "replay", "item": {"kind": "step", "n_step": 3}}]}
SESSION = "00000000000000ab"


def frame_of(number: int, size: int = 1000) -> np.ndarray:
    frame = np.zeros(RECORD_BYTES + size, np.uint8)
    frame[RECORD_BYTES:] = np.random.default_rng(number).integers(0, 256, size, np.uint8)
    return frame


def put(reel: Reel, *numbers: int, size: int = 1000) -> list[bool]:
    return [reel.append(n, 10 * n, 0, 100 * n, frame_of(n, size)) for n in numbers]


def begin(spool: Spool, session: str = SESSION, streams: list[int] | None = None) -> Reel:
    return spool.begin("actor-7", session, [1, 2] if streams is None else streams, "default", LASTING)


def files(path: Path) -> list[Path]:
    return sorted(path.glob("memsvc-*.spool"))


def abandon(spool: Spool) -> None:
    """As after a kill: the files stay as they are."""
    spool._let_go()


def left(path: Path) -> tuple[list[int], Spool]:
    """The numbers that a new process finds and can read."""
    spool = Spool(path, 1 << 20, "b")
    numbers = []
    for reel in spool.earlier:
        for number in range(1, reel.last + 1):
            found = reel.record(number)
            if found is not None:
                assert found[:4] == (number, 10 * number, 0, 100 * number)
                payload = found.frame[RECORD_BYTES:]
                assert np.array_equal(payload, frame_of(number, payload.nbytes)[RECORD_BYTES:])
                numbers.append(number)
    return numbers, spool


def python(code: str, code_expected: int = 0) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code_expected, done.stderr
    return done.stdout.strip()
