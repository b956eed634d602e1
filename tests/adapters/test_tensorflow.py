"""adapters/tensorflow.py against a real daemon: signature, values, ends and errors, weights, and a Keras DQN that learns CartPole."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import cartpole
import numpy as np
import pytest
import tensorflow as tf
from memsvc_client import Actor, Batch, Learner, Params
from memsvc_client.adapters.tensorflow import dataset, load, publish, weights
from memsvc_proto.errors import SchemaError

Serve = Callable[[str], str]
BATCH = 32
STEPS = """
[step]
obs   = { dtype = "uint8", shape = [3, 5] }
count = { dtype = "uint64" }
half  = { dtype = "float16", shape = [2] }
flag  = { dtype = "bool" }
y     = { dtype = "float32" }
[[table]]
name     = "replay"
item     = { kind = "step" }
priority = { source = "given", exponent = 1.0 }
actor    = { select = "all" }
"""


def step(i: int) -> dict[str, object]:
    """Step i: every field tells i."""
    return {
        "obs": np.full((3, 5), i % 251, np.uint8) + np.arange(5, dtype=np.uint8),
        "count": np.uint64(2**63 + i),
        "half": np.array([i, -i], np.float16),
        "flag": i % 3 == 0,
        "y": np.float32(i) / 7,
    }


@pytest.fixture
def filled(serve: Serve) -> str:
    """The address of a daemon that holds steps 0 .. 99, with priorities 1, 2, 1, 2, ..."""
    address = serve(STEPS)
    with Actor(address, name="writer") as actor:
        for i in range(100):
            actor.add(**step(i), priority=1.0 + i % 2)
        actor.end_episode(terminated=True)
        actor.flush(timeout=30)
    return address


def test_the_signature_is_static_and_complete(filled: str) -> None:
    with Learner(filled, table="replay", batch_size=BATCH) as learner:
        data = dataset(learner)
        assert data.element_spec == {
            "obs": tf.TensorSpec((BATCH, 3, 5), tf.uint8),
            "count": tf.TensorSpec((BATCH,), tf.uint64),
            "half": tf.TensorSpec((BATCH, 2), tf.float16),
            "flag": tf.TensorSpec((BATCH,), tf.bool),
            "y": tf.TensorSpec((BATCH,), tf.float32),
            "keys": tf.TensorSpec((BATCH,), tf.uint64),
            "probabilities": tf.TensorSpec((BATCH,), tf.float64),
            "weights": tf.TensorSpec((BATCH,), tf.float32),
            "versions": tf.TensorSpec((BATCH,), tf.int64),
        }
        for batch in data.take(1):
            assert {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in batch.items()} == data.element_spec


def test_values_are_those_of_the_steps_and_stay_so_while_later_batches_come(filled: str) -> None:
    with Learner(filled, table="replay", batch_size=BATCH) as learner:
        batches = list(dataset(learner).take(20))
    key_of: dict[int, int] = {}
    for batch in batches:
        rows = {name: tensor.numpy() for name, tensor in batch.items()}
        for row in range(BATCH):
            i = int(rows["count"][row]) - 2**63
            assert 0 <= i < 100
            for name, value in step(i).items():
                np.testing.assert_array_equal(rows[name][row], value, err_msg=f"{name} of step {i}")
            assert rows["probabilities"][row] == pytest.approx((1 + i % 2) / 150)
            assert rows["weights"][row] == pytest.approx((1 / (1 + i % 2)) ** 0.4, rel=1e-6)
            assert key_of.setdefault(i, int(rows["keys"][row])) == int(rows["keys"][row])
    assert len(set(key_of.values())) == len(key_of) > 90


def test_keys_go_back_exactly(filled: str) -> None:
    """Keys have 64 bits: through a float or a signed integer they would name other items."""
    with Learner(filled, table="replay", batch_size=BATCH) as learner:
        done: set[int] = set()
        for batch in dataset(learner):
            learner.update_priorities(batch["keys"].numpy(), np.full(BATCH, 5.0))
            done |= {int(i) - 2**63 for i in batch["count"].numpy()}
            if len(done) == 100:
                break
        # Updates are asynchronous, and batches may have been drawn ahead of them.
        deadline = time.monotonic() + 30
        for batch in dataset(learner):
            if np.allclose(batch["probabilities"].numpy(), 1 / 100):
                break
            assert time.monotonic() < deadline, batch["probabilities"].numpy()


def test_keras_fits_from_it(filled: str) -> None:
    with Learner(filled, table="replay", batch_size=BATCH) as learner:
        model = tf.keras.Sequential([tf.keras.Input((3, 5)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = dataset(learner).map(lambda batch: (tf.cast(batch["obs"], tf.float32) / 255, batch["y"], batch["weights"])).prefetch(2)
        history = model.fit(data, steps_per_epoch=20, epochs=2, verbose=0).history["loss"]
    assert len(history) == 2
    assert np.isfinite(history).all()


def test_it_ends_when_the_learner_is_closed(filled: str) -> None:
    learner = Learner(filled, table="replay", batch_size=BATCH)
    seen = 0
    for _ in dataset(learner):
        seen += 1
        if seen == 3:
            learner.close()
    assert seen == 3


def test_it_ends_when_the_learner_is_closed_while_it_waits(serve: Serve) -> None:
    learner = Learner(serve(STEPS), table="replay", batch_size=BATCH)
    data, counted = dataset(learner, timeout=60), list[int]()
    reader = threading.Thread(target=lambda: counted.append(sum(1 for _ in data)))
    reader.start()
    learner.close()
    reader.join(timeout=10)
    assert not reader.is_alive()
    assert counted == [0]


def test_it_draws_no_batch_ahead(filled: str) -> None:
    """Else whoever leaves the loop waits until that draw has its batch or times out."""
    with Learner(filled, table="replay", batch_size=BATCH) as learner:
        asked: list[float] = []

        class Counting:
            columns = learner.columns

            def sample(self, timeout: float) -> Batch:
                asked.append(timeout)
                return learner.sample(timeout=timeout)

        for count, _ in enumerate(dataset(Counting(), timeout=7), 1):
            assert asked == [7] * count
            if count == 5:
                break
    assert asked == [7] * 5


def test_an_empty_table_is_an_error_that_says_so_and_the_dataset_can_be_read_later(serve: Serve) -> None:
    address = serve(STEPS)
    with Learner(address, table="replay", batch_size=BATCH) as learner, Actor(address, name="writer") as actor:
        data = dataset(learner, timeout=0.3)
        with pytest.raises(tf.errors.OpError, match="NotReady"):
            next(iter(data))
        for i in range(100):
            actor.add(**step(i), priority=1.0)
        actor.end_episode(terminated=True)
        actor.flush(timeout=30)
        assert next(iter(data))["obs"].shape == (BATCH, 3, 5)


def network(width: int = 8, dtype: str = "float32") -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input((4,)), layers.Dense(width, dtype=dtype), layers.BatchNormalization(dtype=dtype), layers.Dense(2, dtype=dtype)]
    )


def newest(actor: Actor, version: int) -> Params:
    """The parameters, once the notice of that version has arrived."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        params = actor.params(timeout=30)
        if params is not None and params.version == version:
            return params
        time.sleep(0.01)
    raise AssertionError(f"version {version} did not arrive within 30 s")


