"""Products and quantizations whose parameters or weights are known at run time: kernels against exact numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.native import ISAS, Array, Guarded, codes, engine, every_isa, exact_result, nearest32, thin

import qrun.native.kernels.finish
import qrun.native.kernels.packing
import qrun.native.kernels.ranges
import qrun.native.machine.batch
from qrun.native.kernels.dynamic import Matmul
from qrun.native.kernels.finish import Finish, requantization
from qrun.native.kernels.ranges import DynamicQuantizer
from qrun.native.machine.batch import Buffer
from qrun.native.machine.operation import Operand
from qrun.native.proof.epilogue import Target

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
INT32 = (-(2**31), 2**31 - 1)


def wrapped(a: Array, b: Array, a_zero: Any, b_zero: Any, addend: Any = 0) -> Array:
    sums = np.matmul(a.astype(np.int64) - a_zero, b.astype(np.int64) - b_zero) + addend
    return sums.astype(np.int32)


def case(rng: np.random.Generator, number: int, stack: Any, sizes: Any) -> tuple[Array, Array, Array, Array, Any]:
    """a, b, a_zero, b_zero and addend; their types and memory vary with the number."""
    (la, lb), (m, k, n) = stack, sizes
    ta, tb = ("u8", "s8")[number % 2], ("u8", "s8")[number // 2 % 2]
    a, b = codes(rng, (*la, m, k), ta), codes(rng, (*lb, k, n), tb)
    form = number % 5
    if form == 1:
        b = np.swapaxes(np.ascontiguousarray(np.swapaxes(b, -1, -2)), -1, -2)
    if form == 2:
        a = np.swapaxes(codes(rng, (*la, k, m), ta), -1, -2)
        b = codes(rng, (*lb, 2 * k, 3 * n), tb)[..., ::2, ::3]
    if form == 3:
        a = codes(rng, (*la, m + 1, k + 7), ta)[..., :m, :k]
        b = codes(rng, (*lb, k + 2, n + 3), tb)[..., :k, :n]
    a_zero = codes(rng, () if form in (0, 3) else (*np.broadcast_shapes(la, lb), m, 1), ta).astype(np.int32)
    shape = {0: (1, 1), 1: (1, n), 2: (int(np.prod(lb)), n), 3: (1, n), 4: (1, 1)}[form]
    b_zero = codes(rng, shape, tb).astype(np.int32)
    if form == 4:
        b_zero[...] = 128 if tb == "u8" else 0
    addend = rng.integers(*INT32, n, endpoint=True).astype(np.int32) if form % 2 else None
    return a, b, a_zero, b_zero, addend


def planned(isa: str, a: Array, b: Array, threads: int = 1, **more: Any) -> Matmul:
    return Matmul(engine(isa, threads), Operand(a.shape, a.dtype), Operand(b.shape, b.dtype), **more)


@thin(*range(len(edges.STACKS) * len(edges.PRODUCTS)), best=1, other=3, name="which", products=True)
def test_sums_wrap_like_int32(isa: str, which: int) -> None:
    rng = np.random.default_rng(which)
    stack, sizes = edges.STACKS[which % len(edges.STACKS)], edges.PRODUCTS[which // len(edges.STACKS)]
    for number in range(20):
        a, b, a_zero, b_zero, addend = case(rng, number, stack, sizes)
        matrices = b_zero if len(b_zero) == 1 else b_zero.reshape(*b.shape[:-2], 1, b.shape[-1])
        want = wrapped(a, b, a_zero, matrices, 0 if addend is None else addend)
        matmul = planned(isa, a, b, 3 if number % 7 == 6 else 1)
        kernels = [matmul, matmul]
        if b.ndim == 2:
            zero = b_zero[0] if number % 3 else None
            kernels.append(planned(isa, a, b, weights=b, zero=zero))
        for kernel in kernels:
            got = kernel.run(a, b, a_zero.reshape(-1), b_zero, addend=addend)
            assert got.dtype == np.int32
            assert got.shape == want.shape
            assert np.array_equal(got, want), (number, stack, sizes, a.dtype, b.dtype)


@every_isa
def test_extreme_codes_and_long_sums(isa: str) -> None:
    k = 33100
    a = np.full((2, k), 255, np.uint8)
    for value, kind in ((255, np.uint8), (0, np.uint8), (-128, np.int8), (127, np.int8)):
        b = np.full((k, 3), value, kind)
        for a_zero, b_zero in ((0, 0), (255, 255), (0, -128 if kind == np.int8 else 255)):
            zeros = np.array([a_zero], np.int32), np.array([[b_zero]], np.int32)
            want = wrapped(a, b, a_zero, b_zero)
            assert np.array_equal(planned(isa, a, b).run(a, b, *zeros), want)
            assert np.array_equal(planned(isa, a, b, weights=b, zero=zeros[1][0]).run(a, b, *zeros), want)


def test_weights_that_change_are_packed_again() -> None:
    rng = np.random.default_rng(3)
    zeros = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    a, b = codes(rng, (4, 20), "u8"), codes(rng, (20, 9), "s8")
    matmul = planned(ISAS[0], a, b)
    for _ in range(3):
        a, b = codes(rng, (4, 20), "u8"), codes(rng, (20, 9), "s8")
        for view in (b, np.asfortranarray(b)):
            assert np.array_equal(matmul.run(a, view, *zeros), wrapped(a, b, 0, 0))


def test_other_operands_than_planned_are_refused() -> None:
    a, b = np.zeros((4, 20), np.uint8), np.zeros((20, 9), np.int8)
    zeros = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    matmul = planned(ISAS[0], a, b, form="real")
    held = matmul.finish.constants([np.ones((1, 9))] * 4)
    matmul.run(a, b, *zeros, held)
    for arguments in (
        (a[:3], b, *zeros, held), (a[:, :19], b, *zeros, held), (a, b[:, :8], *zeros, held), (a, b[:19], *zeros, held),
        (a.view(np.int8), b, *zeros, held), (a, b.view(np.uint8), *zeros, held), (a, b, np.zeros(2, np.int32), zeros[1], held),
        (a, b, zeros[0], np.zeros((1, 8), np.int32), held), (a, b, zeros[0], np.zeros((2, 9), np.int32), held),
        (a, b, *zeros, None), (a, b, *zeros, held[..., :3]), (a, b, *zeros, held.astype(F)), (a, b, *zeros, held[:, :0]),
        (a, b, *zeros, held, np.zeros(8, np.int32)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="not as planned"):
            matmul.run(*arguments)


def test_runs_in_several_threads_do_not_meet() -> None:
    rng = np.random.default_rng(4)
    a, b = codes(rng, (2, 300, 1500), "u8"), codes(rng, (2, 1500, 1500), "u8")
    zeros = np.full(1, 3, np.int32), np.full((1, 1), 99, np.int32)
    matmul = planned(ISAS[0], a[0], b[0])
    matmul.run(a[0], b[0], *zeros)
    together = Barrier(2)

    def runs(which: int) -> list[Array]:
        together.wait()
        return [matmul.run(a[which], b[which], *zeros) for _ in range(6)]

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(runs, range(2)))
    want = np.matmul(a.astype(np.float64) - 3, b.astype(np.float64) - 99)
    assert all(np.array_equal(got, want[which]) for which in range(2) for got in made[which])


# Float results


def ties(rng: np.random.Generator, count: int) -> Array:
    """int32 sums that need 25 bits or more and often lie between two float32, and both ends."""
    sums = rng.integers(2**24, 2**31, count) | 1
    sums[::3] = (sums[::3] >> 8 << 8) + 128
    sums[1::5] = rng.integers(-5, 6, len(sums[1::5]))
    sums[:4] = (*INT32, 0, 2**24 + 1)
    return np.where(rng.random(count) < 0.5, sums, -sums).clip(*INT32).astype(np.int32)


@every_isa
@pytest.mark.parametrize("factors", [2, 3])
def test_one_rounding_to_float32(isa: str, factors: int) -> None:
    rng = np.random.default_rng(5)
    n, rows = 37, 24
    scales = [F(1), F(0.5), F(0.1), F(1 / 255), F(2**-140), F(2**100), F(1e-45), F(-0.75), np.nextafter(F(2), F(0))]
    left = F(0.1) if factors == 2 else F(0.1) * np.float64(F(1 / 3))
    right = np.array([scales[i % len(scales)] for i in range(n)], F)
    acc = np.stack([ties(rng, n) for _ in range(rows)])
    exact = [Fraction(float(left)) * Fraction(float(value)) for value in right]
    bias = np.where(
        np.arange(n) % 3 == 0, 0, [-int(acc[i % rows, i]) * float(left) * float(right[i]) for i in range(n)]
    ).astype(F)
    factor = np.array([float(value) for value in exact])
    low = np.array([float(value - Fraction(float(value))) for value in exact])
    for addend in (bias, np.zeros(n, F)):
        reach = 2.0**31 * 2.0**-50 * factor + np.abs(addend.astype(np.float64)) * 2.0**-51
        finish = Finish(engine(isa), n, "real")
        held = finish.constants([row[None] for row in (factor, reach, low, addend)])
        y = Buffer.empty((rows, n), F)
        sums = Buffer.empty((rows * n + 16,), np.int32)
        sums.array[: rows * n] = acc.reshape(-1)
        finish.run({}, sums, y, rows, [], held)
        want = np.array(
            [[nearest32(int(acc[i, j]) * exact[j] + Fraction(float(addend[j]))) for j in range(n)] for i in range(rows)]
        )
        assert np.array_equal(y.array, want)


@every_isa
def test_infinite_and_missing_numbers_follow_ieee(isa: str) -> None:
    factor = np.array([np.inf, np.nan, -np.inf, 1e300, 0.0, 1.0, 1.0, -1.0])
    bias = np.array([1, 1, np.inf, 1, np.nan, -np.inf, -0.0, -0.0])
    acc = np.array([[5] * 8, [0] * 8, [-5] * 8], np.int32)
    finish = Finish(engine(isa), 8, "real")
    held = finish.constants([factor[None], np.zeros((1, 8)), np.zeros((1, 8)), bias[None]])
    y, sums = Buffer.empty((3, 8), F), Buffer.empty((40,), np.int32)
    sums.array[:24] = acc.reshape(-1)
    finish.run({}, sums, y, 3, [], held)
    with np.errstate(all="ignore"):
        want = (acc * factor + bias).astype(F)
    assert np.array_equal(y.array, want, equal_nan=True)
    assert np.array_equal(np.signbit(y.array[1, 6:]), [False, True])


@thin(*[(form, out) for form in ("y32", "x32", "f64", "table", "ort") for out in ("u8", "s8")], other=2, name="case")
def test_requantized_sums(isa: str, case: tuple[str, str]) -> None:
    form, out = case
    rng = np.random.default_rng(6)
    n, rows, zero = 21, 30, 113 if out == "u8" else -7
    y_scale, reach = {"y32": (F(97.3), 2**20), "x32": (F(70001), 2**25), "f64": (F(2e7), 2**31), "table": (F(-41), 2**31),
                      "ort": (F(0.3), 2**31)}[form]  # fmt: skip
    target = Target(F(1), np.full(1, 1.0, F), y_scale, out, zero, "ort" if form == "ort" else "exact")
    results = requantization(engine(isa), target, n, max(-reach, INT32[0]), min(reach, INT32[1]))
    finish = Finish(engine(isa), n, "i32", results)
    assert finish.form == form or not engine(isa).isa.fma
    acc = rng.integers(-reach // 64, reach // 64, (rows, n)).astype(np.int32)
    acc[::2] = np.round((rng.integers(-140, 140, acc[::2].shape) + 0.5) * float(y_scale)).clip(-reach, reach - 1)
    row, column = rng.integers(-99, 99, rows).astype(np.int32), rng.integers(-99, 99, (1, n)).astype(np.int32)
    y, sums = Buffer.empty((rows, n), finish.dtype), Buffer.empty((rows * n + 16,), np.int32)
    start = acc - row[:, None] * column
    if finish.form == "y32":
        start += np.int32(0x4B400000)
    sums.array[: rows * n] = start.reshape(-1)
    finish.run({}, sums, y, rows, [(row, column)], None)
    if form == "ort":
        m = F(1) / y_scale
        low, high = (0, 255) if out == "u8" else (-128, 127)
        want = np.clip(np.rint(acc.astype(F) * m), low - zero, high - zero).astype(np.int32) + zero
    else:
        want = np.array([[exact_result(int(v), 1, 1, y_scale, out, zero) for v in line] for line in acc])
    assert np.array_equal(y.array, want)


# Dynamic quantization


def quantized(x: Array, scale: np.float32, zero: int) -> Array:
    with np.errstate(all="ignore"):
        rounded = np.rint(np.divide(x, scale, dtype=F))
    rounded[np.isnan(rounded)] = -np.inf
    return (np.clip(rounded, -zero, 255 - zero) + zero).astype(np.uint8)


@thin(0, 1, 3, 15, 16, 17, 63, 64, 65, 200, 5000, best=1, other=2, name="count")
def test_ranges_and_codes(isa: str, count: int) -> None:
    rng = np.random.default_rng(count)
    scales = (F(0.1), F(0.25), F(1 / 255), F(1e-40), F(2**-126), F(3e38), F(np.inf), F(1e-45), np.nextafter(F(1), F(0)))
    for number, scale in enumerate(scales):
        zero = (0, 255, 117)[number % 3]
        with np.errstate(all="ignore"):
            x = (
                np.where(rng.random(count) < 0.5, rng.integers(-600, 600, count) / 2, rng.normal(0, 99, count)).astype(
                    F
                )
                * scale
            )
            x = np.nextafter(x, rng.normal(0, 1, count).astype(F)) if number % 2 else x
        quantizer = DynamicQuantizer(engine(isa, 3 if number % 4 == 3 else 1), count)
        if count and number == 0:
            x[rng.integers(0, count)] = np.nan
        if count > 1 and number == 2:
            x[rng.integers(0, count)] = -np.inf
        found = quantizer.range(x)
        if not np.isfinite(x).all():
            assert found is None
        else:
            assert found == (x.min(initial=0), x.max(initial=0))
        y = Buffer.empty((count,), np.uint8)
        quantizer.codes(x, np.array(scale), np.array(zero, np.uint8), y)
        assert np.array_equal(y.array, quantized(x, scale, zero)), (scale, zero)


@every_isa
def test_codes_next_to_every_tie(isa: str) -> None:
    rng = np.random.default_rng(8)
    for scale in (*np.exp(rng.uniform(-20, 20, 12)).astype(F), F(0.1), F(1 / 255)):
        middle = ((np.arange(-300, 300) + 0.5) * np.float64(scale)).astype(F)
        x = np.concatenate([middle, *(np.nextafter(middle, F(end)) for end in (-np.inf, np.inf))])
        y = Buffer.empty(x.shape, np.uint8)
        DynamicQuantizer(engine(isa), x.size).codes(x, np.array(scale), np.array(128, np.uint8), y)
        assert np.array_equal(y.array, quantized(x, scale, 128)), scale


def test_other_arrays_than_planned_are_not_quantized() -> None:
    quantizer, x = DynamicQuantizer(engine(ISAS[0]), 8), np.zeros(8, F)
    one, zero, y = np.ones((), F), np.zeros((), np.uint8), Buffer.empty((8,), np.uint8)
    for wrong in (x[:7], x.astype(np.float64), np.zeros(16, F)[::2]):
        with pytest.raises(ValueError, match="8 contiguous float32"):
            quantizer.range(wrong)
        with pytest.raises(ValueError, match="8 contiguous float32"):
            quantizer.codes(wrong, one, zero, y)
    with pytest.raises(ValueError, match="not room"):
        quantizer.codes(x, one, zero, Buffer.empty((7,), np.uint8))
    with pytest.raises(ValueError, match="not a float32"):
        quantizer.codes(x, one.astype(np.float64), zero, y)


# Memory


@pytest.mark.parametrize("at_end", [True, False])
@every_isa
def test_nothing_beyond_the_buffers_is_touched(isa: str, at_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guarded()

    def guarded(shape: Any, dtype: Any, fill: Any = None) -> Array:
        shape = (shape,) if isinstance(shape, int) else shape
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        whole = guard.take(-(-size // 64) * 64 if at_end else size, at_end)
        array = whole[:size].view(dtype).reshape(shape)
        array[...] = 0 if fill is None else fill
        return array

    def exactly(array: Array) -> Array:
        """The same values against a guard page, whatever the alignment."""
        held = guard.take(array.nbytes, at_end).view(array.dtype).reshape(array.shape)
        held[...] = array
        return held

    def empty(cls: type[Buffer], shape: tuple[int, ...], dtype: Any) -> Buffer:
        return cls(exactly(np.empty(shape, dtype)))

    for module in (
        qrun.native.machine.batch,
        qrun.native.kernels.finish,
        qrun.native.kernels.packing,
        qrun.native.kernels.ranges,
    ):
        monkeypatch.setattr(module, "aligned", guarded)
    monkeypatch.setattr(Buffer, "empty", classmethod(empty))
    rng = np.random.default_rng(9)
    lanes = engine(isa).isa.lanes
    sizes = [
        (m, k, n) for m in (1, 5, 6) for k in (1, 4, 17, 64) for n in (1, lanes - 1, lanes, lanes + 1, 4 * lanes + 3)
    ]
    for number, (m, k, n) in enumerate(sizes):
        lead = ((), (2,))[number % 2]
        a, b = (
            codes(rng, (*lead, m, k), ("u8", "s8")[number % 2]),
            codes(rng, (*lead, k, n), ("u8", "s8")[number // 2 % 2]),
        )
        a_zero, b_zero = np.array([7], np.int32), rng.integers(-9, 9, (1, n)).astype(np.int32)
        want = wrapped(a, b, 7, b_zero)
        turned = np.swapaxes(exactly(np.swapaxes(b, -1, -2)), -1, -2)
        matmul, floats = planned(isa, a, b), planned(isa, a, b, form="real" if number % 3 else "ort")
        count = 4 if number % 3 else 2
        held = exactly(floats.finish.constants([np.ones((1, n)), *[np.zeros((1, n))] * (count - 1)]))
        for right in (exactly(b), turned):
            assert np.array_equal(matmul.run(exactly(a), right, a_zero, b_zero), want)
            assert np.array_equal(floats.run(exactly(a), right, a_zero, b_zero, held), want.astype(F))
    for count in (1, 3, lanes, 4 * lanes - 1, 4 * lanes, 4 * lanes + 1, 500):
        x, y = exactly(rng.normal(0, 1, count).astype(F)), Buffer.empty((count,), np.uint8)
        quantizer = DynamicQuantizer(engine(isa), count)
        assert quantizer.range(x) == (x.min(initial=0), x.max(initial=0))
        quantizer.codes(x, np.array(F(0.01)), np.array(9, np.uint8), y)
        assert np.array_equal(y.array, quantized(x, F(0.01), 9))
