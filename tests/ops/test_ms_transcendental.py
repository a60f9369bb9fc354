"""QLinearSigmoid and QLinearSoftmax of com.microsoft, and the decisions near ties behind them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle import ms
from oracle.ms_cases import codes, dtype_of, zero

from qrun.errors import OperatorError
from qrun.ops import Context, find
from qrun.ops._functions import exp_sum_exceeds
from qrun.ops.qlinearbinary import logistic32

F32 = np.float32
OUTPUT_SCALES = (1 / 256, 1 / 255, 1 / 128, 0.0037, 0.004, 1.0, 2.0, 0.5, 1 / 3)


def kernel(name: str, inputs, arith="exact", **attributes):
    return find(MS, name, 1)(*inputs, **attributes, ctx=Context(arith=arith))


def test_sigmoid_is_exact() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        dtype = dtype_of(rng)
        x = np.arange(256, dtype=np.uint8).view(dtype).reshape(2, 128)
        sx = F32(rng.choice([rng.uniform(0.001, 0.3), 0.125, 1.0, 3e-5, -0.05, 40.0]))
        sy = F32(rng.choice(OUTPUT_SCALES)) * F32(rng.choice([1, 1, 1, -1, 0.01]))
        inputs = [x, sx, zero(rng, dtype, True), sy, zero(rng, dtype, True)]
        assert_equal(kernel("QLinearSigmoid", inputs), ms.qlinear_sigmoid(*inputs), f"seed {seed}")


def test_sigmoid_of_zero_is_a_tie_and_its_neighbours_are_not() -> None:
    """1/2 exactly at the zero point; a step of 1e-20 away float64 still says 1/2, the real value does not."""
    x = np.array([99, 100, 101], np.uint8)
    for sy in (F32(1), F32(1 / 3), F32(0.2)):
        inputs = [x, F32(1e-20), np.uint8(100), sy, np.uint8(7)]
        assert_equal(kernel("QLinearSigmoid", inputs), ms.qlinear_sigmoid(*inputs), f"y_scale {sy}")
    assert kernel("QLinearSigmoid", [x, F32(1e-20), np.uint8(100), F32(1), np.uint8(7)]).tolist() == [7, 7, 8]


@pytest.mark.parametrize(("scale", "want"), [(np.inf, [0, 0, 1]), (np.nan, [0, 0, 0]), (0.0, [0, 0, 0])])
def test_sigmoid_of_odd_scales(scale: float, want: list[int]) -> None:
    assert (
        kernel("QLinearSigmoid", [np.array([0, 1, 2], np.uint8), F32(scale), np.uint8(1), F32(1), None]).tolist()
        == want
    )


def test_sigmoid_ort() -> None:
    """``ort``: bit for bit, all 256 inputs."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        dtype = dtype_of(rng)
        x = np.arange(256, dtype=np.uint8).view(dtype)
        sx, sy = F32(rng.uniform(0.0005, 0.3)), F32(rng.choice([1 / 256, 1 / 255, 1 / 128, 0.0037, 1e-4]))
        inputs = [x, sx, zero(rng, dtype).reshape(()), sy, zero(rng, dtype).reshape(())]
        model, feeds = node_model("QLinearSigmoid", inputs, domain=MS, opset=17, outputs=[dtype])
        assert_equal(run_qrun(model, feeds, arith="ort")[0], run_ort(model, feeds)[0], f"seed {seed}")


