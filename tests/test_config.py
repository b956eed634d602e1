"""memsvc.toml: defaults, precedence, and errors that name the key, the value, the rule and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memsvc_proto.errors import ConfigError

from memsvc import Config, Server
from memsvc.machine import memory_limit

STEP = """
[step]
obs = { dtype = "uint8", shape = [84, 84] }
action = { dtype = "int32" }
reward = { dtype = "float32" }
value = { dtype = "float32" }
"""
TABLE = """
[[table]]
name = "replay"
item = { kind = "transition", n_step = 3, frame_stack = 4, stack = ["obs"], next = ["obs"] }
returns = { gamma = 0.99, lambda = 0.95 }
priority = { source = "return" }
"""
FULL_TABLE = {
    "name": "replay",
    "item": {
        **{"kind": "step", "n_step": 1, "gamma": 0.99, "frame_stack": 1, "stack": [], "pad": "repeat", "next": [], "length": 1, "stride": 1},
        **{"burn_in": 0, "tail": "shift", "initial": []},
    },
    "returns": None,
    "priority": {"source": "max", "exponent": 0.6, "coefficients": [1.0], "baseline": "value", "eta": 0.9, "decay": 1.0},
    "actor": {
        **{"select": "prioritized", "cache": 64, "every": 64, "linger_ms": 20, "max_steps": 100_000, "max_episodes": 0},
        **{"step_discount": 1.0, "episode_weights": False},
    },
    "sampler": "prioritized",
    "importance": {"beta": 0.4, "normalize": "table"},
    "capacity": {"items": 0, "per_actor_episodes": 0, "per_actor_steps": 0, "when_full": "evict"},
    "limits": {"min_items": 1, "samples_per_insert": 0.0, "tolerance": 0.0, "max_times_sampled": 0, "max_staleness": -1},
}


def minimal(**changes: Any) -> dict[str, Any]:
    """A configuration with one plain table, each argument replacing a top-level section."""
    return {"step": {"obs": {"dtype": "float32", "shape": [4]}, "reward": {"dtype": "float32"}}, "table": [{"name": "replay"}], **changes}


def refused(settings: dict[str, Any], **kwargs: Any) -> str:
    """The message with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        Config.from_dict(settings, **kwargs)
    return str(caught.value)


def table(**changes: Any) -> dict[str, Any]:
    return minimal(table=[{"name": "replay", **changes}])


def test_defaults_are_all_there() -> None:
    config = Config.from_dict(minimal())
    assert config.tables == [FULL_TABLE]
    assert config.schema == [("obs", "<f4", (4,)), ("reward", "<f4", ())]
    server = config.server
    assert (server.address, server.memory, server.seed, server.durability) == ("tcp://127.0.0.1:7700", 2 << 30, 0, "off")
    assert str(server.control_address.host_port if server.control_address else None) == "127.0.0.1:7701"


def test_normalised_settings_give_themselves() -> None:
    config = Config.parse(STEP + TABLE)
    again = Config.from_dict(
        minimal(step={name: {"dtype": dtype, "shape": list(shape)} for name, dtype, shape in config.schema}, table=config.tables)
    )
    assert again.tables == config.tables
    assert again.schema == config.schema


def test_the_design_document_s_example_loads(tmp_path: Path) -> None:
    path = tmp_path / "memsvc.toml"
    path.write_text('[server]\naddress = "tcp://127.0.0.1:0"\nmemory = "64MiB"\n' + STEP + TABLE)
    config = Config.load(path, environ={})
    assert config.server.memory == 64 << 20
    assert config.source == str(path)
    assert config.tables[0]["item"]["stack"] == ["obs"]


def test_precedence_flags_environment_file_defaults() -> None:
    text = '[server]\naddress = "tcp://127.0.0.1:1000"\nmemory = "1GiB"\nseed = 5\n' + STEP + TABLE
    environ = {"MEMSVC_SERVER_ADDRESS": "tcp://127.0.0.1:2000", "MEMSVC_SERVER_MEMORY": "3GiB", "MEMSVC_BUILD_JOBS": "2"}
    config = Config.parse(text, {"server.address": "tcp://127.0.0.1:3000"}, environ)
    assert (config.server.address, config.server.memory, config.server.seed) == ("tcp://127.0.0.1:3000", 3 << 30, 5)
    assert Config.parse(text, {"server.address": None}, environ).server.address == "tcp://127.0.0.1:2000"
    assert Config.parse(text).server.address == "tcp://127.0.0.1:1000"


