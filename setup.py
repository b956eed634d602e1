"""Builds the extension `memsvc_core` from cpp/ and maps import names to rooms (pyproject.toml has the rest)."""

import os
from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

HEADERS = sorted(glob("cpp/core/*.h") + glob("cpp/bind/*.h"))


def outdated(obj: str, source: str) -> bool:
    """True when the object file is older than its source or any header: objects of different layouts must never be linked together."""
    return not os.path.exists(obj) or os.path.getmtime(obj) < max(os.path.getmtime(file) for file in [source, *HEADERS])


ParallelCompile("MEMSVC_BUILD_JOBS", default=2, needs_recompile=outdated).install()

core = Pybind11Extension(
    "memsvc_core",
    sorted(glob("cpp/core/*.cc") + glob("cpp/bind/*.cc")),
    include_dirs=["cpp/core", "cpp/bind"],
    depends=HEADERS,
    cxx_std=20,
    extra_compile_args=["-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
    extra_link_args=["-pthread"],
)

setup(
    ext_modules=[core],
    cmdclass={"build_ext": build_ext},
    packages=["memsvc", "memsvc.demo", "memsvc_client", "memsvc_client.adapters", "memsvc_proto"],
    package_dir={"memsvc_client": "clients", "memsvc_proto": "proto"},
    package_data={"memsvc_proto": ["control.proto"]},
)
