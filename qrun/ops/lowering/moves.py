"""Native lowerings of operators that split, repeat, gather from, scatter into or rearrange one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qrun.ir import Array
from qrun.native.kernels.copy import slice_copy, view
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.kernels.indexed import Gathered, NamedRows, Scattered
from qrun.native.kernels.rearrange import depth_to_space_copy, take_copies, tile_copy
from qrun.native.machine.operation import Operand
from qrun.ops._complete import ALWAYS
from qrun.ops._float import axis_in
from qrun.ops.lowering.copies import AXES, by_reference, moving_kernel, try_orders
from qrun.ops.lowering.kernel import (
    LoweringContext,
    NativeKernel,
    Stage,
    decline_error,
    kernel_of,
    quiet,
    require_copied,
    staged_kernel,
)

if TYPE_CHECKING:
    from qrun.native.kernels.copy import Copy
    from qrun.native.kernels.indexed import NamedRows
    from qrun.native.machine.operation import Operation, Order

_PARTS = 1024
"""The most parts of a tensor: each has a call of its own."""
_NUMBERED = 1 << 22
"""The most elements of a tensor and of the result taken from it: numbering them takes a few times eight bytes each."""


def split_kernel(site: LoweringContext, axis: int) -> NativeKernel:
    """The kernel of an operator that splits its first input along `axis`, 0 or more, into its outputs, by constants."""

    x = site.inputs[0]
    parts: tuple[Array, ...] = site.reference(site.inputs, site.ctx)
    site.require_constants()
    require_copied(x.dtype)
    if len(parts) > _PARTS:
        raise decline_error(f"more than {_PARTS} parts")
    stages, first = [], 0
    for index, part in enumerate(parts):
        if site.ctx.wants(index):
            starts = [first if a == axis and part.shape[axis] else 0 for a in range(x.ndim)]

            def cut(order: Order, starts: Sequence[int] = starts, part: Array = part) -> Copy:
                return slice_copy(site.engine, x.shape, x.dtype, starts, [1] * x.ndim, part.shape, order)

            whole = part.shape == x.shape
            made = view(site.engine, x.shape, x.shape, x.dtype) if whole else _possible(cut)
            stages.append(Stage(made, (0,), index))
        first += part.shape[axis]
    return by_reference(site, stages)


def repeat_kernel(site: LoweringContext) -> NativeKernel:
    """The kernel of an operator that repeats its first input along its axes, and along new axes before them."""

    def operation(x: Array, y: Array) -> Operation:
        if x.size == y.size:
            return view(site.engine, x.shape, y.shape, x.dtype)
        lead = y.ndim - x.ndim
        times = [n // m if m else 1 for n, m in zip(y.shape, (1,) * lead + x.shape, strict=True)]
        if lead:
            made = tile_copy(site.engine, x.shape, x.dtype, times)
            _ = made.tight
            return made
        return _possible(lambda order: tile_copy(site.engine, x.shape, x.dtype, times, order))

    return moving_kernel(site, operation)


def depth_to_space_kernel(site: LoweringContext, block: int, mode: str, *, gathered: bool) -> NativeKernel:
    """The kernel of DepthToSpace or (`gathered`) SpaceToDepth, with blocks of `block` by `block`. mode: DCR or CRD."""

    def operation(x: Array, y: Array) -> Operation:
        deep = (y if gathered else x).shape
        rest = deep[1] // (block * block)
        steps = (block * rest, rest, 1) if mode == "DCR" else (block, 1, block * block)
        return _possible(
            lambda order: depth_to_space_copy(site.engine, deep, x.dtype, block, steps, order, gathered=gathered)
        )

    return moving_kernel(site, operation)


def take_kernel(site: LoweringContext) -> NativeKernel:
    """The kernel of an operator that takes elements of its first input at places that follow from constants.

    The reference kernel finds these places: it runs on the numbers of the elements instead of the elements.
    """

    site.require_constants()
    if site.fixed[0]:
        raise decline_error("all it reads is known before the run")

    def operation(x: Array, y: Array) -> Operation:
        if x.size + y.size > _NUMBERED:
            raise decline_error("its elements are too many to be numbered")
        site.afford(4 * (x.size + y.size) * 8)
        numbers = np.arange(x.size).reshape(x.shape)
        places = np.asarray(site.reference((numbers, *site.inputs[1:]), replace(quiet(site), claims=None)))
        loose, plain = take_copies(site.engine, x.shape, x.dtype, places)
        return _possible(lambda order: plain if order == "plain" else loose)

    return moving_kernel(site, operation)


def named_elements(site: LoweringContext) -> NamedRows:
    """How the indices in the second input name elements of the first one along ``axis``. Raises Declined if there are
    fewer indices than elements along another axis."""

    data, indices = site.inputs[:2]
    dim = axis_in(site.attributes["axis"], data.ndim)
    before, (length, *after) = data.shape[:dim], data.shape[dim:]
    if indices.shape != (*before, *indices.shape[dim : dim + 1], *after):
        raise decline_error("its indices are not as many as data along the other axes")
    return NamedRows((length,), math.prod(before), True, math.prod(after), 1)


def gather_kernel(site: LoweringContext, places: NamedRows, y_shape: Sequence[int]) -> NativeKernel:
    """The kernel of an operator that gathers elements of its first input at the indices in its second one. The run
    checks the indices."""

    data, indices = site.inputs[:2]
    if site.fixed[0] and site.fixed[1]:
        raise decline_error("all it reads is known before the run")
    shapes = data.shape, indices.shape
    operation = Gathered(site.engine, data.dtype, indices.dtype, shapes, places, tuple(y_shape))
    return kernel_of(site, operation, (0, 1), ALWAYS)


def scatter_kernel(site: LoweringContext, places: NamedRows, how: str) -> NativeKernel:
    """The kernel of an operator that updates elements of its first input, at the indices in the second, with elements
    of the third.

    Sums and products of float32 are computed in float64, and rounded once.
    """

    data, indices, updates = (Operand(x.shape, x.dtype) for x in site.inputs)
    if data.dtype != np.float32 or how not in ("add", "mul"):
        return kernel_of(site, Scattered(site.engine, (data, indices, updates), places, how), (0, 1, 2), ALWAYS)
    wide = [Elementwise(site.engine, "to_float64", [x]) for x in (data, updates)]
    made = Scattered(site.engine, (wide[0].result, indices, wide[1].result), places, how)
    narrow = Elementwise(site.engine, "cast", [made.result])
    stages = [
        Stage(wide[0], (0,), "data"),
        Stage(wide[1], (2,), "updates"),
        Stage(made, ("data", 1, "updates"), "made"),
    ]
    return staged_kernel(site, [*stages, Stage(narrow, ("made",))], (made,), ALWAYS)


def _possible(of: Callable[[Order], Copy]) -> Copy:
    """As `try_orders`, but without trying copies of at most AXES loops, which are always possible."""
    made = of("any")
    return made if made.loops <= AXES else try_orders(of)
