"""Checks that given arrays fit the graph's inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare import Later
from qrun.declare.frozen import frozen
from qrun.errors import CallError, close_matches, some
from qrun.io.conversion import casts
from qrun.io.sizes import FREE, Sizes, fits
from qrun.ir import Array, Model, TensorType
from qrun.ir.compound import as_input, is_compound, of_type
from qrun.ir.types import describe, odd_objects, shape_text, type_name

if TYPE_CHECKING:
    from qrun.io import fitting
else:
    fitting = Later("qrun.io.fitting")

SHAPE = "--shape"
FULL = "full"
"""The source of an input, such as a mask, that qrun fills so that all of the other inputs counts."""
EMPTY, COUNTED = "empty", "0, 1, 2 ..."
"""The sources of a decoder's caches before the first token, and of its positions."""


@frozen
class _Mismatch:
    """What an input expects, if an array does not fit. expected: a text; want: the sizes, if they are known; origin:
    what set these sizes, if not the model."""

    expected: str
    want: Sequence[int | None] | None = None
    origin: str = ""


def check_feeds(
    model: Model,
    feeds: Mapping[str, Array],
    sources: Mapping[str, str] | None = None,
    *,
    sizes: Sizes = FREE,
    partial: bool = False,
    written: Collection[str] = (),
) -> dict[str, Array]:
    """Check names, element types and shapes of feeds against the graph's inputs, and return the feeds as arrays.

    sources: where each array came from, for messages.
    partial: may inputs be missing?
    written: inputs whose values are written on the command line.
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
    symbols = {symbol: (size, SHAPE) for symbol, size in sizes.symbols.items()}
    checked = {}
    for name, given in feeds.items():
        value, array = known[name], given
        if (mask := getattr(given, "mask", None)) is not None and isinstance(given, np.ndarray) and np.any(mask):
            raise _masked_error(model, value, sources.get(name, "the array"), given)
        if not is_compound(given):
            array = as_input(given, value)
        problem = _mismatch(known[name], array, symbols, sizes.shapes.get(name))
        if problem is not None:
            got = _describe_given(array, given)
            source = sources.get(name, "the array")
            raise _input_mismatch(model, known[name], array, source, problem, got, name in written)
        checked[name] = array
    return checked


def unknown_input(model: Model, name: str, source: str) -> CallError:
    """The QR002 error of an input name that the model lacks."""
    from shlex import quote

    names = [v.name for v in model.inputs]
    near = close_matches(str(name), names)
    listing = "qrun inspect MODEL lists the inputs" if names else "qrun MODEL runs it without"
    spec = quote(f"{near[0]}={source or 'FILE'}") if near else ""
    fixes = [f"did you mean -i {spec}?"] if near else [model.fill_in(listing)]
    what = f"the model has no input {name!r}" if name or names else "the model has no inputs"
    facts = [("inputs", some(names, 12) or "none")]
    calls = [f"did you mean {near[0]!r}?"] if near else ["session.inputs lists the inputs"]
    return CallError("QR002", what, where=[model.label], facts=facts, fixes=fixes, calls=calls)


def missing_input(
    model: Model, missing: list[TensorType], feeds: Mapping[str, Array], sources: Mapping[str, str]
) -> CallError:
    """The QR001 error of inputs that were not given."""
    given = ", ".join(f"{name} ({sources[name]})" if name in sources else name for name in feeds)
    plural = f" and {len(missing) - 1} more were" if len(missing) > 1 else " was"
    return CallError(
        "QR001",
        f"input {missing[0].name!r}{plural} not given",
        where=[model.label, f"input {missing[0].name}, {missing[0]}"],
        facts=[("given", given or "none"), ("missing", some([v.name for v in missing], 12))],
        fixes=[
            "add " + " ".join(f"-i {v.name}=FILE" for v in missing[:3]),
            "or --random to fill the missing ones with random data",
        ],
        calls=[
            "session.run({"
            + ", ".join(f"{v.name!r}: array" for v in (*model.inputs[:3],))
            + ("}" if len(model.inputs) < 4 else ", ...}")
            + ")"
        ],
    )


def _mismatch(
    value: TensorType, array: Array, symbols: dict[str, tuple[int, str]], fixed: tuple[int, ...] | None
) -> _Mismatch | None:
    """What does not fit, or None. symbols: each symbol's size, and what set it; adds those that this array sets."""
    if value.kind != "tensor":
        return None if of_type(array, value) else _Mismatch(str(value))
    stated = None if value.shape is None else [d if isinstance(d, int) else None for d in value.shape]
    if odd_objects(array):
        return _Mismatch(f"{value} of str" if value.dtype == np.object_ else str(value), stated if array.ndim else None)
    other_type = value.dtype is not None and value.dtype != array.dtype
    if other_type or (stated is not None and not fits(array.shape, stated)):
        return _Mismatch(str(value), stated)
    if fixed not in (None, array.shape):
        return _Mismatch(f"{type_name(array.dtype)} {shape_text(fixed)} as in --shape", fixed, SHAPE)
    return _bind_symbols(value, array, symbols)


