"""Native lowering of ArgMax and ArgMin."""

from __future__ import annotations

from qrun.ops._complete import ALWAYS
from qrun.ops._native import LoweringContext, NativeKernel, Stage, kernel_of, require_type, staged_kernel


def arg_kernel(site: LoweringContext, what: str, axis: int) -> NativeKernel:
    """The kernel of places along an axis, counted from the front, that has elements. what: ``max`` or ``min``."""
    from qrun.native.kernels.copy import view
    from qrun.native.kernels.extremes import ARG_KINDS, Arg
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
