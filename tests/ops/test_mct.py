"""Operators of Sony's mct_quantizers: every step of its code, in fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.native import nearest32
from helpers.support import assert_equal, node_model, run_qrun
from onnx import helper

import qrun
from qrun.ir.infer import infer
from qrun.ir.schema import MCT
from qrun.ops import expansion

F = np.float32
WIDTHS = (1, 2, 3, 4, 8, 16, 24, 32)


def mct(op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> np.ndarray:
    """What the operator makes."""
    attributes = {"mctq_version": "1.7.0", **attributes}
    model, feeds = node_model(op_type, inputs, attributes, domain=MCT, outputs=[F], constants=range(1, len(inputs)))
    return run_qrun(model, feeds)[0]


def f32(value: Fraction) -> Fraction:
    """One float32 operation whose real value this is."""
    return Fraction(float(nearest32(value))) if value else value


def f64(value: Fraction) -> Fraction:
    return Fraction(float(value))


def clip(value: Fraction, low: Fraction, high: Fraction) -> Fraction:
    return low if value < low else min(value, high)


def parameters(rng: np.random.Generator, turn: int) -> tuple[dict[str, int], int, tuple[int, ...]]:
    """Attributes, the number of parameters, and their shape as they broadcast to [3, 4, 40]."""
    if turn % 3 == 0:
        return {"per_channel": 0, "channel_axis": 0}, 1, (1, 1, 1)
    axis = int(rng.integers(-3, 3))
    wide = [1, 1, 1]
    wide[axis] = (3, 4, 40)[axis]
    return {"per_channel": 1, "channel_axis": axis}, wide[axis], tuple(wide)


def values(rng: np.random.Generator, step: np.ndarray) -> np.ndarray:
    """Numbers of all sizes; a third of them ties."""
    x = np.where(rng.random((3, 4, 40)) < 0.4, rng.integers(-300, 300, (3, 4, 40)) / 2, rng.normal(size=(3, 4, 40)) * 9)
    return (x * step).astype(F)


def each(x: np.ndarray, wide: tuple[int, ...], *given: np.ndarray) -> list[tuple[Fraction, ...]]:
    every = (np.broadcast_to(a, x.shape).reshape(-1).tolist() for a in (x, *(a.reshape(wide) for a in given)))
    return [tuple(map(Fraction, row)) for row in zip(*every, strict=True)]


@pytest.mark.parametrize("op_type", ["WeightsSymmetricQuantizer", "WeightsPOTQuantizer"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_symmetric_weights(op_type: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for turn in range(4):
        attributes, count, wide = parameters(rng, turn)
        powers = "POT" in op_type
        threshold = (2.0 ** rng.integers(-5, 4, count) if powers else rng.uniform(0.01, 4, count)).astype(F)
        x = values(rng, threshold.reshape(wide) / 2.0 ** (min(bits, 8) - 1))

        def one(v: Fraction, t: Fraction) -> Fraction:
            s = t / 2 ** (bits - 1)
            return f32(round(f32(clip(v, -t, f32(t - s)) / s)) * s)

        got = mct(op_type, [x, threshold], {"num_bits": bits, "signed": 1, **attributes})
        want = F([float(one(*row)) for row in each(x, wide, threshold)]).reshape(x.shape)
        assert_equal(got, want, f"{turn} {attributes} {threshold}", signed_zeros=False)


def ranges(low: Fraction, high: Fraction, bits: int, step: Callable[[Fraction], Fraction]) -> tuple[Fraction, ...]:
    """The range with 0 in it, and its step; `step` rounds each operation."""
    steps = step(Fraction(2**bits - 1))
    width = step(high - low)
    s = step(width / steps)
    moved = step(s * round(step(low / s)))
    a, b = (moved, step(width + moved)) if low <= 0 <= high else (low, high)
    a, b = min(a, Fraction(0)), max(b, Fraction(0))
    return a, b, step(step(b - a) / steps)


@pytest.mark.parametrize("bits", WIDTHS)
def test_uniform_weights(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for turn in range(4):
        attributes, count, wide = parameters(rng, turn)
        low = rng.uniform(-4, 2, count).astype(F)
        high = (low + rng.uniform(0.01, 5, count)).astype(F)
        x = values(rng, (high - low).reshape(wide) / 255)

        def one(v: Fraction, least: Fraction, most: Fraction) -> Fraction:
            a, b, s = ranges(least, most, bits, f32)
            return f32(round(f32(clip(v, a, b) / s)) * s)

        got = mct("WeightsUniformQuantizer", [x, low, high], {"num_bits": bits, **attributes})
        want = F([float(one(*row)) for row in each(x, wide, low, high)]).reshape(x.shape)
        assert_equal(got, want, f"{turn} {attributes} {low} {high}", signed_zeros=False)


def nearest_of(table: list[float], h: int, v: Fraction, t: Fraction) -> float:
    """The nearest number of a table; the first of several."""
    scaled = clip(f32(f32(v / f32(t + Fraction(float(F(1e-8))))) * h), Fraction(-h), Fraction(h - 1))
    nearest = min(table, key=lambda number: f32(abs(scaled - Fraction(number))))
    return float(f32(Fraction(nearest) / h * t))


@pytest.mark.parametrize("op_type", ["WeightsLUTSymmetricQuantizer", "WeightsLUTPOTQuantizer"])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_tables(op_type: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for turn in range(4):
        attributes, count, wide = parameters(rng, turn)
        powers = "POT" in op_type
        threshold = (2.0 ** rng.integers(-5, 4, count) if powers else rng.uniform(0.01, 4, count)).astype(F)
        h = 2 ** (bits - 1)
        table = rng.integers(-h, h, int(rng.integers(1, 17))).astype(F)
        x = values(rng, threshold.reshape(wide) / h)
        more = {"num_bits": 4, "signed": 1, "lut_values_bitwidth": bits, "eps": 1e-8, "input_rank": 3, **attributes}
        got = mct(op_type, [x, table, threshold], more)
        want = F([nearest_of(table.tolist(), h, *row) for row in each(x, wide, threshold)]).reshape(x.shape)
        assert_equal(got, want, f"{turn} {attributes} {table}", signed_zeros=False)
        assert_equal(mct(op_type, [x, table.reshape(-1, 1), threshold], more), got)


@pytest.mark.parametrize("op_type", ["ActivationSymmetricQuantizer", "ActivationPOTQuantizer"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_symmetric_activations(op_type: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for signed in (0, 1):
        t = Fraction(float(F(2.0 ** rng.integers(-5, 4) if "POT" in op_type else rng.uniform(0.01, 4))))
        x = values(rng, np.float64(float(t) / 2.0 ** (min(bits, 8) - 1)))
        s = t / 2 ** (bits - signed)
        low, high = -t * signed, f32(f64(t - s))
        got = mct(op_type, [x], {"threshold": float(t), "signed": signed, "num_bits": bits})
        want = [float(f32(round(f32(clip(Fraction(v), low, high) / s)) * s)) for v in x.reshape(-1).tolist()]
        assert_equal(got, F(want).reshape(x.shape), f"{bits} {signed} {t}", signed_zeros=False)


@pytest.mark.parametrize("bits", WIDTHS)
def test_uniform_activations(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for _ in range(4):
        low = Fraction(float(F(rng.uniform(-4, 2))))
        high = Fraction(float(F(low + Fraction(rng.uniform(0.01, 5)))))
        a, b, s = ranges(low, high, bits, f64)
        x = values(rng, np.float64(float(s)))
        got = mct(
            "ActivationUniformQuantizer", [x], {"num_bits": bits, "min_range": float(low), "max_range": float(high)}
        )
        reals = (f64(f64(s * round(f64(f64(clip(Fraction(v), a, b) - a) / s))) + a) for v in x.reshape(-1).tolist())
        want = [float(nearest32(real)) if real else 0.0 for real in reals]
        assert_equal(got, F(want).reshape(x.shape), f"{bits} {low} {high}", signed_zeros=False)


ONE = {"num_bits": 8, "per_channel": 0, "channel_axis": 0}
EACH = {"num_bits": 8, "per_channel": 1, "channel_axis": 0}
ACTIVATION = {"threshold": 1.0, "signed": 1, "num_bits": 8}


def test_special_numbers_and_empty_tensors() -> None:
    x = F([math.nan, math.inf, -math.inf])
    assert_equal(mct("WeightsSymmetricQuantizer", [x, F([1])], ONE), F([math.nan, 127 / 128, -1]))
    assert_equal(mct("ActivationPOTQuantizer", [x], ACTIVATION), F([math.nan, 127 / 128, -1]))
    limits = {"num_bits": 1, "min_range": 0.0, "max_range": 1.0}
    assert_equal(mct("ActivationUniformQuantizer", [x], limits), F([math.nan, 1, 0]))
    assert_equal(
        mct("WeightsUniformQuantizer", [x, F([-1]), F([1])], {**ONE, "num_bits": 2}).round(2),
        F([math.nan, 0.67, -1.33]),
    )
    assert_equal(mct("WeightsLUTPOTQuantizer", [x, F([-128, 64]), F([1])], ONE), F([-1, 0.5, -1]))
    assert mct("WeightsSymmetricQuantizer", [np.zeros((0, 3), F), np.zeros(0, F)], EACH).shape == (0, 3)
    assert mct("ActivationSymmetricQuantizer", [np.zeros((2, 0), F)], ACTIVATION).shape == (2, 0)
    assert mct("ActivationSymmetricQuantizer", [F(0.5)], ACTIVATION).tolist() == 0.5


REFUSED = [
    ("WeightsSymmetricQuantizer", [F([1, 2]), F([1, 2, 3])], EACH, "QR208", "threshold has shape"),
    ("WeightsSymmetricQuantizer", [F([1, 2]), F([1, 2])], ONE, "QR208", "threshold has shape"),
    ("WeightsSymmetricQuantizer", [F([1, 2]), F([0])], ONE, "QR202", "empty range"),
    ("WeightsSymmetricQuantizer", [F([1, 2]), F([1])], {**ONE, "num_bits": 0}, "QR204", "num_bits is 0"),
    ("WeightsPOTQuantizer", [F([1, 2]), F([1, 2])], {**EACH, "channel_axis": 1}, "QR204", "channel_axis is 1"),
    ("WeightsUniformQuantizer", [F([1, 2]), F([1]), F([1])], ONE, "QR202", "empty range"),
    ("WeightsLUTPOTQuantizer", [F([1, 2]), F([]), F([1])], ONE, "QR202", "lut_values has no numbers"),
    ("WeightsLUTPOTQuantizer", [F([1, 2]), F([1, math.nan]), F([1])], ONE, "QR202", "or NaN"),
    ("WeightsLUTPOTQuantizer", [F([1, 2]), F([1]), F([1, 2])], {**EACH, "input_rank": 4}, "QR204", "input_rank is 4"),
    ("ActivationSymmetricQuantizer", [F([1, 2])], {**ACTIVATION, "threshold": -1.0}, "QR202", "empty range"),
    ("ActivationPOTQuantizer", [F([1, 2])], {**ACTIVATION, "num_bits": 33}, "QR204", "num_bits is 33"),
    (
        "ActivationUniformQuantizer",
        [F([1, 2])],
        {"num_bits": 8, "min_range": 1.0, "max_range": 1.0},
        "QR202",
        "empty range",
    ),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "code", "told"), REFUSED)
def test_refused(op_type: str, inputs: list[Any], attributes: dict[str, Any], code: str, told: str) -> None:
    with pytest.raises(qrun.QrunError) as caught:
        mct(op_type, inputs, attributes)
    assert (caught.value.code, told in str(caught.value)) == (code, True), caught.value


def test_shapes_are_inferred_through_it() -> None:
    model, _ = node_model("ActivationPOTQuantizer", [F(np.ones((2, 3)))], ACTIVATION, domain=MCT, outputs=[F])
    model.graph.node.append(helper.make_node("Transpose", ["y0"], ["y1"]))
    model.graph.output[0].name = "y1"
    assert infer(model.SerializeToString(), expansion)["y1"].shape == (3, 2)
