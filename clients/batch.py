"""Batch: what Learner.sample returns, views of the received frame."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Any

import numpy as np
from memsvc_core import TableSpec, Views
from memsvc_proto.errors import ProtocolError
from memsvc_proto.wire import Message
from numpy.typing import NDArray

_SERVICE_COLUMNS = 4  # keys, probabilities, weights, versions close every layout


class Keys(NDArray[np.uint64]):
    """uint64[B]. Also callable, as a mapping's `keys()`: it returns the batch's column names, so that `dict(batch)` and `**batch` work."""

    names: KeysView[str]

    def __call__(self) -> KeysView[str]:
        try:
            return self.names
        except AttributeError:
            raise TypeError("these keys were cut out of a batch's: only batch.keys() names columns") from None


class Batch(Mapping[str, NDArray[Any]]):
    """A mapping of column names to arrays [B, ...], in the table's order. The arrays are the caller's: writable, and valid as long as any of them is
    referenced.

    keys           u64[B]  the items' keys, for update_priorities; `batch.keys()` gives the column names, as in every mapping
    probabilities  f64[B]  P(i) at the draw (DEFINITIONS 7)
    weights        f32[B]  importance weights (DEFINITIONS 6)
    versions       i64[B]  of the parameters that chose the item's oldest action; -1: none published then
    population     int     N, the items that could have been drawn
    total          float   W, the sum of their weights
    burn_in        int     steps at the beginning of each sequence that only warm up a recurrent state (item.burn_in); 0 for other items
    """

    __slots__ = ("_columns", "burn_in", "keys", "population", "probabilities", "total", "versions", "weights")

    keys: Keys
    probabilities: NDArray[np.float64]
    weights: NDArray[np.float32]
    versions: NDArray[np.int64]
    population: int
    total: float
    burn_in: int

    def __init__(self, columns: dict[str, NDArray[Any]], service: tuple[NDArray[Any], ...], population: int, total: float, burn_in: int = 0) -> None:
        self._columns = columns
        keys, self.probabilities, self.weights, self.versions = service
        self.keys = keys.view(Keys)
        self.keys.names = columns.keys()
        self.population = population
        self.total = total
        self.burn_in = burn_in

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {array.dtype.str}{list(array.shape)}" for name, array in self._columns.items())
        return f"Batch({columns}; population {self.population})"

    def __reduce__(self) -> Any:
        service = (np.asarray(self.keys), self.probabilities, self.weights, self.versions)
        return Batch, (self._columns, service, self.population, self.total, self.burn_in)

    # Arrays have no single truth value, so batches are compared by identity.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Layout:
    """Where the columns of a table's batches lie; made once per table and batch size, so that reading a batch takes a few microseconds."""

    def __init__(self, spec: TableSpec, batch_size: int) -> None:
        self.bytes, columns = spec.layout(batch_size)
        self.batch_size = batch_size
        self._burn_in = spec.burn_in
        self.columns = [(name, np.dtype(dtype), shape) for name, dtype, shape, _ in columns]
        """(name, dtype, shape [B, ...]) in the batch's order; keys, probabilities, weights and versions come last."""
        self._names = [name for name, *_ in columns[:-_SERVICE_COLUMNS]]
        self._views = Views(columns)

    def read(self, message: Message) -> Batch:
        """The batch in a BATCH message, without a copy. Raises ProtocolError when its size is not the layout's."""
        body = memoryview(message.body)
        if body.nbytes != self.bytes or message.a != self.batch_size:
            raise ProtocolError(f"a batch of {message.a} items in {body.nbytes} bytes came, {self.batch_size} in {self.bytes} were asked for")
        return self._over(body, message.b, message.f)

    def copy(self, batch: Batch, frame: NDArray[np.uint8]) -> Batch:
        """The same batch, which lies in `frame`, in memory of its own."""
        return self._over(frame.copy().data, batch.population, batch.total)

    def _over(self, body: memoryview, population: int, total: float) -> Batch:
        arrays = self._views.of(body)
        columns = dict(zip(self._names, arrays, strict=False))  # what is left has no name of its own: the service's columns
        return Batch(columns, arrays[-_SERVICE_COLUMNS:], population, total, self._burn_in)
