"""DynamicQuantizeLinear against the exact oracle, onnxruntime and onnx.reference."""

from __future__ import annotations

import numpy as np
import onnx.reference
import pytest
from helpers.support import assert_equal, node_model, run_ort, run_qrun
from oracle.quantize import dynamic_quantize_linear

import qrun
from qrun.ops import Context, find

f32, u8 = np.float32, np.uint8
KERNEL = find("", "DynamicQuantizeLinear", 11)
SEED = 41


def tensors(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(SEED)
    made = []
    for number in range(count):
        shape = tuple(int(n) for n in rng.integers(1, 8, rng.integers(0, 4)))
        kind = number % 5
        if kind == 0:
            x = np.asarray(rng.integers(-255, 256, shape) / 2)
        elif kind == 1:
            x = np.asarray(rng.integers(-2, 3, shape) * 127.5)
        elif kind == 2:
            x = np.abs(np.asarray(rng.normal(0, 10.0 ** rng.integers(-30, 30), shape)))
        else:
            x = np.asarray(rng.normal(rng.normal(0, 3), 10.0 ** rng.integers(-5, 5), shape))
        x = np.asarray(x * (-1) ** rng.integers(2)).astype(f32)
        made.append(x.T if number % 3 == 0 else x)
    return made


def model_of(x: np.ndarray) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    return node_model("DynamicQuantizeLinear", [x], opset=11, outputs=[u8, f32, u8])


def test_against_the_oracle() -> None:
    for number, x in enumerate(tensors(300)):
        for got, want in zip(KERNEL(x), dynamic_quantize_linear(x), strict=True):
            assert_equal(got, want, f"case {number}: {x.tolist()}")


def test_against_onnxruntime_and_onnx_reference() -> None:
    for number, x in enumerate(tensors(100)):
        if x.any():
            model, feeds = model_of(x)
            got, ort = run_qrun(model, feeds), run_ort(model, feeds)
            reference = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
            for a, b, c in zip(got, ort, reference, strict=True):
                assert_equal(a, b, f"onnxruntime, case {number}: {x.tolist()}")
                assert_equal(a, np.asarray(c), f"onnx.reference, case {number}: {x.tolist()}")


@pytest.mark.parametrize(
    "x", [np.zeros((2, 3)), np.zeros((0, 3)), np.array(-0.0), np.array([1e-45, 0, -1e-44])], ids=str
)
def test_no_range_gives_scale_1_and_zero_point_0(x: np.ndarray) -> None:
    y, scale, zero = KERNEL(x.astype(f32))
    assert_equal(y, np.zeros(x.shape, u8))
    assert_equal(scale, np.array(1, f32))
    assert_equal(zero, np.array(0, u8))


def test_the_runtimes_own_answers_for_no_range_and_infinity() -> None:
    zeros = np.zeros(2, f32)
    assert KERNEL(zeros, ctx=Context("onnx-ref"))[1] == f32(1) / f32(255)
    for x in (zeros, *(np.array(v, f32) for v in ([-np.inf, 1, 2], [np.inf, -np.inf, 2], [3, -np.inf], [np.inf, -2]))):
        model, feeds = model_of(x)
        for got, want in zip(run_qrun(model, feeds, arith="ort"), run_ort(model, feeds), strict=True):
            assert_equal(got, want, str(x))


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_what_leaves_no_zero_point_is_refused(bad: float) -> None:
    model, feeds = model_of(np.array([1, bad], f32))
    with pytest.raises(qrun.OperatorError) as caught:
        run_qrun(model, feeds)
    assert (caught.value.code, caught.value.param) == ("QR202", "x")


@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_nan_is_refused_in_onnxruntimes_arithmetic_too(count: int) -> None:
    """There it hides the values that share its vector lane: another place, or CPU, another scale."""
    for place in range(count):
        x = np.linspace(-3, 1, count, dtype=f32)
        x[place] = np.nan
        model, feeds = model_of(x)
        with pytest.raises(qrun.OperatorError) as caught:
            run_qrun(model, feeds, arith="ort")
        assert (caught.value.code, caught.value.param) == ("QR202", "x")
        assert "onnxruntime" in str(caught.value)


def test_infinity_gives_an_infinite_scale_that_is_observed() -> None:
    ctx = Context()
    y, scale, zero = KERNEL(np.array([np.inf, 5], f32), ctx=ctx)
    assert (y.tolist(), float(scale), int(zero)) == ([0, 0], np.inf, 0)
    assert [o.kind for o in ctx.observations] == ["bad-scale"]


def test_large_tensors_go_block_by_block() -> None:
    x = np.random.default_rng(SEED).standard_normal((3, 70000)).astype(f32)
    y, scale, zero = KERNEL(x)
    assert_equal(y, np.clip(np.rint(x / scale) + zero, 0, 255).astype(u8))
