"""QLinearConv and ConvInteger against the exact oracle, onnxruntime and onnx.reference; refusals, observations."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx.reference
import pytest
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle.linear import conv, requantize_all
from oracle.linear_cases import EIGHT, MODES, ConvCase, conv_case

import qrun
from qrun.ops import Context, find

f32, u8, i8 = np.float32, np.uint8, np.int8
KERNEL = find("", "QLinearConv", 10)
SEED = 11


def accumulators(case: ConvCase) -> np.ndarray:
    bias = None if case.bias is None else case.bias.tolist()
    geometry = {k: v for k, v in case.attributes.items() if k != "kernel_shape"}
    return conv(case.x, case.w, int(case.x_zero.reshape(())), case.channel_zeros, bias, **geometry)


def expected(case: ConvCase) -> np.ndarray:
    acc = accumulators(case)
    lanes = (-1, *(1,) * (case.x.ndim - 2)) if case.w_scale.size > 1 else ()
    factors = [case.x_scale.reshape(()), case.w_scale.reshape(lanes)] if case.w_scale.size else [case.x_scale] * 2
    return requantize_all(acc, factors, case.y_scale.reshape(()), case.y_zero)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("types", list(product(EIGHT, repeat=3)), ids=lambda t: "-".join(v.__name__ for v in t))
def test_against_the_oracle(types: Any, mode: str) -> None:
    rng = np.random.default_rng([SEED, MODES.index(mode), *map(EIGHT.index, types)])
    for number in range(12):
        case = conv_case(rng, mode, types)
        got = KERNEL(*case.inputs, **case.attributes, ctx=Context())
        assert_equal(got, expected(case), f"case {number}: {case}")


@pytest.mark.parametrize("mode", MODES[:3])
def test_ort_arithmetic_is_onnxruntimes(mode: str) -> None:
    """Cases onnxruntime runs, in its three type triples."""
    rng = np.random.default_rng([SEED, 1, MODES.index(mode)])
    for number in range(40):
        types = [(u8, u8, u8), (u8, i8, u8), (i8, i8, i8)][number % 3]
        case = conv_case(rng, mode, types)
        if not case.runs_in_onnxruntime:
            continue
        model, feeds = node_model("QLinearConv", case.inputs, case.attributes, opset=10, outputs=[types[2]])
        assert_equal(run_qrun(model, feeds, arith="ort")[0], run_ort(model, feeds)[0], f"case {number}: {case}")


@pytest.mark.parametrize("mode", MODES[:3])
def test_onnx_ref_arithmetic_is_onnx_references(mode: str) -> None:
    """2-D convolutions, where it applies per-channel scales right; its rounding saturates only after int32."""
    rng = np.random.default_rng([SEED, 2, MODES.index(mode)])
    for number in range(25):
        case = conv_case(rng, mode, rank=2)
        if 0 in (case.x.size, case.w.size):
            continue
        model, feeds = node_model("QLinearConv", case.inputs, case.attributes, opset=10, outputs=[case.y_zero.dtype])
        want = onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="onnx-ref")[0], want, f"case {number}: {case}")


def test_channels_last_is_the_transposed_convolution() -> None:
    rng = np.random.default_rng([SEED, 3])
    for number in range(30):
        case = conv_case(rng, "generic")
        inputs = [np.moveaxis(case.x, 1, -1), *case.inputs[1:]]
        attributes = {**case.attributes, "channels_last": 1}
        model, feeds = node_model("QLinearConv", inputs, attributes, domain=MS, outputs=[case.y_zero.dtype])
        assert_equal(run_qrun(model, feeds)[0], np.moveaxis(expected(case), 1, -1), f"case {number}: {case}")


def test_blocks_of_rows_join() -> None:
    """Wide enough that the columns are made in several blocks, and more than one batch."""
    rng = np.random.default_rng([SEED, 4])
    x, w = rng.integers(0, 256, (2, 16, 150, 130)).astype(u8), rng.integers(-128, 128, (4, 16, 3, 3)).astype(i8)
    scales = (rng.random(4) * 0.01).astype(f32)
    args = [x, f32(0.02), u8(7), w, scales, i8(-2), f32(0.5), u8(11)]
    y = KERNEL(*map(np.asarray, args), pads=(1, 1, 1, 1))
    args[3] = np.concatenate([w[:2, :8], w[2:, 8:]])
    grouped = KERNEL(*map(np.asarray, args), pads=(1, 1, 1, 1), group=2)
    halves = [w.copy(), w.copy()]
    halves[0][:, 8:], halves[1][:, :8] = -2, -2
    parts = [KERNEL(*map(np.asarray, [*args[:3], half, *args[4:]]), pads=(1, 1, 1, 1)) for half in halves]
    assert_equal(grouped, np.concatenate([parts[0][:, :2], parts[1][:, 2:]], axis=1), "two groups")
    for n, i, j in [(0, 0, 0), (0, 109, 64), (0, 110, 0), (1, 149, 129), (1, 54, 7), (1, 55, 7)]:
        window = np.full((16, 3, 3), 7, np.int64)
        for di, dj in product(range(3), range(3)):
            if 0 <= i + di - 1 < 150 and 0 <= j + dj - 1 < 130:
                window[:, di, dj] = x[n, :, i + di - 1, j + dj - 1]
        acc = ((window - 7) * (w.astype(np.int64) + 2)).sum(axis=(1, 2, 3)).astype(np.int32)
        want = requantize_all(acc, [f32(0.02), scales], f32(0.5), np.array(11, u8))
        assert y[n, :, i, j].tolist() == want.tolist(), (n, i, j)


ONE = np.ones((1, 1, 3, 3), u8)
GOOD = [ONE, f32(1), u8(0), np.ones((2, 1, 2, 2), u8), f32(1), u8(0), f32(1), u8(0), np.zeros(2, np.int32)]
BAD = [
    ({0: np.ones((1, 3), u8)}, {}, "QR202", "w"),
    ({0: np.ones((1, 2, 3, 3), u8)}, {}, "QR207", "w"),
    ({}, {"group": 2}, "QR207", "w"),
    ({}, {"group": 0}, "QR207", "w"),
    ({}, {"group": -1}, "QR207", "w"),
    ({}, {"kernel_shape": [3, 3]}, "QR214", "kernel_shape"),
    ({}, {"strides": [0, 1]}, "QR216", "strides"),
    ({}, {"strides": [1]}, "QR216", "strides"),
    ({}, {"dilations": [1, 0]}, "QR216", "dilations"),
    ({}, {"dilations": [2**40, 1]}, "QR216", "dilations"),
    ({}, {"dilations": [3, 1]}, "QR206", "kernel_shape"),
    ({}, {"pads": [0, 0, -1, 0]}, "QR216", "pads"),
    ({}, {"pads": [0, 0]}, "QR216", "pads"),
    ({}, {"pads": [0, 0, 0, 0], "auto_pad": "SAME_UPPER"}, "QR215", "pads"),
    ({}, {"auto_pad": "SAME"}, "QR216", "auto_pad"),
    ({}, {"pads": [2**31 - 1] * 4}, "QR010", ""),
    ({1: np.ones((1, 1), f32)}, {}, "QR301", "x_scale"),
    ({2: np.zeros(2, u8)}, {}, "QR302", "x_zero_point"),
    ({4: np.ones(3, f32)}, {}, "QR301", "w_scale"),
    ({4: np.ones((2, 1), f32)}, {}, "QR301", "w_scale"),
    ({5: np.zeros(3, u8)}, {}, "QR302", "w_zero_point"),
    ({6: np.ones(2, f32)}, {}, "QR301", "y_scale"),
    ({7: np.zeros(2, u8)}, {}, "QR302", "y_zero_point"),
    ({2: i8(0)}, {}, "QR303", "x_zero_point"),
    ({8: np.zeros(1, np.int32)}, {}, "QR305", "B"),
    ({8: np.zeros((2, 1), np.int32)}, {}, "QR305", "B"),
    ({8: np.zeros(2, f32)}, {}, "QR203", "B"),
    ({2: None}, {}, "QR205", ""),
    ({7: None, 8: None}, {}, "QR205", ""),
]


@pytest.mark.parametrize(("changes", "attributes", "code", "param"), BAD, ids=str)
def test_refusals(changes: dict[int, Any], attributes: dict[str, Any], code: str, param: str) -> None:
    inputs = [changes.get(i, value) for i, value in enumerate(GOOD)]
    model, feeds = node_model("QLinearConv", inputs, attributes, opset=10, outputs=[u8])
    with pytest.raises(qrun.QrunError) as caught:
        run_qrun(model, feeds, max_memory=2**30)
    assert caught.value.code == code, str(caught.value)
    assert getattr(caught.value, "param", "") in (param, "x_zero_point") if param else True


def test_the_first_wrap_is_where_it_says() -> None:
    """Group 1, its second channel, second batch, second row."""
    x, w = np.zeros((2, 2, 3, 2), u8), np.zeros((4, 1, 1, 1), u8)
    x[1, 1, 1, 1], w[3] = 1, 1
    ctx = Context()
    bias = np.array([0, 0, 0, 2**31 - 1], np.int32)
    inputs = [x, f32(1), u8(0), w, f32(1), u8(0), f32(1), u8(0), bias]
    KERNEL(*map(np.asarray, inputs), group=2, ctx=ctx)
    assert [o.first for o in ctx.observations if o.kind == "accumulator-wrap"] == [(1, 3, 1, 1)]


def test_observations() -> None:
    inputs = [*map(np.asarray, GOOD[:8]), np.array([2**31 - 1, 0], np.int32)]
    ctx = Context()
    inputs[4], inputs[1] = np.array([1, 0], f32), np.array(np.inf, f32)
    KERNEL(*inputs, ctx=ctx)
    seen = {o.kind: o for o in ctx.observations}
    assert seen["accumulator-wrap"].count == 4
    assert seen["accumulator-wrap"].first == (0, 0, 0, 0)
    assert seen["mixed-granularity"].param == "w_zero_point"
    assert [o.param for o in ctx.observations if o.kind == "bad-scale"] == ["x_scale", "w_scale"]
    assert seen["nan-quantized"].count == 4


INTEGER = find("", "ConvInteger", 10)
INTEGER_SEED = 12


@pytest.mark.parametrize("x_type", EIGHT)
@pytest.mark.parametrize("w_type", EIGHT)
def test_conv_integer_against_the_oracle(x_type: Any, w_type: Any) -> None:
    rng = np.random.default_rng([INTEGER_SEED, EIGHT.index(x_type), EIGHT.index(w_type)])
    for number in range(40):
        case = conv_case(rng, "generic", (x_type, w_type, u8))
        x_zero = case.x_zero if rng.random() < 0.7 else None
        w_zero = case.w_zero if rng.random() < 0.7 else None
        geometry = {k: v for k, v in case.attributes.items() if k != "kernel_shape"}
        zeros = case.channel_zeros if w_zero is not None else [0] * case.w.shape[0]
        want = conv(case.x, case.w, 0 if x_zero is None else int(x_zero.reshape(())), zeros, None, **geometry)
        assert_equal(INTEGER(case.x, case.w, x_zero, w_zero, **case.attributes), want, f"case {number}: {case}")


def test_conv_integer_against_onnxruntime() -> None:
    """Cases onnxruntime runs: one zero point for w, and w of x's sign (on CPUs without VNNI others may saturate)."""
    rng = np.random.default_rng([INTEGER_SEED, 9])
    for number in range(40):
        case = conv_case(rng, "generic", (u8, u8, u8))
        if not case.runs_in_onnxruntime:
            continue
        inputs = [case.x, case.w, case.x_zero, np.array(case.channel_zeros[0], u8)]
        model, feeds = node_model("ConvInteger", inputs, case.attributes, opset=10, outputs=[np.int32])
        assert_equal(run_qrun(model, feeds)[0], run_ort(model, feeds)[0], f"case {number}: {case}")


