"""House rules (DESIGN 1 and 2): rooms, imports between them, sizes, contracts, the README's code, what must not be in a tracked file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"proto", "cpp", "memsvc", "clients", "benchmarks", "tests"}
DOCUMENTS = {"README.md", "CHANGELOG.md", "DECISIONS.md", "Makefile", "constraints.txt", "pyproject.toml", "setup.py"}
STANDARD = set(sys.stdlib_module_names)
CLIENT = {"numpy", "zmq", "safetensors", "memsvc_core", "memsvc_proto"}
FRAMEWORKS = {"torch": {"torch"}, "tensorflow": {"tensorflow"}, "jax": {"jax"}, "ray": {"ray"}}
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")


def tracked() -> list[Path]:
    """Files that git tracks, or would: neither ignored nor deleted."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return sorted(ROOT / name for name in set(listed.stdout.splitlines()) if (ROOT / name).is_file())


def sources(*rooms: str) -> list[Path]:
    """Hand-written Python files of these rooms."""
    return [p for p in tracked() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in rooms and not GENERATED.search(p.name)]


def imports(path: Path) -> set[str]:
    """Absolute names that a module imports anywhere in it; its own room's relative imports are its own business."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def foreign(path: Path, *allowed: set[str]) -> set[str]:
    """Imported packages that are neither standard nor allowed."""
    return {name for name in imports(path) if name.split(".")[0] not in STANDARD.union(*allowed)}


def test_top_level_folders_and_files():
    top = {p.relative_to(ROOT).parts for p in tracked()}
    assert {parts[0] for parts in top if len(parts) > 1 and not parts[0].startswith(".")} == ROOMS
    assert {parts[0] for parts in top if len(parts) == 1 and not parts[0].startswith(".")} == DOCUMENTS


def test_proto_uses_numpy_alone():
    for path in sources("proto"):
        assert not foreign(path, {"numpy", "memsvc_proto"}), path


def test_generated_protobuf_is_imported_by_memsvc_alone():
    for path in sources("proto", "clients"):
        assert not [name for name in imports(path) if "_pb2" in name or name.split(".")[0] in ("google", "grpc")], path


def test_the_client_uses_what_it_promises():
    for path in sources("clients"):
        parts = path.relative_to(ROOT / "clients").parts
        if parts[0] == "examples":
            continue
        allowed = FRAMEWORKS.get(path.stem, set()) if parts[0] == "adapters" else set()
        assert not foreign(path, CLIENT, {"memsvc_client"}, allowed), path
        proto = {name for name in imports(path) if name.startswith("memsvc_proto")}
        assert proto <= {"memsvc_proto", "memsvc_proto.parts", "memsvc_proto.wire", "memsvc_proto.errors"}, path


def test_importing_the_client_brings_no_framework_and_no_grpc():
    code = "import sys, memsvc_client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for name in ("torch", "tensorflow", "jax", "ray", "grpc", "google.protobuf", "pyarrow", "memsvc"):
        assert name not in loaded


def test_nothing_imports_benchmarks_or_tests():
    for path in sources("proto", "memsvc", "clients"):
        assert not {name.split(".")[0] for name in imports(path)} & {"benchmarks", "tests"}, path


def test_the_core_uses_the_standard_library_alone():
    own = {p.name for p in (ROOT / "cpp" / "core").glob("*.h")}
    banned = {"chrono", "ctime", "time.h", "sys/socket.h", "random"}
    for path in (ROOT / "cpp" / "core").iterdir():
        if path.suffix not in (".h", ".cc"):
            continue
        for quote, name in re.findall(r'^\s*#include\s*([<"])([^>"]+)[>"]', path.read_text(), re.M):
            assert name in own if quote == '"' else name not in banned, f"{path.name} includes {name}"
            assert not name.startswith(("Python", "pybind11", "google", "zmq")), f"{path.name} includes {name}"
    for path in (ROOT / "cpp" / "bind").glob("*.cc"):
        assert "socket" not in path.read_text(), path


def test_no_file_is_longer_than_500_lines():
    for path in tracked():
        room = path.relative_to(ROOT).parts[0]
        if path.suffix in (".py", ".pyi", ".cc", ".h", ".proto") and room in ROOMS - {"tests"} and not GENERATED.search(path.name):
            assert len(path.read_text().splitlines()) <= 500, path


def test_no_helper_files():
    for path in tracked():
        assert path.stem not in ("utils", "util", "common", "helpers", "helper", "misc"), path


def undocumented(body: list[ast.stmt], where: str, overloads: bool = False) -> list[str]:
    """Public classes, functions and methods without a docstring."""
    found = []
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        told = ast.get_docstring(node) is not None
        decorators = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
        inherited = any(d.endswith((".setter", "overload", "override")) for d in decorators)
        if not told and not inherited:
            found.append(f"{where}.{node.name}")
        if isinstance(node, ast.ClassDef):
            found += undocumented(node.body, f"{where}.{node.name}")
    return found


def test_public_names_have_contracts():
    missing = []
    for path in sources("proto", "memsvc", "clients"):
        tree = ast.parse(path.read_text())
        if tree.body and not ast.get_docstring(tree):
            missing.append(str(path.relative_to(ROOT)))
        missing += undocumented(tree.body, str(path.relative_to(ROOT)))
    stub = ROOT / "cpp" / "bind" / "memsvc_core.pyi"
    missing += undocumented(ast.parse(stub.read_text()).body, "memsvc_core")
    assert not missing


def test_headers_begin_with_what_they_are_for():
    for path in [*(ROOT / "cpp" / "core").glob("*.h"), *(ROOT / "cpp" / "bind").glob("*.h")]:
        text = path.read_text()
        assert text.startswith("//"), path
        assert "#pragma once" in text, path


def test_the_stub_names_what_the_extension_has():
    import memsvc_core

    stub = ast.parse((ROOT / "cpp" / "bind" / "memsvc_core.pyi").read_text())
    names = {node.name for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert names == {name for name in dir(memsvc_core) if not name.startswith("_")}
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            methods = {m.name for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("__")}
            assert methods == {m for m in vars(getattr(memsvc_core, node.name)) if not m.startswith("_")}, node.name


def test_the_readme_is_true(tmp_path):
    text = (ROOT / "README.md").read_text()
    assert "make run" in text
    assert "make test" in text
    block = re.search(r"```python\n(.*?)```", text, re.S)
    assert block
    assert len(block.group(1).splitlines()) <= 20
    ran = subprocess.run([sys.executable, "-c", block.group(1)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_ci_runs_what_the_readme_says():
    lines = (ROOT / ".ci" / "run").read_text().split("\n")
    assert [line for line in lines if line] == ["make test"]


def test_tracked_files_name_no_place_and_no_registry():
    # Put together here, so that this file passes its own test.
    banned = [rf"(?<![\w.~-]){room}" for room in ("/wo" + r"rk(?![\w-])", "/ro" + r"ot(?![\w-])", "/tm" + "p/", "/ho" + r"me/\w")]
    banned += ["pypi" + r"\.org", "pythonhosted" + r"\.org", "download" + r"\.pytorch\.org", "registry" + r"\.npm", "conda" + r"\.anaconda"]
    banned += [r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bXX" + r"X\b"]
    pattern, found = re.compile("|".join(banned)), []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{n}: {line.strip()[:100]}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    assert not found


def test_clang_format():
    # The one that the dev extra pins: other versions break lines elsewhere.
    tool = Path(sys.executable).with_name("clang-format")
    if not tool.exists():
        pytest.skip("clang-format is not installed")
    files = [str(p) for p in tracked() if p.suffix in (".h", ".cc")]
    assert subprocess.run([tool, "--dry-run", "-Werror", *files], cwd=ROOT, capture_output=True).returncode == 0