def test_variables_are_checked_too() -> None:
    assert refused(minimal(), environ={"MEMSVC_SERVER_SEED": "many"}).startswith("MEMSVC_SERVER_SEED: expected an integer >= 0")
    assert "MEMSVC_SERVER_ADRESS: unknown key; did you mean 'MEMSVC_SERVER_ADDRESS'?" in refused(minimal(), environ={"MEMSVC_SERVER_ADRESS": "x"})
    assert Config.from_dict(minimal(), environ={"MEMSVC_SERVER_INSECURE": "true"}).server.insecure is True


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (table(item={"n_step": 0}), "table[0].item.n_step: expected a positive integer, got 0"),
        (table(item={"n_step": True}), "table[0].item.n_step: expected a positive integer, got true"),
        (table(item={"n_step": 1 << 20}), "table[0].item.n_step: expected an integer from 1 to 65535, got 1048576"),
        (table(item={"nstep": 3}), "table[0].item.nstep: unknown key; did you mean 'n_step'?"),
        (
            table(item={"kind": "transitions"}),
            'table[0].item.kind: expected "step" or "transition" or "sequence" (did you mean \'transition\'?), got',
        ),
        (table(item={"kind": "transition", "length": 4}), 'table[0].item.length: does not apply to kind "transition"'),
        (table(item={"kind": "step", "next": ["obs"]}), 'table[0].item.next: does not apply to kind "step"'),
        (table(item={"gamma": 1.5}), "table[0].item.gamma: expected a number from 0 to 1, got 1.5"),
        (table(item={"gamma": [0.9, "x"]}), 'table[0].item.gamma[1]: expected a number from 0 to 1, got "x"'),
        (table(priority={"exponent": float("nan")}), "table[0].priority.exponent: expected a number >= 0, got NaN"),
        (table(priority={"coefficients": [1.0, float("inf")]}), "table[0].priority.coefficients[1]: expected a finite number, got Infinity"),
        (table(sampler="filo"), 'table[0].sampler: expected "prioritized" or "uniform" or "fifo" or "lifo" or "max" or "min" (did you mean'),
        (table(priority={"decay": 0}), "table[0].priority.decay: expected a number above 0, up to 1, got 0"),
        (table(priority={"decay": 1.01}), "table[0].priority.decay: expected a number above 0, up to 1, got 1.01"),
        (table(priority={"decay": float("nan")}), "table[0].priority.decay: expected a number above 0, up to 1, got NaN"),
        (table(actor={"step_discount": -0.5}), "table[0].actor.step_discount: expected a number above 0, up to 1, got -0.5"),
        (table(actor={"episode_weights": 1}), "table[0].actor.episode_weights: expected true or false, got 1"),
        (table(limits={"max_staleness": -2}), "table[0].limits.max_staleness: expected an integer >= -1, got -2"),
        (table(limits={"samples_per_insert": -1}), "table[0].limits.samples_per_insert: expected a number >= 0, got -1"),
        (minimal(server={"durability": "journal"}), "server.data: is missing"),
        (minimal(server={"http": "127.0.0.1:1"}), 'server.http: "127.0.0.1:1" is not in this version'),
        (minimal(server={"memory": "2 furlongs"}), 'server.memory: expected a size in bytes such as 1000000 or "2GiB"'),
        (minimal(server={"memory": 0}), "server.memory: expected a size"),
        (minimal(server={"adress": "x"}), "server.adress: unknown key; did you mean 'address'?"),
        (minimal(server={"address": "127.0.0.1:7700"}), 'server.address: expected "tcp://host:port"'),
        (minimal(server={"address": "tcp://127.0.0.1:99999"}), "server.address: expected a port from 0 to 65535, got 99999"),
        (minimal(server={"address": "ipc://" + "x" * 200}), "server.address: an ipc path has 1 to 100 bytes, got 200"),
        (minimal(server={"control": "nowhere"}), 'server.control: expected "host:port"'),
        (minimal(servers={}), "servers: unknown key; did you mean 'server'?"),
        (minimal(table=[]), "table: is missing"),
        (minimal(table=[{}]), "table[0].name: is missing"),
        (minimal(table=[{"name": "a"}, {"name": "a"}]), "table[1].name: 'a' is the name of table[0] already"),
        (
            minimal(table=[{"name": "a"}, {"name": "b", "actor": {"max_steps": 7}}]),
            "table[1].actor.max_steps: 7 differs from table[0]'s 100000; an actor has one memory",
        ),
        (minimal(step={}), "step: is missing"),
        (minimal(step={"obs": {"dtype": "object"}}), 'step.obs.dtype: expected a dtype such as "uint8"'),
        (minimal(step={"obs": {"dtype": "datetime64[s]"}}), "step.obs.dtype: expected a dtype"),
        (minimal(step={"obs": {"dtype": "S4"}}), "step.obs.dtype: expected a dtype"),
        (minimal(step={"obs": {"dtype": ">f4"}}), "step.obs.dtype: data are little endian; write 'float32', got '>f4'"),
        (minimal(step={"obs": {"dtype": "float33"}}), "step.obs.dtype: expected a dtype"),
        (minimal(step={"obs": {"shape": [1]}}), "step.obs.dtype: is missing"),
        (minimal(step={"obs": {"dtype": "float32", "shape": [-1]}}), "step.obs.shape[0]: expected an integer >= 0, got -1"),
        (minimal(step={"priority": {"dtype": "float32"}}), "step.priority: is an argument of add()"),
        (minimal(step={"two words": {"dtype": "float32"}}), "step.two words: a field's name is a Python identifier"),
        (minimal(step={"keys": {"dtype": "float32"}}), "step.keys: table[0] ('replay', kind 'step') makes a column of this name itself"),
    ],
)
def test_errors_begin_with_the_path(settings: dict[str, Any], message: str) -> None:
    assert refused(settings).startswith(message)


