"""Native pools: the largest element of each window, and means that equal the reference's, on every instruction set."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.aarch64 import Foreign, every_aarch64, needs_qemu
from helpers.native import ISAS, LIMITS, SETS, TYPES, Array, codes, engine, every_isa, thin
from helpers.placed import natively, run_placed, same_everywhere
from helpers.support import MS, assert_equal, node_model
from helpers.widths import thin_width

from qrun.native.errors import Declined
from qrun.native.kernels.pool import AveragePool, MaxPool, MeanPool, SumPool, Taps
from qrun.native.proof.means import Means, _Class
from qrun.ops.pool import average_pool

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def window(size: int, kernel: int, stride: int, begin: int, end: int, dilation: int = 1) -> Array:
    """Coordinates [out, kernel] along one axis, -1 in the padding."""
    out = (size + begin + end - (kernel - 1) * dilation - 1) // stride + 1
    places = np.arange(out)[:, None] * stride - begin + np.arange(kernel) * dilation
    return np.where((places >= 0) & (places < size), places, -1)


def taps_of(rng: np.random.Generator, axes: int) -> Taps:
    size = [int(n) for n in rng.integers(3, 8, axes)]
    return Taps(tuple(size), tuple(
        window(n, int(rng.integers(1, 4)), int(rng.integers(1, 3)), *(int(p) for p in rng.integers(0, 2, 2)))
        for n in size
    ))  # fmt: skip


def windows(x: Array, taps: Taps, outside: Any) -> Array:
    """x [N,C,spatial...] to [N, C, pixels, taps]."""
    flat = np.concatenate([x.reshape(*x.shape[:2], -1), np.full((*x.shape[:2], 1), outside, x.dtype)], axis=2)
    return np.asarray(flat[:, :, taps.offsets(1)])


def singles(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """float32 numbers, NaN and infinities among them."""
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45], shape)
    return np.where(rng.random(shape) < 0.1, special, rng.standard_normal(shape)).astype(F)


@pytest.mark.parametrize("threads", [1, 3])
@thin(*edges.CHANNELS, name="channels", other=4)
def test_the_largest_element_of_each_window(isa: str, channels: int, threads: int) -> None:
    rng = np.random.default_rng([channels, threads])
    native = engine(isa, threads)
    for number in range(6):
        kind, taps = ("u8", "s8", "f32")[number % 3], taps_of(rng, 1 + (number + number // 3) % 3)
        x = singles(rng, (2, channels, *taps.image)) if kind == "f32" else codes(rng, (2, channels, *taps.image), kind)
        least = -np.inf if kind == "f32" else LIMITS[kind][0]
        found = windows(x, taps, least)
        first = np.take_along_axis(found, found.argmax(axis=3)[..., None], 3)
        want = first.reshape(2, channels, *taps.out)
        operation = MaxPool(native, x.shape, x.dtype, taps)
        for columns, further in ((0, 0), (channels + 5, channels + 1), (0, channels + 70)):
            strides = (columns * x.itemsize, further * x.itemsize)
            for at_end in (True, False):
                made = run_placed(native, operation, [x], strides, at_end)
                assert_equal(made, want, f"{isa} {kind} {channels} {taps.image} {strides}")
        last = MaxPool(native, (2, *taps.image, channels), x.dtype, taps, "rows")
        assert_equal(native.run(last, [np.moveaxis(x, 1, -1)]), np.moveaxis(want, 1, -1))


@every_isa
def test_zeros_of_both_signs(isa: str) -> None:
    """The first of equal elements, however many taps a turn takes."""
    x = np.random.default_rng(4).choice([0.0, -0.0, -1.0], (1, 5, 40)).astype(F)
    for kernel in range(1, 13):
        taps = Taps((40,), (window(40, kernel, 1, 0, 0),))
        found = windows(x, taps, -np.inf)
        want = found[..., 0]
        for tap in range(1, kernel):
            want = np.where(want >= found[..., tap], want, found[..., tap])
        got = engine(isa).run(MaxPool(engine(isa), x.shape, x.dtype, taps), [x])
        assert np.array_equal(got, want.reshape(got.shape))
        assert np.array_equal(np.signbit(got), np.signbit(want).reshape(got.shape)), kernel


def exact(acc: int, scales: tuple[Any, Any], divisor: float, zero: int, out: str) -> int:
    """saturate(RNE(acc * x_scale / (y_scale * divisor)) + zero)."""
    low, high = LIMITS[out]
    if divisor == 0:
        return low
    return min(max(round(Fraction(acc) * Fraction(float(scales[0])) / (Fraction(float(scales[1])) * int(divisor))) + zero,
                   low), high)  # fmt: skip


RATIOS = {
    "plain": (F(0.02), F(0.021)), "equal": (F(1), F(1)), "dyadic": (F(0.5), F(0.25)), "1/90": (F(1), F(90)),
    "1/255": (F(1 / 255), F(1 / 255)), "ties": (F(3), F(82)), "small": (F(1e-3), F(4)), "large": (F(7), F(0.01)),
    "tiny": (F(1e-30), F(1.1e-30)),
}  # fmt: skip


def means_of(taps: Taps, scales: tuple[Any, Any], kind: str, zeros: tuple[int, int], divisors: Array) -> Means:
    low, high = LIMITS[kind]

    def rule(sums: Array, divisor: float) -> Array:
        return np.asarray([exact(int(s), scales, divisor, zeros[1], kind) for s in sums.reshape(-1)]).reshape(
            sums.shape
        )

    both = (float(scales[0]), float(scales[1]))
    return Means.of(rule, both, taps.inside, divisors, (low - zeros[0], high - zeros[0]), zeros[1], kind)


@thin(*RATIOS, name="ratio", other=3)
def test_means_of_windows(isa: str, ratio: str) -> None:
    rng = np.random.default_rng(len(ratio))
    native = engine(isa, 1 + 2 * (len(ratio) % 2))
    for number, channels in enumerate((3, 16, 40, 130)):
        kind = ("u8", "s8")[number % 2]
        taps = Taps((5, 4), (window(5, 2 + number % 2, 1, 1, 0), window(4, 2, 2, 0, 0)))
        zeros = tuple(int(z) for z in rng.integers(LIMITS[kind][0], LIMITS[kind][1] + 1, 2))
        divisors = taps.inside.astype(np.float64) if number != 2 else np.full(taps.pixels, float(taps.count))
        scales = RATIOS[ratio]
        means = means_of(taps, scales, kind, (zeros[0], zeros[1]), divisors)
        x = codes(rng, (2, channels, 5, 4), kind)
        sums = windows(x.astype(np.int64) - zeros[0], taps, 0).sum(axis=3)
        want = np.empty(sums.shape, TYPES[kind])
        for pixel, divisor in enumerate(divisors):
            places = [exact(int(s), scales, divisor, zeros[1], kind) for s in sums[:, :, pixel].reshape(-1)]
            want[:, :, pixel] = np.reshape(places, sums.shape[:2])
        want = want.reshape(2, channels, *taps.out)
        operation = SumPool(native, x.shape, x.dtype, taps, zeros[0], means)
        for strides in ((0, 0), (channels + 3, channels + 9)):
            made = run_placed(native, operation, [x], strides, bool(number % 2))
            assert_equal(made, want, f"{isa} {ratio} {kind} {channels} {zeros} {strides} {means.form}")


@thin(
    *[
        (RATIOS["plain"], 49, "x32"), (RATIOS["equal"], 6, "x32"), (RATIOS["1/90"], 9, "x32"),
        (RATIOS["plain"], 49, "f64"), (RATIOS["plain"], 700, "f64"), (RATIOS["ties"], 50, "q64"),
        (RATIOS["equal"], 260, "q64"), (RATIOS["equal"], 4, "table"), ((F(np.inf), F(1)), 4, "table"),
        ((F(-0.02), F(0.021)), 9, "x32"), ((F(np.nan), F(1)), 3, "table"), ((F(1), F(0)), 2, "table"),
    ], name="case", other=2,
)  # fmt: skip
def test_every_form_gives_the_result_of_every_sum(
    isa: str, case: tuple[Any, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many sums, and those around each step, are reached by windows of one channel each."""
    scales, taps, form = case
    for cheaper in ("x32", "f64", "q64"):
        if cheaper == form:
            break
        monkeypatch.setattr(_Class, cheaper, lambda self: None)
    rng = np.random.default_rng(taps)
    kind, zeros = ("u8", "s8")[taps % 2], (3, -7 if taps % 2 else 101)
    low, high = LIMITS[kind]

    def rule(sums: Array, divisor: float) -> Array:
        if np.isfinite(scales).all() and scales[1]:
            return np.asarray([exact(int(s), scales, divisor, zeros[1], kind) for s in np.atleast_1d(sums)])
        with np.errstate(all="ignore"):
            value = np.rint(sums * float(scales[0]) / (np.float64(scales[1]) * divisor)) + zeros[1]
        return np.clip(np.where(np.isnan(value), low, value), low, high)

    image = Taps((taps,), (np.arange(taps)[None],))
    means = Means.of(rule, (float(scales[0]), float(scales[1])), image.inside, np.full(1, float(taps)),
                     (low - zeros[0], high - zeros[0]), zeros[1], kind)  # fmt: skip
    assert (means.form, bool(means.why)) == (form, form != "x32")
    totals = np.unique(np.concatenate([rng.integers(taps * low, taps * high + 1, 400),
                                       steps_near(rule, taps, low - zeros[0], high - zeros[0]) + taps * zeros[0]]))  # fmt: skip
    x = np.full((1, len(totals), taps), low, np.int64)
    each, rest = np.divmod(totals - taps * low, taps)
    x += each[None, :, None] + (np.arange(taps) < rest[:, None])
    operation = SumPool(engine(isa), x.shape, TYPES[kind], image, zeros[0], means)
    made = engine(isa).run(operation, [x.astype(TYPES[kind])])
    want = np.asarray(rule(totals - taps * zeros[0], float(taps)))
    assert np.array_equal(made[0, :, 0], want), f"{isa} {form}"


