"""Settings changed while the server runs: what can be, by the rules of memsvc.toml; and the limiter's arithmetic for batches."""

from __future__ import annotations

from typing import Any

import pytest
from memsvc_proto.errors import ConfigError

from memsvc import Config
from memsvc.changes import CHANGEABLE, changed
from memsvc.explain import explained
from memsvc.limiter import largest_batch, refuse_batch

STEP = {"reward": {"dtype": "float32", "shape": [2]}, "value": {"dtype": "float32", "shape": [2]}, "g": {"dtype": "float32"}}


def table(**settings: Any) -> dict[str, Any]:
    """Normalised settings."""
    return dict(Config.from_dict({"step": STEP, "table": [{"name": "replay", **settings}]}).tables[0])


def refused(settings: dict[str, Any], changes: Any, path: str = "") -> str:
    """The message with which a change is refused; the settings stay as they were."""
    before = repr(settings)
    with pytest.raises(ConfigError) as caught:
        changed(settings, changes, path)
    assert repr(settings) == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("priority.exponent", 0.0),
        ("importance.beta", 1),
        ("item.gamma", 0.5),
        ("returns.gamma", [0.5, 0.75]),
        ("returns.lambda", 0.25),
        ("limits.samples_per_insert", 1.5),
        ("limits.tolerance", 64),
        ("limits.max_staleness", 3),
        ("limits.min_items", 7),
    ],
)
def test_each_changeable_path_changes_that_alone(path: str, value: Any) -> None:
    before = table(returns={"gamma": [0.9, 0.99]}, limits={"samples_per_insert": 1, "tolerance": 32})
    after = changed(before, {path: value})
    section, key = path.split(".")
    assert after[section][key] == value
    assert type(after[section][key]) is type(before[section][key])
    after[section][key] = before[section][key]
    assert after == before


def test_the_test_above_knows_every_changeable_path() -> None:
    marks = [mark for mark in test_each_changeable_path_changes_that_alone.pytestmark if mark.name == "parametrize"]
    assert {path for path, _ in marks[0].args[1]} == set(CHANGEABLE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"priority.exponent": -1}, "priority.exponent: expected a number >= 0, got -1"),
        ({"priority.exponent": "x"}, 'priority.exponent: expected a number >= 0, got "x"'),
        ({"importance.beta": True}, "importance.beta: expected a number >= 0, got true"),
        ({"importance.beta": None}, "importance.beta: expected a number >= 0, got null"),
        ({"limits.min_items": 0}, "limits.min_items: expected a positive integer, got 0"),
        ({"returns.lambda": 1.5}, "returns.lambda: expected a number from 0 to 1, got 1.5"),
        ({"item.gamma": [0.9, 0.9]}, "item.gamma: expected one number as before, since batches keep their columns while the server runs, got [0.9"),
        ({"item.gamma": "g"}, 'item.gamma: expected one number as before, since batches keep their columns while the server runs, got "g"'),
        ({"returns.gamma": 0.9}, "returns.gamma: expected a list of 2 numbers as before, since"),
        ({"returns.gamma": [0.9]}, "returns.gamma: expected a list of 2 numbers as before, since"),
        ({"returns.gamma": [0.9, 2]}, "returns.gamma[1]: expected a number from 0 to 1, got 2"),
        (
            {"item.n_step": 5},
            "item.n_step: cannot be changed while the server runs, only in memsvc.toml; what can: priority.exponent, importance.beta, ",
        ),
        ({"name": "x"}, "name: cannot be changed while the server runs"),
        ({"exponent": 0.5}, "exponent: unknown key; did you mean 'priority.exponent'?"),
        ({"priority.exponents": 0.5}, "priority.exponents: unknown key; did you mean 'priority.exponent'?"),
        ({"limits.tolerance": 1}, "limits.tolerance: 1 without limits.samples_per_insert bounds nothing"),
        ({"limits.samples_per_insert": 2}, "limits.tolerance: expected at least 1 + samples_per_insert = 1 + 2 = 3, else"),
        ([1], 'changes: expected an object such as {"priority.exponent": 0.5}, got [1]'),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(changes: Any, message: str) -> None:
    assert refused(table(returns={"gamma": [0.9, 0.99]}), changes).startswith(message)


def test_all_changes_of_a_call_hold_or_none() -> None:
    plain = table()
    both = changed(plain, {"limits.samples_per_insert": 2, "limits.tolerance": 66})
    assert (both["limits"]["samples_per_insert"], both["limits"]["tolerance"]) == (2.0, 66.0)
    assert refused(both, {"limits.tolerance": 100, "limits.samples_per_insert": 100}).startswith("limits.tolerance: expected at least")
    assert changed(both, {"limits.tolerance": 0, "limits.samples_per_insert": 0}) == plain


def test_a_gamma_that_a_step_field_gives_is_the_actors_business() -> None:
    settings = table(item={"kind": "transition", "gamma": "g"})
    assert refused(settings, {"item.gamma": 0.5}).startswith("item.gamma: comes from the step field 'g'")
    assert refused(table(), {"returns.lambda": 0.5}).startswith("returns.lambda: this table has no returns, and they cannot be added")


def test_a_path_is_put_before_the_key() -> None:
    assert refused(table(), {"priority.exponent": -1}, "table[3]").startswith("table[3].priority.exponent: expected")
    assert refused(table(), {"item.n_step": 2}, "table[3]").startswith("table[3].item.n_step: cannot")


def test_batches_that_could_stop_both_sides_are_refused_with_the_arithmetic() -> None:
    settings = table(limits={"samples_per_insert": 1.5, "tolerance": 33.5})
    assert largest_batch(settings) == 32
    refuse_batch(settings, 32)
    with pytest.raises(ConfigError) as caught:
        refuse_batch(settings, 33)
    assert str(caught.value).startswith(
        "limits.tolerance: table 'replay' has 33.5, and a batch of 33 needs at least batch + samples_per_insert = 33 + 1.5 = 34.5, or "
    )
    assert str(caught.value).endswith("sample batches of 32 at most")
    assert (caught.value.have, caught.value.need) == (33.5, 34.5)
    refuse_batch(table(), 1 << 40)


def test_settings_are_explained() -> None:
    queue = table(
        actor={"select": "all"},
        sampler="fifo",
        capacity={"items": 1000, "when_full": "block"},
        limits={"samples_per_insert": 1, "tolerance": 65, "max_times_sampled": 1, "min_items": 64, "max_staleness": 2},
    )
    lines = dict[str, list[str]]()
    for topic, sentence in explained(queue):
        lines.setdefault(topic, []).append(sentence)
    assert lines["sampler"] == ["fifo: the oldest items, each once a batch, in order"]
    assert lines["capacity"] == ["1,000 items at most; writers wait while it is full"]
    assert lines["limits"][:4] == [
        "batches from 64 items on",
        "1 items sampled for each one inserted, +- 65: who is ahead waits; batches of 64 at most",
        "each item is delivered 1 times at most",
        "items of the newest 3 versions of the parameters alone",
    ]
    assert "priority.exponent" in lines["changeable"][0]
    assert "returns.gamma" not in lines["changeable"][0]
    bent = dict(explained(table(priority={"decay": 0.5}, actor={"step_discount": 0.9, "episode_weights": True})))
    assert "end_episode(weight=...)" in bent["weights"]
    assert "sampler" not in bent