@pytest.mark.parametrize(
    ("item", "returns", "names", "free"),
    [
        ({"kind": "step"}, None, [], ["discount", "next_obs", "mask", "return", "initial_obs"]),
        ({"kind": "transition", "next": ["obs"]}, None, ["discount", "next_obs"], ["mask", "length", "return", "initial_obs", "next_reward"]),
        ({"kind": "sequence", "length": 4, "initial": ["obs"]}, None, ["discount", "mask", "length", "initial_obs"], ["next_obs", "advantage"]),
        ({"kind": "step"}, {"gamma": 0.9}, ["return", "advantage"], ["discount"]),
    ],
)
def test_names_that_the_kind_makes_are_refused_and_others_are_not(item: dict[str, Any], returns: Any, names: list[str], free: list[str]) -> None:
    step = {"obs": {"dtype": "float32"}, "reward": {"dtype": "float32"}, "value": {"dtype": "float32"}}
    for name in names:
        message = refused({"step": {**step, name: {"dtype": "float32"}}, "table": [{"name": "t", "item": item, "returns": returns}]})
        assert message.startswith(f"step.{name}: table[0] ('t', kind '{item['kind']}') makes a column of this name itself")
    for name in free:
        if name.isidentifier():
            config = Config.from_dict({"step": {**step, name: {"dtype": "float32"}}, "table": [{"name": "t", "item": item, "returns": returns}]})
            assert name in [field for field, _, _ in config.schema]