def _bind_symbols(value: TensorType, array: Array, symbols: dict[str, tuple[int, str]]) -> _Mismatch | None:
    """The mismatch of the first symbol that has another size elsewhere; symbols without a size get this array's."""
    want: list[int | None] = []
    for dim, got in zip(value.sizes, array.shape, strict=False):
        size, first = symbols.setdefault(dim, (got, value.name)) if isinstance(dim, str) else (dim, "")
        want.append(size)
        if size not in (None, got):
            rest = [None] * (array.ndim - len(want))
            return _Mismatch(f"{value} with {dim} = {size} as in {first}", [*want, *rest], first)
    return None


def _describe_given(array: Array, given: object) -> str:
    """Describe what was given: type and shape of the array, or the value itself if it made no tensor."""
    odd = odd_objects(array)
    if not odd:
        return describe(array)
    from reprlib import repr

    return f"objects {shape_text(array.shape)} with {repr(odd[0])}" if array.ndim else repr(given)


def _masked_error(model: Model, value: TensorType, source: str, array: Any) -> CallError:
    """The QR003 error of a masked array."""
    hidden = int(np.count_nonzero(array.mask))
    what = f"{source} does not fit input {value.name!r}: {hidden} of its {array.size} elements are masked"
    facts = [("expected", f"{value} without a mask"), ("got", f"a masked array {describe(array.data)}")]
    fixes = ["x.filled(0) puts a number in their place; x.data is what lies below the mask"]
    return CallError("QR003", what, where=[model.label, f"input {value.name}"], facts=facts, fixes=fixes)


def _input_mismatch(
    model: Model, value: TensorType, array: Array, source: str, problem: _Mismatch, got: str, written: bool
) -> CallError:
    """The QR003 error of an array whose shape or type does not fit its input."""
    fixes, option = [], ""
    if problem.origin == SHAPE:
        fixes.append(f"omit --shape: {source} has the sizes {shape_text(array.shape)}")
    elif problem.want is not None and written:
        fixes.append(fitting.option_fix(value.name, array, problem.want))
    elif problem.want is not None and (fix := fitting.axes_fix(array.shape, problem.want)):
        fixes.append(fix)
    if value.dtype is not None and (array.dtype != value.dtype or odd_objects(array)):
        fixes += fitting.type_fixes(array, value.dtype)
        option = ", or --cast" if casts(array, value.dtype) else ""
    what = f"{source} does not fit input {value.name!r}"
    facts = [("expected", problem.expected), ("got", got)]
    typed = [f"{fix}{option}" if fix.startswith(fitting.CONVERT) else fix for fix in fixes[:2]]
    return CallError(
        "QR003", what, where=[model.label, f"input {value.name}"], facts=facts, fixes=typed, calls=fixes[:2]
    )
