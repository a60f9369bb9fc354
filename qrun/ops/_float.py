"""Code that the floating-point operators share: wide arithmetic rounded once, broadcasting, axes, sliding windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._matmul import matmul
from qrun.ops._op import Array, Context, Shape, misfit, refuse
from qrun.ops._rounding import odd_single
from qrun.shapes import broadcast_shapes

State = tuple[Array, ...]
_finfo: Callable[[Any], Any] = ml_dtypes.finfo
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def is_integer(dtype: np.dtype[Any]) -> bool:
    """int8 ... uint64 (not the low-bit integers)."""
    return dtype.kind in "iu"


def bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Smallest and largest finite value of an integer or floating-point type, as that type."""
    info = np.iinfo(dtype) if is_integer(dtype) else _finfo(dtype)
    return dtype.type(info.min), dtype.type(info.max)


def single(value: float) -> float:
    """An attribute's value: ONNX stores float attributes as float32."""
    with np.errstate(all="ignore"):
        return float(np.float32(value))


def widen(x: Array) -> Array:
    """x as float64; exact for every type of up to 32 bits. A float64 x is returned unchanged if it is contiguous, and
    copied if not, because numpy's functions may round strided elements differently."""
    if x.dtype == np.float64 and not x.flags.forc:
        return x.copy()
    return np.asarray(x, np.float64)


def narrow(x: Any, dtype: np.dtype[Any]) -> Array:
    """float64 values rounded once to a floating-point type: nearest, ties to even, overflow to infinity."""
    wide = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        return wide.astype(dtype, copy=False) if dtype != _BFLOAT16 else odd_single(wide).astype(dtype)


def with_zeros(made: Array, below: Array) -> Array:
    """The maxima or minima `made`, whose zeros become -0 where `below` is true, else +0. (Which zero numpy.maximum and
    minimum return differs from type to type, and between processors.)"""
    return np.where(made == 0, np.where(below, -0.0, 0.0).astype(made.dtype), made)


def round_to_type(x: Array, dtype: np.dtype[Any]) -> Array:
    """x itself if it has this floating-point type, else rounded to it."""
    return x if x.dtype == dtype else narrow(x, dtype)


def unary(function: Callable[[Array], Any], x: Array) -> Array:
    """function in float64 on every element, rounded once to x's type."""
    with np.errstate(all="ignore"):
        return narrow(function(widen(x)), x.dtype)


def broadcast(ctx: Context, arrays: Sequence[Array], names: Sequence[str], itemsize: int = 0) -> Shape:
    """The common shape of numpy's broadcasting, claimed as an output; refuses shapes that do not broadcast."""
    shape: Shape = ()
    for index, array in enumerate(arrays):
        try:
            shape = broadcast_shapes(shape, array.shape)
        except ValueError:
            expected = f"a shape that broadcasts with {shape_text(shape)}"
            why = "axes are matched from the last; each pair must be equal, or one of them 1."
            raise misfit("the inputs' shapes do not broadcast", names[index], expected, array, why=why) from None
    ctx.claim(shape, itemsize or max((a.itemsize for a in arrays), default=1))
    return shape


def binary(
    function: Callable[[Array, Array], Any],
    a: Array,
    b: Array,
    ctx: Context,
    names: Sequence[str] = ("A", "B"),
    itemsize: int = 0,
) -> Array:
    """function(a, b) with numpy's broadcasting; itemsize: of the result, if it differs from the inputs'."""
    broadcast(ctx, (a, b), names, itemsize)
    with np.errstate(all="ignore"):
        return np.asarray(function(a, b))


def axis_in(axis: int, rank: int, name: str = "axis") -> int:
    """The axis counted from the front; refuses one outside [-rank, rank-1]."""
    if not -rank <= axis < rank:
        expected = f"-{rank} to {rank - 1}, for a tensor of rank {rank}" if rank else "a tensor of rank 1 or more"
        raise refuse(f"{name} {axis} does not exist", name, expected, str(axis) if rank else "a scalar", code="QR204")
    return axis % rank


def axes_in(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes counted from the front, each at most once."""
    found = tuple(axis_in(a, rank, "axes") for a in axes)
    if len(set(found)) != len(found):
        raise refuse("an axis is named twice", "axes", "each axis once", shape_text(tuple(axes)), code="QR204")
    return found


def slide(
    state: State, axis: int, taps: int, dilation: int, stride: int, out: int, combine: Callable[[State, State], State]
) -> State:
    """Combine `taps` elements along an axis, `dilation` apart, starting at each of `out` places `stride` apart.

    state:   arrays of one rank that belong together; the axis must be long enough.
    combine: associative; its first operand lies before the second. Called about log2(taps) times.
    """

    def cut(source: State, start: int, step: int, count: int) -> State:
        part = slice(start, start + (count - 1) * step + 1, step)
        return tuple(a[(slice(None),) * axis + (part,)] for a in source)

    total: State | None = None
    if taps <= min(4 * stride, 64):
        for tap in range(taps):
            part = cut(state, tap * dilation, stride, out)
            total = part if total is None else combine(total, part)
    else:
        run, width, start = state, 1, 0
        while width <= taps:
            if taps & width:
                part = cut(run, start * dilation, stride, out)
                total = part if total is None else combine(total, part)
                start += width
            length = run[0].shape[axis] - width * dilation
            width *= 2
            if width <= taps:
                run = combine(cut(run, 0, 1, length), cut(run, width // 2 * dilation, 1, length))
    assert total is not None
    return total


def product(a: Array, b: Array) -> Array:
    """numpy.matmul(a, b): float64 for floating point; integers of a's type, wrapping."""
    if is_integer(a.dtype):
        reach = _magnitude(a) * _magnitude(b) * (a.shape[-1] if a.ndim else 1)
        if reach >= 2**53:
            return matmul(a, b)
        return product(widen(a), widen(b)).astype(np.int64).astype(a.dtype)
    # BLAS adds in another order if an operand is transposed in memory.
    a, b = (np.asarray(widen(x), order="C") for x in (a, b))
    with np.errstate(all="ignore"):
        if b.ndim == 2 and a.ndim > 2 and a.size and b.size:
            flat = np.matmul(a.reshape(-1, a.shape[-1]), b)
            return np.asarray(flat.reshape(*a.shape[:-1], b.shape[1]))
        return matmul(a, b)


def _magnitude(x: Array) -> int:
    """The largest absolute value of integers."""
    return max(abs(int(x.min())), abs(int(x.max()))) if x.size else 0
