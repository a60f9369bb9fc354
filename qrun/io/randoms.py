"""Random arrays that fit the graph's inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.errors import CallError, MemoryLimitError
from qrun.io.sizes import Sizes
from qrun.ir import Array, Model, TensorType
from qrun.ir.compound import maps, sequence
from qrun.ir.types import integer_range, type_name
from qrun.memory import Budget
from qrun.shapes import MOST_AXES


def random_feeds(
    model: Model, wanted: Sequence[TensorType], given: Mapping[str, Array], sizes: Sizes, seed: int, budget: Budget
) -> tuple[dict[str, Array], list[str]]:
    """Random arrays for the `wanted` inputs, and the symbols that were set to 1 for want of a size.

    A sequence has two tensors, an optional has its value, a map two keys. Floats are uniform in [-1, 1), float8e8m0 in
    [0.5, 1.5), integers of 8 bits or fewer full range, others 0 or 1 (safe as indices), as booleans. Values depend only
    on the seed and the input's place. Raises CallError for text and an unknown type or rank, MemoryLimitError.
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
        rng = np.random.default_rng([seed, places[value.name]])

        def tensor(value: TensorType, rng: np.random.Generator = rng) -> Array:
            shape = sizes.shapes.get(value.name)
            if shape is None:
                shape = _sizes_of(model, value, symbols, unset)
            if len(shape) > MOST_AXES:
                raise _not_random(model, value, f"{len(shape)} dimensions, more than {MOST_AXES}")
            if value.dtype is None:
                raise _not_random(model, value, "an unknown element type")
            try:
                budget.claim(shape, value.dtype.itemsize, f"input {value.name}")
            except MemoryLimitError as error:
                error.where = (model.label, f"input {value.name}")
                raise
            return _random(model, value, shape, rng)

        made[value.name] = _value(model, value, tensor)
        budget.hold(made[value.name])
    return made, list(unset)


def _value(model: Model, value: TensorType, tensor: Callable[[TensorType], Array]) -> Array:
    """A tensor, an optional's value, two tensors in a sequence, or a map from two keys; two maps in a sequence."""
    if value.kind == "tensor":
        return tensor(value)
    held = value.element and replace(value.element, name=value.name)
    if held is not None and value.kind == "optional":
        return _value(model, held, tensor)
    if held is not None and value.kind == "sequence" and held.kind == "tensor":
        return sequence([tensor(held), tensor(held)])
    single = value.kind == "map"
    stated, rows = (value, 1) if single else (held, 2)
    if stated is None or stated.kind != "map" or stated.key is None or stated.element is None:
        raise _not_random(model, value, f"a {value.kind}")
    keys = np.array(["a", "b"] if stated.key.kind == "O" else [0, 1]).astype(stated.key)
    drawn = tensor(TensorType(value.name, stated.element.dtype, (rows, keys.size)))
    return maps(keys, drawn[0] if single else drawn)


def _sizes_of(model: Model, value: TensorType, symbols: Mapping[str, int], unset: dict[str, None]) -> tuple[int, ...]:
    if value.shape is None:
        raise _not_random(model, value, "an unknown number of dimensions")
    shape = []
    for dim in value.sizes:
        if isinstance(dim, int):
            shape.append(dim)
        elif dim in symbols:
            shape.append(symbols[dim])
        else:
            unset[dim] = None
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
        fixes=[
            f"-i {value.name}=FILE",
            *([f"--shape {value.name}:1x3x224x224 if only the sizes are missing"] if value.shape is None else []),
        ],
    )
