"""Native lowerings of TopK, ArgMax and ArgMin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qrun.ops._complete import ALWAYS
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, Stage, kernel_of, require_type, staged_kernel
from qrun.ops.lowering.turned import turning

if TYPE_CHECKING:
    from qrun.native.machine.operation import Operation


def top_kernel(site: LoweringContext, count: int, axis: int, largest: bool) -> NativeKernel:
    """The kernel of the `count` greatest or least elements along an axis, counted from the front, and their places."""
    from qrun.native.kernels.copy import transposed, view
    from qrun.native.kernels.reduce import TOP_KINDS, Along, TopPlaces
    from qrun.native.machine.operation import Operand

    x, engine = site.inputs[0], site.engine
    require_type(x.dtype.name in TOP_KINDS, x.dtype)
    perm = [*(place for place in range(x.ndim) if place != axis), axis]
    turned = axis != x.ndim - 1
    back = [perm.index(place) for place in range(x.ndim)]
    operand = Operand(tuple(x.shape[place] for place in perm), x.dtype)
    stages = [turning(site, 0, perm)] if turned else []
    source: int | str = "turned 0" if turned else 0
    top = TopPlaces(engine, operand, count, "max" if largest else "min")

    def ended(made: Operand) -> Operation:
        if turned:
            return transposed(engine, made.shape, made.dtype, back)
        return view(engine, made.shape, made.shape, made.dtype)

    stages.append(Stage(top, (source,), "places"))
    if site.ctx.wants(0):
        along = Along(engine, operand, top.result)
        stages.append(Stage(along, (source, "places"), "values" if turned else 0))
        if turned:
            stages.append(Stage(ended(along.result), ("values",), 0))
    if site.ctx.wants(1):
        stages.append(Stage(ended(top.result), ("places",), 1))
    return staged_kernel(site, stages, [top], ALWAYS)


def arg_kernel(site: LoweringContext, what: str, axis: int) -> NativeKernel:
    """The kernel of places along an axis, counted from the front, that has elements. what: ``max`` or ``min``."""
    from qrun.native.kernels.copy import view
    from qrun.native.kernels.reduce import ARG_KINDS, Arg
    from qrun.native.machine.operation import Operand

    x = site.inputs[0]
    require_type(x.dtype.name in ARG_KINDS, x.dtype)
    word = what + ("_last" if site.attributes["select_last_index"] else "")
    made = Arg(site.engine, Operand(x.shape, x.dtype), axis, word, "any" if 2 < x.ndim <= 5 else "plain")
    if site.attributes["keepdims"]:
        return kernel_of(site, made, (0,), ALWAYS)
    left = made.result.shape[:axis] + made.result.shape[axis + 1 :]
    flat = view(site.engine, made.result.shape, left, made.result.dtype)
    return staged_kernel(site, [Stage(made, (0,), "places"), Stage(flat, ("places",))], [made], ALWAYS)
