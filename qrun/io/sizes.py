"""``--shape``: reads the sizes that the user gives for dynamic axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from qrun.declare.frozen import frozen
from qrun.errors import CallError, close_matches
from qrun.ir import Model, TensorType
from qrun.ir.types import shape_text

Dims = Sequence[int | None]
"""The sizes of axes; None for an axis where any size fits."""

MAX_SIZE = 2**40


@frozen
class Sizes:
    """The sizes that the user gave: by symbol, and as shapes of whole inputs."""

    symbols: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


FREE = Sizes()


def fixed_sizes(model: Model, specs: Sequence[str]) -> Sizes:
    """Read specs such as ``image:1x3x224x224`` (one input) and ``N=4`` (a symbol, or ``image[0]=4``).
    Raises CallError if one does not fit the model."""
    symbols: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    values = {v.name: v for v in (*model.inputs, *model.defaults)}
    known = dict.fromkeys(d for v in values.values() for d in v.sizes if isinstance(d, str))
    for spec in sorted(specs, key=lambda spec: spec.rpartition(":")[0] in values):
        name, _, dims = spec.rpartition(":")
        symbol, _, size = spec.rpartition("=")
        if name in values:
            shape = _numbers(dims)
            if shape is None:
                raise _no_size(model, spec, dims, _batch_fix(values[name]))
            _bind_shape(model, values[name], shape, symbols, spec)
            shapes[name] = shape
        elif symbol in known:
            one = _numbers(size)
            if one is None or len(one) != 1:
                raise _no_size(model, spec, size, TRIED)
            if symbols.setdefault(symbol, one[0]) != one[0]:
                before = f"{symbol} = {symbols[symbol]} before"
                raise _bad_shape(model, spec, before, f"{symbol} = {size}", f"omit --shape {spec}")
        else:
            raise _unknown_shape(model, spec, known, values)
    return Sizes(symbols, shapes)


def _numbers(dims: str) -> tuple[int, ...] | None:
    """The sizes of a text such as 1x3x224; None if it is none."""
    parts = dims.split("x") if dims else []
    if not all(p.isascii() and p.isdigit() and len(p) < 20 and int(p) <= MAX_SIZE for p in parts):
        return None
    return tuple(map(int, parts))


def _bind_shape(model: Model, value: TensorType, shape: tuple[int, ...], symbols: dict[str, int], spec: str) -> None:
    """Note the sizes of the input's free axes. Raises CallError if the shape does not fit."""
    fits = value.shape is None or len(value.shape) == len(shape)
    for dim, want, got in zip(value.shape or (), value.sizes, shape, strict=False):
        if isinstance(dim, str):
            fits &= symbols.setdefault(dim, got) == got
        elif isinstance(want, str):
            fits &= symbols.get(want, got) == got
        else:
            fits &= want == got
    if not fits:
        raise _bad_shape(model, spec, f"{value.name} {value}", shape_text(shape), _forms(model, value, shape))


def _bad_shape(model: Model, spec: str, expected: str, got: str, fix: str) -> CallError:
    """The QR003 error of a --shape option that does not fit."""
    what = f"--shape {spec} does not fit the model"
    return CallError("QR003", what, where=[model.label], facts=[("expected", expected), ("got", got)], fixes=[fix])


def _no_size(model: Model, spec: str, got: str, like: str) -> CallError:
    """The QR005 error of a --shape option without a usable size."""
    what = f"--shape {spec}: not a valid size"
    facts = [("expected", "whole numbers from 0 to 2**40"), ("got", got or "nothing")]
    return CallError("QR005", what, where=[model.label], facts=facts, fixes=[like])


