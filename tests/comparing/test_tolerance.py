"""What counts as equal: the noise of sums by the largest magnitude of a tensor, and steps of what was dequantized."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cli import ROOT, call
from helpers.models import make_model
from onnx import helper

import qrun
from qrun.comparing.choices import tolerance
from qrun.comparing.differences import NOISE, Tolerance, difference, magnitude
from qrun.comparing.meanings import TensorScales
from qrun.ir import Model

f32, f64 = np.float32, np.float64
EPSILON = np.finfo(f32).eps
DIGITS = ROOT / "models" / "digits"
STRICT = Tolerance(rtol=0, atol=0, eps=NOISE)


def differing(a: np.ndarray, b: np.ndarray, allowed: Tolerance, step: np.ndarray | None = None) -> int:
    """With the noise that sums of this magnitude have."""
    return difference(a, b, allowed, step, allowed.noise(min(magnitude(a), magnitude(b)))).differing


@pytest.mark.parametrize("size", [1e-3, 1.0, 40.0, 1e6])
def test_a_cancelled_sum_is_as_exact_as_the_largest_one(size: float) -> None:
    want = np.array([size, 0, size / 1000], f32)
    got = want + np.array([0, 1, 1], f32) * f32(size * EPSILON * (NOISE - 1))
    assert differing(got, want, STRICT) == 0
    assert differing(got, want, Tolerance(rtol=0, atol=0)) == 2
    assert differing(want + f32(0), want + np.array([0, size * EPSILON * (NOISE + 2), 0], f32), STRICT) == 1


@pytest.mark.parametrize("bits", [8, 16])
def test_a_step_of_codes_is_no_noise(bits: int) -> None:
    scale = f32(0.013)
    codes = np.array([0, 1, 2**bits - 1], f32)
    assert differing((codes + np.array([1, 0, 0], f32)) * scale, codes * scale, STRICT) == 1
    assert differing((codes + np.array([0, 0, -1], f32)) * scale, codes * scale, STRICT) == 1


def test_noise_is_of_what_both_reach() -> None:
    """A wild value on one side makes none of the others right; NaN and infinity are no magnitude, and never noise."""
    want, got = np.array([1, 0], f32), np.array([1e9, 1e-4], f32)
    assert differing(got, want, STRICT) == 2
    odd = np.array([np.inf, np.nan, 0, 1], f32)
    assert differing(np.array([1, 1, 1e-4, 1], f32), odd, STRICT) == 3
    assert differing(odd, odd.copy(), STRICT) == 0


def test_steps_of_floats_per_channel() -> None:
    scale = np.array([[0.1], [3.0]], f32)
    codes = np.arange(6, dtype=f32).reshape(2, 3)
    want, one = codes * scale, (codes + 1) * scale
    assert differing(one, want, Tolerance(1, 0, 0), scale) == 0
    assert differing(one, want, Tolerance(0, 0, 0), scale) == 6
    assert differing((codes + 2) * scale, want, Tolerance(1, 0, 0), scale) == 6
    assert differing(one, want, Tolerance(1, 0, 0)) == 6, "only where the step is known"


def test_what_is_usual() -> None:
    assert tolerance("ort") == Tolerance(0, 1e-3, 1e-7, NOISE)
    assert tolerance() == Tolerance(0, 1e-3, 1e-7, 0), "files and two models: nothing is known of sums"
    assert tolerance("native", lsb=2) == Tolerance(2, 0, 0, 0)
    assert tolerance("ort", atol=0.5) == Tolerance(0, 1e-3, 0.5, 0), "a number given is the number meant"
    assert tolerance("ort", rtol=0) == Tolerance(0, 0, 1e-7, NOISE)


def moved() -> Model:
    """x -> QuantizeLinear -> DequantizeLinear d -> Transpose t -> Relu r;
    c: dequantized with a scale per channel, and moved."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Transpose", ["d"], ["t"]),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("DequantizeLinear", ["q", "many", "zeros"], ["c"], axis=1),
        helper.make_node("Transpose", ["c"], ["m"]),
    ]
    stored = {"s": f32(0.5), "z": np.uint8(3), "many": np.array([1, 2, 4], f32), "zeros": np.zeros(3, np.uint8)}
    model = make_model(nodes, {"x": [2, 3]}, "r m", stored, opset=13)
    return qrun.load(model.SerializeToString())


def test_which_tensors_have_steps() -> None:
    codes, like = TensorScales(moved(), {}), np.zeros((2, 3), f32)
    steps = {name: codes.step(name, like) for name in ("x", "d", "t", "r", "c", "m")}
    assert [name for name, step in steps.items() if step is not None] == ["d", "t", "c"]
    assert steps["t"] == 0.5
    np.testing.assert_array_equal(steps["c"], [[1, 2, 4]])


def test_fused_groups_are_equal_within_a_step_as_explain_says() -> None:
    """Also the model's output, which is float: it is the codes times their scale."""
    words = ("compare", DIGITS / "qdq/model.onnx", "--against", "fused", "-i", DIGITS / "x.npy")
    assert call(*words).code == 1
    for exact in ((), ("--rtol", "0", "--atol", "0")):
        ended = call(*words, "--lsb", "1", *exact)
        assert ended.code == 0, ended.out
        assert "within lsb 1" in ended.out
    assert "--lsb 1 with --isolate" in call("explain", "fused-requantization").out
