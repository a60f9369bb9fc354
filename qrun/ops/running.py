"""CumSum and CumProd."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qrun.ops._complete import ALWAYS
from qrun.ops._float import axis_in, is_integer, narrow
from qrun.ops._op import Array, op
from qrun.ops._shape import scalar
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, kernel_of


@op("CumSum", since=11)
def cum_sum(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """y[i] = x[0] + ... + x[i] along `axis`, an integer scalar; exclusive: up to x[i-1]; reverse: from the end.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap.
    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _running(np.add, x, axis, bool(exclusive), bool(reverse))


@op("CumProd", since=26)
def cum_prod(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
    """y[i] = x[0] * ... * x[i] along `axis`, an integer scalar; exclusive: up to x[i-1]; reverse: from the end.

    Floating point: in float64 and rounded once; float64 stays float64. Integers wrap.
    Raises OperatorError for an axis outside [-r, r-1].
    """
    return _running(np.multiply, x, axis, bool(exclusive), bool(reverse))


def _lower_running(site: LoweringContext, what: str) -> NativeKernel:
    from qrun.native.kernels.reduce import Accumulated
    from qrun.native.machine.operation import Operand

    x, axis = site.inputs
    place = axis_in(scalar(axis, "axis"), x.ndim)
    site.require_constant(1)
    exclusive, reverse = (bool(site.attributes[name]) for name in ("exclusive", "reverse"))
    made = Accumulated(site.engine, Operand(x.shape, x.dtype), place, what, exclusive, reverse)
    return kernel_of(site, made, (0,), ALWAYS)


cum_sum.native(partial(_lower_running, what="sum"))
cum_prod.native(partial(_lower_running, what="product"))


def _running(function: np.ufunc, x: Array, axis: Array, exclusive: bool, reverse: bool) -> Array:
    place = axis_in(scalar(axis, "axis"), x.ndim)
    wide: np.dtype[Any] = x.dtype if is_integer(x.dtype) else np.dtype(np.float64)
    source = np.moveaxis(np.flip(x, place) if reverse else x, place, 0)
    made = np.empty(source.shape, wide)
    with np.errstate(all="ignore"):
        if exclusive:
            made[:1] = function.identity
            function.accumulate(source[:-1], axis=0, dtype=wide, out=made[1:])
        else:
            function.accumulate(source, axis=0, dtype=wide, out=made)
    result = np.moveaxis(made, 0, place)
    result = np.flip(result, place) if reverse else result
    return result if wide == x.dtype else narrow(result, x.dtype)