def test_sums_beyond_32_bits_wrap_and_are_observed() -> None:
    x, w = np.full((1, 33027, 1), 255, u8), np.full((1, 33027, 1), 255, u8)
    ctx = Context()
    y = INTEGER(x, w, ctx=ctx)
    assert y.tolist() == [[[33027 * 255 * 255 - 2**32]]]
    assert [(o.kind, o.count) for o in ctx.observations] == [("accumulator-wrap", 1)]
    assert INTEGER(x[:, :33025], w[:, :33025]).tolist() == [[[33025 * 255 * 255]]]


@pytest.mark.parametrize("k", [257, 258, 259, 517, 1033, 1300])
@pytest.mark.parametrize("signed", [False, True])
def test_sums_around_the_limits_of_float32(k: int, signed: bool) -> None:
    """258 products of 255 * 255 no longer fit 24 bits; odd sums show a lost bit.
    Signed: codes 127, zero points -128."""
    x, w = np.full((1, k, 1), 255, u8), np.full((2, k, 1), 255, u8)
    x[0, 0], w[1, 1] = 254, 3
    want = [[[254 * 255 + (k - 1) * 255**2], [254 * 255 + 3 * 255 + (k - 2) * 255**2]]]
    if signed:
        x, w = ((v ^ 128).view(i8) for v in (x, w))
        assert INTEGER(x, w, np.array(-128, i8), np.array([-128, -128], i8)).tolist() == want
    else:
        assert INTEGER(x, w).tolist() == want