def _unknown_shape(model: Model, spec: str, known: Collection[str], values: Mapping[str, TensorType]) -> CallError:
    """The QR005 error of a --shape option that names neither an input nor a dimension."""
    meant = [_suggest_spec(part, known, values) for part in spec.split(",")]
    return CallError(
        "QR005",
        f"--shape {spec} is neither INPUT:SIZES nor DIMENSION=SIZE of this model",
        where=[model.label],
        facts=[
            ("inputs", ", ".join(f"{v.name} {shape_text(v.shape)}" for v in [*values.values()][:12]) or "none"),
            ("dimensions", ", ".join([*known][:12]) or "none is free"),
        ],
        fixes=[f"did you mean {' '.join(f'--shape {m}' for m in meant)}?" if all(meant) else _forms(model)],
    )


TRIED = "omit --shape: qrun tries sizes, and says which the model takes"
"""The fix if no sizes are known."""


def _forms(model: Model, wrong: TensorType | None = None, given: Sequence[int] = ()) -> str:
    """The fix: a --shape that the model accepts, for its first input with free sizes, or for the input `wrong` with the
    given sizes that fit it."""
    free = [
        v for v in (*model.inputs, *model.defaults) if v.shape is None or not all(isinstance(d, int) for d in v.shape)
    ]
    if not free:
        return "omit --shape: every size of the inputs is fixed"
    value = wrong if wrong in free else free[0]
    own = given if value is wrong else ()
    if value.shape is None or any(not isinstance(d, int) for d in value.shape[: len(value.shape) - len(own)][1:]):
        return TRIED
    sizes = _sizes(value, own)
    symbol = next((d for d in value.shape or () if isinstance(d, str)), "")
    named = f", or --shape {symbol}={sizes[(value.shape or ()).index(symbol)]} for a named dimension" if symbol else ""
    return f"--shape {value.name}:{'x'.join(map(str, sizes))} for one input{named}"


def _sizes(value: TensorType, given: Sequence[int]) -> list[int]:
    """Sizes that the input accepts: its fixed sizes, else the given ones, counted from the last, else 1."""
    if value.shape is None:
        return list(given) or [1, 3, 224, 224]
    last = [*[1] * len(value.shape), *given][-len(value.shape) :] if value.shape else []
    bound: dict[str, int] = {}
    return [
        d if isinstance(d, int) else bound.setdefault(d or f"[{index}]", n)
        for index, (d, n) in enumerate(zip(value.shape, last, strict=True))
    ]


def _batch_fix(value: TensorType) -> str:
    """The fix: a --shape for the input, if all its sizes but the first are fixed."""
    if value.shape is None or any(not isinstance(d, int) for d in value.shape[1:]):
        return TRIED
    return f"such as --shape {value.name}:{'x'.join(map(str, _sizes(value, ())))}"


def _suggest_spec(spec: str, known: Collection[str], values: Mapping[str, TensorType]) -> str:
    """The spec that was probably meant: with the nearest name, ``:`` for the sizes of an input, ``=`` for a dimension;
    "" if no name is near. A spec that gives a named dimension by its place, as ``x[0]=4``, gets the name.
    """
    for value in values.values():
        for index, dim in enumerate(value.sizes):
            if isinstance(dim, str) and spec.startswith(f"{value.name}[{index}]="):
                return f"{dim}={spec.rpartition('=')[2]}"
    for sign in ":=":
        name, found, sizes = spec.rpartition(sign)
        numbers = _numbers(sizes)
        if not found or numbers is None:
            continue
        for names, right in ((values, ":"), (known, "=")):
            near = close_matches(name, names)
            if near and len(numbers) == (_rank(values[near[0]], len(numbers)) if right == ":" else 1):
                return f"{near[0]}{right}{sizes}"
    return ""


def _rank(value: TensorType, unknown: int) -> int:
    """The number of axes; `unknown` if the model does not state it."""
    return unknown if value.shape is None else len(value.shape)


def fits(shape: Sequence[int], want: Dims) -> bool:
    """Has a shape the wanted sizes?"""
    return len(shape) == len(want) and all(w in (None, n) for w, n in zip(want, shape, strict=True))
