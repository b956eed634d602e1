"""Builds the extension `memsvc_core` from cpp/ and maps import names to rooms (pyproject.toml has the rest)."""

import os
from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

HEADERS = sorted(glob("cpp/core/*.h") + glob("cpp/bind/*.h"))


def outdated(obj: str, source: str) -> bool:
    """True when the object file is older than what it is made of, as the compiler (-MMD) has noted beside it: objects of different layouts must
    never be linked together."""
    notes = os.path.splitext(obj)[0] + ".d"
    if not os.path.exists(obj) or not os.path.exists(notes):
        return True
    with open(notes) as file:
        parts = file.read().replace("\\\n", " ").split()[1:]
    return any(not os.path.exists(part) or os.path.getmtime(part) > os.path.getmtime(obj) for part in [source, *parts])


ParallelCompile("MEMSVC_BUILD_JOBS", default=2, needs_recompile=outdated).install()

core = Pybind11Extension(
    "memsvc_core",
    sorted(glob("cpp/core/*.cc") + glob("cpp/bind/*.cc")),
    include_dirs=["cpp/core", "cpp/bind"],
    depends=HEADERS,
    cxx_std=20,
    extra_compile_args=["-O3", "-fvisibility=hidden", "-MMD", "-Wall", "-Wextra"],
    extra_link_args=["-pthread"],
)

setup(
    ext_modules=[core],
    cmdclass={"build_ext": build_ext},
    packages=["memsvc", "memsvc.bench", "memsvc.demo", "memsvc.durability", "memsvc_client", "memsvc_client.adapters", "memsvc_proto"],
    package_dir={"memsvc_client": "clients", "memsvc_proto": "proto"},
    package_data={"memsvc_proto": ["control.proto"]},
)
