"""Causes of differences in float operators: formulas recomputed by loops here,
and every operator live in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.comparing import Changed
from helpers.models import make_model
from helpers.support import node_model
from onnx import helper

import qrun
from qrun.comparing.causes import UNKNOWN, Reason
from qrun.comparing.causes._formulas import ErrorBound, bound_of
from qrun.comparing.differences import EXACT, Tolerance
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide

needs_ort = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")

f32, i64 = np.float32, np.int64
LONG = np.longdouble
SEED = 17


def fused(a: Any, b: Any, c: Any) -> np.float32:
    return f32(LONG(f32(a)) * LONG(f32(b)) + LONG(f32(c)))


def plain(a: Any, b: Any, c: Any) -> np.float32:
    return f32(f32(f32(a) * f32(b)) + f32(c))


def logistic(x: np.float32, add: Callable[[Any, Any, Any], np.float32]) -> np.float32:
    """onnxruntime's, one number at a time: x * P(x^2) / Q(x^2) + 1/2 for -18 <= x <= 18."""
    v = f32(min(max(x, f32(-18)), f32(18)))
    square = f32(v * v)
    p = q = f32(0)
    for c in (
        4.37031012579801e-11,
        1.15627324459942e-07,
        6.08574864600143e-05,
        8.51377133304701e-03,
        2.48287947061529e-01,
    ):
        p = add(p, square, c)
    for c in (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03,
              1.16817656904453e-01, 9.93151921023180e-01):  # fmt: skip
        q = add(q, square, c)
    return f32(min(max(f32(f32(p * v) / q) + f32(0.5), f32(0)), f32(1)))


X = np.concatenate([np.linspace(-20, 20, 81), [-17.9, -14.3, -1e-3, 0.0, 1e-20]]).astype(f32)
PLANTED = {way.__name__: np.array([logistic(v, way) for v in X]) for way in (fused, plain)}
PLANTED["mixed"] = np.where(np.arange(X.size) % 3 == 0, PLANTED["fused"], PLANTED["plain"])


def planted(op: str, inputs: list[Any], theirs: np.ndarray, tolerance: Tolerance = EXACT, **attributes: Any) -> Reason:
    proto, feeds = node_model(op, inputs, attributes, opset=13, outputs=(f32,))
    model = qrun.load(proto.SerializeToString())
    (found,) = compare_runtimes(QrunSide(model), Changed(model, {"y0": theirs}), feeds, tolerance).tensors
    assert found.guilt is not None
    return found.guilt.reason


@pytest.mark.parametrize("way", PLANTED)
def test_the_logistic_function_is_recomputed(way: str) -> None:
    found = planted("Sigmoid", [X], PLANTED[way])
    assert (found.cause, "quotient of two polynomials" in found.text) == ("approximation", True)
    assert found.explained > 0
    assert ("some elements" in found.text) == (way == "mixed")


@pytest.mark.parametrize("place", [0, 40, -1])
def test_not_where_a_bit_contradicts(place: int) -> None:
    theirs = PLANTED["fused"].copy()
    theirs[place] = np.nextafter(theirs[place], f32(2)) if place else f32(1e-3)
    assert planted("Sigmoid", [X], theirs).cause != "approximation"


def test_beyond_what_rounding_can_do_nothing_is_named() -> None:
    theirs = PLANTED["fused"].copy()
    theirs[40] += f32(1e-5)
    assert planted("Sigmoid", [X], theirs).cause == UNKNOWN


def test_small_values_are_no_license() -> None:
    """Where nothing else is known, Sigmoid far below 0 must be right to units in the last place."""
    x = np.linspace(-30, -16, 8).astype(f32)
    assert planted("Sigmoid", [x], np.zeros(8, f32)).cause == UNKNOWN