def test_logistic_is_that_of_the_float_operator() -> None:
    """Eight bits hide most of the approximation; onnxruntime's float Sigmoid shows all of it."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(0, 5, 4000), rng.normal(0, 0.01, 500), rng.uniform(-40, 40, 501)]).astype(F32)
    model, feeds = node_model("Sigmoid", [x], opset=13)
    assert_equal(logistic32(x), run_ort(model, feeds)[0])


def softmax_case(seed: int):
    rng = np.random.default_rng(seed)
    dtype = dtype_of(rng)
    shape = tuple(int(d) for d in rng.integers(1, 7, rng.integers(1, 4)))
    x = codes(rng, shape, dtype)
    if seed % 5 == 0:
        x = np.full_like(x, x.flat[0])
    sx = F32(rng.choice([rng.uniform(0.01, 0.3), 0.125, 1.0, 30.0]))
    sy = F32(rng.choice(OUTPUT_SCALES))
    attributes = {"opset": int(rng.choice([11, 13])), "axis": int(rng.integers(-len(shape), len(shape)))}
    return [x, sx, zero(rng, dtype, True), sy, zero(rng, dtype)], attributes


def test_softmax_is_exact() -> None:
    for seed in range(80):
        inputs, attributes = softmax_case(seed)
        want = ms.qlinear_softmax(*inputs, **attributes)
        assert_equal(kernel("QLinearSoftmax", inputs, **attributes), want, f"seed {seed} {attributes}")


def test_softmax_of_equal_values() -> None:
    """1/n / y_scale: exact ties with y_scale 1/256 and n = 512, near ones with 1/3,
    1/9 and 1/255 rounded to float32."""
    for n, sy in ((512, 1 / 256), (2, 1.0), (2, 1 / 3), (6, 1 / 9), (2, 1 / 255), (1, 2.0), (1, 1 / 256)):
        inputs = [np.full((2, n), 200, np.uint8), F32(0.1), None, F32(sy), np.uint8(1)]
        assert_equal(kernel("QLinearSoftmax", inputs, opset=13), ms.qlinear_softmax(*inputs, opset=13), f"n {n} {sy}")


@pytest.mark.parametrize("xs", [1e-20, -1e-20, 1e-40])
def test_softmax_a_hair_from_a_tie(xs: float) -> None:
    """Two codes one apart differ from 1/2 by xs / 4, which float64 does not see; the greater real value rounds up."""
    x = np.array([[6, 7], [7, 6], [7, 7], [0, 255]], np.uint8)
    inputs = [x, F32(xs), None, F32(1), np.uint8(3)]
    got = kernel("QLinearSoftmax", inputs, opset=13)
    assert_equal(got, ms.qlinear_softmax(*inputs, opset=13))
    assert got.tolist() == ([[3, 4], [4, 3], [3, 3], [3, 4]] if xs > 0 else [[4, 3], [3, 4], [3, 3], [4, 3]])


@pytest.mark.parametrize("xs", [4.0, 1e4, 1e30])
def test_softmax_with_negligible_terms(xs: float) -> None:
    """512 equal maxima and one value of weight exp(-255 * xs) lie just below 1/2 LSB of scale 1/256."""
    x = np.full((1, 513), 255, np.uint8)
    x[0, 9] = 0
    for sy, want in ((1 / 256, 0), (1 / 256.5, 1), (1 / 255.5, 0)):
        got = kernel("QLinearSoftmax", [x, F32(xs), None, F32(sy), np.uint8(0)], opset=13)
        assert set(got[x == 255].tolist()) == {want}
        assert got[0, 9] == 0


def test_softmax_ort() -> None:
    """``ort``: bit for bit, except where onnxruntime's float32 product overflows."""
    for seed in range(80):
        rng = np.random.default_rng(seed)
        dtype = dtype_of(rng)
        shape = (3, int(rng.integers(2, 60)))
        sx = F32(rng.choice([rng.uniform(0.01, 0.3), 0.125, 1.0]))
        sy = F32(rng.choice([1 / 256, 1 / 255, 1 / 128, 0.0037, 0.004]))
        inputs = [codes(rng, shape, dtype), sx, zero(rng, dtype).reshape(()), sy, zero(rng, dtype).reshape(())]
        attributes = {"opset": int(rng.choice([11, 13])), "axis": int(rng.choice([-1, 1]))}
        model, feeds = node_model("QLinearSoftmax", inputs, attributes, domain=MS, opset=17, outputs=[dtype])
        assert_equal(run_qrun(model, feeds, arith="ort")[0], run_ort(model, feeds)[0], f"seed {seed}")