def with_all(**changes: Any) -> dict[str, Any]:
    """A table whose server holds the union."""
    return table(**{"actor": {"select": "all"}, **changes})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            table(sampler="fifo"),
            'table[0].sampler: "fifo" needs actor.select = "all", where the server holds every item itself; '
            'this table has select = "prioritized": set that, or leave it out',
        ),
        (table(capacity={"items": 10}), 'table[0].capacity.items: 10 needs actor.select = "all"'),
        (
            table(capacity={"per_actor_episodes": 20}, actor={"select": "uniform"}),
            'table[0].capacity.per_actor_episodes: 20 needs actor.select = "all", where the server holds every item itself; '
            'this table has select = "uniform": set that, or bound the actors\' memories by actor.max_episodes',
        ),
        (table(capacity={"per_actor_steps": 20}), 'table[0].capacity.per_actor_steps: 20 needs actor.select = "all"'),
        (table(capacity={"when_full": "block"}), 'table[0].capacity.when_full: "block" needs actor.select = "all"'),
        (table(limits={"max_times_sampled": 1}), 'table[0].limits.max_times_sampled: 1 needs actor.select = "all"'),
        (with_all(sampler="fifo", priority={"decay": 0.5}), 'table[0].priority.decay: 0.5 changes weights, and sampler = "fifo" goes by order alone'),
        (
            with_all(sampler="max", actor={"select": "all", "episode_weights": True}),
            'table[0].actor.episode_weights: true changes weights, and sampler = "max" goes by order alone; leave it out',
        ),
        (
            with_all(capacity={"when_full": "block", "per_actor_steps": 100}),
            "table[0].capacity.per_actor_steps: 100 removes the oldest items, and with when_full",
        ),
        (
            with_all(capacity={"items": 100}, limits={"min_items": 1000}),
            "table[0].limits.min_items: 1,000 items are never there, since capacity.items is 100; write 100 at most, or raise capacity.items",
        ),
        (
            table(limits={"samples_per_insert": 1.5}),
            "table[0].limits.tolerance: expected at least 1 + samples_per_insert = 1 + 1.5 = 2.5, else",
        ),
        (
            table(limits={"samples_per_insert": 4, "tolerance": 4.5}),
            "table[0].limits.tolerance: expected at least 1 + samples_per_insert = 1 + 4 = 5,",
        ),
        (table(limits={"tolerance": 4.5}), "table[0].limits.tolerance: 4.5 without limits.samples_per_insert bounds nothing; write"),
        (
            with_all(limits={"samples_per_insert": 2.5, "tolerance": 100, "max_times_sampled": 2}),
            "table[0].limits.samples_per_insert: 2.5 is more than each item can be sampled (limits.max_times_sampled = 2), so",
        ),
        (
            table(limits={"samples_per_insert": 2, "tolerance": 100}, actor={"select": "without_replacement"}),
            'table[0].limits.samples_per_insert: 2 is more than each item can be sampled (actor.select = "without_replacement"), so',
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused_with_the_way_out(settings: dict[str, Any], message: str) -> None:
    assert refused(settings).startswith(message)


@pytest.mark.parametrize(
    "settings",
    [
        with_all(sampler="fifo", capacity={"items": 100, "when_full": "block"}, limits={"max_times_sampled": 1}),
        with_all(sampler="min", capacity={"per_actor_episodes": 20, "per_actor_steps": 500}),
        with_all(limits={"samples_per_insert": 2, "tolerance": 3, "max_times_sampled": 2, "max_staleness": 0}),
        table(limits={"samples_per_insert": 1.5, "tolerance": 2.5, "max_staleness": 4}),
        table(actor={"select": "without_replacement", "step_discount": 0.99, "episode_weights": True}, priority={"decay": 0.5}),
    ],
)
def test_settings_that_go_together_are_kept(settings: dict[str, Any]) -> None:
    made = Config.from_dict(settings).tables[0]
    for section, values in settings["table"][0].items():
        assert made[section] == values if not isinstance(values, dict) else values.items() <= made[section].items()


def test_what_only_the_core_can_check_has_the_table_s_path() -> None:
    assert refused(table(item={"kind": "transition", "next": ["observation"]})).startswith("table[0].item.next")
    assert refused(table(returns={"gamma": 0.9})).startswith("table[0].returns")


def test_other_machines_are_kept_out_unless_told() -> None:
    for address in ("tcp://0.0.0.0:7700", "tcp://*:7700", "tcp://replay:7700", "tcp://[::]:7700", "tcp://10.0.0.1:7700"):
        message = refused(minimal(server={"address": address}))
        assert message.startswith("server.address: ")
        assert "insecure = true" in message
        assert Config.from_dict(minimal(server={"address": address, "insecure": True})).server.address == address
    for address in ("tcp://127.0.0.1:7700", "tcp://127.1.2.3:7700", "tcp://localhost:7700", "tcp://[::1]:7700", "ipc:///run/x"):
        assert Config.from_dict(minimal(server={"address": address})).server.address == address
    assert refused(minimal(server={"control": "0.0.0.0:1"})).startswith("server.control: 0.0.0.0:1 can be reached")


@pytest.mark.parametrize(
    ("address", "control", "expected"),
    [
        ("tcp://127.0.0.1:7700", None, "127.0.0.1:7701"),
        ("tcp://[::1]:7700", None, "[::1]:7701"),
        ("tcp://127.0.0.1:0", None, "127.0.0.1:0"),
        ("ipc:///run/x", None, "127.0.0.1:0"),
        ("tcp://127.0.0.1:7700", "127.0.0.1:9", "127.0.0.1:9"),
        ("tcp://127.0.0.1:7700", "", None),
    ],
)
def test_where_control_listens(address: str, control: str | None, expected: str | None) -> None:
    server = {"address": address} if control is None else {"address": address, "control": control}
    where = Config.from_dict(minimal(server=server)).server.control_address
    assert (where.host_port if where else None) == expected


def test_every_dtype_that_is_accepted_keeps_its_bytes() -> None:
    names = [f"{kind}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)]
    names += ["bool", "float16", "float32", "float64", "complex64", "complex128", "<f4", "f8"]
    for name in names:
        config = Config.from_dict(minimal(step={"x": {"dtype": name}}))
        assert np.dtype(config.schema[0][1]) == np.dtype(name).newbyteorder("<")


def test_sizes() -> None:
    for text, expected in {"1KiB": 1024, "1kb": 1000, "1.5 GiB": 3 << 29, "12": 12, "7B": 7, "2TB": 2 * 10**12}.items():
        assert Config.from_dict(minimal(server={"memory": text})).server.memory == expected
    assert Config.from_dict(minimal(server={"memory": 123456})).server.memory == 123456


def test_what_is_no_toml_says_where(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[server\n")
    with pytest.raises(ConfigError, match=r"bad\.toml: is not TOML: .*line 1"):
        Config.load(path, environ={})


def test_the_smallest_memory_limit_counts(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 1 kB\n")
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (groups / "outer" / "inner").mkdir(parents=True)
    assert memory_limit(proc, groups) == (1_024_000, "the machine's memory")
    (groups / "outer" / "inner" / "memory.max").write_text("max\n")
    (groups / "outer" / "memory.max").write_text("5000\n")
    assert memory_limit(proc, groups) == (5000, "the container's memory limit (cgroup)")
    (proc / "self" / "cgroup").write_text("7:memory:/job\n1:cpu:/job\n")
    (groups / "memory" / "job").mkdir(parents=True)
    (groups / "memory" / "job" / "memory.limit_in_bytes").write_text("4000\n")
    assert memory_limit(proc, groups)[0] == 4000


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"item": {"kind": "sequence", "length": 80}, "actor": {"max_steps": 50}}, r"table\[0\].actor.max_steps: 50 steps never hold"),
        ({"actor": {"select": "all", "max_episodes": 2}}, r"table\[0\].actor.max_episodes: .* write capacity.per_actor_episodes = 2 instead"),
    ],
)
def test_settings_that_never_give_an_item_or_do_nothing(table, match):
    with pytest.raises(ConfigError, match=match):
        Config.from_dict({"step": {"obs": {"dtype": "float32"}}, "table": [{"name": "t"} | table]})


def test_more_min_items_than_the_memory_holds():
    settings = {"actor": {"select": "all"}, "limits": {"min_items": 1_000_000}}
    config = Config.from_dict({"server": {"memory": "1MiB"}, "step": {"obs": {"dtype": "float32"}}, "table": [{"name": "t"} | settings]})
    with pytest.raises(ConfigError, match=r"table\[0\].limits.min_items: 1,000,000 items are never there"):
        Server(config)
