"""Where each peer runs: a virtual environment of its own under .venv-peers, made on first use."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".venv-peers"

# Exact versions of what is measured. torch is pinned so that a build for CPUs alone can serve, where the index has one.
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "reverb": ("dm-reverb[tensorflow]==0.14.0",),
    "cpprb": ("cpprb==11.0.0",),
    "echo": ("id-echo==0.2.1",),
    "transferqueue": ("TransferQueue==0.1.11", "torch==2.13.0"),
    "rllib": ("ray[rllib]==2.60.0",),
    "tianshou": ("tianshou==2.0.1", "torch==2.13.0"),
    "torchrl": ("torchrl==0.14.0", "torch==2.14.0"),
}


def interpreter(name: str) -> Path:
    """The Python of environment `name`; the present one where it has no requirements (memsvc, numpy).

    Makes the environment where it is missing or was made from other requirements: blocks for minutes, takes up to 2 GB (torchrl: 6), leaves pip's
    output in .venv-peers/NAME.log. Where another process makes it, waits for that. RuntimeError with pip's errors where it gives up.
    """
    wanted = REQUIREMENTS.get(name)
    if wanted is None:
        return Path(sys.executable)
    folder, log = ROOT / name, ROOT / f"{name}.log"
    python, stamp, text = folder / "bin" / "python", folder / ".built", "\n".join(wanted)
    ROOT.mkdir(exist_ok=True)
    with log.open("ab") as output:
        fcntl.flock(output, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != text:
            print(f"making {folder.relative_to(ROOT.parent)}: {', '.join(wanted)}", flush=True)
            venv.create(folder, clear=True, with_pip=True)
            output.truncate(0)
            done = subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], stdout=output, stderr=output, check=False)
            if done.returncode:
                said = [line for line in log.read_text().splitlines() if line.startswith("ERROR")]
                raise RuntimeError(f"{name} cannot be installed, see {log.name}: {' '.join(said)[:300]}")
            stamp.write_text(text)
    return python


def room() -> Path:
    """A folder from which `import peers` works and that has nothing else to import: beside this package lie names that other libraries use too."""
    link = ROOT / "path" / "peers"
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(Path("../../benchmarks/peers"))
    return link.parent


def versions(name: str) -> dict[str, str]:
    """Installed versions of the environment's requirements and of numpy, asked in its own interpreter (.1 s)."""
    names = ["numpy", *(word.partition("==")[0].partition("[")[0] for word in REQUIREMENTS.get(name, ("memsvc",)))]
    code = f"import json; from importlib.metadata import version as v; print(json.dumps({{n: v(n) for n in {names!r}}}))"
    out = subprocess.run([str(interpreter(name)), "-c", code], capture_output=True, text=True, check=True).stdout
    return dict(json.loads(out))