def test_weights_travel_from_model_to_model(filled: str) -> None:
    source, copy = network(), network()
    source.layers[1].moving_mean.assign(np.linspace(-1, 1, 8))
    assert [v.path for v in source.weights] != [v.path for v in copy.weights], "Keras numbers layers by process"
    assert list(weights(source)) == list(weights(copy)) == [
        "000/kernel", "001/bias", "002/gamma", "003/beta", "004/moving_mean", "005/moving_variance", "006/kernel", "007/bias",
    ]  # fmt: skip
    with Learner(filled, table="replay", batch_size=BATCH) as learner, Actor(filled, name="follower") as actor:
        first = publish(learner, source)
        assert load(newest(actor, first), copy) == first
        for name, value in weights(source).items():
            np.testing.assert_array_equal(weights(copy)[name], value)
        source.layers[0].trainable = False  # changes which weights are trained, not what they are called
        second = publish(learner, source)
        assert second > first
        assert load(newest(actor, second), copy) == second


def test_bfloat16_weights_travel_too(filled: str) -> None:
    source, copy = network(dtype="bfloat16"), network(dtype="bfloat16")
    with Learner(filled, table="replay", batch_size=BATCH) as learner, Actor(filled, name="follower") as actor:
        publish(learner, source)
        load(actor.params(timeout=30), copy)
    for name, value in weights(source).items():
        np.testing.assert_array_equal(weights(copy)[name], value)
        assert value.dtype.name == "bfloat16"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda: network(width=9),
            r"weight '000/kernel' \(sequential[_0-9]*/dense[_0-9]*/kernel\): the model has float32 \(4, 9\), .* float32 \(4, 8\)",
        ),
        (lambda: network(dtype="float64"), r"weight '000/kernel' .*: the model has float64 \(4, 8\), .* float32 \(4, 8\)"),
        (lambda: tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8)]), "weight '002/gamma' is only in the parameters"),
        (lambda: tf.keras.Sequential([network(), tf.keras.layers.Dense(2)]), "weight '008/kernel' is only in the model"),
        (lambda: tf.keras.Sequential([tf.keras.layers.Dense(8)]), "has no weights yet"),
    ],
)
def test_a_model_of_another_architecture_is_refused_by_name_and_unchanged(filled: str, other: Callable[[], tf.keras.Model], message: str) -> None:
    model = other()
    before = [v.numpy() for v in model.weights]
    with Learner(filled, table="replay", batch_size=BATCH) as learner, Actor(filled, name="follower") as actor:
        publish(learner, network())
        with pytest.raises(SchemaError, match=message):
            load(actor.params(timeout=30), model)
    for now, then in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(now.numpy(), then)


@pytest.mark.timeout(300)
def test_a_keras_dqn_learns_cartpole_through_the_daemon(serve: Serve) -> None:
    tf.keras.utils.set_random_seed(7)
    online, target = cartpole.network(), cartpole.network()
    target.set_weights(online.get_weights())
    train = cartpole.trainer(online, target)
    address, deadline, update, mean = serve(cartpole.CONFIG), time.monotonic() + 210, 0, 0.0
    player = subprocess.Popen([sys.executable, str(Path(cartpole.__file__)), address])
    try:
        with Learner(address, table="replay", batch_size=128) as learner:
            publish(learner, online)
            for batch in dataset(learner, timeout=60):
                error = train(batch)
                learner.update_priorities(batch["keys"].numpy(), error.numpy() + 1e-3)
                update += 1
                if update % 25 == 0:
                    version = publish(learner, online)
                if update % 500 == 0 and update >= 2000:
                    mean = cartpole.greedy_mean(online)
                    if mean >= 195 or time.monotonic() > deadline:
                        break
        assert player.poll() is None, f"the actor ended with status {player.returncode}"
    finally:
        player.kill()
        player.wait()
    assert mean >= 195, f"greedy mean {mean} after {update} updates"
    assert version - 40 < batch["versions"].numpy().max() <= version, "the actor follows the parameters"
