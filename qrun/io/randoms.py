"""Makes random arrays that fit the graph's inputs. Guesses the kinds of free axes, such as batch or sequence, and tries
sizes for them. Inputs that say how much of other inputs counts, such as sequence lengths and masks, are filled so that
all of it counts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import CallError, MemoryLimitError
from qrun.io.feeds import FULL
from qrun.io.sizes import Sizes
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.compound import maps, sequence
from qrun.ir.model import once_per_model
from qrun.ir.types import describe, integer_range, sizes_text, type_name
from qrun.memory import Budget
from qrun.ops import MASK, Whole, expansion, find
from qrun.shapes import MOST_AXES

Axes = tuple[TensorType, Sequence[int | str]]
"""An input, and the sizes of its axes, with names for free axes."""
Kind = Literal["batch", "sequence", "state", "image", "channels"]

IMAGES = (32, 64, 224, 320, 640)
SEQUENCES = (16, 64, 128, 512)
CHANNELS = (3, 1)
"""The sizes to try, in this order; a batch has size 1."""

_ORDER: tuple[Kind, ...] = ("batch", "sequence", "state", "image", "channels")
"""If several inputs share an axis, it gets the first of their kinds in this order."""
_BATCH = re.compile(r"batch|^(n|b|bs)$", re.I)
_SEQUENCE = re.compile(r"seq|time|len|frame|step|token|^(t|l|s)$", re.I)


def is_batch_name(name: str) -> bool:
    """Does the name of an axis say that it is the batch?"""
    return bool(_BATCH.search(name))


def kinds(axes: Iterable[Axes], free: frozenset[str]) -> dict[str, Kind]:
    """The likely kind of each free axis, by name."""
    found: dict[str, Kind] = {}
    for value, sizes in axes:
        image = _image_axes(value, sizes)
        for index, size in enumerate(sizes):
            if isinstance(size, str) and size in free:
                kind = _kind(value, sizes, index, image)
                found[size] = min(found.get(size, kind), kind, key=_ORDER.index)
    return found


def _kind(value: TensorType, sizes: Sequence[int | str], axis: int, image: Sequence[int]) -> Kind:
    """What axis number `axis` of an input stands for, such as its batch or an image's height."""
    rank, name = len(sizes), str(sizes[axis])
    if is_batch_name(name):
        return "batch"
    if axis in image:
        return "image"
    if rank == 4 and axis == 1 and image == (2, 3):
        return "channels"
    if _SEQUENCE.search(name):
        return "sequence"
    if axis == 0 and (rank > 1 or not _is_float(value)):
        return "batch"
    if rank == 3 and axis == 1 and isinstance(sizes[0], int) and isinstance(sizes[2], int):
        return "batch" if sizes[0] > 1 else "state"  # layers of a recurrent network, its batch and width
    return "sequence"


def _image_axes(value: TensorType, sizes: Sequence[int | str]) -> tuple[int, ...]:
    """The axes of height and width of an input that looks like images; () for others."""
    rank = len(sizes)
    if rank not in (3, 4) or not (_is_float(value) or value.dtype in (np.uint8, np.int8)):
        return ()
    colors = (1, 3) if rank == 4 else (3,)
    first, last = sizes[rank - 3], sizes[-1]
    if isinstance(last, str) and (first in colors or (rank == 4 and all(isinstance(size, str) for size in sizes))):
        return rank - 2, rank - 1
    if last in colors and isinstance(sizes[-2], str) and isinstance(sizes[-3], str):
        return rank - 3, rank - 2
    return ()


def _is_float(value: TensorType) -> bool:
    """Whether an input takes floating-point numbers."""
    return value.dtype is not None and "float" in type_name(value.dtype)


