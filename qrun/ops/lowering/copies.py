"""Native lowerings of operators that copy elements of one input: reshapes, slices, and gathers by constant indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from qrun.ir import Array
from qrun.native.errors import Declined
from qrun.ops._complete import ALWAYS
from qrun.ops._context import Context
from qrun.ops.lowering.kernel import Inputs, LoweringContext, NativeKernel, Stage, kernel_of, operand, require_copied

if TYPE_CHECKING:
    from qrun.native.kernels.copy import Copy
    from qrun.native.kernels.indexed import Indexed
    from qrun.native.machine.operation import Operation, Order

INDICES = 1 << 16
"""The most elements of all indexed axes of a result together: each has an index, or several indices and weights."""
AXES = 5
"""Copies of up to this many axes are always possible; copies of more axes must be tried."""
Tried = TypeVar("Tried", bound="Copy | Indexed")


def moving_kernel(site: LoweringContext, operation: Callable[[Array, Array], Operation]) -> NativeKernel:
    """The kernel of an operator that rearranges its first input by constants. operation: (input, result) to a copy."""
    x = site.inputs[0]
    y = np.asarray(site.reference(site.inputs, site.ctx))
    site.require_constants()
    require_copied(x.dtype)
    made = operation(x, y)
    if not made.view and x.ndim > AXES:
        _ = made.tight
    return by_reference(site, [Stage(made, (0,))])


def by_reference(site: LoweringContext, stages: Sequence[Stage]) -> NativeKernel:
    """The kernel of stages that only programs execute; execution step by step calls the reference kernel."""
    ctx = site.ctx

    def run(inputs: Inputs) -> Any:
        return site.reference(inputs, Context(ctx.arith, ctx.version, ctx.outputs, ctx.wanted))

    return NativeKernel(run, ALWAYS, (), tuple(stages))


def view_kernel(site: LoweringContext) -> NativeKernel:
    """The kernel of an operator that only reshapes its first input."""
    from qrun.native.kernels.copy import view

    return moving_kernel(site, lambda x, y: view(site.engine, x.shape, y.shape, x.dtype))


def slice_kernel(site: LoweringContext, cuts: Callable[[], Sequence[slice]]) -> NativeKernel:
    """The native kernel of a slice; `cuts` makes one Python slice per axis."""
    from qrun.native.kernels.copy import slice_copy

    def operation(x: Array, y: Array) -> Operation:
        bounds = [cut.indices(n) for cut, n in zip(cuts(), x.shape, strict=True)]
        starts = [start if n else 0 for (start, _, _), n in zip(bounds, y.shape, strict=True)]
        return slice_copy(site.engine, x.shape, x.dtype, starts, [step for _, _, step in bounds], y.shape, order_of(x))

    return moving_kernel(site, operation)


def indexed_kernel(site: LoweringContext, places: Mapping[int, Array]) -> NativeKernel:
    """The kernel of an operator that takes elements of its first input by indices along the axes in `places`,
    and all elements along the other axes."""
    from qrun.native.kernels.indexed import Indexed

    x = site.inputs[0]
    require_copied(x.dtype)

    def made(order: Order) -> Indexed:
        return Indexed(site.engine, operand(x), [places.get(a) for a in range(x.ndim)], order)

    return kernel_of(site, try_orders(made), (0,), ALWAYS)


def try_orders(of: Callable[[Order], Tried]) -> Tried:
    """The operation for operands in either C or channels-last order; for C order alone if not both are possible.
    Raises Declined if neither is."""
    made = of("any")
    try:
        _ = made.tight, made.with_layout("channels").tight
    except Declined:
        made = of("plain")
        _ = made.tight
    return made


def order_of(x: Array) -> Order:
    """ "any" order of memory for tensors with few axes, else "plain"."""
    return "any" if x.ndim <= AXES else "plain"
