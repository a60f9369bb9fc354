"""A node of each operator that ONNX has no test cases of, or none that are clear."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ir.schema import MCT, QONNX, QUARK, VAI

F = np.float32


def quantized(*shape: int) -> list[Any]:
    """Codes, a scale and a zero point."""
    return [np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape), F(0.5), np.uint8(3)]


X, A, B, IMAGE = quantized(4, 8), quantized(4, 8), quantized(8, 4), quantized(1, 2, 6, 6)
OWN: dict[str, tuple[list[Any], dict[str, Any], Any]] = {
    "DequantizeLinear": (X, {}, F),
    "DynamicQuantizeMatMul": ([F(np.ones((4, 8))), B[0], F([0.5]), np.uint8([3])], {}, F),
    "TransposeMatMul": ([F(np.ones((4, 8))), F(np.ones((8, 4)))], {}, F),
    "ScaledSiLU": ([F(np.ones((4, 8)))], {}, F),
    "CausalConvWithState": ([F(np.ones((2, 4, 8))), F(np.ones((4, 1, 3)))], {}, F),
    "LinearAttention": (
        [F(np.ones((2, 3, 4)))] * 3,
        {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"},
        F,
    ),
    "CDist": ([F(np.ones((4, 8))), F(np.ones((5, 8)))], {}, F),
    "GatedAdd": ([F(np.ones((4, 8)))] * 2 + [F(np.ones((4, 1)))], {}, F),
    "GatedRMSNorm": ([F(np.ones((4, 8))), F(np.ones(8)), F(np.ones((4, 8)))], {}, F),
    "FusedMatMul": ([F(np.ones((4, 8))), F(np.ones((8, 4)))], {}, F),
    "SkipLayerNormalization": ([F(np.ones((4, 8)))] * 2 + [F(np.ones(8))] * 3, {}, F),
    "SkipSimplifiedLayerNormalization": ([F(np.ones((4, 8)))] * 2 + [F(np.ones(8))] * 2, {}, F),
    "Attention": ([F(np.ones((2, 3, 4))), F(np.ones((4, 12))), F(np.ones(12))], {"num_heads": 2}, F),
    "QAttention": (
        [np.ones((2, 3, 4), np.uint8), np.ones((4, 12), np.uint8), F(np.ones(12)), F(0.5), F(0.5)],
        {"num_heads": 2},
        F,
    ),
    "MultiHeadAttention": ([F(np.ones((2, 3, 4)))] * 3, {"num_heads": 2}, F),
    "GroupQueryAttention": (
        [F(np.ones((2, 3, 8))), *[F(np.ones((2, 3, 4)))] * 2, None, None, np.int32([2, 2]), np.int32(3)],
        {"num_heads": 4, "kv_num_heads": 2},
        F,
    ),
    "RotaryEmbedding": ([F(np.ones((2, 3, 8))), np.int64([0]), *[F(np.ones((5, 4)))] * 2], {}, F),
    "EmbedLayerNormalization": (
        [*[np.zeros((2, 3), np.int32)] * 2, *[F(np.ones((4, 8)))] * 3, *[F(np.ones(8))] * 2],
        {},
        F,
    ),
    "QEmbedLayerNormalization": (
        [*[np.zeros((2, 3), np.int32)] * 2, *[np.ones((4, 8), np.uint8)] * 3, *[np.ones(8, np.uint8)] * 2, None]
        + [F(0.5)] * 5
        + [np.uint8(3)] * 5,
        {},
        F,
    ),
    "GatherBlockQuantized": ([np.ones((4, 8), np.uint8), np.zeros(9, np.int64), F(np.ones((4, 1)))], {}, F),
    "MatMulBnb4": (
        [F(np.ones((4, 16))), np.ones(64, np.uint8), F(np.ones(8))],
        {"K": 16, "N": 8, "block_size": 16, "quant_type": 1},
        F,
    ),
    "MatMulInteger16": ([np.ones((4, 8), np.int16), np.ones((8, 4), np.int16)], {}, np.int32),
    "FusedGemm": ([F(np.ones((4, 8))), F(np.ones((8, 4)))], {"activation": "Tanh"}, F),
    "FusedConv": ([F(np.ones((1, 2, 6, 6))), F(np.ones((1, 2, 3, 3)))], {"activation": "Relu"}, F),
    "Gelu": ([F(np.ones((4, 8)))], {}, F),
    "BiasGelu": ([F(np.ones((4, 8))), F(np.ones(8))], {}, F),
    "FastGelu": ([F(np.ones((4, 8)))], {}, F),
    "QuickGelu": ([F(np.ones((4, 8)))], {}, F),
    "MatMulIntegerToFloat": ([A[0], B[0], F(0.5), F(0.5), np.uint8(3), np.uint8(3)], {}, F),
    "MatMulNBits": (
        [F(np.ones((4, 16))), np.ones((8, 1, 8), np.uint8), F(np.ones((8, 1)))],
        {"K": 16, "N": 8, "block_size": 16},
        F,
    ),
    "MoE": (
        [F(np.ones((4, 8))), F(np.ones((4, 2))), F(np.ones((2, 3, 8))), None, F(np.ones((2, 8, 3)))],
        {"k": 2},
        F,
    ),
    "QMoE": (
        [F(np.ones((4, 8))), F(np.ones((4, 2))), np.ones((2, 4, 4), np.uint8), F(np.ones((2, 4))), None]
        + [np.ones((2, 8, 2), np.uint8), F(np.ones((2, 8)))],
        {"k": 2},
        F,
    ),
    "DynamicQuantizeLSTM": (
        [F(np.ones((5, 2, 3))), np.ones((1, 3, 8), np.uint8), np.ones((1, 2, 8), np.uint8), *[None] * 5]
        + [F(np.ones(1)), np.zeros(1, np.uint8)] * 2,
        {"hidden_size": 2},
        F,
    ),
    "QGemm": ([*A, *B, None, F(0.5), np.uint8(3)], {}, np.uint8),
    "QLinearAdd": ([*X, *X, *X[1:]], {}, np.uint8),
    "QLinearMul": ([*X, *X, *X[1:]], {}, np.uint8),
    "QLinearAveragePool": ([*IMAGE, *X[1:]], {"kernel_shape": [2, 2]}, np.uint8),
    "QLinearGlobalAveragePool": ([*IMAGE, *X[1:]], {}, np.uint8),
    "QLinearConcat": ([*X[1:], *X, *X], {"axis": 0}, np.uint8),
    "QLinearLeakyRelu": ([*X, *X[1:]], {}, np.uint8),
    "QLinearSigmoid": ([*X, *X[1:]], {}, np.uint8),
    "QLinearSoftmax": ([*X, *X[1:]], {"axis": -1, "opset": 13}, np.uint8),
    "NhwcMaxPool": ([np.ones((1, 6, 6, 4), np.uint8)], {"kernel_shape": [2, 2]}, np.uint8),
    "QLinearConv": ([*IMAGE, np.ones((1, 2, 3, 3), np.uint8), F(0.5), np.uint8(3), F(0.5), np.uint8(3)], {}, np.uint8),
    "QLinearWhere": ([np.ones((4, 8), bool), *X, *X, *X[1:]], {}, np.uint8),
    "QuantizeLinear": ([F(np.ones((4, 8))), F(0.5), np.uint8(3)], {}, np.uint8),
}
QUANT = [F(np.ones((4, 8))), F(0.5), F(0), F(4)]
NODES = {
    **{(QONNX, op_type): (QUANT, {}, F) for op_type in ("IntQuant", "Quant")},
    (QONNX, "BipolarQuant"): (QUANT[:2], {}, F),
    (QONNX, "Trunc"): ([*QUANT, F(3)], {}, F),
    (QONNX, "MultiThreshold"): ([F(np.ones((4, 8))), F([[0, 1]])], {}, F),
    **{
        (domain, prefix + op_type): (inputs, {}, kind)
        for domain, prefix in ((QUARK, "Extended"), (VAI, "Vitis"))
        for op_type, inputs, kind in (
            ("QuantizeLinear", [F(np.ones((4, 8))), F(0.5), np.uint16(3)], np.uint16),
            ("DequantizeLinear", [np.ones((4, 8), np.uint16), F(0.5), np.uint16(3)], F),
        )
    },
    **{
        (domain, op_type): ([F(np.ones((4, 8)))], {}, F)
        for domain, op_type in (
            (QUARK, "BFPQuantizeDequantize"),
            (QUARK, "MXQuantizeDequantize"),
            (VAI, "BFPFixNeuron"),
            (VAI, "MXFixNeuron"),
        )
    },
    **{
        (MCT, f"Weights{kind}Quantizer"): ([F(np.ones((4, 8))), *[F([1])] * more], {"num_bits": 8}, F)
        for kind, more in (("Symmetric", 1), ("POT", 1), ("LUTSymmetric", 2), ("LUTPOT", 2))
    },
    (MCT, "WeightsUniformQuantizer"): ([F(np.ones((4, 8))), F([-1]), F([1])], {"num_bits": 8}, F),
    **{
        (MCT, f"Activation{kind}Quantizer"): ([F(np.ones((4, 8)))], {"threshold": 1.0, "signed": 1, "num_bits": 8}, F)
        for kind in ("Symmetric", "POT")
    },
    (MCT, "ActivationUniformQuantizer"): (
        [F(np.ones((4, 8)))],
        {"num_bits": 8, "min_range": -1.0, "max_range": 1.0},
        F,
    ),
    ("ai.onnx.ml", "Normalizer"): ([F(np.ones((4, 8)))], {}, F),
    ("ai.onnx.ml", "LabelEncoder"): ([np.ones((4, 8), np.int64)], {"classes_strings": ["a", "b"]}, object),
    ("ai.onnx.ml", "CategoryMapper"): (
        [np.ones((4, 8), np.int64)],
        {"cats_int64s": [1], "cats_strings": ["a"]},
        object,
    ),
    ("", "MaxRoiPool"): ([F(np.ones((1, 2, 4, 5))), F([[0, 0, 0, 2, 2]])], {"pooled_shape": [2, 2]}, F),
    ("", "GlobalLpPool"): ([F(np.ones((2, 3, 4, 5)))], {}, F),
    ("", "SimplifiedLayerNormalization"): ([F(np.ones((4, 8))), F(np.ones(8))], {}, F),
    ("", "Not"): ([np.ones((4, 8), bool)], {}, bool),
    ("", "Multinomial"): ([F(np.ones((4, 8)))], {"sample_size": 5}, np.int32),
    **{("com.microsoft", op_type): case for op_type, case in OWN.items()},
}
"""Inputs, attributes and the type of the output of operators that ONNX has no cases of, or none that are clear."""
