"""QR315 zero-channel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import listed
from qrun.checking.rules._weights import weights
from qrun.ir import Model


@rule(
    "QR315",
    "zero-channel",
    level="note",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
    fix="if the float weights are not 0, quantize them with one scale per channel; if they are, remove the channel",
    applies=("QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "com.microsoft::QGemm", "Conv", "MatMul",
             "Gemm"),
)  # fmt: skip
def zero_channel(model: Model) -> Iterator[Finding]:
    """All weights of an output channel are 0 (their zero point), while other channels have some.

    Why is this bad?
        The channel's output is its bias, whatever the input. Either training left the channel dead, and its work is
        wasted, or its weights were too small for a scale that it shares with other channels.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,2,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,2,1,1] w = {1, 2, 0, 0}, float ws = {0.5}, int8 wz = {0}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,2,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,2,1,1] w = {1, 2, 0, 3}, float ws = {0.5}, int8 wz = {0}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz)
        }
    """
    for w in weights(model):
        others = tuple(i for i in range(w.codes.ndim) if i != w.axis)
        if w.codes.size == w.codes.shape[w.axis]:
            continue
        zero = w.zero.astype(np.int64)
        dead = (w.codes.max(others) == zero) & (w.codes.min(others) == zero)
        if dead.any() and not dead.all():
            names = [str(i) for i in np.flatnonzero(dead)]
            yield Finding(
                f"{len(names)} of {dead.size} output channels have no weight but 0: {listed(names)}",
                **w.where,
                expected="a weight other than 0 in each channel",
                got=f"channels {listed(names, 8)}",
                why="a channel without weights gives its bias, whatever the input.",
            )
