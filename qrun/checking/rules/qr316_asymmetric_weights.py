"""QR316 asymmetric-weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._weights import weights
from qrun.ir import Model
from qrun.ir.types import type_name


@rule(
    "QR316",
    "asymmetric-weights",
    level="warning",
    since="0.1",
    spec="https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html",
    fix="quantize the weights symmetrically: scale = max(abs(w)) / 127, zero point 0",
    applies=("QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "com.microsoft::QGemm", "Conv", "MatMul",
             "Gemm"),
)  # fmt: skip
def asymmetric_weights(model: Model) -> Iterator[Finding]:
    """Signed weights have a zero point other than 0.

    Weights of unsigned types are not judged: their zero point cannot be 0.

    Why is this bad?
        It is legal ONNX, but TensorRT takes zero points of 0 only, accelerators with signed weights often have no place
        for another, and kernels that have one must add up the input for every output to correct for it.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, int8 wz = {-7}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {8, 9}, float ws = {0.5}, int8 wz = {0}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz)
        }
    """
    for w in weights(model):
        zero = w.zero.astype(np.int64)
        off = np.flatnonzero(zero)
        if off.size and type_name(w.dtype).startswith("int"):
            first = int(off[0])
            place = f" in channel {first}; not 0 in {off.size} of {zero.size} channels" if zero.size > 1 else ""
            yield Finding(
                f"the zero point of {type_name(w.dtype)} weights is {zero[first]}{place}",
                **w.where,
                expected="0",
                got=f"{zero[first]}{place}",
                why="legal ONNX, but runtimes with symmetric weights refuse it or run it in float.",
                cause=f"QR316 {type_name(w.dtype)}",
            )