def test_large_dilations_cost_no_more_than_their_input() -> None:
    x = np.zeros((1, 1, 100_001), u8)
    x[0, 0, [0, 100_000]] = 3, 4
    assert INTEGER(x, np.array([[[10, 1]]], u8), dilations=(100_000,)).tolist() == [[[34]]]


def test_refusals_of_conv_integer() -> None:
    cases: list[tuple[list[Any], str]] = [
        ([np.ones((1, 1, 3), u8), np.ones((2, 1, 1), u8), None, np.zeros(3, u8)], "QR302"),
        ([np.ones((1, 1, 3), u8), np.ones((2, 1, 1), u8), i8(0)], "QR303"),
        ([np.ones((1, 1, 3), u8), np.ones((2, 1, 0), u8)], "QR216"),
        ([np.ones((1, 1, 3), u8), np.ones((2, 1, 4), u8)], "QR206"),
        ([np.ones((1, 1, 3), np.int32), np.ones((2, 1, 1), u8)], "QR203"),
    ]
    for inputs, code in cases:
        model, feeds = node_model("ConvInteger", inputs, opset=10, outputs=[np.int32])
        with pytest.raises(qrun.QrunError) as caught:
            run_qrun(model, feeds)
        assert caught.value.code == code, f"{[np.shape(x) for x in inputs]}: {caught.value}"
