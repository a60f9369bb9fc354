"""Concat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text, type_name
from qrun.ops._context import Context, refuse
from qrun.ops._float import axis_in
from qrun.ops._native import LoweringContext, NativeKernel
from qrun.ops._native_pointwise import concat_kernel
from qrun.ops._op import op
from qrun.ops._shape import claim


@op("Concat", since=4)
def concat(*inputs: Array, axis: int, ctx: Context) -> Array:
    """Join tensors along `axis`; their other dimensions are equal. Source: ONNX operators, Concat-13.

    Refuses other ranks, dimensions or types, and inputs that are omitted.
    """
    return np.concatenate(inputs, axis=_check(inputs, axis, ctx))


def _check(inputs: Sequence[Array], axis: int, ctx: Context) -> int:
    """The axis as a number from 0 on."""
    if not inputs or any(x is None for x in inputs):
        raise refuse("an input is missing", "inputs", "one or more tensors", "nothing", code="QR205")
    first = inputs[0]
    place = axis_in(axis, first.ndim)
    for number, x in enumerate(inputs[1:], 2):
        fits = x.ndim == first.ndim and all(
            a == b for i, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)) if i != place
        )
        if not fits or x.dtype != first.dtype:
            wanted = [*first.shape]
            if wanted and x.ndim == first.ndim:
                wanted[place] = x.shape[place]
            raise refuse(
                f"inputs[{number}] does not fit inputs[1]",
                f"inputs[{number}]",
                f"{type_name(first.dtype)} {shape_text(tuple(wanted))}",
                f"{type_name(x.dtype)} {shape_text(x.shape)}",
                why=f"Concat: all dimensions except axis {axis} are equal.",
                code="QR208",
            )
    length = sum(x.shape[place] for x in inputs)
    claim(ctx, (*first.shape[:place], length, *first.shape[place + 1 :]), first.dtype, "inputs")
    return place


@concat.native
def _lower(site: LoweringContext) -> NativeKernel:
    place = _check(cast(Sequence[Array], site.inputs), site.attributes["axis"], site.ctx)
    return concat_kernel(site, range(len(site.inputs)), place, [None] * len(site.inputs))
