"""Do the given arrays fit the graph's inputs? And random arrays that do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from qrun.errors import CallError
from qrun.ir import Array, Model, TensorType
from qrun.ir.types import NUMBERS, PACKED_BITS, describe, shape_text, type_name
from qrun.memory import Budget

MAX_SIZE = 2**40


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dynamic sizes that the user fixed: of symbols, and of whole inputs."""

    symbols: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def check_feeds(
    model: Model,
    feeds: Mapping[str, Array],
    sources: Mapping[str, str] | None = None,
    *,
    sizes: Sizes = Sizes(),
    partial: bool = False,
) -> dict[str, Array]:
    """The feeds, after checking names, element types and shapes against the graph's inputs.

    sources: where each array came from, for messages.
    partial: inputs may be missing.
    Raises CallError: QR001 missing-input, QR002 unknown-input, QR003 input-mismatch.
    """
    sources = sources or {}
    known = {v.name: v for v in (*model.inputs, *model.defaults)}
    for name in feeds:
        if name not in known:
            raise unknown_input(model, name, sources.get(name, "FILE"))
    missing = [v for v in model.inputs if v.name not in feeds]
    if missing and not partial:
        raise missing_input(model, missing, feeds, sources)
    symbols = {symbol: (size, "--shape") for symbol, size in sizes.symbols.items()}
    checked = {}
    for name, array in feeds.items():
        array = np.asarray(array)
        problem = _mismatch(known[name], array, symbols)
        if not problem and sizes.shapes.get(name, array.shape) != array.shape:
            problem = f"{type_name(array.dtype)} {shape_text(sizes.shapes[name])} as in --shape"
        if problem:
            raise _input_mismatch(model, known[name], array, sources.get(name, "the array"), problem)
        checked[name] = array
    return checked


def unknown_input(model: Model, name: str, source: str) -> CallError:
    names = [v.name for v in model.inputs]
    near = get_close_matches(name, names, 1, 0.6)
    fixes = [f"did you mean -i {near[0]}={source} ?"] if near else ["qrun inspect MODEL lists the inputs"]
    return CallError(
        "QR002",
        "unknown-input",
        f"the model has no input {name!r}",
        where=[model.label],
        facts=[("inputs", ", ".join(names[:12]) or "none")],
        fixes=fixes,
    )


def missing_input(
    model: Model, missing: list[TensorType], feeds: Mapping[str, Array], sources: Mapping[str, str]
) -> CallError:
    given = ", ".join(f"{name} ({sources[name]})" if name in sources else name for name in feeds)
    names = ", ".join(v.name for v in missing)
    plural = f" and {len(missing) - 1} more were" if len(missing) > 1 else " was"
    return CallError(
        "QR001",
        "missing-input",
        f"input {missing[0].name!r}{plural} not given",
        where=[model.label, f"input {missing[0].name}, {missing[0]}"],
        facts=[("given", given or "none"), ("missing", names)],
        fixes=[
            "add " + " ".join(f"-i {v.name}=FILE" for v in missing[:3]),
            "or --random to fill the missing ones with random data",
        ],
    )


def _mismatch(value: TensorType, array: Array, symbols: dict[str, tuple[int, str]]) -> str:
    if value.kind != "tensor":
        return f"a {value.kind}, which qrun cannot feed"
    if value.dtype is not None and array.dtype != value.dtype:
        return str(value)
    if value.shape is None:
        return ""
    if len(value.shape) != array.ndim:
        return str(value)
    for want, got in zip(value.shape, array.shape, strict=True):
        if isinstance(want, int) and want != got:
            return str(value)
        if isinstance(want, str):
            bound, first = symbols.setdefault(want, (got, value.name))
            if bound != got:
                return f"{value} with {want} = {bound} as in {first}"
    return ""


def _input_mismatch(model: Model, value: TensorType, array: Array, source: str, expected: str) -> CallError:
    fixes = []
    axes = _transposition(value, array)
    if axes:
        what = "NHWC" if axes == (0, 3, 1, 2) else "permuted"
        fixes.append(f"the axes look {what}: np.transpose(x, {axes}) fits")
    if value.dtype is not None and array.dtype != value.dtype:
        fixes.append(f"{type_name(array.dtype)} is not converted silently: x.astype(np.{value.dtype.name})")
    if not axes and value.shape is not None and len(value.shape) == array.ndim + 1:
        fixes.append("one axis is missing: x[None] adds a batch of 1")
    return CallError(
        "QR003",
        "input-mismatch",
        f"{source} does not fit input {value.name!r}",
        where=[model.label, f"input {value.name}"],
        facts=[("expected", expected), ("got", describe(array))],
        fixes=fixes[:2] or [f"expected shape {shape_text(value.shape)}"],
    )