def test_softmax_arithmetics_differ_where_they_should() -> None:
    """O13: onnxruntime multiplies by floor(1 / y_scale) = 254;
    and its overflow on an axis of length 1 is not copied."""
    inputs = [np.array([[255, 250, 0]], np.uint8), F32(0.1), np.uint8(0), F32(1 / 255), np.uint8(0)]
    assert kernel("QLinearSoftmax", inputs, opset=13).tolist() == [[159, 96, 0]]
    assert kernel("QLinearSoftmax", inputs, "ort", opset=13).tolist() == [[158, 96, 0]]
    one = [np.array([[9]], np.uint8), F32(0.1), np.uint8(0), F32(1 / 256), np.uint8(0)]
    assert kernel("QLinearSoftmax", one, "ort", opset=13).tolist() == [[255]]
    two = [np.array([[9, 9]], np.uint8), F32(0.1), np.uint8(0), F32(1 / 300), np.uint8(0)]
    assert kernel("QLinearSoftmax", two, "ort", opset=13).tolist() == [[150, 150]]


def test_softmax_of_nothing_and_of_odd_scales() -> None:
    """O24: an empty tensor stays one."""
    empty = kernel("QLinearSoftmax", [np.zeros((0, 3), np.uint8), F32(1), None, F32(1), np.uint8(0)], opset=13)
    assert empty.shape == (0, 3)
    assert kernel(
        "QLinearSoftmax", [np.zeros((3, 0), np.uint8), F32(1), None, F32(1), np.uint8(0)], opset=13
    ).shape == (3, 0)
    x = np.array([[1, 2, 3]], np.uint8)
    for arith in ("exact", "ort"):
        assert kernel("QLinearSoftmax", [x, F32(np.inf), None, F32(1), np.uint8(5)], arith, opset=13).tolist() == [
            [0, 0, 0]
        ]
        assert kernel("QLinearSoftmax", [x, F32(0), None, F32(1 / 300), np.uint8(5)], arith, opset=13).tolist() == [
            [105] * 3
        ]
        assert kernel("QLinearSoftmax", [x, F32(-50), None, F32(1 / 100), np.uint8(5)], arith, opset=13).tolist() == [
            [105, 5, 5]
        ]


@pytest.mark.parametrize("axis", [-3, 2])
def test_softmax_refuses_an_axis_out_of_range(axis: int) -> None:
    with pytest.raises(OperatorError, match="does not exist"):
        kernel("QLinearSoftmax", [np.zeros((2, 3), np.uint8), F32(1), None, F32(1), np.uint8(0)], opset=13, axis=axis)


@pytest.mark.parametrize(
    ("counts", "step", "bound", "sign"),
    [
        ({0: 3}, 0.5, Fraction(3), 0),
        ({0: 1, 5: 2}, 0.0, Fraction(3), 0),
        ({1: 1}, 1.0, Fraction("2.718281828459045235360287471352662497757247093699959574966967627724076630353"), 1),
        ({1: 1}, 1.0, Fraction("2.718281828459045235360287471352662497757247093699959574966967627724076630354"), -1),
        ({0: 1, -1: 1}, 1e9, Fraction(1) + Fraction(1, 10**60), -1),
        ({0: 1, -1: 1}, 1e30, Fraction(1), 1),
        ({-1: 1}, 1e-40, 1 - Fraction(1, 10**41), -1),
        ({2: 1}, 1e30, Fraction(10**9), 1),
    ],
)
def test_exp_sums_are_compared_with_certainty(counts, step: float, bound: Fraction, sign: int) -> None:
    assert exp_sum_exceeds(counts, step, bound) == sign


@pytest.mark.parametrize("sy", [1e-45, 2.9e-39])
def test_softmax_ort_of_a_scale_without_a_float32_reciprocal(sy: float) -> None:
    """Terms that are zero stay zero."""
    inputs = [np.array([[0, 255, 255, 3]], np.uint8), F32(4), np.uint8(0), F32(sy), np.uint8(243)]
    model, feeds = node_model("QLinearSoftmax", inputs, {"opset": 13}, domain=MS, opset=17, outputs=[np.uint8])
    assert run_qrun(model, feeds, arith="ort")[0].tolist() == [[243, 255, 255, 243]]