def tries(kinds: Mapping[str, Kind]) -> Iterator[dict[str, int]]:
    """Yield sizes of all free axes by name, the likeliest first; at last 1 for each."""
    present = set(kinds.values())

    def choices(kind: Kind, sizes: Sequence[int]) -> Sequence[int]:
        return sizes if kind in present else sizes[:1]

    lengths = SEQUENCES if present & {"sequence", "state"} else SEQUENCES[:1]
    given = choices("image", IMAGES), lengths, choices("channels", CHANNELS), choices("state", (0, 1))
    for image, length, channels, state in product(*given):
        size = {"batch": 1, "sequence": length, "state": state or length, "image": image, "channels": channels}
        yield {name: size[kind] for name, kind in kinds.items()}
    if present - {"batch"}:
        yield dict.fromkeys(kinds, 1)


_MASK_NAME = "attention_mask"
"""The exporters' name of the mask in a model without an attention operator."""


@frozen
class Wholes:
    """Fills inputs that say how much of other inputs counts, such as lengths and masks. symbols: the known sizes of
    axes, by name; shapes: the known shapes of inputs."""

    model: Model
    symbols: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def feed(self, value: TensorType, shape: Sequence[int]) -> Array | None:
        """The array of such an input, which says that everything counts; None for other inputs."""
        readers = _readers(self.model).get(value.name, ())
        if not readers:
            return None
        made = np.ones(shape, value.dtype)
        whole = readers[0][1]
        if whole.of and not (whole.mask and made.ndim > 1):
            node, whole, count = next((found for found in self._counts(readers)), (*readers[0], 1))
            made[...] = min(count, np.iinfo(np.int32).max)
            if whole.mask:
                batch = self._size(node, whole.of[0][0], 0) or made.size
                made[batch : 2 * batch] = 0  # the starts of the sequences, if they follow the ends
        return made

    def total(self, value: TensorType) -> int | None:
        """The size of a mask's last axis if nothing sets it: past and new tokens together; None for other inputs."""
        if not any(whole == MASK or whole.mask for _, whole in _readers(self.model).get(value.name, ())):
            return None
        return next((count for _, _, count in self._counts(_pasts(self.model))), None)

    def _counts(self, readers: Sequence[tuple[Node, Whole]]) -> Iterator[tuple[Node, Whole, int]]:
        """Yield what an input must count at each node whose shapes are known."""
        for node, whole in readers:
            sizes = [self._size(node, name, _axis(node, axis)) for name, axis in whole.of]
            if None not in sizes:
                yield node, whole, max(sum(size for size in sizes if size is not None) - whole.less, 0)

    def _size(self, node: Node, name: str, axis: int) -> int | None:
        """The size of an axis of the node's input with this name; 0 if the input is omitted, None if unknown."""
        tensor = _input_tensor(node, name)
        if not tensor:
            return 0
        shape = self.shapes.get(tensor)
        if shape is not None:
            return shape[axis] if -len(shape) <= axis < len(shape) else None
        value = _nearest_type(self.model, tensor)
        if value is None or not -len(value.sizes) <= axis < len(value.sizes):
            return None
        size = value.sizes[axis]
        return size if isinstance(size, int) else self.symbols.get(size, 1 if size in _axes(self.model) else None)


def _axis(node: Node, axis: int | str) -> int:
    """An axis of a node: a number, or the name of the attribute that has it."""
    found = node.attributes.get(axis, 0) if isinstance(axis, str) else axis
    return found if isinstance(found, int) else 0


def _input_tensor(node: Node, name: str) -> str:
    """The tensor that the node reads as the input of this name; "" if it is omitted."""
    definition = find(node.domain, node.op_type, node.version)
    names = [p.name for p in definition.inputs] if definition else []
    index = names.index(name) if name in names else len(node.inputs)
    return node.inputs[index] if index < len(node.inputs) else ""


def _nearest_type(model: Model, tensor: str) -> TensorType | None:
    """The type of the tensor, or of the nearest known tensor before it, because layers keep the axes of sequences."""
    for _ in range(len(model.nodes)):
        value = model.fed.get(tensor) or model.types.get(tensor) or _types(model).get(tensor)
        if value is not None and value.shape is not None:
            return value
        node = model.producers.get(tensor)
        if node is None or not node.inputs:
            return None
        tensor = node.inputs[0]
    return None