def _transposition(value: TensorType, array: Array) -> tuple[int, ...]:
    """The axes that make the array fit, if the usual image layouts do."""
    if value.shape is None or len(value.shape) != array.ndim:
        return ()
    for axes in ((0, 3, 1, 2), (0, 2, 3, 1), (0, 2, 1), (0, 4, 1, 2, 3), (1, 0)):
        if len(axes) == array.ndim:
            moved = [array.shape[a] for a in axes]
            if (
                moved != list(array.shape)
                and all(not isinstance(want, int) or want == got for want, got in zip(value.shape, moved, strict=True))
                and any(isinstance(w, int) and w != g for w, g in zip(value.shape, array.shape, strict=True))
            ):
                return axes
    return ()


def fixed_sizes(model: Model, specs: Sequence[str]) -> Sizes:
    """The sizes in ``image:1x3x224x224`` (one input) and ``N=4`` (a symbol) specs. Raises CallError."""
    symbols: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    values = {v.name: v for v in (*model.inputs, *model.defaults)}
    known = dict.fromkeys(d for v in values.values() for d in v.shape or () if isinstance(d, str))
    for spec in specs:
        name, _, dims = spec.rpartition(":")
        symbol, _, size = spec.rpartition("=")
        if name in values and _numbers(dims) is not None:
            shape = _numbers(dims) or ()
            _bind_shape(model, values[name], shape, symbols, spec)
            shapes[name] = shape
        elif symbol in known and size.isascii() and size.isdigit() and int(size) <= MAX_SIZE:
            if symbols.setdefault(symbol, int(size)) != int(size):
                raise _bad_shape(model, spec, f"{symbol} = {symbols[symbol]} before", f"{symbol} = {size}")
        else:
            raise _unknown_shape(model, spec, symbol, name, list(known), list(values))
    return Sizes(symbols, shapes)


def _numbers(dims: str) -> tuple[int, ...] | None:
    parts = dims.split("x") if dims else []
    if not all(p.isascii() and p.isdigit() and int(p) <= MAX_SIZE for p in parts):
        return None
    return tuple(map(int, parts))


def _bind_shape(model: Model, value: TensorType, shape: tuple[int, ...], symbols: dict[str, int], spec: str) -> None:
    fits = value.shape is None or len(value.shape) == len(shape)
    for want, got in zip(value.shape or (), shape, strict=False):
        if isinstance(want, str):
            fits &= symbols.setdefault(want, got) == got
        elif want is not None:
            fits &= want == got
    if not fits:
        raise _bad_shape(model, spec, f"{value.name} {value}", shape_text(shape))


def _bad_shape(model: Model, spec: str, expected: str, got: str) -> CallError:
    return CallError(
        "QR003",
        "input-mismatch",
        f"--shape {spec} does not fit the model",
        where=[model.label],
        facts=[("expected", expected), ("got", got)],
        fixes=["--shape image:1x3x224x224 for one input, or --shape N=4 for a named dimension"],
    )


def _unknown_shape(model: Model, spec: str, symbol: str, name: str, known: list[str], values: list[str]) -> CallError:
    near = get_close_matches(symbol, known, 1, 0.6) if symbol else get_close_matches(name, values, 1, 0.6)
    rest = spec[len(symbol or name) :]
    return CallError(
        "QR005",
        "bad-option",
        f"--shape {spec} names neither an input with sizes nor a dimension with a size",
        where=[model.label],
        facts=[
            ("inputs", ", ".join(values[:12]) or "none"),
            ("dimensions", ", ".join(known[:12]) or "none have names"),
        ],
        fixes=[f"did you mean --shape {near[0]}{rest} ?"]
        if near
        else ["--shape image:1x3x224x224 for one input, or --shape N=4 for a named dimension"],
    )


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
        bits = PACKED_BITS.get(NUMBERS[dtype], 8 * dtype.itemsize)
        if bits > 8:
            flat = rng.integers(0, 2, count, np.uint8).astype(dtype)
        else:
            low = -(1 << (bits - 1)) if name.startswith("i") else 0
            flat = rng.integers(low, low + (1 << bits), count, np.int16).astype(dtype)
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
        "missing-input",
        f"input {value.name!r} has {what}: qrun cannot make random data for it",
        where=[model.label, f"input {value.name}, {value}"],
        fixes=[f"-i {value.name}=FILE", f"--shape {value.name}:1x3x224x224 if only the sizes are missing"],
    )