@pytest.mark.parametrize(
    ("scales", "taps", "form"),
    [(RATIOS["equal"], 12544, "x32"), (RATIOS["equal"], 99990, "f64"), (RATIOS["ties"], 150000, "q64")],
)
def test_large_windows_are_proven_at_their_steps(scales: Any, taps: int, form: str) -> None:
    taken = Taps((taps,), (np.arange(taps)[None],))
    means = means_of(taken, scales, "u8", (0, 0), np.full(1, float(taps)))
    assert means.form == form


def steps_near(rule: Any, taps: int, low: int, high: int) -> Array:
    """Sums next to which the result changes, found among at most 4000 by halving."""
    sums = np.linspace(taps * low, taps * high, 300).astype(np.int64)
    for _ in range(20):
        values = np.asarray(rule(sums, float(taps)))
        where = np.flatnonzero((np.diff(values) != 0) & (np.diff(sums) > 1))
        if not len(where):
            break
        sums = np.unique(np.concatenate([sums, (sums[where] + sums[where + 1]) // 2]))
    values = np.asarray(rule(sums, float(taps)))
    where = np.flatnonzero(np.diff(values) != 0)
    return np.concatenate([sums[where], sums[where + 1]])


def test_a_formula_that_misses_one_sum_is_not_taken() -> None:
    """A definition that is no rounding of a product is looked up, also where windows differ in their divisor."""
    taps = Taps((5,), (window(5, 2, 1, 1, 0),))
    rng = np.random.default_rng(8)

    def rule(sums: Array, divisor: float) -> Array:
        return np.where(np.asarray(sums) == 77, 3, np.clip(np.rint(np.asarray(sums) / divisor), 0, 255))

    means = Means.of(rule, (1.0, 1.0), taps.inside, taps.inside.astype(float), (0, 255), 0, "u8")
    assert means.form == "table"
    x = codes(rng, (1, 600, 5), "u8")
    x[0, :200, 1], x[0, :200, 0] = 77 - np.arange(200) % 78, np.arange(200) % 78
    for isa in SETS:
        made = engine(isa).run(SumPool(engine(isa), x.shape, np.uint8, taps, 0, means), [x])
        sums = windows(x.astype(np.int64), taps, 0).sum(axis=3)
        want = np.stack([rule(sums[:, :, p], d) for p, d in enumerate(taps.inside)], axis=2)
        assert (want == 3).any()
        assert np.array_equal(made, want)


def test_windows_too_large_for_a_proof_are_declined() -> None:
    with pytest.raises(Declined, match="unusual scale"):
        Means.of(lambda s, d: s * 0, (-1.0, 1.0), np.full(1, 5000), np.full(1, 5000.0), (0, 255), 0, "u8")
    with pytest.raises(Declined, match="no multiplier"):
        Means.of(lambda s, d: np.clip(np.asarray(s) // 7000, 0, 255), (1.0, 1.0), np.full(1, 20000),
                 np.full(1, 9999.0), (0, 255), 0, "u8")  # fmt: skip
    with pytest.raises(Declined, match="too large"):
        Taps((9000, 9000), (window(9000, 1, 1, 0, 0),) * 2)
    with pytest.raises(Declined, match="not 8-bit"):
        MaxPool(engine(ISAS[0]), (1, 2, 3), np.int16, Taps((3,), (window(3, 1, 1, 0, 0),)))
    taps = Taps((70000, 40000), (np.array([[69999]]), np.array([[39999]])))
    operation = MaxPool(engine(ISAS[0]), (1, 1, 70000, 40000), np.uint8, taps)
    with pytest.raises(Declined, match="larger than 2 GB"):
        operation.sections((0, 0))
    with pytest.raises(ValueError, match="outside the image"):
        Taps((3,), (np.array([[3]]),))
    with pytest.raises(ValueError, match="has not the image"):
        MaxPool(engine(ISAS[0]), (1, 2, 4), np.uint8, Taps((3,), (window(3, 1, 1, 0, 0),)))


@pytest.mark.parametrize("threads", [1, 3])
@every_isa
def test_float32_means_in_the_order_of_the_window(isa: str, threads: int) -> None:
    rng = np.random.default_rng(9)
    native = engine(isa, threads)
    for number, channels in enumerate((2, 16, 33, 70)):
        kind = ("u8", "s8")[number % 2]
        taps = taps_of(rng, 1 + number % 2)
        zero = int(rng.integers(LIMITS[kind][0], LIMITS[kind][1]))
        scales = ((F(0.1), F(0.3)), (F(3e38), F(1e-3)), (F(0.7), F(0.01)), (F(-1.3), F(0.9)))[number]
        x = codes(rng, (2, channels, *taps.image), kind)
        total = np.zeros((2, channels, taps.pixels), F)
        low, high = LIMITS[kind]
        with np.errstate(all="ignore"):
            for part in np.moveaxis(windows(x.astype(np.int64) - zero, taps, 0), 3, 0):
                total += part.astype(F) * scales[0]
            value = np.rint(total / taps.inside.astype(F) / scales[1] + F(-5))
        want = np.clip(np.where(np.isnan(value), low, value), low, high).astype(TYPES[kind])
        operation = MeanPool(native, x.shape, x.dtype, taps, zero, taps.inside, scales, -5)
        for strides in ((0, 0), (channels + 1, channels + 2)):
            made = run_placed(native, operation, [x], strides)
            assert_equal(made, want.reshape(made.shape), f"{isa} {kind} {channels} {scales}")


def pool_node(op_type: str, x: Array, scales: Any = (0.03, 0.04), zeros: Any = (7, 9), **attributes: Any) -> Any:
    inputs: list[Any] = [x]
    if op_type.startswith("QLinear"):
        point = [np.asarray(z).astype(x.dtype) for z in zeros]
        inputs += [np.array(F(scales[0])), point[0], np.array(F(scales[1])), point[1]]
    domain = "" if op_type == "MaxPool" else MS
    return node_model(op_type, inputs, attributes, domain=domain, outputs=[x.dtype], constants=range(1, len(inputs)))


@pytest.mark.parametrize("kind", ["u8", "s8"])
@pytest.mark.parametrize("place", range(len(edges.POOLS)))
def test_nodes_that_take_the_largest(place: int, kind: str) -> None:
    rng = np.random.default_rng(place)
    for op_type in ("MaxPool", "NhwcMaxPool"):
        for extra in ({}, {"dilations": [2, 1]} if place < 3 else {}):
            shape = (2, 20, 7, 8) if op_type == "MaxPool" else (2, 7, 8, 20)
            model, feeds = pool_node(op_type, codes(rng, shape, kind), **edges.POOLS[place], **extra)
            event = same_everywhere(model, feeds, threads=1 + place % 2).events[0]
            assert (event.backend, event.why) == ("native", "")
            assert [s.form for s in event.sections] == ["max"]


@pytest.mark.parametrize("arith", ["exact", "ort", "onnx-ref"])
@pytest.mark.parametrize("kind", ["u8", "s8"])
@pytest.mark.parametrize("place", range(len(edges.POOLS)))
def test_nodes_that_average(place: int, kind: str, arith: str) -> None:
    rng = np.random.default_rng(place)
    forms = set()
    for number, scales in enumerate(((0.03, 0.04), (0.5, 0.5), (1, 3), (0.25, 2))[place % 2 :: 2]):
        last, include = (number + place) % 2, (number + place) // 2 % 2
        zeros = rng.integers(*(np.array(LIMITS[kind]) + (0, 1)), 2)
        x = codes(rng, (2, 7, 8, 19) if last else (2, 19, 7, 8), kind)
        model, feeds = pool_node(
            "QLinearAveragePool", x, scales, zeros, channels_last=last, count_include_pad=include, **edges.POOLS[place]
        )
        event = same_everywhere(model, feeds, arith=arith).events[0]
        assert (event.backend, event.why) == ("native", "")
        forms.update(s.form for s in event.sections)
    assert (forms == {"ort"}) == (arith == "ort")


@pytest.mark.parametrize("arith", ["exact", "ort", "onnx-ref"])
@pytest.mark.parametrize(
    "shape", [(1, 40, 7, 7), (2, 3, 5), (1, 70, 40, 60), (2, 16, 1, 1), (1, 5, 2, 3, 4), (0, 4, 2, 2)]
)
def test_nodes_that_average_images(shape: tuple[int, ...], arith: str) -> None:
    rng = np.random.default_rng(sum(shape))
    for number, scales in enumerate(((0.03, 0.04), (0.5, 0.5), (1, 3))):
        kind, last = ("u8", "s8")[number % 2], number % 2
        x = codes(rng, (shape[0], *shape[2:], shape[1]) if last else shape, kind)
        zeros = rng.integers(*(np.array(LIMITS[kind]) + (0, 1)), 2)
        natively(*pool_node("QLinearGlobalAveragePool", x, scales, zeros, channels_last=last), arith=arith)


WEIRD = [(0.0, 0.1), (0.1, 0.0), (-0.1, 0.1), (np.nan, 0.1), (np.inf, 0.1), (1e-45, 0.1), (0.1, np.inf), (9.0, 0.01)]


@pytest.mark.parametrize("arith", ["exact", "ort"])
@pytest.mark.parametrize("scales", WEIRD)
def test_unusual_scales(scales: tuple[float, float], arith: str) -> None:
    x = codes(np.random.default_rng(10), (1, 20, 5, 5), "u8")
    for op_type, attributes in (
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
        ("QLinearGlobalAveragePool", {}),
    ):
        model, feeds = pool_node(op_type, x, scales, (7, 9), **attributes)
        event = same_everywhere(model, feeds, arith=arith).events[0]
        assert event.backend == "native" or event.why == "x_scale is not finite"


def test_windows_without_elements() -> None:
    x = codes(np.random.default_rng(11), (1, 20, 4), "u8")
    attributes = {"kernel_shape": [1], "strides": [2], "pads": [2, 1]}
    model, feeds = pool_node("MaxPool", codes(np.random.default_rng(11), (1, 20, 4), "s8"), **attributes)
    natively(model, feeds)
    for arith in ("exact", "ort"):
        event = same_everywhere(*pool_node("QLinearAveragePool", x, **attributes), arith=arith).events[0]
        assert event.backend == "native"
        assert {o.kind for o in event.observations} == {"nan-quantized"}
    model, feeds = pool_node("QLinearGlobalAveragePool", x[:, :, :0])
    assert same_everywhere(model, feeds).events[0].why == "the image is empty"


@needs_qemu
@every_aarch64
def test_pools_of_aarch64(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(14)
    foreign, cases = Foreign(isa), []
    for number, channels in enumerate((3, 16, 21, 40, 130)):
        kind, taps, order = ("u8", "s8")[number % 2], taps_of(rng, 2), ("channels", "rows")[number % 2]
        x = codes(rng, (2, channels, *taps.image), kind)
        zeros = tuple(int(z) for z in rng.integers(LIMITS[kind][0], LIMITS[kind][1] + 1, 2))
        given = np.moveaxis(x, 1, -1) if order == "rows" else x
        for form in ("max", "x32", "f64", "q64", "table", "ort"):
            with monkeypatch.context() as patch:
                for cheaper in ("x32", "f64", "q64"):
                    if form in ("max", "ort", cheaper):
                        break
                    patch.setattr(_Class, cheaper, lambda self: None)
                scales = RATIOS["plain" if number % 2 else "equal"]

                def plan(native: Any, form: str = form, taps: Taps = taps, x: Array = x, given: Array = given,
                         kind: str = kind, order: Any = order, zeros: Any = zeros, scales: Any = scales) -> Any:  # fmt: skip
                    if form == "max":
                        return MaxPool(native, given.shape, x.dtype, taps, order)
                    divisors = np.full(taps.pixels, float(taps.count))
                    if form == "ort":
                        return MeanPool(native, given.shape, x.dtype, taps, zeros[0], divisors, scales, zeros[1], order)
                    means = means_of(taps, scales, kind, zeros, divisors)
                    assert means.form == form
                    return SumPool(native, given.shape, x.dtype, taps, zeros[0], means, order)

                own = engine(ISAS[0])
                want = own.run(plan(own), [given])
                cases.append((f"{form} {kind} {channels}", foreign.run(plan(foreign), [given]), want))
    foreign.finish(tmp_path)
    for label, got, want in cases:
        assert_equal(got, want, label)


KINDS = ("normal", "ties", "hairs", "zeros", "special")


def mean_numbers(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """ties: sums that are the middle of two float32 numbers; hairs: what float64 loses decides them."""
    x = rng.standard_normal(shape)
    if kind == "ties":
        x = rng.integers(-(2**24), 2**24, shape) * 2.0**-20
    elif kind == "hairs":
        x = rng.choice([1.0, 2.0**-24, -(2.0**-24), 2.0**-80, -(2.0**-80), 1 + 2.0**-23], shape)
    elif kind == "zeros":
        x = rng.choice([0.0, -0.0, -0.0, -0.0, 1.0, -1.0], shape)
    elif kind == "special":
        x = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, 3e38, 1e-45], shape), x)
    return x.astype(F)


def mean_of(isa: str, x: Array, kernel: tuple[int, int], stride: int, pad: int, threads: int = 1) -> AveragePool:
    """The mean over windows of this size, padding not counted."""
    size = x.shape[2:]
    out = tuple((n + 2 * pad - k) // stride + 1 for n, k in zip(size, kernel, strict=True))
    places = [np.arange(o)[:, None] * stride - pad + np.arange(k) for o, k in zip(out, kernel, strict=True)]
    inside = [np.where((p >= 0) & (p < n), p, -1) for p, n in zip(places, size, strict=True)]
    taps = Taps(size, tuple(inside))
    divisors = np.maximum(taps.inside, 1).astype(np.float64)
    return AveragePool(engine(isa, threads), x.shape, taps, divisors)


@thin_width(*edges.CHANNELS, name="channels", other=4)
@pytest.mark.parametrize("threads", [1, 3])
def test_float_means(isa: str, channels: int, threads: int) -> None:
    rng = np.random.default_rng([channels, threads])
    for number, kind in enumerate(KINDS):
        kernel, stride, pad = (((2, 2), 2, 0), ((3, 3), 1, 1), ((5, 7), 1, 0), ((1, 3), 2, 1), ((3, 3), 2, 2))[number]
        x = mean_numbers(kind, rng, (2, channels, 7, 9))
        geometry = {"kernel_shape": kernel, "strides": (stride,) * 2, "pads": (pad,) * 4}
        want = average_pool(x, **geometry)
        operation = mean_of(isa, x, kernel, stride, pad, threads)
        for columns, further in ((0, 0), (channels + 5, channels + 1)):
            for at_end in (True, False):
                made = run_placed(engine(isa, threads), operation, [x], (4 * columns, 4 * further), at_end)
                assert_equal(made, want, f"{kind} {channels} {columns}")


@pytest.mark.parametrize("number", range(len(edges.POOLS)))
def test_float_mean_nodes(number: int) -> None:
    rng = np.random.default_rng(number)
    for kind, counted in (("normal", 0), ("ties", 1), ("hairs", 0), ("special", 1), ("zeros", 1)):
        x = mean_numbers(kind, rng, (2, 5, 11, 10))
        natively(*node_model("AveragePool", [x], {**edges.POOLS[number], "count_include_pad": counted}))


@pytest.mark.parametrize("axes", [1, 3])
def test_other_numbers_of_axes(axes: int) -> None:
    x = mean_numbers("ties", np.random.default_rng(axes), (2, 3, *(6, 5, 7)[:axes]))
    attributes = {"kernel_shape": [2] * axes, "dilations": [2] * axes, "pads": [1] * 2 * axes}
    natively(*node_model("AveragePool", [x], attributes))


def test_means_are_the_reals_rounded() -> None:
    """Where sums are exact in float64."""
    x = mean_numbers("ties", np.random.default_rng(9), (1, 8, 12, 12))
    got = engine("").run(mean_of("", x, (2, 2), 2, 0), [x])
    sums = x.astype(np.longdouble).reshape(1, 8, 6, 2, 6, 2).sum((3, 5))
    assert_equal(got, (sums / 4).astype(F))
    assert not math.isnan(got.sum())
