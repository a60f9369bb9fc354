"""Suggests numpy code that makes an array x fit an input of a graph: by its axes, sizes or element type."""

from __future__ import annotations

import json
import math
import shlex
import warnings
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from qrun.io.sizes import Dims, fits
from qrun.ir import Array
from qrun.ir.types import is_extension, odd_objects, type_name

CONVERT = "convert it: "
"""The start of a fix that gives an array another element type."""
MOST_WRITTEN = 12
"""The most values that a fix writes out."""
NAMED = {(0, 3, 1, 2): "NHWC", (2, 0, 1): "HWC", (0, 2, 3, 1): "NCHW", (1, 2, 0): "CHW"}
LAYOUTS = (*NAMED, (0, 2, 1), (0, 4, 1, 2, 3), (1, 0))
"""Common permutations of the axes of images and matrices, as arguments of np.transpose."""


def axes_fix(shape: Sequence[int], want: Dims) -> str:
    """Suggest code that gives x the wanted sizes, or say which sizes are wrong; "" if they fit."""
    if fits(shape, want):
        return ""
    found = next((f"{why}: {text} fits" for why, text, made in _new_axes(shape, len(want)) if fits(made, want)), "")
    return found or _reshape_fix(shape, want) or _wrong_sizes(shape, want, "x")


def option_fix(name: str, array: Array, want: Dims) -> str:
    """As `axes_fix`, for an input whose values are written on the command line: suggest what to write instead."""
    if fits(array.shape, want):
        return ""
    for why, _, made in _new_axes(array.shape, len(want)):
        in_order = [n for n in made if n != 1] == [n for n in array.shape if n != 1]
        if fits(made, want) and in_order and array.size <= MOST_WRITTEN:
            return f"{why}: {option(name, array.reshape(made).tolist())} fits"
    return _wrong_sizes(array.shape, want, name)


