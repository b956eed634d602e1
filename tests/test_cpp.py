"""The C++ unit tests: every tests/cpp/*_test.cc is a plain program over the core, compiled and run here, and again, shorter, under sanitizers, as is
what fuzzers know (tests/fuzz/corpus). With SANITIZE in the environment (`make sanitize`) at full length, and for data races too."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / "tests" / "cpp").glob("*_test.cc"))
FUZZ = ROOT / "tests" / "fuzz"
HARNESSES = [one for one in sorted(FUZZ.glob("*_fuzz.cc")) if (FUZZ / "corpus" / one.stem.removesuffix("_fuzz")).is_dir()]
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT / 'cpp' / 'core'}", f"-I{ROOT / 'tests' / 'cpp'}"]
SANITIZERS = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
RACES = ["-g1", "-fsanitize=thread", "-Wno-tsan"]
FULL = bool(os.environ.get("SANITIZE"))
SECONDS = 3000 if FULL else 280


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


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
    return _sanitized(tmp_path_factory.mktemp("sanitized"), SANITIZERS)


@pytest.fixture(scope="session")
def raced_core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    return _sanitized(tmp_path_factory.mktemp("raced"), RACES)


def _sanitized(folder: Path, flags: list[str]) -> Core:
    probe = folder / "probe.cc"
    probe.write_text("int main() { return 0; }\n")
    program = folder / "probe"
    built = _run([os.environ.get("CXX", "g++"), *flags, str(probe), "-o", str(program)])
    if built.returncode != 0 or _run([str(program)]).returncode != 0:
        pytest.skip("this compiler or machine has no sanitizers")
    return Core(folder, flags)


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_program_passes(core: Core, test: Path, tmp_path: Path) -> None:
    core.run(test, tmp_path)


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_program_passes_under_sanitizers(sanitized_core: Core, test: Path, tmp_path: Path) -> None:
    sanitized_core.run(test, tmp_path, *([] if FULL else ["quick"]))


@pytest.mark.skipif(not FULL, reason="minutes: make sanitize")
@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_program_races_nowhere(raced_core: Core, test: Path, tmp_path: Path) -> None:
    raced_core.run(test, tmp_path, "quick")


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda path: path.stem)
def test_what_fuzzers_know_breaks_nothing(sanitized_core: Core, harness: Path, tmp_path: Path) -> None:
    cases = sorted(str(one) for one in (FUZZ / "corpus" / harness.stem.removesuffix("_fuzz")).iterdir())
    assert cases
    program = tmp_path / harness.stem
    _compile([*sanitized_core.flags, f"-I{FUZZ}", str(FUZZ / "main.cc"), str(harness), *sanitized_core.objects, "-o", str(program)])
    done = _run([str(program), *cases])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
