"""Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Identity: another view of the same elements;
Expand and Tile repeat them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare import Later
from qrun.ir.types import shape_text
from qrun.ops._op import Array, Context, Shape, bad_attribute, misfit, op, refuse
from qrun.ops._shape import checked, claim, ints, same_length
from qrun.ops.lowering.copies import moving_kernel, view_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel

if TYPE_CHECKING:
    from qrun.ops import _float
else:
    _float = Later("qrun.ops._float")


@op("Reshape", since=5, form="moves", native=view_kernel)
def reshape(data: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """The elements of `data` in row-major order with another shape; a view where possible.

    shape: 1-D int64. -1, at most once: what is left. 0: data's dimension at that place, or really 0 if allowzero.
    Refuses shapes of another size, and -1 where a zero-sized tensor leaves it open.
    """
    wanted = ints(shape, "shape")
    dims = list(wanted)
    for place, n in enumerate(wanted):
        if n < -1:
            raise _misfit(data, wanted, "dimensions of -1 or more")
        if n == 0 and not allowzero:
            if place >= data.ndim:
                raise _misfit(data, wanted, f"no 0 beyond axis {data.ndim - 1}: 0 copies a dimension of data")
            dims[place] = data.shape[place]
    if dims.count(-1) > 1:
        raise _misfit(data, wanted, "at most one -1")
    if -1 in dims:
        if allowzero and 0 in dims:
            raise _misfit(data, wanted, "not both 0 and -1 when allowzero is 1")
        rest = math.prod(n for n in dims if n != -1)
        if not rest or data.size % rest:
            expected = "no -1: a dimension of 0 leaves it open" if not rest else f"a divisor of {data.size} besides -1"
            raise _misfit(data, wanted, expected)
        dims[dims.index(-1)] = data.size // rest
    if math.prod(dims) != data.size:
        raise _misfit(data, wanted, f"{data.size} elements, as data {shape_text(data.shape)}")
    return data.reshape(checked(dims, data.itemsize, "shape"))


def _misfit(data: Array, shape: Sequence[int], expected: str) -> Exception:
    return misfit(
        f"data {shape_text(data.shape)} does not reshape to {list(shape)}",
        "shape",
        expected,
        str(list(shape)),
        why="Reshape keeps the number of elements.",
    )


@op("Flatten", since=1, form="moves", native=view_kernel)
def flatten(input: Array, *, axis: int = 1) -> Array:
    """The elements of `input` as a matrix [d_0 * ... * d_(axis-1), d_axis * ... * d_(r-1)]; a view where possible.

    axis: -r to r.
    """
    rank = input.ndim
    if not -rank <= axis <= rank:
        raise refuse(f"axis {axis} does not exist", "axis", f"-{rank} to {rank}", axis, code="QR204")
    split = axis + rank if axis < 0 else axis
    dims = (math.prod(input.shape[:split]), math.prod(input.shape[split:]))
    return input.reshape(checked(dims, input.itemsize, "input"))


def _squeeze(data: Array, axes: Sequence[int] | None) -> Array:
    if axes is None:
        gone = tuple(place for place, n in enumerate(data.shape) if n == 1)
    else:
        gone = _float.axes_in(axes, data.ndim)
    for place in gone:
        if data.shape[place] != 1:
            raise misfit(
                f"axis {place} has {data.shape[place]} elements",
                "axes",
                "axes of length 1",
                f"axis {place} of {shape_text(data.shape)}",
                why="Squeeze removes axes of length 1 only.",
            )
    return data.reshape([n for place, n in enumerate(data.shape) if place not in gone])


@op("Squeeze", since=1, form="moves", native=view_kernel)
def squeeze_1(data: Array, *, axes: tuple[int, ...] = ()) -> Array:
    """Remove the given axes, which must have length 1; all such axes if none are given. A view where possible.

    Source: ONNX operators, Squeeze-11.
    """
    return _squeeze(data, axes or None)


@op("Squeeze", since=13, form="moves", native=view_kernel)
def squeeze(data: Array, axes: Array | None = None) -> Array:
    """Remove the given axes, which must have length 1; all such axes if `axes` is omitted. A view where possible.

    axes: 1-D int64, -r to r-1, each once; an empty one removes nothing.
    """
    return _squeeze(data, None if axes is None else ints(axes, "axes", scalar=True))


def _unsqueeze(data: Array, axes: Sequence[int]) -> Array:
    rank = data.ndim + len(axes)
    new = set(_float.axes_in(axes, rank))
    rest = iter(data.shape)
    dims: Shape = tuple(1 if place in new else next(rest) for place in range(rank))
    return data.reshape(checked(dims, data.itemsize, "axes"))


@op("Unsqueeze", since=1, form="moves", native=view_kernel)
def unsqueeze_1(data: Array, *, axes: tuple[int, ...]) -> Array:
    """Insert axes of length 1 at the given places of the output. A view where possible.

    Source: ONNX operators, Unsqueeze-11.
    """
    return _unsqueeze(data, axes)


@op("Unsqueeze", since=13, form="moves", native=view_kernel)
def unsqueeze(data: Array, axes: Array) -> Array:
    """Insert axes of length 1 at the given places of the output. A view where possible.

    axes: 1-D int64, each once, -r to r-1 where r is the output's rank.
    """
    return _unsqueeze(data, ints(axes, "axes", scalar=True))


@op("Transpose", since=1, form="moves")
def transpose(data: Array, *, perm: tuple[int, ...] = ()) -> Array:
    """Permute the axes: axis i of the output is axis perm[i] of the input; reversed if perm is not given. A view."""
    order = perm or tuple(range(data.ndim))[::-1]
    if sorted(order) != list(range(data.ndim)):
        expected = f"0 to {data.ndim - 1}, each once" if data.ndim else "nothing for a scalar"
        raise bad_attribute("perm", expected, shape_text(order))
    return data.transpose(order)


@transpose.native
def _lower_transpose(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.copy import transposed

    perm = site.attributes["perm"] or tuple(range(site.inputs[0].ndim))[::-1]
    return moving_kernel(site, lambda x, y: transposed(site.engine, x.shape, x.dtype, perm))


@op("Identity", since=1, form="moves", native=view_kernel, compounds="passes")
def identity(input: Array) -> Array:
    """The input itself."""
    return input


@op("Expand", since=8, form="moves")
def expand(input: Array, shape: Array, *, ctx: Context) -> Array:
    """input repeated along axes of length 1 to the shape to which it and `shape`, 1-D int64, broadcast.

    The same array if it has that shape. Raises OperatorError for shapes that do not broadcast.
    """
    wanted = ints(shape, "shape")
    dims = []
    for n, m in zip_longest(reversed(input.shape), reversed(wanted), fillvalue=1):
        if m < 0 or (n != m and 1 not in (n, m)):
            raise misfit(
                f"input {shape_text(input.shape)} does not expand to {shape_text(wanted)}",
                "shape",
                f"a shape that broadcasts with {shape_text(input.shape)}",
                shape_text(wanted),
                why="axes are matched from the last; each pair must be equal, or one of them 1.",
            )
        dims.append(m if n == 1 else n)
    made = claim(ctx, dims[::-1], input.dtype, "shape")
    return input if made == input.shape else np.array(np.broadcast_to(input, made))


@op("Tile", since=6, form="moves")
def tile(input: Array, repeats: Array, *, ctx: Context) -> Array:
    """input repeats[i] times along each axis i; repeats: 1-D int64, one number of 0 or more for each axis.

    Raises OperatorError for another length and for a negative number.
    """
    times = ints(repeats, "repeats")
    same_length(times, input.ndim, "repeats", "Tile: one number for each axis of input.")
    if any(n < 0 for n in times):
        raise refuse("a number of repeats is negative", "repeats", "0 or more", shape_text(times))
    claim(ctx, [n * m for n, m in zip(input.shape, times, strict=True)], input.dtype, "repeats")
    return np.tile(input, times)


@tile.native
@expand.native
def _lower_repeats(site: LoweringContext) -> NativeKernel:
    from qrun.ops.lowering.moves import repeat_kernel

    return repeat_kernel(site)
