"""Shared by the elementwise operators of two or more tensors: broadcasting, sums, and divisors that are zero."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.ops._float import broadcast
from qrun.ops._op import Array, Context, OpDef, Shape, bad_shape, first_place, op, refuse
from qrun.ops._promises import Form
from qrun.ops.lowering.float32 import elementwise


def binary(
    function: Callable[[Array, Array], Any],
    a: Array,
    b: Array,
    ctx: Context,
    names: Sequence[str] = ("A", "B"),
    itemsize: int = 0,
) -> Array:
    """function(a, b) with numpy's broadcasting; itemsize: of the result, if not the inputs'."""
    broadcast(ctx, (a, b), names, itemsize)
    with np.errstate(all="ignore"):
        return np.asarray(function(a, b))


def binary_operator(
    op_type: str,
    function: Callable[[Array, Array], Any],
    says: str,
    *,
    since: int,
    form: Form = "",
    native: bool = True,
    compares: bool = False,
) -> OpDef:
    """Declare function(A, B) of tensors that broadcast.

    says: what it is, for people. native: whether native/emit/functions.py has the function, under the operator's name.
    compares: the result is bool.
    """

    def made(A: Array, B: Array, *, ctx: Context) -> Array:
        return binary(function, A, B, ctx, itemsize=int(compares))

    what, _, more = says.partition("; ")
    made.__doc__ = f"""{what}, with numpy's broadcasting{"; " if more else ""}{more}.

    Raises OperatorError for shapes that do not broadcast.
    """
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", op_type).lower()
    return op(op_type, since=since, form=form, native=elementwise(name) if native else None)(made)


def observe_zeros(divisor: Array, name: str, ctx: Context) -> None:
    if ctx.observing:
        zero = divisor == 0
        count = int(np.count_nonzero(zero))
        if count:
            ctx.observe("division-by-zero", name, count, divisor.size, first_place(zero))


def common_shape(op_type: str, data_0: Sequence[Array], ctx: Context, itemsize: int = 0) -> Shape:
    """The shape to which the inputs of Sum, Mean, Min and Max broadcast; before version 8 they have one shape."""
    if not data_0 or any(x is None for x in data_0):
        raise refuse(f"an input of {op_type} is missing", "data_0", "one tensor or more", "none", code="QR205")
    for place, array in enumerate(data_0):
        if ctx.version < 8 and array.shape != data_0[0].shape:
            raise bad_shape(f"data_0[{place}]", f"one shape: {op_type} broadcasts since opset 8", array)
    return broadcast(ctx, data_0, [f"data_0[{place}]" for place in range(len(data_0))], itemsize)


def total(op_type: str, data_0: Sequence[Array], ctx: Context) -> Array:
    """The sum of floating-point tensors in float64, from left to right."""
    made = np.zeros(common_shape(op_type, data_0, ctx, 8))
    with np.errstate(all="ignore"):
        made += data_0[0]
        for array in data_0[1:]:
            made += array
    return made
