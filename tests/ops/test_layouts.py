"""Float results do not depend on how an input lies in memory: the order of additions is that of the axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.support import node_model

from qrun import Session

SHAPE = (3, 4, 6, 10)
WHOLE: dict[str, Any] = {"keepdims": 1}


def layouts(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same array, lying otherwise."""
    apart = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    apart[...] = x
    back = tuple(slice(None, None, -1) for _ in x.shape)
    turned = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0)
    return {"Fortran": np.asfortranarray(x), "apart": apart, "backward": x[back].copy()[back], "turned": turned}


def numbers(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Of many magnitudes, so that another order of additions gives another sum."""
    return [rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, shape)) for shape in shapes]


CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any], int]] = [
    *((f"Reduce{name}", [SHAPE], WHOLE, 13) for name in ("Prod", "Mean", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")),
    *((f"Reduce{name}", [SHAPE], {"axes": [1, 3]}, 11) for name in ("Prod", "Sum", "Mean", "L1", "L2", "LogSum", "LogSumExp")),
    *((op_type, [SHAPE], {"axis": axis}, 13) for op_type in ("Softmax", "LogSoftmax") for axis in (1, 3)),
    *((name, [SHAPE], {}, 22) for name in ("Exp", "Erf", "Sin", "Tanh", "Sigmoid", "Gelu", "Softplus", "Elu", "Asinh", "Sqrt")),
    ("ReduceLogSum", [SHAPE], {"axes": [], "noop_with_empty_axes": 1}, 13),
    ("ReduceLogSumExp", [SHAPE], {"axes": [], "noop_with_empty_axes": 1}, 13),
    ("Pow", [SHAPE, (10,)], {}, 15),
    ("Log", [SHAPE], {}, 13),
    ("LpNormalization", [SHAPE], {"axis": 1, "p": 2}, 22),
    ("LpNormalization", [SHAPE], {"axis": 3, "p": 1}, 22),
    ("LpPool", [SHAPE], {"kernel_shape": [3, 4], "p": 3}, 18),
    ("GlobalLpPool", [SHAPE], {"p": 3}, 21),
    ("GlobalAveragePool", [SHAPE], {}, 21),
    ("AveragePool", [SHAPE], {"kernel_shape": [3, 4]}, 19),
    ("LRN", [SHAPE], {"size": 3}, 13),
    ("MeanVarianceNormalization", [SHAPE], {}, 13),
    ("InstanceNormalization", [SHAPE, (4,), (4,)], {}, 22),
    ("GroupNormalization", [SHAPE, (4,), (4,)], {"num_groups": 2}, 21),
    ("LayerNormalization", [SHAPE, (6, 10), (6, 10)], {"axis": 2}, 17),
    ("RMSNormalization", [SHAPE, (10,)], {}, 23),
    ("BatchNormalization", [SHAPE, (4,), (4,), (4,), (4,)], {}, 15),
    ("MatMul", [(3, 5, 70), (3, 70, 6)], {}, 13),
    ("Gemm", [(5, 70), (70, 6), (6,)], {"alpha": 0.7}, 13),
    ("Gemm", [(70, 5), (6, 70), (6,)], {"transA": 1, "transB": 1}, 13),
    ("Conv", [SHAPE, (5, 4, 3, 3), (5,)], {}, 22),
    ("ConvTranspose", [SHAPE, (4, 5, 3, 3), (5,)], {"strides": [2, 2]}, 22),
    ("ConvTranspose", [(2, 31, 19), (31, 17, 1)], {}, 22),
    ("Einsum", [(3, 4, 70), (3, 70, 5)], {"equation": "bij,bjk->bik"}, 12),
    ("Einsum", [(9, 14, 15)], {"equation": "ijk->i"}, 12),
    ("AffineGrid", [(3, 2, 3), (4,)], {}, 20),
    ("Einsum", [(9, 14), (14, 15), (9, 15)], {"equation": "ij,jk,ik->i"}, 12),
    ("CumSum", [SHAPE, ()], {}, 14),
    ("Resize", [SHAPE], {"mode": "cubic", "scales": [1, 1, 1.5, 0.7]}, 22),
    ("Attention", [(1, 2, 12, 20), (1, 2, 14, 20), (1, 2, 14, 20)], {}, 23),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}-{n}")
def test_bits_do_not_depend_on_the_layout(number: int, dtype: type) -> None:
    op_type, shapes, attributes, opset = CASES[number]
    rng = np.random.default_rng(number)
    given = [array.astype(dtype) for array in numbers(rng, *shapes)]
    attributes = dict(attributes)
    if op_type in ("Log", "Pow", "ReduceLogSum"):
        given[0] = abs(given[0])
    if "noop_with_empty_axes" in attributes:
        opset = 18
        given.append(np.array(attributes.pop("axes"), np.int64))
    if op_type == "AffineGrid":
        given[1] = np.array([3, 2, 5, 6])
    if op_type == "CumSum":
        given[1] = np.array(3, np.int64)
    if op_type == "BatchNormalization":
        given[4] = abs(given[4])
    if op_type == "Resize":
        given += [np.zeros(0, np.float32), np.array(attributes.pop("scales"), np.float32)]
    model, feeds = node_model(op_type, given, attributes, opset=opset, outputs=[dtype])
    for backend in ("reference", "native"):
        session = Session(model, backend=backend)
        want = session.run(feeds)["y0"]
        for name in feeds:
            if feeds[name].ndim:
                for layout, array in layouts(feeds[name]).items():
                    np.testing.assert_array_equal(array, feeds[name])
                    made = session.run({**feeds, name: array})["y0"]
                    assert made.tobytes() == want.tobytes(), f"{backend}: {name} {layout}"
