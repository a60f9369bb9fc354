"""ConvInteger against the exact oracle and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.support import assert_equal, node_model, run_ort, run_qrun
from oracle.linear import conv
from oracle.linear_cases import EIGHT, conv_case

import qrun
from qrun.ops import Context, find

u8, i8 = np.uint8, np.int8
KERNEL = find("", "ConvInteger", 10)
SEED = 12


@pytest.mark.parametrize("x_type", EIGHT)
@pytest.mark.parametrize("w_type", EIGHT)
def test_against_the_oracle(x_type: Any, w_type: Any) -> None:
    rng = np.random.default_rng([SEED, EIGHT.index(x_type), EIGHT.index(w_type)])
    for number in range(40):
        case = conv_case(rng, "generic", (x_type, w_type, u8))
        x_zero = case.x_zero if rng.random() < 0.7 else None
        w_zero = case.w_zero if rng.random() < 0.7 else None
        geometry = {k: v for k, v in case.attributes.items() if k != "kernel_shape"}
        zeros = case.channel_zeros if w_zero is not None else [0] * case.w.shape[0]
        want = conv(case.x, case.w, 0 if x_zero is None else int(x_zero.reshape(())), zeros, None, **geometry)
        assert_equal(KERNEL(case.x, case.w, x_zero, w_zero, **case.attributes), want, f"case {number}: {case}")


def test_against_onnxruntime() -> None:
    """Cases onnxruntime runs: one zero point for w, and w of x's sign (on CPUs without VNNI others may saturate)."""
    rng = np.random.default_rng([SEED, 9])
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
    y = KERNEL(x, w, ctx=ctx)
    assert y.tolist() == [[[33027 * 255 * 255 - 2**32]]]
    assert [(o.kind, o.count) for o in ctx.observations] == [("accumulator-wrap", 1)]
    assert KERNEL(x[:, :33025], w[:, :33025]).tolist() == [[[33025 * 255 * 255]]]


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
        assert KERNEL(x, w, np.array(-128, i8), np.array([-128, -128], i8)).tolist() == want
    else:
        assert KERNEL(x, w).tolist() == want


def test_large_dilations_cost_no_more_than_their_input() -> None:
    x = np.zeros((1, 1, 100_001), u8)
    x[0, 0, [0, 100_000]] = 3, 4
    assert KERNEL(x, np.array([[[10, 1]]], u8), dilations=(100_000,)).tolist() == [[[34]]]


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([np.ones((1, 1, 3), u8), np.ones((2, 1, 1), u8), None, np.zeros(3, u8)], "QR302"),
        ([np.ones((1, 1, 3), u8), np.ones((2, 1, 1), u8), i8(0)], "QR303"),
        ([np.ones((1, 1, 3), u8), np.ones((2, 1, 0), u8)], "QR216"),
        ([np.ones((1, 1, 3), u8), np.ones((2, 1, 4), u8)], "QR206"),
        ([np.ones((1, 1, 3), np.int32), np.ones((2, 1, 1), u8)], "QR203"),
    ],
    ids=str,
)
def test_refusals(inputs: list[Any], code: str) -> None:
    model, feeds = node_model("ConvInteger", inputs, opset=10, outputs=[np.int32])
    with pytest.raises(qrun.QrunError) as caught:
        run_qrun(model, feeds)
    assert caught.value.code == code, str(caught.value)
