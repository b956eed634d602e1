"""TensorFlow and Keras: batches as a `tf.data.Dataset`, the weights of a Keras model out to the actors and in again.

    data = dataset(learner)                                  # {"obs": [B, ...], ..., "keys": [B], "probabilities", "weights", "versions"}
    for batch in data: ...                                   # or model.fit(data.map(...), steps_per_epoch=...)
    publish(learner, model)                                  # at the learner
    load(actor.params(timeout=30), model)                    # at an actor, with a model of the same architecture

TensorFlow is imported here and nowhere else in the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]
from memsvc_proto.errors import Closed, SchemaError

if TYPE_CHECKING:
    from memsvc_client import Learner, Params


def dataset(learner: Learner, timeout: float = 30.0) -> Any:
    """A `tf.data.Dataset` of the learner's batches: dictionaries of name -> tensor, without end, of fully static shapes and dtypes.

    `element_spec` is {name: TensorSpec([batch, ...], dtype)} for every column of the batch, in the table's order, then "keys" uint64 [batch],
    "probabilities" float64, "weights" float32 and "versions" int64. Keys stay uint64: hand them to `learner.update_priorities` as
    `batch["keys"].numpy()`. Each step waits up to `timeout` seconds for a batch; the dataset ends when the learner is closed. Any other error
    of `learner.sample` leaves the iteration as a `tf.errors.OpError` whose message ends with the memsvc error's class and text, since
    TensorFlow carries no Python exceptions; iterating anew goes on with the same learner. Draws a batch when it is asked for one, never ahead:
    the learner prefetches; append `.prefetch(n)` for more.

    Raises SchemaError when TensorFlow has no dtype for a column.
    """

    def batches() -> Iterator[dict[str, Any]]:
        while True:
            try:
                batch = learner.sample(timeout=timeout)
            except Closed:
                return
            yield {
                **batch,
                "keys": np.asarray(batch.keys),
                "probabilities": batch.probabilities,
                "weights": batch.weights,
                "versions": batch.versions,
            }

    signature = {name: tf.TensorSpec(shape, _dtype(name, dtype)) for name, dtype, shape in learner.columns}
    options = tf.data.Options()
    # TensorFlow would draw ahead by itself, and whoever left the loop would wait until that draw's timeout.
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_generator(batches, output_signature=signature).with_options(options)


def weights(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of a Keras model's weights by name, in `model.weights` order: its own state, and neither metrics, seeds nor an optimizer's.

    A name is the weight's place and its own name, such as "002/kernel". It depends on the architecture alone: Keras numbers its layers by what
    else the process has built, so that `dense_3` here may be `dense` elsewhere.
    """
    return {name: np.array(variable.numpy()) for name, variable in _named(model)}


def publish(learner: Learner, model: Any, topic: str | None = None) -> int:
    """Publishes `weights(model)` and returns the new version; errors and blocking are those of `learner.publish`."""
    return learner.publish(weights(model), topic=topic)


def load(params: Params, model: Any) -> int:
    """Assigns what `publish` sent to a Keras model of the same architecture, and returns its version.

    Raises SchemaError, and assigns nothing, when a weight is missing or unknown, or its shape or dtype differs; the message names the weight.
    """
    variables = dict(_named(model))
    for name in sorted({*variables, *params.arrays}):
        if name not in params.arrays or name not in variables:
            where = "the model" if name in variables else "the parameters"
            raise SchemaError(
                f"weight {name!r} is only in {where}: the model's architecture is not the one that published version {params.version}", weight=name
            )
    arrays = {}
    for name, variable in variables.items():
        got, shape, dtype = params.arrays[name], tuple(variable.shape), np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
        if got.dtype.names == (dtype.name,):  # bfloat16 and the like, which plain numpy cannot name (params.py)
            got = got.view(dtype)
        arrays[name] = got
        if got.shape != shape or got.dtype != dtype:
            raise SchemaError(
                f"weight {name!r} ({variable.path}): the model has {dtype} {shape}, version {params.version} brings {got.dtype} {got.shape}; "
                "load it into a model of the architecture that published it",
                weight=name,
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return params.version


def _named(model: Any) -> list[tuple[str, Any]]:
    if not model.weights:
        raise SchemaError(f"model {model.name!r} has no weights yet: give it an Input, call build(), or call it once")
    return [(f"{place:03d}/{variable.name}", variable) for place, variable in enumerate(model.weights)]


def _dtype(name: str, dtype: np.dtype[Any]) -> Any:
    try:
        return tf.as_dtype(dtype)
    except TypeError:
        raise SchemaError(f"column {name!r} is {dtype}, which TensorFlow has no dtype for; choose another one in [step]", column=name) from None