def batch_norm(x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """And y as x * factor + rest, in float32."""
    rng = np.random.default_rng(SEED)
    scale, bias, mean, var = (rng.uniform(0.5, 2, x.shape[1]).astype(f32) for _ in range(4))
    factor = scale / np.sqrt(var + f32(1e-5))
    lanes = (-1, *(1,) * (x.ndim - 2))
    return [x, scale, bias, mean, var], x * factor.reshape(lanes) + (bias - mean * factor).reshape(lanes)


def test_a_folded_batch_normalization_is_within_its_bound() -> None:
    inputs, theirs = batch_norm(np.random.default_rng(SEED).normal(0, 3, (2, 5, 7)).astype(f32))
    found = planted("BatchNormalization", inputs, theirs)
    assert found.cause == "float-steps"
    assert found.explained == 0
    wrong = theirs.copy()
    wrong[1, 2, 3] += f32(1e-4)
    assert planted("BatchNormalization", inputs, wrong).cause == UNKNOWN
    wrong[1, 2, 3] = np.nan
    assert planted("BatchNormalization", inputs, wrong).cause == UNKNOWN


def test_another_epsilon_is_no_rounding() -> None:
    inputs, theirs = batch_norm(np.random.default_rng(SEED).normal(0, 3, (2, 5, 7)).astype(f32))
    assert planted("BatchNormalization", inputs, theirs, epsilon=1e-3).cause == UNKNOWN


# Live


def values(low: float = -12, high: float = 12, shape: tuple[int, ...] = (8, 66)) -> np.ndarray:
    return np.random.default_rng(SEED).uniform(low, high, shape).astype(f32)


ROW = np.random.default_rng(SEED + 1).uniform(0.5, 2, (4, 66)).astype(f32)
IMAGE = values(shape=(2, 6, 5, 7))
C = ROW[:, :6].copy()
ALONE = (
    *(
        "Sigmoid",
        "Tanh",
        "Exp",
        "Erf",
        "Elu",
        "Selu",
        "Celu",
        "Softplus",
        "Softsign",
        "HardSwish",
        "HardSigmoid",
        "Mish",
    ),
    *("Reciprocal", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Softmax", "LogSoftmax", "ReduceMean"),
    *("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
)
LIVE: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    **{op: (op, [values()], {}) for op in ALONE},
    "Sigmoid far below 0": ("Sigmoid", [values(-30, -10)], {}),
    "Gelu": ("Gelu", [values()], {}),
    "Gelu of tanh": ("Gelu", [values()], {"approximate": "tanh"}),
    "Log": ("Log", [values(0.01, 9)], {}),
    "Sqrt": ("Sqrt", [values(0, 9)], {}),
    "Asin": ("Asin", [values(-1, 1)], {}),
    "Acos": ("Acos", [values(-1, 1)], {}),
    "Atanh": ("Atanh", [values(-0.99, 0.99)], {}),
    "Acosh": ("Acosh", [values(1, 9)], {}),
    "Pow": ("Pow", [values(0.1, 4), values(-3, 3)], {}),
    "Pow 3": ("Pow", [values(), np.array(3, f32)], {}),
    "ReduceLogSum": ("ReduceLogSum", [values(1, 9)], {}),
    "ReduceLogSumExp": ("ReduceLogSumExp", [values()], {}),
    "CumSum": ("CumSum", [values(), np.array(1, i64)], {}),
    "Einsum": ("Einsum", [values(shape=(5, 66)), values(shape=(66, 4))], {"equation": "ij,jk->ik"}),
    "MatMul": ("MatMul", [values(shape=(5, 66)), values(shape=(66, 4))], {}),
    "Gemm": ("Gemm", [values(shape=(5, 66)), values(shape=(66, 4)), ROW[0, :4].copy()], {}),
    "Conv": ("Conv", [IMAGE, values(shape=(3, 6, 3, 3))], {}),
    "BatchNormalization": ("BatchNormalization", [IMAGE, *C], {}),
    "LayerNormalization": ("LayerNormalization", [values(), ROW[0], ROW[1]], {}),
    "LayerNormalization without bias": ("LayerNormalization", [values(), ROW[0]], {}),
    "LayerNormalization far from 0": ("LayerNormalization", [values(1000, 1001), ROW[0], ROW[1]], {}),
    "RMSNormalization": ("RMSNormalization", [values(), ROW[0]], {}),
    "InstanceNormalization": ("InstanceNormalization", [IMAGE, *C[:2]], {}),
    "GroupNormalization": ("GroupNormalization", [IMAGE, *C[:2]], {"num_groups": 3}),
    "MeanVarianceNormalization": ("MeanVarianceNormalization", [IMAGE], {}),
    "LpNormalization": ("LpNormalization", [values()], {}),
    "LRN": ("LRN", [IMAGE], {"size": 3}),
    "AveragePool": ("AveragePool", [IMAGE], {"kernel_shape": [3, 3]}),
}


@needs_ort
@pytest.mark.parametrize("name", LIVE)
def test_every_float_operator_of_onnxruntime(name: str) -> None:
    """Whatever the CPU gives: it is equal, or its cause is known."""
    op, inputs, attributes = LIVE[name]
    constants = range(1, len(inputs)) if op != "Pow" else ()
    opset = 23 if op == "RMSNormalization" else 21
    proto, feeds = node_model(op, inputs, attributes, opset=opset, outputs=(f32,), constants=constants)
    data = proto.SerializeToString()
    model = qrun.load(data)
    found = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data), feeds)
    for tensor in found.tensors:
        if tensor.refused:
            pytest.skip("onnxruntime has no such operator")
        assert tensor.guilt is None or tensor.guilt.reason.cause in KNOWN, f"seed {SEED}: {tensor.guilt}"