def option(name: str, values: object) -> str:
    """The command line option that gives an input these values."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    return f"-i {shlex.quote(f'{name}={text}')}"


def _new_axes(shape: Sequence[int], rank: int) -> Iterator[tuple[str, str, Sequence[int]]]:
    """Yield the usual changes of the number or order of axes, the likeliest first: why, code, and resulting shape."""
    missing = rank - len(shape)
    if missing < 0:
        why = "one axis is too many" if missing == -1 else f"{-missing} axes are too many"
        if all(n == 1 for n in shape[:-missing]):
            yield why, f"x[{', '.join('0' * -missing)}]", shape[-missing:]
        yield why, "np.squeeze(x)", [n for n in shape if n != 1]
        return
    added = f"[{', '.join(['None'] * missing)}]" if missing else ""
    ones = [1] * missing
    why = "one axis is missing" if missing == 1 else f"{missing} axes are missing"
    if missing:
        yield why, f"x{added}", [*ones, *shape]
    if missing == 1 and shape:
        yield why, "x[:, None]", [shape[0], 1, *shape[1:]]
    if missing and shape:
        yield why, "x[" + "None, " * (missing - 1) + "..., None]", [*ones[1:], *shape, 1]
    for axes in LAYOUTS:
        if len(axes) == len(shape):
            why = f"the axes look {NAMED.get(axes, 'permuted')}"
            yield why, f"np.transpose(x, {axes}){added}", [*ones, *(shape[a] for a in axes)]


def _reshape_fix(shape: Sequence[int], want: Dims) -> str:
    """Suggest a reshape for a flattened array, if at most one size is free; else ""."""
    fixed = math.prod(n for n in want if n is not None)
    count = math.prod(shape)
    if len(shape) >= len(want) or want.count(None) > 1 or not fixed or count % fixed:
        return ""
    if None not in want and count != fixed:
        return ""
    return f"x is flattened: x.reshape({', '.join('-1' if n is None else str(n) for n in want)}) fits"


def _wrong_sizes(shape: Sequence[int], want: Dims, name: str) -> str:
    """The sentence that says which axes of an array have a wrong size."""
    if len(shape) != len(want):
        axes = "1 axis" if len(want) == 1 else f"{len(want)} axes"
        return f"{name} must have {axes}, not {len(shape)}"
    wrong = [(index, w, n) for index, (w, n) in enumerate(zip(want, shape, strict=True)) if w not in (None, n)]
    axes, wanted, got = (" and ".join(map(str, column)) for column in zip(*wrong, strict=True))
    return f"{'axes' if len(wrong) > 1 else 'axis'} {axes} of {name} must have size {wanted}, not {got}"


# Element types


def type_fixes(array: Array, dtype: np.dtype) -> list[str]:
    """Suggest conversions of x to the element type `dtype` that keep the meaning of its values."""
    cast = f"x.astype({_numpy_name(dtype)})"
    if array.dtype.kind in "USO":
        return [_of_objects(array, dtype, cast)]
    before = CONVERT
    target = _range(dtype)
    if dtype.kind == "O":
        return [before + cast]
    if target is None or array.dtype.kind not in "fiu" or _same_values(array, dtype):
        return [before + cast]
    low, high = target
    source = _range(array.dtype)
    if source is None:
        return _integer_fixes(array, dtype, before)
    if source[1] - source[0] == high - low and array.dtype.itemsize < 8:
        wide, shift = f"int{16 * array.dtype.itemsize}", low - source[0]
        sign = "+" if shift > 0 else "-"
        return [
            f"{before}(x.astype(np.{wide}) {sign} {abs(shift)}).astype({_numpy_name(dtype)}) "
            f"moves {source[0]} .. {source[1]} to {low} .. {high}"
        ]
    return [
        f"{before}x holds {array.min()} .. {array.max()}; "
        f"np.clip(x, {low}, {high}).astype({_numpy_name(dtype)}) cuts off what does not fit"
    ]


def _of_objects(array: Array, dtype: np.dtype, cast: str) -> str:
    """Suggest a conversion of strings, bytes or Python objects."""
    odd = odd_objects(array)
    if odd and odd[0] is None and not array.ndim:
        return "only optional inputs take None: give an array"
    before = CONVERT
    missing = array.dtype.kind == "O" and any(element is None for element in array.reshape(-1))
    if dtype.kind == "O":
        return before + (f"np.where(x == None, '', x).{cast[2:]} moves None to ''" if missing else cast)
    return "the input takes numbers" if missing or not _readable(array, dtype) else before + cast


def _readable(array: Array, dtype: np.dtype) -> bool:
    """Do all strings or objects convert to numbers of the type?"""
    if dtype.kind not in "iuf":
        return False
    try:
        array.astype(dtype)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _integer_fixes(array: Array, dtype: np.dtype, before: str) -> list[str]:
    """Suggest conversions of floats to an integer type: rounding, scaling of pixels, or quantizing."""
    low, high = _range(dtype) or (0, 0)
    name = _numpy_name(dtype)
    if dtype.itemsize > 2:
        inside = bool(low <= array.min() and array.max() <= high)
        rounded = "np.rint(x)" if inside else f"np.clip(np.rint(x), {low}, {high})"
        return [f"{before}{rounded}.astype({name}) {'rounds' if inside else 'rounds, and cuts off what does not fit'}"]
    quantize = f"np.clip(np.rint(x / scale) + zero_point, {low}, {high}).astype({name})"
    if not low and array.min() >= 0 and array.max() <= high:
        scaled, most = ("x", high) if array.max() > 1 else (f"x * {high}", 1)
        return [f"{before}np.rint({scaled}).astype({name}) for pixels of 0 to {most}", f"or quantize: {quantize}"]
    return [f"{before}quantize, {quantize}"]


def _range(dtype: np.dtype) -> tuple[int, int] | None:
    """The smallest and the largest value of an integer type; None for other types."""
    if "int" not in type_name(dtype):
        return None
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def _same_values(array: Array, dtype: np.dtype) -> bool:
    """Whether an array keeps all of its values in another type."""
    source, target = _range(array.dtype), _range(dtype)
    if source and target:
        return not array.size or bool(target[0] <= array.min() and array.max() <= target[1])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return bool(np.array_equal(array.astype(dtype).astype(array.dtype), array))


def _numpy_name(dtype: np.dtype) -> str:
    """The type as one writes it in Python."""
    if dtype.kind == "O":
        return "str"
    return f"{'ml_dtypes' if is_extension(dtype) else 'np'}.{dtype.name}"
