"""The client's promise: it installs beside any trainer, so importing it loads no framework, grpc, protobuf or pyarrow, and not the server."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORBIDDEN = ("grpc", "google", "pyarrow", "torch", "tensorflow", "keras", "jax", "ml_dtypes", "memsvc", "click", "rich", "scipy", "pandas")


@pytest.mark.parametrize("module", ["memsvc_client", "memsvc_client.link", "memsvc_client.learner", "memsvc_proto.wire"])
def test_light_import(module):
    code = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    loaded = set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout.split())
    assert module.partition(".")[0] in loaded
    assert not loaded & set(FORBIDDEN)


def test_names():
    import memsvc_client

    for name in memsvc_client.__all__:
        assert getattr(memsvc_client, name).__doc__, name
