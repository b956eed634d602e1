"""The C++ unit tests: every tests/cpp/*_test.cc is a plain program over the core, compiled and run here, and again, shorter, under sanitizers."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / "tests" / "cpp").glob("*_test.cc"))
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT / 'cpp' / 'core'}", f"-I{ROOT / 'tests' / 'cpp'}"]
SANITIZERS = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def _compile(command: list[str]) -> None:
    done = _run([os.environ.get("CXX", "g++"), *command])
    assert done.returncode == 0, done.stderr


class Core:
    """The core as object files, compiled once with one set of flags."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.folder, self.flags = folder, [*FLAGS, *flags]
        sources = sorted((ROOT / "cpp" / "core").glob("*.cc"))
        self.objects = [str(folder / f"{source.stem}.o") for source in sources]
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            list(pool.map(lambda pair: _compile([*self.flags, "-c", str(pair[0]), "-o", pair[1]]), zip(sources, self.objects, strict=True)))

    def run(self, test: Path, folder: Path, *arguments: str) -> None:
        program = folder / test.stem
        _compile([*self.flags, str(test), *self.objects, "-o", str(program)])
        done = _run([str(program), *arguments])
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return Core(tmp_path_factory.mktemp("core"), [])


@pytest.fixture(scope="session")
def sanitized_core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    folder = tmp_path_factory.mktemp("sanitized")
    probe = folder / "probe.cc"
    probe.write_text("int main() { return 0; }\n")
    program = folder / "probe"
    built = _run([os.environ.get("CXX", "g++"), *SANITIZERS, str(probe), "-o", str(program)])
    if built.returncode != 0 or _run([str(program)]).returncode != 0:
        pytest.skip("this compiler or machine has no sanitizers")
    return Core(folder, SANITIZERS)


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_program_passes(core: Core, test: Path, tmp_path: Path) -> None:
    core.run(test, tmp_path)


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_program_passes_under_sanitizers(sanitized_core: Core, test: Path, tmp_path: Path) -> None:
    sanitized_core.run(test, tmp_path, "quick")
