"""The control plane, met with gRPC's own tools: generated stubs, the health service, reflection."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from memsvc_proto import control_pb2, control_pb2_grpc
from memsvc_proto.errors import ConfigError

import memsvc

SETTINGS: dict[str, Any] = {
    "server": {"address": "tcp://127.0.0.1:0", "memory": "1MiB", "seed": 7},
    "step": {"obs": {"dtype": "uint8", "shape": [2, 3]}, "reward": {"dtype": "float32"}},
    "table": [
        {"name": "replay", "item": {"kind": "transition", "next": ["obs"]}},
        {"name": "second", "limits": {"samples_per_insert": 2, "tolerance": 64}},
    ],
}


@pytest.fixture(scope="module")
def server() -> Iterator[memsvc.Server]:
    with memsvc.Server(SETTINGS) as server:
        yield server


@pytest.fixture
def channel(server: memsvc.Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.control) as channel:
        yield channel


def test_server_info(server: memsvc.Server, channel: Any) -> None:
    server.endpoint.connect("door")
    info = control_pb2_grpc.ControlStub(channel).ServerInfo(control_pb2.ServerInfoRequest(), timeout=10)
    assert (info.version, info.epoch, info.address) == (memsvc.__version__, server.engine.epoch, server.address)
    assert (info.draw, info.params) == (server.engine.addresses["draw"], server.engine.addresses["params"])
    assert [(one.name, one.dtype, list(one.shape)) for one in info.schema] == [("obs", "|u1", [2, 3]), ("reward", "<f4", [])]
    assert list(info.tables) == ["replay", "second"]
    assert (info.memory_bytes, info.seed) == (1 << 20, 7)
    assert info.capacity_steps > 64
    assert info.uptime_s > 0


def test_table_info(server: memsvc.Server, channel: Any) -> None:
    info = control_pb2_grpc.ControlStub(channel).TableInfo(control_pb2.TableInfoRequest(name="replay"), timeout=10)
    assert json.loads(info.settings_json) == server.config.tables[0]
    columns = {one.name: (one.dtype, list(one.shape)) for one in info.columns}
    assert columns["next_obs"] == ("|u1", [2, 3])
    assert columns["discount"] == ("<f4", [])
    assert columns["keys"] == ("<u8", [])
    assert (info.items, info.population, info.total_weight) == (0, 0, 0.0)


def test_table_info_has_the_limiter_s_counts_where_there_is_one(channel: Any) -> None:
    stub = control_pb2_grpc.ControlStub(channel)
    info = stub.TableInfo(control_pb2.TableInfoRequest(name="second"), timeout=10)
    assert info.HasField("limiter")
    assert (info.limiter.inserted, info.limiter.sampled, info.limiter.ahead) == (0, 0, 0.0)
    assert not stub.TableInfo(control_pb2.TableInfoRequest(name="replay"), timeout=10).HasField("limiter")


def test_every_count_of_a_table_and_of_its_actors_is_told(server: memsvc.Server) -> None:
    told = {one.name for one in control_pb2.TableInfoReply.DESCRIPTOR.fields} | {"total", "settings"}
    assert set(server.stats()["tables"][0]) <= told
    from_actors = {one.name for one in control_pb2.Source.DESCRIPTOR.fields} | {"total", "actor", "wanted"}
    with server.actor(name="a"):
        assert set(server.stats()["tables"][0]["actors"][0]) <= from_actors


def test_settings_are_changed(server: memsvc.Server, channel: Any) -> None:
    stub = control_pb2_grpc.ControlStub(channel)

    def change(text: str, name: str = "second") -> Any:
        return stub.Configure(control_pb2.ConfigureRequest(name=name, settings_json=text), timeout=10)

    info = change('{"priority.exponent": 0.25, "limits.tolerance": 128}')
    settings = json.loads(info.settings_json)
    assert (settings["priority"]["exponent"], settings["limits"]["tolerance"]) == (0.25, 128.0)
    assert server.engine.tables[1].settings == settings
    for text, name, code, message in (
        ('{"limits.tolerance": 2}', "second", grpc.StatusCode.INVALID_ARGUMENT, "limits.tolerance: expected at least 1 + samples_per_insert = "),
        ("{", "second", grpc.StatusCode.INVALID_ARGUMENT, 'settings_json: expected JSON such as {"priority.exponent": 0.5}: '),
        ("[1]", "second", grpc.StatusCode.INVALID_ARGUMENT, 'changes: expected an object such as {"priority.exponent": 0.5}, got [1]'),
        ("{}", "third", grpc.StatusCode.NOT_FOUND, "there is no table 'third'; there are: replay, second"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            change(text, name)
        assert caught.value.code() is code
        assert caught.value.details().startswith(message)
    assert server.engine.tables[1].settings == settings


def test_an_unknown_table_is_not_found_and_those_there_are_are_named(channel: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        control_pb2_grpc.ControlStub(channel).TableInfo(control_pb2.TableInfoRequest(name="relay"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "there is no table 'relay'; there are: replay, second"


def test_a_failure_of_the_server_is_internal(server: memsvc.Server, channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.engine, "stats", lambda: 1 / 0)
    with pytest.raises(grpc.RpcError) as caught:
        control_pb2_grpc.ControlStub(channel).ServerInfo(control_pb2.ServerInfoRequest(), timeout=10)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "ZeroDivisionError" in caught.value.details()


def test_health(channel: Any) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "memsvc.v1.Control"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError):
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=10)


def test_reflection_describes_the_service(channel: Any) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="memsvc.v1.Control"),
    ]
    listed, file = stub.ServerReflectionInfo(iter(asked), timeout=10)
    names = {one.name for one in listed.list_services_response.service}
    assert names == {"memsvc.v1.Control", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    described = descriptor_pb2.FileDescriptorProto.FromString(file.file_descriptor_response.file_descriptor_proto[0])
    assert [method.name for method in described.service[0].method] == ["ServerInfo", "TableInfo", "Configure", "Checkpoint"]


def test_the_generated_files_are_those_of_control_proto(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    room = Path(memsvc.__file__).parent.parent / "proto"
    out = tmp_path / "set.bin"
    assert protoc.main(["protoc", f"-Imemsvc_proto={room}", f"--descriptor_set_out={out}", "memsvc_proto/control.proto"]) == 0
    compiled = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    generated = descriptor_pb2.FileDescriptorProto.FromString(control_pb2.DESCRIPTOR.serialized_pb)
    told, made = ([line for line in str(one).splitlines() if "json_name" not in line] for one in (compiled, generated))
    assert told == made


def test_control_can_be_off_or_taken() -> None:
    with memsvc.Server({**SETTINGS, "server": {**SETTINGS["server"], "control": ""}}) as server:
        assert server.control is None
        assert server.http is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"server\.control: 127\.0\.0\.1:{port} cannot be bound: it is in use"):
            memsvc.Server({**SETTINGS, "server": {**SETTINGS["server"], "control": f"127.0.0.1:{port}"}})


def test_two_servers_do_not_share_a_control_port(server: memsvc.Server) -> None:
    with pytest.raises(ConfigError, match="cannot be bound"):
        memsvc.Server({**SETTINGS, "server": {**SETTINGS["server"], "control": server.control}})
