"""`make chaos`: CHAOS_S seconds of faults (180) from CHAOS_SEED (the time). The folder of a run that failed is kept, and named."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .run import chaos

if __name__ == "__main__":
    seed = int(os.environ.get("CHAOS_SEED") or time.time_ns() // 1_000_000 % 1_000_000)
    seconds = float(os.environ.get("CHAOS_S") or 180)
    folder = Path(tempfile.mkdtemp(prefix="memsvc-chaos-"))
    server = {"durability": "off"} if os.environ.get("CHAOS_DURABILITY") == "off" else None
    holds, told = chaos(folder, seed, seconds, server=server)
    print(told)
    if holds:
        shutil.rmtree(folder)
    else:
        print(f"what was written is in {folder}; again with CHAOS_SEED={seed}")
    sys.exit(not holds)
