"""One minimal model for each place where onnxruntime or onnx.reference is known to disagree with the specification.

`want` is what the specification says, and what qrun must answer; REFUSED means an error of qrun's own. Identifiers:
O for onnxruntime 1.31.1, R for onnx.reference 1.23.2 (those packages' answers differ from `want`, or crash);
onnxruntime 1.32 agrees in some.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes as md
import numpy as np

from helpers.support import MS

f32, f16, u8, i8, i32 = np.float32, np.float16, np.uint8, np.int8, np.int32
REFUSED = object()


@dataclass(frozen=True)
class Case:
    id: str
    op: str
    inputs: list[Any]
    want: Any
    types: tuple[Any, ...] = (u8,)
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    domain: str = ""
    within: float = 0


def z(*shape: int) -> np.ndarray:
    return np.zeros(shape, u8)


def ms(id: str, op: str, inputs: list[Any], want: Any, types: tuple[Any, ...] = (u8,), **more: Any) -> Case:
    return Case(id, op, inputs, want, types, opset=17, domain=MS, **more)


def matmul(id: str, inputs: list[Any], want: Any, types: tuple[Any, ...] = (u8,), opset: int = 10) -> Case:
    return Case(id, "QLinearMatMul", inputs, want, types, opset=opset)


def quantize(id: str, inputs: list[Any], want: Any, type: Any = u8, opset: int = 21, **attributes: Any) -> Case:
    return Case(id, "QuantizeLinear", inputs, want, (type,), attributes, opset)


ONE = np.array([[1]], u8)
E4 = np.array([[1]], md.float8_e4m3fn)
E4_ZERO = np.array(0, md.float8_e4m3fn)

CASES = [
    matmul("O1", [z(1, 0), f32(1), u8(0), z(0, 2), f32(1), u8(0), f32(1), u8(7)], [[7, 7]]),
    matmul("O2", [z(1, 0), f32(1), u8(0), z(0, 2), np.ones((1, 2), f32), u8(0), f32(1), u8(7)], [[7, 7]]),
    matmul("O2-same-shapes", [z(1, 0), f32(1), u8(0), z(0, 2), np.ones((1, 2), f32), z(1, 2), f32(1), u8(7)], [[7, 7]]),
    ms("O3", "QGemm", [z(1, 0), f32(1), u8(0), z(0, 2), f32(1), u8(0), np.array([10, 20], i32)], [[10, 20]], (f32,)),
    ms("O3b", "QGemm", [z(1, 0), f32(1), u8(0), z(0, 2), f32(1), u8(0), np.array([10, 20], i32), f32(1), u8(7)],
       [[17, 27]]),
    ms("O4", "MatMulIntegerToFloat", [z(1, 0), z(0, 2), f32(1), f32(1), None, None, np.array([1, 2], f32)],
       [[1, 2]], (f32,)),
    quantize("O5", [np.array([np.inf], f16), f16(1), u8(0)], [255]),
    quantize("O5b", [np.array([65504], f16), f16(2**-24), np.uint16(0)], [65535], np.uint16),
    quantize("O6", [np.array([[3e9, 3e9]], f32), np.ones(2, f32), np.zeros(2, md.int4)], [[7, 7]], md.int4, axis=1),
    quantize("O7", [np.array([3e9], f32), f32(1), np.array(0, md.int2)], [1], md.int2, 25),
    quantize("O8", [np.full((1, 2), 3e9, f32), np.ones((1, 2), f32), z(1, 2)], [[255, 255]], axis=0, block_size=1),
    quantize("O9", [np.array([480, 495], f32), f32(1), E4_ZERO], [np.nan, np.nan], md.float8_e4m3fn, 19, saturate=0),
    quantize("O10", [np.array([61440, 65535], f32), f32(1), np.array(0, md.float8_e5m2)], [np.inf, np.inf],
             md.float8_e5m2, 19, saturate=0),
    quantize("O11", [np.array([2.5], f32), f16(0.5), u8(0)], [5], opset=23),
    quantize("O12", [np.array([193.25], f16), f16(1.16796875), u8(0)], [166], opset=23),
    ms("O13", "QLinearSoftmax", [np.array([[255, 250, 0]], u8), f32(0.1), u8(0), f32(1 / 255), u8(0)],
       [[159, 96, 0]], attributes={"opset": 13}),
    ms("O14", "QLinearSigmoid", [np.array([1], u8), f32(0.1), u8(0), f32(1 / 256)], [134]),
    ms("O15", "QLinearAdd", [np.array([1], u8), f32(1), None, np.array([1], u8), f32(1), u8(0), f32(1), u8(0)], [2]),
    ms("O16", "QLinearAdd", [np.array([255], u8), f32(1e9), u8(0), z(1), f32(1), u8(0), f32(0.1), u8(0)], [255]),
    ms("O17", "QLinearAveragePool", [np.full((1, 1, 4), 255, u8), f32(1e10), u8(0), f32(1), u8(0)], [[[255, 255]]],
       attributes={"kernel_shape": [2], "strides": [2]}),
    ms("O18", "QLinearMul",
       [np.array([1, 3], u8), f32(0.5), u8(0), np.array([1, 1], u8), f32(1), u8(0), f32(1), u8(1)], [1, 3]),
    Case("O19", "ConvInteger", [np.ones((1, 1, 3), u8), np.ones((1, 1, 2), u8)], [[[1, 2, 1]]], (i32,),
         {"auto_pad": "SAME_UPPER", "dilations": [2]}, 10),
    Case("O20", "ConvInteger", [np.ones((1, 1, 3), u8), np.ones((2, 1, 1), u8), None, np.array([0, 1], u8)],
         [[[1, 1, 1], [0, 0, 0]]], (i32,), opset=10),
    Case("O21", "MatMulInteger", [np.array([[1], [3]], u8), ONE, np.array([2, 2], u8)], [[-1], [1]], (i32,), opset=10),
    matmul("O22", [ONE, f32(1), u8(0), np.array([[1]], i8), f32(1), i8(0), f32(1), i8(0)], [[1]], (i8,)),
    Case("O23", "DequantizeLinear", [np.array([-(2**31)], i32), f32(1), i32(1)], [f32(-2147483649)], (f32,)),
    ms("O24", "QLinearSoftmax", [z(0, 3), f32(1), u8(0), f32(1 / 256), u8(0)], z(0, 3), attributes={"opset": 13}),
    ms("O25", "QGemm", [ONE, f32(1), u8(0), ONE, f32(1), u8(0), None, f32(0.1)], [[1.0]], (f32,)),
    quantize("O26", [np.array([5], i32), f32(2), u8(0)], [2], opset=13),
    ms("O27", "QLinearAveragePool", [z(1, 1, 4, 4), f32(1), u8(0), f32(1), u8(0)], REFUSED,
       attributes={"kernel_shape": [3, 3], "strides": [2, 2], "channels_last": 1}),
    quantize("O28", [np.zeros((2, 0), f32), np.ones((1, 0), f32)], z(2, 0), axis=0, block_size=2),
    Case("O29", "ConvInteger", [np.array([[[1, 2, 3, 4]]], u8), np.ones((1, 1, 1), u8)], [[[1]]], (i32,),
         {"auto_pad": "SAME_UPPER", "strides": [4]}, 10),
    matmul("R1", [np.array([[1], [3]], u8), f32(0.5), u8(0), ONE, f32(1), u8(0), f32(1), u8(1)], [[1], [3]]),
    Case("R2", "QLinearConv", [z(1, 1, 1) + u8(1), f32(0.5), u8(0), z(1, 1, 1) + u8(1), f32(1), u8(0), f32(1), u8(1)],
         [[[1]]], opset=10),
    Case("R3", "QLinearConv", [np.ones((1, 1, 1), u8), f32(1), u8(0), np.ones((2, 1, 1), u8), np.array([1, 2], f32),
                               z(2), f32(1), u8(0)], [[[1], [2]]], opset=10),
    Case("R4", "QLinearConv", [np.full((1, 1, 2, 1, 1), 4, u8), f32(1), u8(0), np.ones((2, 1, 1, 1, 1), u8),
                               np.array([1, 2], f32), z(2), f32(1), u8(0)],
         np.array([4, 4, 8, 8]).reshape(1, 2, 2, 1, 1), opset=10),
    Case("R5", "ConvInteger", [np.ones((1, 1, 3), u8), np.ones((2, 1, 1), u8), None, np.array([1], u8)],
         [[[0, 0, 0], [0, 0, 0]]], (i32,), opset=10),
    Case("R6", "MatMulInteger", [np.array([[1, 2], [1, 2]], u8), np.ones((2, 1), u8), np.array([1, 2], u8)],
         [[1], [-1]], (i32,), opset=10),
    quantize("R7", [np.array([3e9, np.inf, -3e9], f32), f32(1), u8(0)], [255, 255, 0], opset=13),
    quantize("R8", [np.array([-3e9], f32), f32(1), i8(-5)], [-128], i8, 13),
    Case("R9", "DequantizeLinear", [np.array([16777217], i32), f32(1), i32(16777216)], [1.0], (f32,), opset=19),
    Case("R10", "DequantizeLinear", [np.array([1], u8), f32(2), u8(0)], [2.0], (f32,), opset=13),
    Case("R10-opset-10", "DequantizeLinear", [np.array([1], u8), f32(2), u8(0)], [2.0], (f32,), opset=10),
    matmul("R11", [np.ones(1, u8), np.ones(1, f32), z(1), np.ones(1, u8), np.ones(1, f32), z(1), np.ones(1, f32), z(1)],
           1),
    quantize("R12", [np.array([193.25], f32), f16(1.16796875), u8(0)], [166], opset=23),
    matmul("R13", [ONE, f32(1), i8(0), ONE, f32(1), u8(0), f32(1), u8(0)], REFUSED),
    matmul("R16", [E4, f32(1), E4_ZERO, E4, f32(1), E4_ZERO, f32(1), E4_ZERO], [[1]], (md.float8_e4m3fn,), 21),
    quantize("R17", [np.array([np.nan], f32), f32(1), np.array(0, md.float4_e2m1fn)], [6.0], md.float4_e2m1fn, 23),
    Case("S1", "MaxPool", [np.zeros((1, 1, 2), f32)], REFUSED, (f32,), {"kernel_shape": [3], "strides": [2]}, 12),
]  # fmt: skip