@pytest.mark.parametrize("name", sorted(LIVE.keys() - {"CumSum", "Einsum", "LayerNormalization far from 0"}))
def test_bounds_are_of_the_real_value(name: str) -> None:
    """Every rule computes the operator's value, by float64 kernels, and a bound that is neither 0 nor wide."""
    op, inputs, attributes = LIVE[name]
    doubles = [array.astype(np.float64) if array.dtype == f32 else array for array in inputs]
    proto, feeds = node_model(op, doubles, attributes, opset=28, outputs=(np.float64,))
    (want,) = qrun.Session(proto, backend="reference").run(feeds).values()
    bound = bound_of(qrun.load(proto.SerializeToString()).nodes[0], [ErrorBound.of(array) for array in inputs])
    assert bound is not None
    size = max(np.abs(want).max(), np.abs(inputs[0]).max())
    assert np.allclose(bound.value, want, rtol=1e-6, atol=1e-7 * size), f"seed {SEED}"
    assert ((bound.error >= 0) & (bound.error <= 1e-2 * size)).all()
    assert (bound.error > 0).any()


KNOWN = ("approximation", "float-steps", "float-order", "float32-arithmetic", "near-tie")


@needs_ort
def test_what_becomes_of_a_sigmoid_in_dynamic_quantization() -> None:
    """The approximation is named where it happens, whatever the quantizer behind it makes of it."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"], "sigmoid"),
        helper.make_node("DynamicQuantizeLinear", ["s"], ["q", "scale", "zero"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dequantize"),
    ]
    data = make_model(nodes, {"x": [4, 50]}, {"y": [4, 50]}).SerializeToString()
    model = qrun.load(data)
    feeds = {"x": np.random.default_rng(SEED).uniform(-17, -14.5, (4, 50)).astype(f32)}
    found = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data), feeds, Tolerance(eps=16))
    causes = {t.name: t.guilt.reason.cause for t in found.tensors if t.guilt}
    assert set(causes) <= {"s"}, f"seed {SEED}"
    assert set(causes.values()) <= {"approximation"}, f"seed {SEED}"
