"""The C++ unit tests: every tests/cpp/*_test.cc is a plain program over the core, compiled under AddressSanitizer and UBSan and run here, as is what
fuzzers know (tests/fuzz/corpus). With SANITIZE in the environment (`make sanitize`) also without sanitizers, at full length, and for data races."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / "tests" / "cpp").glob("*_test.cc"))
FUZZ = ROOT / "tests" / "fuzz"
HARNESSES = [one for one in sorted(FUZZ.glob("*_fuzz.cc")) if (FUZZ / "corpus" / one.stem.removesuffix("_fuzz")).is_dir()]
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", *(f"-I{ROOT / one}" for one in ("cpp/core", "tests/cpp", "tests/fuzz"))]
SANITIZERS = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
RACES = ["-g1", "-fsanitize=thread", "-Wno-tsan"]
FULL = bool(os.environ.get("SANITIZE"))
SECONDS = 3000 if FULL else 280


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def _compile(command: list[str]) -> None:
    done = _run([os.environ.get("CXX", "g++"), *command])
    assert done.returncode == 0, done.stderr


class Programs:
    """The core as object files, compiled once with one set of flags; and the programs over it, compiled beside the tests that run the first ones."""

    def __init__(self, folder: Path, flags: list[str], sources: list[Path]) -> None:
        self._folder, self._flags = folder, [*FLAGS, *flags]
        self._pool = ThreadPoolExecutor(min(2, os.cpu_count() or 1))
        core = sorted((ROOT / "cpp" / "core").glob("*.cc"))
        self._objects = list(self._pool.map(self._object, core))
        self._made: dict[Path, Future[str]] = {one: self._pool.submit(self._program, one) for one in sources}

    def _object(self, source: Path) -> str:
        made = str(self._folder / f"{source.stem}.o")
        _compile([*self._flags, "-c", str(source), "-o", made])
        return made

    def _program(self, source: Path) -> str:
        made = str(self._folder / source.stem)
        more = [str(FUZZ / "main.cc")] if source.parent == FUZZ else []
        _compile([*self._flags, str(source), *more, *self._objects, "-o", made])
        return made

    def run(self, source: Path, *arguments: str) -> None:
        """Fails unless the program ends well."""
        done = _run([self._made[source].result(), *arguments])
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    def close(self) -> None:
        """Nothing is compiled any more."""
        self._pool.shutdown(cancel_futures=True)


def _made(where: pytest.TempPathFactory, name: str, flags: list[str], sources: list[Path]) -> Iterator[Programs]:
    made = Programs(where.mktemp(name), flags, sources)
    yield made
    made.close()


def _works(folder: Path, flags: list[str]) -> bool:
    (folder / "probe.cc").write_text("int main() { return 0; }\n")
    built = _run([os.environ.get("CXX", "g++"), *flags, str(folder / "probe.cc"), "-o", str(folder / "probe")])
    return built.returncode == 0 and _run([str(folder / "probe")]).returncode == 0


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Under sanitizers, where this compiler and machine have them."""
    flags = SANITIZERS if _works(tmp_path_factory.mktemp("probe"), SANITIZERS) else []
    yield from _made(tmp_path_factory, "checked", flags, [*TESTS, *HARNESSES])


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    yield from _made(tmp_path_factory, "plain", [], TESTS)


@pytest.fixture(scope="session")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    if not _works(tmp_path_factory.mktemp("probe"), RACES):
        pytest.skip("this compiler or machine has no ThreadSanitizer")
    yield from _made(tmp_path_factory, "raced", RACES, TESTS)


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_program_passes(checked: Programs, test: Path) -> None:
    checked.run(test, *([] if FULL else ["quick"]))


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda path: path.stem)
def test_what_fuzzers_know_breaks_nothing(checked: Programs, harness: Path) -> None:
    cases = sorted(str(one) for one in (FUZZ / "corpus" / harness.stem.removesuffix("_fuzz")).iterdir())
    assert cases
    checked.run(harness, *cases)


@pytest.mark.skipif(not FULL, reason="minutes: make sanitize")
@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_program_passes_without_sanitizers(plain: Programs, test: Path) -> None:
    plain.run(test)


@pytest.mark.skipif(not FULL, reason="minutes: make sanitize")
@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_program_races_nowhere(raced: Programs, test: Path) -> None:
    raced.run(test, "quick")
