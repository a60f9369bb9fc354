"""QR314 codes-unused."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._weights import Weight, weights
from qrun.ir import Model
from qrun.ir.types import type_name

_ENOUGH = 32
"""Weights, and more than a few distinct ones, before anything is said: fewer may be what they are."""
_FEW = 3
_ROOM = 4


@rule(
    "QR314",
    "codes-unused",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="quantize the weights again with scale = max(abs(w)) / 127, one per output channel",
    applies=("QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "com.microsoft::QGemm", "Conv", "MatMul",
             "Gemm"),
)  # fmt: skip
def codes_unused(model: Model) -> Iterator[Finding]:
    """Stored weights use less than a quarter of the codes of their type: the scale is much too large.

    With one scale the whole tensor is judged; with one per channel, a tensor of which most channels are so. Weights of
    7 bits (reduce_range) and weights of at most three values pass.

    Why is this bad?
        Two bits or more are lost: the error of the weights is at least four times that which the type allows. Usual
        causes are a range taken from another tensor, an outlier that was clipped later, or a scale copied from x.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,4] x) => (uint8[1,8] y)
        <float s = {0.5}, uint8 z = {128}, int8 wz = {0}, int8[4,8] w = {
            1, -2, 3, -4, 5, -6, 7, -8, 8, -7, 6, -5, 4, -3, 2, -1,
            2, -3, 4, -5, 6, -7, 8, -1, 1, -8, 7, -6, 5, -4, 3, -2}>
        {
            y = QLinearMatMul(x, s, z, w, s, wz, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,4] x) => (uint8[1,8] y)
        <float s = {0.5}, uint8 z = {128}, int8 wz = {0}, float ws = {0.05}, int8[4,8] w = {
            10, -20, 30, -40, 50, -60, 70, -80, 80, -70, 60, -50, 40, -30, 20, -10,
            20, -30, 40, -50, 60, -70, 80, -10, 10, -80, 70, -60, 50, -40, 30, -20}>
        {
            y = QLinearMatMul(x, s, z, w, ws, wz, s, z)
        }
    """
    for w in weights(model):
        if w.codes.size >= _ENOUGH and w.codes.dtype.itemsize == 1 and w.dtype.itemsize == 1:
            yield from _judge(w)


def _judge(w: Weight) -> Iterator[Finding]:
    others = tuple(i for i in range(w.codes.ndim) if i != w.axis)
    limits = ml_dtypes.iinfo(w.dtype)  # type: ignore[no-untyped-call]
    high, low = w.codes.max(others).astype(np.int64), w.codes.min(others).astype(np.int64)
    zero = w.zero.astype(np.int64)
    if w.scale is None or w.scale.size == 1:
        high, low, zero = high.max(keepdims=True), low.min(keepdims=True), zero[:1]
    used = np.maximum(high - zero, zero - low)
    reach = np.minimum(127, np.maximum(limits.max - zero, zero - limits.min))
    small = (used > 0) & (used * _ROOM <= reach)
    if 2 * int(small.sum()) <= small.size or len(np.unique(w.codes)) <= _FEW:
        return
    worst = int(np.argmin(np.where(small, used / reach, 1.0)))
    most, all_of = int(used[worst]), int(np.broadcast_to(reach, used.shape)[worst])
    channels = f" in channel {worst}; so in {int(small.sum())} of {small.size} channels" if small.size > 1 else ""
    yield Finding(
        f"the weights reach {most} of {all_of} codes from the zero point{channels}",
        **w.where,
        expected=f"{type_name(w.dtype)} codes up to {all_of} away from the zero point",
        got=f"{most}{channels}",
        why=f"a scale that is the largest weight / {all_of} uses all codes; with this one, precision is lost.",
    )
