"""QLinearConcat of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ir.types import type_name
from qrun.ops._codes import all_codes, requantized, scale_param, unary, zero_param
from qrun.ops._context import scalar
from qrun.ops._float import axis_in
from qrun.ops._op import Array, Context, Real, bad_shape, contrib_op, refuse
from qrun.ops._shape import same_but
from qrun.ops.lowering.kernel import EIGHT, LoweringContext, NativeKernel, declined
from qrun.ops.lowering.pointwise import completeness, concat_kernel, note

_NAME = "QLinearConcat"


@contrib_op(_NAME, computes=Real("Concat"), types={"T8": ("int8 uint8", "Y")})
def qlinear_concat(Y_scale: Array, Y_zero_point: Array, *inputs: Array | None, axis: int, ctx: Context) -> Array:
    """Quantized tensors requantized and joined along `axis`. inputs: tensor, scale, zero point, tensor, ...

    Each tensor is int8 or uint8 with scalar parameters of its own (an omitted zero point is 0); all have one shape
    but for `axis`. Output: Y_zero_point's type.

        Y = concatenation of saturate(RNE((x - x_zero_point) * x_scale / Y_scale) + Y_zero_point)

    Exact: the quotient is rounded once, as a real number. ``ort``: float32 product and quotient; equal parameters
    copy. onnx.reference has no such operator: ``onnx-ref`` is exact.
    """
    if not inputs or len(inputs) % 3:
        raise refuse(
            f"{_NAME} has {len(inputs)} inputs after Y_zero_point",
            "inputs",
            "three for each tensor: tensor, scale, zero point",
            len(inputs),
            code="QR205",
        )
    ys = scale_param(Y_scale, "Y_scale", _NAME, ctx)
    yz = scalar(Y_zero_point, "Y_zero_point", _NAME)
    assert yz is not None
    tensors = []
    for place in range(0, len(inputs), 3):
        x, scale, zero = inputs[place : place + 3]
        _check_part(place, x, scale)
        assert x is not None
        assert scale is not None
        xs = scale_param(scale, f"inputs[{place + 1}]", _NAME, ctx)
        xz = zero_param(zero, x.dtype, f"inputs[{place + 2}] (zero_point)", f"inputs[{place}]", _NAME)
        tensors.append((x, xs, xz))
    places = _check_shapes([x for x, _, _ in tensors], axis)
    ctx.claim((sum(x.size for x, _, _ in tensors),), 2, "parts and output")
    parts = [
        unary(x, requantized(all_codes(x.dtype), xz, xs, yz, ys, ctx), yz, ctx, f"inputs[{3 * i}]")
        for i, (x, xs, xz) in enumerate(tensors)
    ]
    return np.concatenate(parts, axis=places)


@qlinear_concat.native
def _lower(site: LoweringContext) -> NativeKernel:
    scale, zero, *inputs = site.inputs
    inputs = [] if len(inputs) == 1 and inputs[0] is None else inputs
    codes = [
        all_codes(x.dtype) if place % 3 == 0 and x is not None and x.dtype in EIGHT else x
        for place, x in enumerate(inputs)
    ]
    seen = Context(site.ctx.arith, site.ctx.version)
    tables = qlinear_concat(scale, zero, *codes, axis=0, ctx=seen).reshape(-1, 256)
    note(site, seen)
    complete = [completeness(seen, tables.dtype, zero, f"inputs[{3 * i}]") for i in range(len(tables))]
    tensors = [x for x in inputs[::3] if x is not None]
    axis = _check_shapes(tensors, site.attributes["axis"])
    for place, fixed in enumerate(site.fixed):
        if not fixed and (place < 2 or (place - 2) % 3):
            raise declined(f"a parameter of inputs[{max(place - 2, 0) // 3 * 3}] is not constant")
    return concat_kernel(site, range(2, len(site.inputs), 3), axis, list(tables), complete)


def _check_part(place: int, x: Array | None, scale: Array | None) -> None:
    if x is None or scale is None or x.dtype not in EIGHT or scale.dtype != np.float32:
        got = ", ".join("nothing" if a is None else type_name(a.dtype) for a in (x, scale))
        raise refuse(
            f"inputs[{place}] and inputs[{place + 1}] are not a quantized tensor and its scale",
            "inputs",
            "int8 or uint8, then float32",
            got,
            why=f"{_NAME}: inputs are tensor, scale, zero point, tensor, ...",
            code="QR203",
        )


def _check_shapes(tensors: list[Array], axis: int) -> int:
    place = axis_in(axis, tensors[0].ndim)
    for i, x in enumerate(tensors):
        if not same_but(x.shape, tensors[0].shape, place):
            raise bad_shape(f"inputs[{3 * i}]", f"that of inputs[0], {list(tensors[0].shape)}, but for axis {place}", x)
    return place
