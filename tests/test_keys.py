"""`memsvc keys`: the files that it makes, what they may not be, gRPC with certificates, and the command line with keys."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from memsvc_client import ConfigError, ZmqEndpoint
from memsvc_proto import control_pb2, control_pb2_grpc
from serving import STEP, UNION, until

import memsvc
from memsvc.config import Config
from memsvc.keys import add, make, read_allowed
from memsvc.permits import control_channel
from memsvc.roles import METHODS, ROLES


def cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, as a process."""
    env = {key: value for key, value in os.environ.items() if key != "MEMSVC_KEYS"} | environment
    return subprocess.run([sys.executable, "-m", "memsvc", *arguments], capture_output=True, text=True, timeout=60, env=env)


def settings(folder: Path | None, **server: Any) -> dict[str, Any]:
    """A server with gRPC."""
    here = {"address": "tcp://127.0.0.1:0", "memory": "8MiB", "control": "127.0.0.1:0", "http": "", "keys": str(folder or ""), **server}
    return {"server": here, "step": STEP, "table": [UNION]}


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[memsvc.Server]:
    """With keys."""
    with memsvc.Server(settings(keys)) as served:
        yield served


def test_the_command_makes_a_folder_for_this_user_alone_and_overwrites_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made = cli("keys", str(folder))
    assert made.returncode == 0, made.stderr
    assert made.stdout.split() == [str(folder / f"{role}.key") for role in ROLES]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = {one.name: (one.read_text(), stat.S_IMODE(one.stat().st_mode)) for one in folder.iterdir()}
    assert set(before) == {"allowed", "authority.key", "server.key", *(f"{role}.key" for role in ROLES)}
    assert {mode for _, mode in before.values()} == {0o600}
    assert {one.role for one in read_allowed(folder).values()} == set(ROLES)
    for arguments in (("keys", str(folder)), ("keys", str(folder), "--add", "actor", "--role", "actor")):
        again = cli(*arguments)
        assert (again.returncode, again.stdout) == (1, "")
        assert "Traceback" not in again.stderr
    assert {one.name: (one.read_text(), stat.S_IMODE(one.stat().st_mode)) for one in folder.iterdir()} == before
    assert [one.name for one in tmp_path.iterdir()] == ["keys"]
    more = cli("keys", str(folder), "--add", "actor-2", "--role", "actor")
    assert more.stdout.split() == [str(folder / "actor-2.key")]
    held = json.loads((folder / "actor-2.key").read_text())
    assert read_allowed(folder)[held["public"]].role == "actor"
    assert held["server"] == json.loads((folder / "server.key").read_text())["public"]
    for wrong in (("--add", "x"), ("--role", "actor"), ("--add", "../x", "--role", "actor"), ("--add", "x", "--role", "king")):
        assert cli("keys", str(folder), *wrong).returncode in (1, 2)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_secret_that_others_could_read_is_refused(mode: int, keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "open.key"
    file.write_text((keys / "actor.key").read_text())
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"open\.key: its mode is {mode:04o}.*chmod 600 .*open\.key") as caught:
        ZmqEndpoint("tcp://127.0.0.1:7700", keys=file)
    assert caught.value.mode == mode
    file.chmod(0o600)
    ZmqEndpoint("tcp://127.0.0.1:7700", keys=file)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_secret_of_another_user_is_refused(keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "foreign.key"
    file.touch(0o600)
    file.write_text((keys / "actor.key").read_text())
    os.chown(file, 12345, -1)
    with pytest.raises(ConfigError, match=r"foreign\.key: belongs to user 12345"):
        ZmqEndpoint("tcp://127.0.0.1:7700", keys=file)


def test_a_server_refuses_files_that_others_could_read_or_write(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    make(folder)
    for path, mode, right in ((folder / "server.key", 0o644, 0o600), (folder / "allowed", 0o664, 0o600), (folder, 0o770, 0o700)):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=rf"{mode:04o}.*chmod {right:o} "):
            memsvc.Server(settings(folder))
        path.chmod(right)
    with pytest.raises(ConfigError, match=r"server\.keys: .*cannot be read.*`memsvc keys"):
        memsvc.Server(settings(tmp_path / "nowhere"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"memsvc": "client"}', '{"memsvc": "client", "name": "a", "role": "actor", "secret": "short"}'])
def test_what_is_no_key_file_is_told(text: str, tmp_path: Path) -> None:
    file = tmp_path / "some.key"
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"key file .*some\.key"):
        ZmqEndpoint("tcp://127.0.0.1:7700", keys=file)
    with pytest.raises(ConfigError, match=r"nothing\.key: cannot be read"):
        ZmqEndpoint("tcp://127.0.0.1:7700", keys=tmp_path / "nothing.key")


def test_the_environment_names_a_key_file_unless_the_argument_does(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSVC_KEYS", str(keys / "viewer.key"))
    for given, name in ((None, "viewer"), (keys / "actor.key", "actor")):
        held = ZmqEndpoint("tcp://127.0.0.1:7700", keys=given).credentials()
        assert held is not None
        assert held.name == name
    assert ZmqEndpoint("tcp://127.0.0.1:7700", keys="").credentials() is None


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:1", "tcp://*:1", "tcp://host.example:1", "tcp://[::]:1", "tcp://[fe80::1]:1", "tcp://10.0.0.1:1"])
def test_an_address_that_others_reach_needs_keys(address: str, keys: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.address: .*memsvc keys"):
        Config.from_dict(settings(None, address=address))
    with pytest.raises(ConfigError, match=r"server\.control: .*memsvc keys"):
        Config.from_dict(settings(None, control=address.removeprefix("tcp://")))
    for more in ({"keys": str(keys)}, {"insecure": True}):
        assert Config.from_dict(settings(None, address=address, **more)).server.address == address
    assert Config.from_dict(settings(None, address="tcp://[::1]:1", control="localhost:2")).server.keys == ""


def test_an_ipc_address_is_this_user_s_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with memsvc.Server(settings(None, address=f"ipc://{tmp_path}/s")):
            modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("s", "s.draw", "s.params")}
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert modes == {0o600}


@pytest.mark.parametrize("role", ROLES)
def test_grpc_lets_each_role_do_what_the_table_says(role: str, server: memsvc.Server, keys: Path) -> None:
    own = ZmqEndpoint(server.address, keys=keys / f"{role}.key").credentials()
    assert server.control is not None
    with control_channel(server.control, own) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        assert stub.ServerInfo(control_pb2.ServerInfoRequest(), timeout=10).epoch == server.engine.epoch
        assert stub.TableInfo(control_pb2.TableInfoRequest(name="union"), timeout=10).name == "union"
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10).status == 1
        change = control_pb2.ConfigureRequest(name="union", settings_json='{"priority.exponent": 1.0}')
        if role in METHODS["Configure"]:
            assert stub.Configure(change, timeout=10).name == "union"
        else:
            before = server.stats()["counts"]["forbidden"]
            with pytest.raises(grpc.RpcError) as caught:
                stub.Configure(change, timeout=10)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert re.match(rf"gRPC's Configure is not for key '{role}' \(role {role}\), but for admin: ", caught.value.details())
            assert server.stats()["counts"]["forbidden"] == before + 1


def test_grpc_without_a_certificate_or_with_another_authority_s_is_refused(server: memsvc.Server, keys: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make(other)
    stranger = ZmqEndpoint(server.address, keys=other / "admin.key").credentials()
    mine = ZmqEndpoint(server.address, keys=keys / "admin.key").credentials()
    assert stranger is not None
    assert mine is not None
    override = [("grpc.ssl_target_name_override", "memsvc-server")]
    open_handed = grpc.secure_channel(server.control, grpc.ssl_channel_credentials(mine.authority), options=override)
    mixed = grpc.ssl_channel_credentials(mine.authority, stranger.private, stranger.certificate)
    for channel in (
        grpc.insecure_channel(server.control),
        open_handed,
        grpc.secure_channel(server.control, mixed, options=override),
        control_channel(server.control, stranger),
    ):
        with channel, pytest.raises(grpc.RpcError) as caught:
            control_pb2_grpc.ControlStub(channel).ServerInfo(control_pb2.ServerInfoRequest(), timeout=5)
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_key_that_is_taken_away_loses_grpc_too(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    make(folder)
    file = add(folder, "boss", "admin")
    with memsvc.Server(settings(folder)) as served:
        assert served.control is not None
        with control_channel(served.control, ZmqEndpoint(served.address, keys=file).credentials()) as channel:
            stub = control_pb2_grpc.ControlStub(channel)
            stub.ServerInfo(control_pb2.ServerInfoRequest(), timeout=10)
            allowed = folder / "allowed"
            allowed.write_text("".join(line for line in allowed.read_text().splitlines(True) if not line.startswith("boss ")))
            until(lambda: served.stats()["keys"]["allowed"]["admin"] == 1)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ServerInfo(control_pb2.ServerInfoRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_the_command_line_takes_a_key_file_by_option_or_variable(server: memsvc.Server, keys: Path) -> None:
    told = cli("stats", server.address, "--keys", str(keys / "viewer.key"))
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["keys"] == {"allowed": dict.fromkeys(sorted(ROLES), 1)}
    refused = cli("set", server.address, "union", "priority.exponent=1.0", MEMSVC_KEYS=str(keys / "learner.key"))
    assert refused.returncode == 1
    assert "CONFIGURE is not for key 'learner' (role learner), but for admin" in refused.stderr
    assert cli("set", server.address, "union", "priority.exponent=1.0", MEMSVC_KEYS=str(keys / "admin.key")).returncode == 0
    nobody = cli("stats", server.address, "--timeout", "1.5")
    assert nobody.returncode == 1
    assert "as a server that expects keys does" in nobody.stderr
