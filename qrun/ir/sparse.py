"""SparseTensorProto to the dense array that it stands for, checked against its own claims."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from qrun.ir.external import External
from qrun.ir.model import Array
from qrun.ir.tensors import bad_tensor, to_array
from qrun.ir.types import shape_text, type_name

if TYPE_CHECKING:
    import onnx


def to_dense(sparse: onnx.SparseTensorProto, external: External, where: str = "") -> Array:
    """A read-only array: the values at their indices, and zeros (of strings: empty ones) elsewhere.

    Raises ModelError if dims, values and indices contradict each other, MemoryLimitError if the array would not fit in
    memory. Source: ONNX IR, SparseTensorProto. Indices are int64: [NNZ], counted through the whole tensor, or
    [NNZ,rank].
    """
    name = sparse.values.name or where or "(unnamed)"
    dims = tuple(sparse.dims)
    if not dims or any(d < 0 for d in dims) or len(dims) > 64:
        raise bad_tensor(name, "1 to 64 dims of 0 or more", shape_text(dims))
    values = to_array(sparse.values, external, where)
    if values.ndim != 1:
        raise bad_tensor(name, "values of shape [NNZ]", shape_text(values.shape))
    made = external.zeros(name, dims, values.dtype)
    made.reshape(-1)[_places(sparse, name, dims, values.size, external)] = values
    made.flags.writeable = False
    return made


def _places(sparse: onnx.SparseTensorProto, name: str, dims: tuple[int, ...], count: int, external: External) -> Array:
    """Where each value stands in the flattened tensor."""
    if not count and not sparse.indices.data_type:
        return np.zeros(0, np.int64)
    indices = to_array(sparse.indices, external, f"indices of {name}")
    if indices.dtype != np.int64:
        raise bad_tensor(name, "indices of int64", type_name(indices.dtype))
    if indices.shape == (count,):
        _in_range(name, indices, math.prod(dims))
        places = indices
    elif indices.shape == (count, len(dims)):
        for axis, size in enumerate(dims):
            _in_range(name, indices[:, axis], size, f" along axis {axis}")
        # np.ravel_multi_index takes 32 axes at most; no product overflows, as the tensor fits in memory.
        places = indices @ np.array([math.prod(dims[axis + 1 :]) for axis in range(len(dims))], np.int64)
    else:
        wanted = f"indices of shape [{count}] or [{count},{len(dims)}]"
        raise bad_tensor(name, wanted, shape_text(indices.shape))
    ordered = np.sort(places)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if again.size:
        raise bad_tensor(name, "one value for each index", f"two for element {_text(int(again[0]), dims)}")
    return np.asarray(places)


def _in_range(name: str, indices: Array, size: int, along: str = "") -> None:
    """Refuse indices that name no element."""
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        bad = int(indices.min() if indices.min() < 0 else indices.max())
        expected = f"indices from 0 to {size - 1}{along}" if size else f"no indices: there are no elements{along}"
        raise bad_tensor(name, expected, str(bad))


def _text(place: int, dims: tuple[int, ...]) -> str:
    index: list[int] = []
    for size in reversed(dims):
        place, along = divmod(place, size)
        index.insert(0, along)
    return shape_text(tuple(index))
