"""Expand and Tile."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._context import Context, refuse
from qrun.ops._op import op
from qrun.ops._shape import claim, ints, same_length


@op("Expand", since=8, form="moves")
def expand(input: Array, shape: Array, *, ctx: Context) -> Array:
    """input repeated along axes of length 1 to the shape to which it and `shape`, 1-D int64, broadcast.

    The same array if it has that shape. Raises OperatorError for shapes that do not broadcast.
    Source: ONNX operators, Expand-13.
    """
    wanted = ints(shape, "shape")
    dims = []
    for n, m in zip_longest(reversed(input.shape), reversed(wanted), fillvalue=1):
        if m < 0 or (n != m and 1 not in (n, m)):
            raise refuse(
                f"input {shape_text(input.shape)} does not expand to {shape_text(wanted)}",
                "shape",
                f"a shape that broadcasts with {shape_text(input.shape)}",
                shape_text(wanted),
                why="axes are matched from the last; each pair must be equal, or one of them 1.",
                code="QR208",
            )
        dims.append(m if n == 1 else n)
    made = claim(ctx, dims[::-1], input.dtype, "shape")
    return input if made == input.shape else np.array(np.broadcast_to(input, made))


@op("Tile", since=6, form="moves")
def tile(input: Array, repeats: Array, *, ctx: Context) -> Array:
    """input repeats[i] times along each axis i; repeats: 1-D int64, one number of 0 or more for each axis.

    Raises OperatorError for another length and for a negative number. Source: ONNX operators, Tile-13.
    """
    times = ints(repeats, "repeats")
    same_length(times, input.ndim, "repeats", "Tile: one number for each axis of input.")
    if any(n < 0 for n in times):
        raise refuse("a number of repeats is negative", "repeats", "0 or more", shape_text(times))
    claim(ctx, [n * m for n, m in zip(input.shape, times, strict=True)], input.dtype, "repeats")
    return np.tile(input, times)
