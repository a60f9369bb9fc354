"""Native kernels that make copies of the elements of one input: moved as a whole, or taken by indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qrun.ir import Array
from qrun.ops._complete import ALWAYS
from qrun.ops._context import Context
from qrun.ops._native import Inputs, LoweringContext, NativeKernel, Stage, kernel_of, require_type

if TYPE_CHECKING:
    from qrun.native.machine.operation import Operation, Order

_SIZES = (1, 2, 4, 8)
"""Bytes of the elements that copies are of."""
INDICES = 1 << 16
"""Of the axes of a result whose elements are named one by one: each has an index, or some and their weights."""
_AXES = 5
"""Of so many axes every copy is possible; of more, it must be tried."""


def moving_kernel(site: LoweringContext, operation: Callable[[Array, Array], Operation]) -> NativeKernel:
    """The kernel of an operator that moves its first input by constants; operation: of the input and its result."""
    x = site.inputs[0]
    y = np.asarray(site.reference(site.inputs, site.ctx))
    site.require_constants()
    require_type(x.dtype.itemsize in _SIZES and not x.dtype.hasobject, x.dtype, "copies of {}")

    def run(inputs: Inputs) -> Array:
        return np.asarray(site.reference(inputs, Context(site.ctx.arith, site.ctx.version)))

    made = operation(x, y)
    if not made.view and x.ndim > _AXES:
        _ = made.tight
    return NativeKernel(run, ALWAYS, (), (Stage(made, (0,)),))


def view_kernel(site: LoweringContext) -> NativeKernel:
    """The kernel of an operator that gives its input another shape."""
    from qrun.native.kernels.copy import view

    return moving_kernel(site, lambda x, y: view(site.engine, x.shape, y.shape, x.dtype))


def transpose_kernel(site: LoweringContext, perm: Sequence[int]) -> NativeKernel:
    from qrun.native.kernels.copy import transposed

    return moving_kernel(site, lambda x, y: transposed(site.engine, x.shape, x.dtype, perm))


def slice_kernel(site: LoweringContext, cuts: Callable[[], Sequence[slice]]) -> NativeKernel:
    from qrun.native.kernels.copy import sliced

    def operation(x: Array, y: Array) -> Operation:
        bounds = [cut.indices(n) for cut, n in zip(cuts(), x.shape, strict=True)]
        starts = [start if n else 0 for (start, _, _), n in zip(bounds, y.shape, strict=True)]
        return sliced(site.engine, x.shape, x.dtype, starts, [step for _, _, step in bounds], y.shape, _order(x))

    return moving_kernel(site, operation)


def pad_kernel(
    site: LoweringContext,
    value: Callable[[], Array],
    amounts: Callable[[], tuple[list[int], list[int]]],
) -> NativeKernel:
    from qrun.native.kernels.copy import padded

    return moving_kernel(site, lambda x, y: padded(site.engine, x.shape, value(), *amounts(), _order(x)))


def indexed_kernel(site: LoweringContext, places: Mapping[int, Array]) -> NativeKernel:
    """The kernel of an operator that takes elements of its first input by indices along some axes, and all along others."""
    from qrun.native.errors import Declined
    from qrun.native.kernels.indexed import Indexed
    from qrun.native.machine.operation import Operand

    x = site.inputs[0]
    require_type(x.dtype.itemsize in _SIZES and not x.dtype.hasobject, x.dtype, "copies of {}")

    def made(order: Order) -> Indexed:
        return Indexed(site.engine, Operand(x.shape, x.dtype), [places.get(a) for a in range(x.ndim)], order)

    operation = made("any")
    try:
        _ = operation.tight, operation.lying("channels").tight
    except Declined:
        operation = made("plain")
    return kernel_of(site, operation, (0,), ALWAYS)


def _order(x: Array) -> Order:
    return "any" if x.ndim <= _AXES else "plain"
