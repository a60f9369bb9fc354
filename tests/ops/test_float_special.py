"""Every floating-point operator on NaN, infinities and signed zeros of every type: no warning, the type kept."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers.float import qrun_node

from qrun.errors import QrunError

F = np.float32
TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
ALONE = [
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Exp", "Sqrt",
    "Sum", "Softmax", "GlobalAveragePool", "ReduceMean", "ReduceSum", "Dropout",
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_special_values(dtype: type) -> None:
    x = np.array([[[np.nan, np.inf, -np.inf, 0, -0.0, 3, 65504, -1]]]).astype(dtype)
    per_channel = [np.array([v]).astype(dtype) for v in (np.inf, np.nan, 1, -1)]
    back, pool = x[..., ::-1], {"kernel_shape": [3]}
    nodes = [(op_type, [x], {}, 1) for op_type in ALONE]
    nodes += [(op_type, [x, back], {}, 1) for op_type in ("Add", "Sub", "Mul", "Div", "Sum")]
    nodes += [
        ("Clip", [x, x[0, 0, 0], x[0, 0, 5]], {}, 1),
        ("MaxPool", [x], pool, 1),
        ("AveragePool", [x], pool, 1),
        ("BatchNormalization", [x, *per_channel], {}, 1),
        ("BatchNormalization", [x, *per_channel], {"training_mode": 1}, 3),
        ("LRN", [x], {"size": 3}, 1),
        ("Conv", [x, x[..., :3]], {}, 1),
        ("ConvTranspose", [x, x[..., :3]], {}, 1),
        ("MatMul", [x, x.transpose(0, 2, 1)], {}, 1),
        ("Gemm", [x[0], x[0].T], {"alpha": float("inf"), "beta": float("nan")}, 1),
    ]
    for op_type, inputs, attributes, count in nodes:
        y = qrun_node(op_type, inputs, attributes, opset=22, outputs=[dtype] * count)
        for made in y if isinstance(y, list) else [y]:
            assert made.dtype == dtype, op_type
    for last in (0, 1):
        place = qrun_node("ArgMax", [x], {"axis": 2, "select_last_index": last}, outputs=[np.int64])
        assert place.item() == 0, "NaN is the largest"


def attempt(op_type: str, inputs: list, attributes: dict) -> str:
    """The code of the error, or nothing."""
    outputs = [F] * (1 + (op_type == "TopK"))
    try:
        qrun_node(op_type, inputs, attributes, opset=28, max_memory=2**27, outputs=outputs)
    except QrunError as error:
        return error.code
    return ""


BIG = [-(2**63), -1, 0, 2**31, 2**63 - 1]


@pytest.mark.parametrize("value", BIG)
def test_hostile_attributes_are_refused_or_harmless(value: int) -> None:
    """Whatever an attribute or an index says, the outcome is a result or a QrunError, quickly."""
    x, w = np.ones((1, 2, 4), np.float32), np.ones((2, 1, 2), np.float32)
    nodes = []
    for name in ("kernel_shape", "strides", "dilations"):
        for op_type in ("MaxPool", "AveragePool"):
            nodes.append((op_type, [x], {"kernel_shape": [2], name: [value]}))
        for op_type in ("Conv", "ConvTranspose"):
            nodes.append((op_type, [x, w], {"group": 2, name: [value]}))
    for op_type in ("Conv", "ConvTranspose"):
        nodes.append((op_type, [x, w], {"group": value}))
        nodes.append((op_type, [x, w], {"group": 2, "pads": [value, 1]}))
    nodes += [
        ("ConvTranspose", [x, w], {"group": 2, "output_shape": [value]}),
        ("ConvTranspose", [x, w], {"group": 2, "output_padding": [value]}),
        ("MaxPool", [x], {"kernel_shape": [2], "pads": [value, 1]}),
        ("AveragePool", [x], {"kernel_shape": [2], "pads": [1, value]}),
        ("LRN", [x], {"size": value}),
        ("Softmax", [x], {"axis": value}),
        ("ReduceSum", [x, np.array([value])], {}),
        ("Dropout", [x, np.float32(0.5), np.True_], {"seed": value}),
    ]
    x, k = np.ones((1, 4, 2, 2), F), np.array(value)
    square, four = np.ones((2, 2), F), np.ones(4, F)
    nodes += [
        *((name, [x], {"axis": value}) for name in ("LogSoftmax", "ArgMin", "LpNormalization")),
        *((name, [x, k.reshape(1)], {}) for name in ("ReduceMax", "ReduceLogSumExp", "Expand", "Tile", "TopK")),
        *((name, [x], {"blocksize": value}) for name in ("DepthToSpace", "SpaceToDepth")),
        ("LpNormalization", [x], {"p": value}),
        ("MeanVarianceNormalization", [x], {"axes": [value]}),
        ("GroupNormalization", [x, four, four], {"num_groups": value}),
        ("GroupNormalization", [x, four, four], {"num_groups": 2, "stash_type": value}),
        ("LayerNormalization", [x, np.ones(2, F)], {"axis": value}),
        ("LayerNormalization", [x, np.ones(2, F)], {"stash_type": value}),
        ("RMSNormalization", [x, np.ones(2, F)], {"axis": value}),
        ("EyeLike", [square], {"k": value}),
        ("EyeLike", [square], {"dtype": value}),
        ("Trilu", [square, k], {}),
        ("CumSum", [square, k], {}),
        ("Range", [np.array(0), k, np.array(1)], {}),
        ("Range", [k, np.array(5), np.array(2**62)], {}),
        ("Range", [np.array(3), np.array(5), k], {}),
        ("OneHot", [np.array([1]), k, np.ones(2, F)], {}),
        ("OneHot", [k.reshape(1), np.array(2), np.ones(2, F)], {"axis": value}),
        ("Compress", [square, np.ones(2, bool)], {"axis": value}),
        ("Mod", [np.array([7]), k], {"fmod": value}),
        ("Pow", [np.array([7]), k], {}),
        ("BitShift", [np.array([7]), k], {"direction": "LEFT"}),
        ("GatherElements", [square, k.reshape(1, 1)], {"axis": value}),
        ("ScatterElements", [square, k.reshape(1, 1), square[:1, :1]], {}),
        ("GatherND", [square, k.reshape(1, 1)], {"batch_dims": value}),
        ("ScatterND", [square, k.reshape(1, 1), square[:1]], {}),
        *((name, [np.array([value, 5]), k], {}) for name in ("Max", "Equal", "BitwiseXor")),
    ]
    for op_type, inputs, attributes in nodes:
        outcome = attempt(op_type, inputs, attributes)
        assert outcome not in ("QR210", "QR211"), f"{op_type} {attributes}: {outcome}"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [0.75, 0.5, -1.25])
def test_lrn_of_many_pixels(dtype: type, beta: float) -> None:
    """Pixel by pixel as the formula says, whether or not they fit in one block; the input stays as it is."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 7, 130, 61)).astype(dtype)
    kept = x.copy()
    (y,) = [qrun_node("LRN", [x], {"size": 4, "alpha": 0.3, "beta": beta, "bias": 1.5}, outputs=[dtype])]
    squares = np.square(x.astype(np.float64))
    want = np.empty(x.shape)
    for c in range(7):
        total = squares[:, max(0, c - 1) : c + 3].sum(axis=1)
        want[:, c] = x[:, c] / (1.5 + float(np.float32(0.3)) / 4 * total) ** beta
    np.testing.assert_allclose(y, want, rtol=1e-13 if dtype is np.float64 else 6e-8)
    np.testing.assert_array_equal(x, kept)