@once_per_model
def _types(model: Model) -> Mapping[str, TensorType]:
    """The types of tensors that the file states, with those that ONNX infers from them."""
    from qrun.ir.infer import with_inferred

    return with_inferred(model, model.path, expansion).types if model.path else model.types


@once_per_model
def _axes(model: Model) -> frozenset[int | str]:
    """The sizes and names of all axes of the model's inputs."""
    return frozenset(size for value in model.fed.values() for size in value.sizes)


@once_per_model
def _readers(model: Model) -> Mapping[str, Sequence[tuple[Node, Whole]]]:
    """For each input that says how much counts: the nodes that read it as such, and its meaning there."""
    found = {}
    for value in model.inputs:
        if value.kind != "tensor" or value.dtype is None or not re.search("int|bool", type_name(value.dtype)):
            continue
        readers = list(_length_readers(model, value.name))
        if not readers and _MASK_NAME in value.name.lower():
            readers = [(node, MASK) for node in model.consumers.get(value.name, ())[:1]]
        if readers:
            found[value.name] = readers
    return found


def _length_readers(model: Model, name: str) -> Iterator[tuple[Node, Whole]]:
    """Yield the nodes that read a tensor, or a converted or moved form of it, as an input that says how much counts."""
    left = [name]
    while left:
        name = left.pop(0)
        for node in model.consumers.get(name, ()):
            definition = find(node.domain, node.op_type, node.version)
            if definition is None:
                continue
            for index, tensor in enumerate(node.inputs):
                whole = definition.wholes.get(definition.param(index)) if tensor == name else None
                if whole is not None:
                    yield node, whole
            if node.inputs[0] == name and (definition.form == "moves" or node.op_type in ("Cast", "Identity")):
                left.append(node.outputs[0])


@once_per_model
def _pasts(model: Model) -> Sequence[tuple[Node, Whole]]:
    """The nodes that count the places of a cache that is a graph input."""
    found = []
    for value in model.inputs:
        for node in model.consumers.get(value.name, ()):
            definition = find(node.domain, node.op_type, node.version)
            for whole in (definition.wholes if definition else {}).values():
                if len(whole.of) > 1 and not whole.less and _input_tensor(node, whole.of[-1][0]) == value.name:
                    found.append((node, whole))
    return found


Refuses = Callable[[Mapping[str, Array]], bool]
"""Returns whether shapes alone show that the model cannot run with these feeds."""

_SHOWN = 4
"""The most inputs that a note names."""


