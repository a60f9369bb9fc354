"""Requantization: exact steps, proofs, and every form driven through the kernels to each step and one below it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.native import LIMITS, THOROUGH, Array, engine, every_isa, exact_result, thin
from helpers.native_cases import OUTPUTS, RATIOS, SPECIAL, critical, run

from qrun.native.kernels.conv import Gemm
from qrun.native.kernels.results import Results
from qrun.native.proof.epilogue import Target, prove
from qrun.native.proof.search import Steps, exact_steps

F = np.float32


def apply_steps(steps: Steps, acc: Array, lowest: int) -> Array:
    """The exact result for accumulators [N, ...]."""
    out = np.empty(acc.shape, np.int64)
    for channel, row in enumerate(steps.steps):
        value = ~acc[channel] if steps.mirrored[channel] else acc[channel]
        out[channel] = lowest + np.searchsorted(row, value, side="right")
    return out


@pytest.mark.parametrize("name", [*RATIOS, *SPECIAL])
def test_steps_are_exact(name: str) -> None:
    scales = tuple(F(v) for v in {**RATIOS, **SPECIAL}[name])
    for out, zero in OUTPUTS:
        points = critical(scales, out, zero)
        steps = exact_steps(scales[0], np.array([scales[1]], F), scales[2], LIMITS[out][0], zero)
        got = apply_steps(steps, points[None], LIMITS[out][0])[0]
        want = [exact_result(int(acc), *scales, out, zero) for acc in points]
        assert got.tolist() == want, (out, zero)


def test_steps_of_random_scales_are_exact() -> None:
    rng = np.random.default_rng(4)
    for number in range(300):
        scales = (np.exp2(rng.uniform(-40, 20, 3)) * rng.choice([1, 1, 1, -1], 3)).astype(F)
        scales[2] = F(scales[0] * scales[1] * np.exp2(rng.uniform(-12, 40)))
        out, zero = OUTPUTS[number % len(OUTPUTS)]
        points = rng.choice(critical(tuple(scales), out, zero), 25)
        steps = exact_steps(scales[0], scales[1:2], scales[2], LIMITS[out][0], zero)
        got = apply_steps(steps, points[None], LIMITS[out][0])[0]
        assert got.tolist() == [exact_result(int(acc), *scales, out, zero) for acc in points], (number, scales)


def planted(isa: str, target: Target, points: Array) -> tuple[Array, Gemm]:
    """Results for these accumulators, each the bias of one column, in a product that is zero."""
    rows = engine(isa).isa.rows[engine(isa).isa.vectors] + 1
    w = np.zeros((4, len(points)), np.int8)
    zero = np.array(9, np.uint8)
    plan = Gemm(engine(isa), (rows, 4), w, x_zero_point=zero, bias=points.astype(np.int32), target=target)
    y = run(plan, np.full((rows, 4), 9, np.uint8))
    assert (y == y[0]).all()
    return y[0].astype(np.int64), plan


def forms(plan: Gemm) -> set[str]:
    return {section.spec.form for section in plan.tight}


@thin(*RATIOS, *SPECIAL, other=6, name="name")
def test_every_step_through_the_kernel(isa: str, name: str) -> None:
    scales = tuple(F(v) for v in {**RATIOS, **SPECIAL}[name])
    for out, zero in OUTPUTS[len(name) % 2 :: 2]:
        points = critical(scales, out, zero)
        target = Target(scales[0], np.array([scales[1]], F), scales[2], out, zero)
        for limit in (2**21, 2**24 - 600, 2**32) if out == "u8" else (2**32,):
            chosen = points[np.abs(points) < limit]
            got, plan = planted(isa, target, chosen)
            want = [exact_result(int(acc), *scales, out, zero) for acc in chosen]
            assert got.tolist() == want, (out, zero, limit, forms(plan))


@every_isa
@pytest.mark.parametrize("form", ["y32", "x32", "f64", "table"])
def test_every_form_that_is_proven_is_right(isa: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Results, "form", lambda self, channels: form)
    used = 0
    few = 1 if isa in THOROUGH else 2
    for (name, scales), (out, zero) in itertools.product(list(RATIOS.items())[::few], OUTPUTS[:: 2 * few]):
        x, w, y = (F(v) for v in scales)
        points = critical((x, w, y), out, zero)
        points = points[np.abs(points) < 2**21]
        target = Target(x, np.array([w], F), y, out, zero)
        rows = np.repeat([[points.min()], [points.max()]], 2, axis=1)
        proven = prove(target, rows[0], rows[1], engine(isa).isa.fma)
        if form == "table" or (getattr(proven, form)[0] and (form != "f64" or not proven.x32[0])):
            used += 1
            got, plan = planted(isa, target, points)
            assert forms(plan) == {form}
            assert got.tolist() == [exact_result(int(acc), x, w, y, out, zero) for acc in points], (name, out, zero)
    if isa in THOROUGH:
        assert used


@pytest.mark.parametrize("fma", [True, False])
def test_ranges_without_a_step_are_proven_too(fma: bool) -> None:
    for (name, scales), (out, zero) in itertools.product(RATIOS.items(), OUTPUTS[::2]):
        x, w, y = (F(v) for v in scales)
        points = critical((x, w, y), out, zero)
        points = points[np.abs(points) < 2**24]
        scale = np.append(np.full(len(points), w), F(0.77))
        ends = np.append(points, 5)
        proven = prove(Target(x, scale, y, out, zero), ends, ends, fma)
        low, high = LIMITS[out]
        want = np.array([exact_result(int(acc), x, w, y, out, zero) for acc in points])
        product = (points.astype(F) * proven.a[:-1]).astype(np.float64) * proven.b[:-1]
        got = np.clip(np.rint(product if fma else product.astype(F)) + zero, low, high)
        assert np.array_equal(got[proven.x32[:-1]], want[proven.x32[:-1]]), (name, out, zero)
        got = np.clip(np.rint(points * proven.m[:-1]) + zero, low, high)
        assert np.array_equal(got[proven.f64[:-1]], want[proven.f64[:-1]]), (name, out, zero)


@every_isa
def test_products_drive_the_accumulator_to_every_step(isa: str) -> None:
    rng = np.random.default_rng(5)
    weights = np.r_[np.full(24, 127), 1].astype(np.int8)
    columns = 70
    for out, zero in (("u8", 0), ("u8", 119), ("s8", -3)):
        scales = rng.uniform(0.002, 0.02, columns).astype(F)
        target = Target(F(0.11), scales, F(0.23), out, zero)
        points = np.unique(np.concatenate([critical((F(0.11), s, F(0.23)), out, zero) for s in scales[:6]]))
        points = points[np.abs(points) < 24 * 127 * 120]
        whole = (points + 64) // 127
        x = np.zeros((len(points), 25), np.int64)
        x[:, 24] = points - 127 * whole
        x[:, :24] = whole[:, None] // 24 + (np.arange(24) < (whole % 24)[:, None])
        plan = Gemm(
            engine(isa), x.shape, np.repeat(weights[:, None], columns, 1), x_zero_point=np.int8(0), target=target
        )
        steps = exact_steps(F(0.11), scales, F(0.23), LIMITS[out][0], zero)
        want = apply_steps(steps, np.repeat(points[None], columns, 0), LIMITS[out][0])
        assert np.array_equal(run(plan, x.astype(np.int8)).T.astype(np.int64), want), (out, zero, forms(plan))


@thin(*RATIOS, *SPECIAL, name="name")
def test_ort_arithmetic_is_onnxruntimes(isa: str, name: str) -> None:
    x, w, y = (F(v) for v in {**RATIOS, **SPECIAL}[name])
    out, zero = OUTPUTS[len(name) % len(OUTPUTS)]
    points = critical((x, w, y), out, zero)
    low, high = LIMITS[out]
    with np.errstate(all="ignore"):
        rounded = np.rint(points.astype(F) * (F(x * w) / y))
        want = np.where(np.isnan(rounded), low, np.clip(rounded + zero, low, high))
    got, plan = planted(isa, Target(x, np.array([w], F), y, out, zero, "ort"), points)
    assert forms(plan) == {"ort"}
    assert np.array_equal(got, want)


def test_real_channels_prove_in_float32() -> None:
    rng = np.random.default_rng(6)
    scales = rng.uniform(0.001, 0.03, 2000).astype(F)
    reach = rng.integers(20_000, 400_000, 2000)
    for out, zero in (("u8", 0), ("u8", 128), ("s8", 0)):
        proven = prove(Target(F(0.02), scales, F(0.05), out, zero), -reach, reach)
        assert proven.y32.all()
