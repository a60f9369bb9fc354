"""Random arrays that fit the graph's inputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import CallError, MemoryLimitError
from qrun.io.feeds import FULL
from qrun.io.freesizes import Axes, kinds, tries
from qrun.io.sizes import Sizes
from qrun.io.wholes import Wholes
from qrun.ir import Array, Model, TensorType
from qrun.ir.compound import maps, sequence
from qrun.ir.types import describe, integer_range, sizes_text, type_name
from qrun.memory import Budget
from qrun.shapes import MOST_AXES

Refuses = Callable[[Mapping[str, Array]], bool]
"""Whether shapes alone show that the model cannot run with these feeds."""

_SHOWN = 4
"""How many inputs a note names."""


@frozen
class RandomFeeds:
    """Arrays by input; the sizes that axes took for want of one, by their names; and the inputs that are not random,
    but say that all of the others counts. fits: False where the model refuses all sizes that were tried."""

    arrays: dict[str, Array]
    sizes: dict[str, int]
    full: tuple[str, ...]
    seed: int
    fits: bool = True

    @property
    def sources(self) -> dict[str, str]:
        """Where each came from."""
        return {name: FULL if name in self.full else f"random, seed {self.seed}" for name in self.arrays}

    @property
    def note(self) -> str:
        """What the user should know of them."""
        drawn = [name for name in self.arrays if name not in self.full]
        parts = [f"random data, seed {self.seed}, for {self._listed(drawn)}"] if drawn else []
        parts += [f"full lengths and masks for {self._listed(self.full)}"] if self.full else []
        parts += [f"{sizes_text(self.sizes)} (--shape changes that)"] if self.sizes else []
        return "; ".join(parts)

    def _listed(self, names: Sequence[str]) -> str:
        shown = ", ".join(f"{name} {describe(self.arrays[name])}" for name in names[:_SHOWN])
        return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def random_feeds(
    model: Model,
    wanted: Sequence[TensorType],
    given: Mapping[str, Array],
    sizes: Sizes,
    seed: int,
    budget: Budget,
    refuses: Refuses = lambda feeds: False,
) -> RandomFeeds:
    """Random arrays for the `wanted` inputs, but for those that say how much of others counts, of which all does.

    A sequence has two tensors, an optional has its value, a map two keys. Floats are uniform in [-1, 1), float8e8m0 in
    [0.5, 1.5), integers of 8 bits or fewer full range, others 0 or 1 (safe as indices), as booleans. Values depend only
    on the seed and the input's place. Lengths are full, masks 1. Free axes take the first sizes of
    `freesizes.tries` with which the model does not refuse its feeds, or the very first ones. A mask of places is as
    long as the past and the new tokens together, and an axis that is named as a sum of others as long as these. Raises
    CallError for text and an unknown type or rank, MemoryLimitError.
    """
    symbols = dict(sizes.symbols)
    for value in (*model.inputs, *model.defaults):
        if value.name in given and value.shape is not None:
            pairs = zip(value.shape, given[value.name].shape, strict=False)
            symbols |= {want: got for want, got in pairs if isinstance(want, str)}
    known = {v.name: sizes.shapes[v.name] for v in wanted if v.name in sizes.shapes}
    shapes = {**{name: array.shape for name, array in given.items()}, **known}
    tensors = [_tensor_of(value) for value in wanted if value.name not in shapes]
    axes = [(v, own) for v, own in [(v, v.sizes) for v in tensors] if str in map(type, own)]
    free = frozenset(d for _, own in axes for d in own if isinstance(d, str) and d not in symbols)

    def drawn(chosen: Mapping[str, int]) -> RandomFeeds:
        wholes = Wholes(model, {**symbols, **chosen}, shapes)
        own = _fitted(axes, symbols, chosen, wholes)
        every = {**symbols, **own}
        return _drawn(model, wanted, sizes.shapes, replace(wholes, symbols=every), seed, budget.aside(), own)

    return _first(map(drawn, tries(kinds(axes, free))), lambda made: refuses({**given, **made.arrays}))


def _first(ways: Iterator[RandomFeeds], refused: Callable[[RandomFeeds], bool]) -> RandomFeeds:
    """The first of the ways that is not refused, and fits into memory; where none is, the first that does."""
    first: RandomFeeds | None = None
    excess: MemoryLimitError | None = None
    while True:
        try:
            made = next(ways, None)
        except MemoryLimitError as error:
            excess = excess or error
            continue
        if made is None:
            break
        first = first or made
        if (set(made.sizes.values()) <= {1} and made is first) or not refused(made):
            return made
    if first is None:
        assert excess is not None
        raise excess
    return replace(first, fits=False)


def _drawn(
    model: Model,
    wanted: Sequence[TensorType],
    shapes: Mapping[str, tuple[int, ...]],
    wholes: Wholes,
    seed: int,
    budget: Budget,
    own: dict[str, int],
) -> RandomFeeds:
    """Random arrays of these shapes, or with the sizes that `wholes` knows. own: the sizes that qrun chose."""
    made: dict[str, Array] = {}
    full: list[str] = []
    places = {v.name: place for place, v in enumerate(model.inputs)}
    for value in wanted:
        rng = np.random.default_rng([seed, places[value.name]])

        def tensor(value: TensorType, rng: np.random.Generator = rng) -> Array:
            shape = shapes.get(value.name)
            if shape is None:
                shape = _sizes_of(model, value, wholes.symbols)
            if len(shape) > MOST_AXES:
                raise _not_random(model, value, f"{len(shape)} dimensions, more than {MOST_AXES}")
            if value.dtype is None:
                raise _not_random(model, value, "an unknown element type")
            try:
                budget.claim(shape, value.dtype.itemsize, f"input {value.name}")
            except MemoryLimitError as error:
                error.where = (model.label, f"input {value.name}")
                raise
            counted = wholes.feed(value, shape)
            if counted is not None:
                full.append(value.name)
            return _random(model, value, shape, rng) if counted is None else counted

        made[value.name] = _value(model, value, tensor)
        budget.hold(made[value.name])
    return RandomFeeds(made, own, tuple(full), seed)


def _fitted(
    axes: Sequence[Axes], symbols: Mapping[str, int], chosen: Mapping[str, int], wholes: Wholes
) -> dict[str, int]:
    """The sizes of the free axes: as chosen, or as they follow from other sizes."""
    inputs = Counter(size for _, own in axes for size in set(own))
    made = dict(chosen)
    for value, own in axes:
        for size in own:
            if isinstance(size, str) and size in made:
                alone = size == own[-1] and inputs[size] == 1
                made[size] = _sum(size, {**symbols, **made}) or (wholes.total(value) if alone else None) or made[size]
    return made


def _sum(name: str, sizes: Mapping[str, int]) -> int | None:
    """The size of an axis whose name is a sum of others, as exporters write: ``past_sequence_length + 1``."""
    parts = [part.strip() for part in name.split("+")]
    found = [int(part) if part.isascii() and part.isdigit() else sizes.get(part) for part in parts]
    return sum(size for size in found if size is not None) if len(parts) > 1 and None not in found else None


def _tensor_of(value: TensorType) -> TensorType:
    """The tensors that a sequence or an optional holds, by its name; a tensor itself."""
    while value.kind in ("sequence", "optional") and value.element is not None:
        value = replace(value.element, name=value.name)
    return value


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


def _sizes_of(model: Model, value: TensorType, symbols: Mapping[str, int]) -> tuple[int, ...]:
    if value.shape is None:
        raise _not_random(model, value, "an unknown number of dimensions")
    return tuple(dim if isinstance(dim, int) else symbols[dim] for dim in value.sizes)


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
            *([f"--shape {value.name}:SIZES, joined by x, if only these are missing"] if value.shape is None else []),
        ],
    )