@frozen
class RandomFeeds:
    """Random arrays by input. sizes: the sizes that qrun chose for free axes, by name. full: the inputs that are not
    random, but say that all of the others counts. fits: does the model accept one of the sizes that were tried?"""

    arrays: dict[str, Array]
    sizes: dict[str, int]
    full: tuple[str, ...]
    seed: int
    fits: bool = True

    @property
    def sources(self) -> dict[str, str]:
        """The source of each array, for messages."""
        return {name: FULL if name in self.full else f"random, seed {self.seed}" for name in self.arrays}

    @property
    def note(self) -> str:
        """A note for the user on the arrays and sizes."""
        drawn = [name for name in self.arrays if name not in self.full]
        parts = [f"random data, seed {self.seed}, for {self._list_arrays(drawn)}"] if drawn else []
        parts += [f"full lengths and masks for {self._list_arrays(self.full)}"] if self.full else []
        parts += [f"{sizes_text(self.sizes)} (--shape changes that)"] if self.sizes else []
        return "; ".join(parts)

    def _list_arrays(self, names: Sequence[str]) -> str:
        """Some inputs with their shapes and types, in words."""
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
    """Make random arrays for the `wanted` inputs, except for lengths and masks, which say that everything counts.

    A sequence has two tensors, an optional has a value, a map two keys. Floats are uniform in [-1, 1), float8e8m0 in
    [0.5, 1.5); integers of 8 bits or fewer have their full range; other integers, and booleans, are 0 or 1 (safe as
    indices). Values depend only on the seed and the input's place. Lengths are full, masks 1. Free axes take the first
    sizes of `tries` with which the model does not refuse its feeds, or else the very first sizes. A mask over positions
    is as long as past and new tokens together, and an axis whose name is a sum of others as long as their sum. Raises
    CallError for strings and an unknown type or rank, MemoryLimitError.
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
        own = _fit_sizes(axes, symbols, chosen, wholes)
        every = {**symbols, **own}
        return _draw(model, wanted, sizes.shapes, replace(wholes, symbols=every), seed, budget.aside(), own)

    return _first(map(drawn, tries(kinds(axes, free))), lambda made: refuses({**given, **made.arrays}))


def _first(ways: Iterator[RandomFeeds], refused: Callable[[RandomFeeds], bool]) -> RandomFeeds:
    """The first feeds that fit into memory and are not refused; if all are refused, the first that fit into memory."""
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


def _draw(
    model: Model,
    wanted: Sequence[TensorType],
    shapes: Mapping[str, tuple[int, ...]],
    wholes: Wholes,
    seed: int,
    budget: Budget,
    own: dict[str, int],
) -> RandomFeeds:
    """Draw random arrays of these shapes, or with the sizes that `wholes` knows. own: the sizes that qrun chose."""
    made: dict[str, Array] = {}
    full: list[str] = []
    places = {v.name: index for index, v in enumerate(model.inputs)}
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


def _fit_sizes(
    axes: Sequence[Axes], symbols: Mapping[str, int], chosen: Mapping[str, int], wholes: Wholes
) -> dict[str, int]:
    """The sizes of the free axes: as chosen, unless they follow from other sizes."""
    inputs = Counter(size for _, own in axes for size in set(own))
    made = dict(chosen)
    for value, own in axes:
        for size in own:
            if isinstance(size, str) and size in made:
                alone = size == own[-1] and inputs[size] == 1
                made[size] = _sum(size, {**symbols, **made}) or (wholes.total(value) if alone else None) or made[size]
    return made


def _sum(name: str, sizes: Mapping[str, int]) -> int | None:
    """The size of an axis whose name is a sum, as exporters write it: ``past_sequence_length + 1``; else None."""
    parts = [part.strip() for part in name.split("+")]
    found = [int(part) if part.isascii() and part.isdigit() else sizes.get(part) for part in parts]
    return sum(size for size in found if size is not None) if len(parts) > 1 and None not in found else None


def _tensor_of(value: TensorType) -> TensorType:
    """The type of the tensors that a sequence or optional holds, under its name; for a tensor, its own type."""
    while value.kind in ("sequence", "optional") and value.element is not None:
        value = replace(value.element, name=value.name)
    return value


def _value(model: Model, value: TensorType, tensor: Callable[[TensorType], Array]) -> Array:
    """Make a tensor, an optional's value, a sequence of two tensors or two maps, or a map of two keys."""
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
    """The shape of an input, with a size for each free axis. Raises CallError if its rank is unknown."""
    if value.shape is None:
        raise _not_random(model, value, "an unknown number of dimensions")
    return tuple(dim if isinstance(dim, int) else symbols[dim] for dim in value.sizes)


def _random(model: Model, value: TensorType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Random elements for an input. Raises CallError for text."""
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
    """The QR001 error of an input for which no random data can be made."""
    return CallError(
        "QR001",
        f"input {value.name!r} has {what}: qrun cannot create random data for it",
        where=[model.label, f"input {value.name}, {value}"],
        fixes=[
            f"-i {value.name}=FILE",
            *([f"--shape {value.name}:SIZES, joined by x, if only these are missing"] if value.shape is None else []),
        ],
    )
