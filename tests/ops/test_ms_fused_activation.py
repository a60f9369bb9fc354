"""FusedConv and FusedGemm of com.microsoft: in float64 that holds the sums, as the nodes that they were,
beside onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.float import Peer, qrun_node
from helpers.placed import same_everywhere
from helpers.support import MS, assert_equal, node_model

import qrun

F, H, D = np.float32, np.float16, np.float64
Real = Callable[[float], float]
SELU = (F(1.67326319217681884765625), F(1.05070102214813232421875))


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


GEMM: list[tuple[str, dict[str, float], Real]] = [
    ("", {}, lambda x: x),
    ("Relu", {}, lambda x: max(x, 0.0)),
    ("LeakyRelu", {"alpha": 0.125}, lambda x: x if x >= 0 else 0.125 * x),
    ("LeakyRelu", {}, lambda x: x if x >= 0 else float(F(0.01)) * x),
    ("Sigmoid", {}, logistic),
    ("Tanh", {}, math.tanh),
    ("Elu", {"alpha": 0.5}, lambda x: x if x >= 0 else 0.5 * math.expm1(x)),
    ("Celu", {"alpha": 2.0}, lambda x: max(x, 0.0) + min(0.0, 2 * math.expm1(x / 2))),
    ("Selu", {}, lambda x: float(SELU[1]) * (x if x > 0 else float(SELU[0]) * math.expm1(x))),
    ("Selu", {"alpha": 2.0, "gamma": 0.5}, lambda x: 0.5 * (x if x > 0 else 2 * math.expm1(x))),
    ("HardSigmoid", {"alpha": 0.25, "beta": 0.375}, lambda x: max(0.0, min(1.0, 0.25 * x + 0.375))),
    ("Softplus", {}, lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x)))),
    ("Softsign", {}, lambda x: x / (1 + abs(x))),
    ("ThresholdedRelu", {"alpha": 1.5}, lambda x: x if x > 1.5 else 0.0),
]
CONV: list[tuple[str, list[float], Real]] = [
    ("", [], lambda x: x),
    ("Relu", [], lambda x: max(x, 0.0)),
    ("LeakyRelu", [0.125], lambda x: x if x >= 0 else 0.125 * x),
    ("Sigmoid", [], logistic),
    ("Tanh", [], math.tanh),
    ("HardSigmoid", [0.25, 0.375], lambda x: max(0.0, min(1.0, 0.25 * x + 0.375))),
    ("Clip", [-1.0, 2.5], lambda x: max(-1.0, min(2.5, x))),
]


def eighths(rng: np.random.Generator, *shape: int, dtype: Any = F) -> np.ndarray:
    """Numbers of which every sum of products here is exact, in float16 as well."""
    made: np.ndarray = (rng.integers(-8, 9, shape) / 8).astype(dtype)
    return made


def assert_real(got: np.ndarray, total: np.ndarray, real: Real, dtype: Any, message: str) -> None:
    """Within a hair more than half a unit of the real function of the exact sums; the float32 steps of Sigmoid and Tanh
    are within two units (numerics.md, F41)."""
    assert got.dtype == dtype
    assert got.shape == total.shape
    want = np.array([real(float(v)) for v in total.reshape(-1)]).reshape(total.shape)
    unit = np.abs(np.spacing(want.astype(dtype))).astype(D)
    most = 2 if dtype is D or (dtype is F and real in (logistic, math.tanh)) else 0.501
    assert (np.abs(got.astype(D) - want) <= unit * most).all(), message


def gemm_attributes(name: str, params: dict[str, float]) -> dict[str, Any]:
    return {**({"activation": name} if name else {}), **{f"activation_{k}": v for k, v in params.items()}}


@pytest.mark.parametrize(("name", "params", "real"), GEMM)
def test_gemm(name: str, params: dict[str, float], real: Real) -> None:
    peer = Peer()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        for dtype in (H, F, D):
            a, b, c = eighths(rng, 5, 6, dtype=dtype), eighths(rng, 6, 7, dtype=dtype), eighths(rng, 1, 7, dtype=dtype)
            total = 0.5 * (a.astype(D) @ b.astype(D)) + (2.0 * c if seed % 2 else 0)
            inputs = [a.T if seed & 2 else a, b.T if seed & 1 else b, *[c] * (seed % 2)]
            options = {
                "alpha": 0.5,
                "beta": 2.0,
                "transA": seed // 2,
                "transB": seed % 2,
                **gemm_attributes(name, params),
            }
            got = qrun_node("FusedGemm", inputs, options, domain=MS)
            assert_real(got, total, real, dtype, f"seed {seed}")
            if dtype is F:
                peer.check("FusedGemm", inputs, options, message=f"seed {seed}", domain=MS)
                for constants in ([], [1], [1, 2][: seed % 2 + 1]):
                    model, feeds = node_model("FusedGemm", inputs, options, domain=MS, constants=constants)
                    event = same_everywhere(model, feeds).events[0]
                    assert event.backend == "native", f"{name} {event.why}"
    if params or name not in ("", "LeakyRelu", "Selu"):
        peer.finish(1.0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_gemm_of_integers(dtype: Any) -> None:
    a, b = (np.arange(6).reshape(2, 3) - 2 * (dtype in (np.int32, np.int64))).astype(dtype), np.full((3, 2), 3, dtype)
    assert_equal(qrun_node("FusedGemm", [a, b], domain=MS), a @ b)
    if dtype in (np.int32, np.int64):
        assert_equal(qrun_node("FusedGemm", [a, b], {"activation": "Relu"}, domain=MS), np.maximum(a @ b, 0))


def convolved(x: np.ndarray, w: np.ndarray, group: int, pad: int, stride: int) -> np.ndarray:
    """float64 [N,M,H,W], element by element."""
    x = np.pad(x.astype(D), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = ((x.shape[axis] - w.shape[axis]) // stride + 1 for axis in (2, 3))
    made = np.zeros((len(x), len(w), height, width))
    each, channels = len(w) // group, w.shape[1]
    for n, m, i, j in np.ndindex(*made.shape):
        first = m // each * channels
        part = x[
            n, first : first + channels, i * stride : i * stride + w.shape[2], j * stride : j * stride + w.shape[3]
        ]
        made[n, m, i, j] = (part * w[m].astype(D)).sum()
    return made


@pytest.mark.parametrize(("name", "params", "real"), CONV)
def test_conv(name: str, params: list[float], real: Real) -> None:
    peer = Peer()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        group, pad, stride = 1 + seed % 2, seed % 3, 1 + seed // 3
        for dtype in (H, F, D):
            x, w = eighths(rng, 2, 4, 6, 7, dtype=dtype), eighths(rng, 6, 4 // group, 3, 2, dtype=dtype)
            total, bias = convolved(x, w, group, pad, stride), eighths(rng, 6, dtype=dtype)
            z = eighths(rng, *total.shape, dtype=dtype)
            b, added = bias if seed % 2 else None, seed % 3 != 1
            total += (bias.reshape(-1, 1, 1) if seed % 2 else 0) + (z.astype(D) if added else 0)
            options: dict[str, Any] = {"group": group, "pads": [pad] * 4, "strides": [stride] * 2}
            options |= {"activation": name} if name else {}
            options |= {"activation_params": params} if params else {}
            got = qrun_node("FusedConv", [x, w, b, *[z] * added], options, domain=MS)
            assert_real(got, total, real, dtype, f"seed {seed}")
            if dtype is F:
                peer.check("FusedConv", [x, w, b, *[z] * added], options, message=f"seed {seed}", domain=MS)
                model, feeds = node_model("FusedConv", [x, w, b, *[z] * added], options, domain=MS, constants=[1, 2])
                event = same_everywhere(model, feeds).events[0]
                assert event.backend == "native", event.why
    peer.finish(1.0)


def test_the_same_bits_as_the_nodes_they_were() -> None:
    rng = np.random.default_rng(3)
    x, w, z = (rng.normal(size=shape).astype(F) for shape in ((1, 3, 9, 9), (8, 3, 3, 3), (1, 8, 7, 7)))
    want = qrun_node("Sigmoid", [qrun_node("Add", [qrun_node("Conv", [x, w]), z])])
    assert_equal(qrun_node("FusedConv", [x, w, None, z], {"activation": "Sigmoid"}, domain=MS), want)
    a, b = rng.normal(size=(30, 40)).astype(F), rng.normal(size=(40, 9)).astype(F)
    want = qrun_node("Tanh", [qrun_node("Gemm", [a, b], {"alpha": 0.3})])
    assert_equal(qrun_node("FusedGemm", [a, b], {"alpha": 0.3, "activation": "Tanh"}, domain=MS), want)


def test_refusals() -> None:
    a, x, w = np.ones((3, 3), F), np.ones((1, 1, 4, 4), F), np.ones((2, 1, 3, 3), F)
    for text, op_type, inputs, attributes in (
        ("unknown activation 'Gelu'", "FusedGemm", [a, a], {"activation": "Gelu"}),
        ("unknown activation 'Tanh'", "FusedGemm", [a.astype(np.int32)] * 2, {"activation": "Tanh"}),
        ("cannot be multiplied", "FusedGemm", [a, a[:2]], {"activation": "Tanh"}),
        ("unknown activation 'Elu'", "FusedConv", [x, w], {"activation": "Elu"}),
        ("LeakyRelu has 0 parameters", "FusedConv", [x, w], {"activation": "LeakyRelu"}),
        ("Clip has 1 parameters", "FusedConv", [x, w], {"activation": "Clip", "activation_params": [1.0]}),
        ("the result's shape", "FusedConv", [x, w, None, np.ones((2, 2), F)], {}),
        ("the result's shape", "FusedConv", [x, w, None, np.ones((5, 2, 2, 2), F)], {}),
        ("do not fit the groups", "FusedConv", [x, w], {"group": 2}),
    ):
        for backend in ("reference", "native"):
            model, feeds = node_model(op_type, inputs, attributes, domain=MS, outputs=[inputs[0].dtype])
            with pytest.raises(qrun.QrunError, match=text):
                qrun.Session(model, backend=backend).run(feeds)


def test_costs() -> None:
    from qrun.ops import find

    assert find(MS, "FusedGemm", 1).cost([(6, 3), (6, 4)], [(3, 4)], {"transA": 1}) == 72
    assert find(MS, "FusedConv", 1).cost([(1, 2, 5, 5), (4, 2, 3, 3)], [(1, 4, 3, 3)], {}) == 648
