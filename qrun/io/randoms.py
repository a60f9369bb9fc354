"""Random arrays that fit the graph's inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.errors import CallError
from qrun.io.sizes import Sizes
from qrun.ir import Array, Model, TensorType
from qrun.ir.types import integer_range, type_name
from qrun.memory import Budget
from qrun.shapes import MOST_AXES


def random_feeds(
    model: Model, wanted: Sequence[TensorType], given: Mapping[str, Array], sizes: Sizes, seed: int, budget: Budget
) -> tuple[dict[str, Array], list[str]]:
    """Random arrays for the `wanted` inputs, and the symbols that were set to 1 for want of a size.

    Floats are uniform in [-1, 1), 8-bit and smaller integers full range, other integers 0 or 1 (safe as indices),
    booleans both. An input's values depend on the seed and its place only. Raises CallError for an input of unknown
    type or rank, MemoryLimitError.
    """
    symbols = dict(sizes.symbols)
    for value in (*model.inputs, *model.defaults):
        if value.name in given and value.shape is not None:
            pairs = zip(value.shape, given[value.name].shape, strict=False)
            symbols |= {want: got for want, got in pairs if isinstance(want, str)}
    unset: dict[str, None] = {}
    made: dict[str, Array] = {}
    places = {v.name: place for place, v in enumerate(model.inputs)}
    for value in wanted:
        shape = sizes.shapes.get(value.name)
        if shape is None:
            shape = _sizes_of(model, value, symbols, unset)
        if len(shape) > MOST_AXES:
            raise _not_random(model, value, f"{len(shape)} dimensions, more than {MOST_AXES}")
        if value.kind != "tensor" or value.dtype is None:
            raise _not_random(model, value, f"a {value.kind}" if value.kind != "tensor" else "an unknown element type")
        budget.claim(shape, value.dtype.itemsize, f"input {value.name}")
        made[value.name] = _random(model, value, shape, np.random.default_rng([seed, places[value.name]]))
        budget.hold(made[value.name])
    return made, list(unset)


def _sizes_of(model: Model, value: TensorType, symbols: Mapping[str, int], unset: dict[str, None]) -> tuple[int, ...]:
    if value.shape is None:
        raise _not_random(model, value, "an unknown number of dimensions")
    shape = []
    for place, dim in enumerate(value.shape):
        if isinstance(dim, int):
            shape.append(dim)
        elif dim is not None and dim in symbols:
            shape.append(symbols[dim])
        else:
            unset[dim or f"{value.name}[{place}]"] = None
            shape.append(1)
    return tuple(shape)


def _random(model: Model, value: TensorType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    dtype = value.dtype
    assert dtype is not None
    name = type_name(dtype)
    count = math.prod(shape)
    flat: Array
    if dtype.kind == "O":
        raise _not_random(model, value, "text")
    if dtype.kind == "b":
        flat = rng.integers(0, 2, count, np.uint8).astype(bool)
    elif "int" in name:
        low, high = integer_range(dtype)
        if high > 255:
            flat = rng.integers(0, 2, count, np.uint8).astype(dtype)
        else:
            flat = rng.integers(low, high + 1, count, np.int16).astype(dtype)
    elif dtype.kind == "c":
        flat = ((rng.random(count) + 1j * rng.random(count)) * 2 - (1 + 1j)).astype(dtype)
    elif name == "float8e8m0":
        flat = (0.5 + rng.random(count, np.float32)).astype(dtype)
    elif dtype == np.float64:
        flat = rng.random(count) * 2 - 1
    else:
        flat = (rng.random(count, np.float32) * np.float32(2) - np.float32(1)).astype(dtype)
    return flat.reshape(shape)


def _not_random(model: Model, value: TensorType, what: Any) -> CallError:
    return CallError(
        "QR001",
        f"input {value.name!r} has {what}: qrun cannot make random data for it",
        where=[model.label, f"input {value.name}, {value}"],
        fixes=[f"-i {value.name}=FILE", f"--shape {value.name}:1x3x224x224 if only the sizes are missing"],
    )
