"""Native convolutions of float32 by patches equal the reference's, bit for bit: the real sum rounded once."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.float_conv import alone, assert_placed, filled
from helpers.native import Array, engine
from helpers.placed import same_everywhere
from helpers.sums import SPECIAL, all_in_doubt, assert_bits, beside_ties, exact
from helpers.support import node_model
from helpers.widths import every_width, thin_width

from qrun.native.emit.float_winograd import TAPS, TWO, Filtering, both
from qrun.native.kernels import float_winograd
from qrun.native.kernels.float_conv import FloatConv
from qrun.ops.conv import conv
from qrun.ops.lowering.products import exact_sums

F = np.float32
FILTERINGS = [TWO]
UNIT = 2.0**-53


def made(isa: str, x: Array, w: Array, bias: Array | None, threads: int = 1, **geometry: Any) -> FloatConv:
    operation = FloatConv(engine(isa, threads), x.shape, w, exact_sums(), bias=bias, **geometry)
    assert operation.geometry.patches
    assert all(call.spec.kind == "float_winograd" for call in operation.sections((0, 0)))
    return operation


def wanted(x: Array, w: Array, bias: Array | None, geometry: dict[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(conv(x, w, bias, **{"group": 1, **geometry}))


def case(kind: str, rng: np.random.Generator, number: int) -> tuple[Array, Array, Array, dict[str, Any]]:
    x_shape, w_shape, geometry = edges.FLOAT_PATCHES[number]
    return *filled(kind, rng, x_shape, w_shape, w_shape[0]), geometry


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """By patches wherever it is possible."""
    monkeypatch.setattr(float_winograd, "_LEAST", 1)
    monkeypatch.setattr(float_winograd, "_GAIN", 99)


@thin_width(*range(len(edges.FLOAT_PATCHES)), name="number")
@pytest.mark.parametrize("at_end", [True, False])
def test_geometries(isa: str, number: int, at_end: bool) -> None:
    x, w, bias, geometry = case("normal", np.random.default_rng(number), number)
    room = 4 * (x.shape[1] + 3), 4 * (w.shape[0] + 5)
    for given in (bias, None):
        plan = partial(made, isa, x, w, given, **geometry)
        assert_placed(isa, plan, x, wanted(x, w, given, geometry), at_end, room)


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    for number in (1, 3):
        x, w, bias, geometry = case(kind, rng, number)
        w = np.where(np.isfinite(w), w, F(0.5))
        for given in (bias, None):
            got = alone(made(isa, x, w, given, **geometry), x)
            assert_bits(got, wanted(x, w, given, geometry), f"{kind} {edges.FLOAT_PATCHES[number]}")


@every_width
def test_nothing_is_decided_by_the_ends_alone(isa: str) -> None:
    """If all sums are in doubt, they are settled; and if that decides nothing either, all are added exactly."""
    for lost in (None, 2.0):
        for number in (0, 3):
            x, w, bias, geometry = case("normal", np.random.default_rng(2), number)
            with all_in_doubt(lost):
                got = alone(made(isa, x, w, bias, **geometry), x)
            assert_bits(got, wanted(x, w, bias, geometry), f"{lost} {edges.FLOAT_PATCHES[number]}")


@every_width
def test_sums_beside_ties(isa: str) -> None:
    """What decides them is smaller than float64's last bit, and than what the transforms lose."""
    depth, images = 16, 14
    a, b = beside_ties(depth * TAPS**2, images, 9, np.random.default_rng(3))
    x = np.zeros((images, depth, 4, 4), F)
    x[:, :, :TAPS, :TAPS] = a.reshape(images, TAPS, TAPS, depth).transpose(0, 3, 1, 2)
    w = b.reshape(TAPS, TAPS, depth, 9).transpose(3, 2, 0, 1).copy()
    got = alone(made(isa, x, w, None), x)
    assert_bits(np.ascontiguousarray(got[:, :, 0, 0]), exact(a, b))
    assert_bits(got, wanted(x, w, None, {}))


@every_width
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e38, 2.0**70])
def test_a_pixel_of_other_results_leaves_no_trace(isa: str, odd: float) -> None:
    """A patch's results share its pixels' transform, in which what is small beside one of them is lost."""
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((1, 19, 8, 9)).astype(F), rng.standard_normal((10, 19, 3, 3)).astype(F)
    for down, across in ((0, 0), (3, 3), (4, 5), (7, 8)):
        changed = x.copy()
        changed[0, 7, down, across] = odd
        got = alone(made(isa, changed, w, None, pads=(1, 1, 1, 1)), changed)
        assert_bits(got, wanted(changed, w, None, {"pads": (1, 1, 1, 1)}), f"{odd} at {down}, {across}")


@every_width
def test_sums_that_cancel(isa: str) -> None:
    """Images whose differences, weights whose sums, or both together are far smaller than they themselves."""
    rng = np.random.default_rng(6)
    flat = np.broadcast_to(rng.standard_normal((1, 16, 1, 1)).astype(F), (1, 16, 9, 8))
    near = flat * (1 + F(2.0**-22) * rng.integers(-2, 3, flat.shape).astype(F))
    edge = rng.standard_normal((9, 16, 1, 1)).astype(F) * np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], F)
    dull = edge * (1 + F(2.0**-22) * rng.integers(-2, 3, edge.shape).astype(F))
    for x in (np.ascontiguousarray(flat), near):
        for w in (edge, dull):
            assert_bits(alone(made(isa, x, w, None), x), wanted(x, w, None, {}))


class Counted:
    """A number that knows how many roundings one of its terms has had; factors of a half are exact."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth

    def __add__(self, other: Counted) -> Counted:
        return Counted(max(self.depth, other.depth) + 1)

    __sub__ = __add__

    def __mul__(self, factor: float) -> Counted:
        return Counted(self.depth + (np.frexp(factor)[0] != 0.5))


@pytest.mark.parametrize("filtering", FILTERINGS)
def test_transforms_are_those_of_a_convolution(filtering: Filtering) -> None:
    rng = np.random.default_rng(7)
    side, results = filtering.side, filtering.results
    for _ in range(20):
        d, g = ([Fraction(int(n), 7) for n in rng.integers(-99, 100, count)] for count in (side**2, TAPS**2))
        g = [x * 7 for x in g]
        products = [a * b for a, b in zip(both(filtering.image, d), both(filtering.filter, g), strict=True)]
        found = both(filtering.result, products)
        for place, value in enumerate(found):
            i, j = divmod(place, results)
            taps = [d[(i + p) * side + j + q] * g[p * TAPS + q] for p in range(TAPS) for q in range(TAPS)]
            assert abs(value - sum(taps)) < Fraction(1, 10**9)


@pytest.mark.parametrize("filtering", FILTERINGS)
def test_transforms_round_as_often_as_they_say(filtering: Filtering) -> None:
    sizes = (filtering.image, filtering.side), (filtering.filter, TAPS), (filtering.result, filtering.side)
    for (transform, width), most in zip(sizes, filtering.roundings, strict=True):
        assert max(x.depth for x in transform([Counted() for _ in range(width)])) == most


@pytest.mark.parametrize("filtering", FILTERINGS)
@pytest.mark.parametrize("kind", ["normal", "wide", "flat", "signs"])
def test_sums_are_within_their_reach(filtering: Filtering, kind: str) -> None:
    """The transforms in float64, and in fractions: what a result is off is less than what the lengths allow for."""
    rng, depth = np.random.default_rng(8), 5
    worst = 0.0
    for _ in range(12):
        d, g = (drawn(kind, rng, (depth, n**2)) for n in (filtering.side, TAPS))
        v, u = (np.array([both(t, list(row)) for row in x]) for t, x in ((filtering.image, d), (filtering.filter, g)))
        totals = np.zeros(filtering.side**2)
        for row, weights in zip(v, u, strict=True):
            totals = totals + row * weights
        real = sum_of_fractions(filtering, d, g)
        off = max(abs(Fraction(x) - y) for x, y in zip(both(filtering.result, list(totals)), real, strict=True))
        reach = (depth + 1 + float_winograd.lost(filtering)) * UNIT * np.linalg.norm(v) * np.linalg.norm(u)
        worst = max(worst, float(off / Fraction(reach)) if reach else float(off > 0))
    assert float_winograd.lost(filtering) > 2 * sum(filtering.roundings)
    assert worst < 1
    assert worst > 1e-4


def drawn(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """float32 numbers, as float64."""
    x = rng.standard_normal(shape)
    if kind == "wide":
        x *= np.exp2(rng.integers(-30, 30, shape))
    elif kind == "flat":
        x = x[:, :1] * (1 + rng.standard_normal(shape) * 1e-5) + rng.standard_normal(shape) * 1e-12
    elif kind == "signs":
        x = rng.choice(np.array([1 / 3, -1 / 3, 1e-9, 1e9]), shape)
    return x.astype(F).astype(np.float64)


def sum_of_fractions(filtering: Filtering, d: Array, g: Array) -> list[Fraction]:
    side, taps = filtering.side, range(TAPS)
    found = []
    for place in range(filtering.results**2):
        i, j = divmod(place, filtering.results)
        pairs = [(row[(i + p) * side + j + q], k[p * TAPS + q]) for row, k in zip(d, g, strict=True) for p in taps for q in taps]  # fmt: skip
        found.append(sum((Fraction(float(a)) * Fraction(float(b)) for a, b in pairs), Fraction(0)))
    return found


def test_what_is_made_tap_by_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of other sizes and steps, images of one line, few channels, weights that are not finite."""
    w, spoilt = np.ones((16, 16, 3, 3), F), np.ones((16, 16, 3, 3), F)
    spoilt[3, 4, 1, 1] = np.inf
    planned = partial(FloatConv, engine(""), exact=exact_sums())
    assert planned((1, 16, 9, 9), w).geometry.patches
    for shape, weights, geometry in (
        ((1, 16, 9, 9), spoilt, {}),
        ((1, 16, 9, 9), w, {"strides": (2, 2)}),
        ((1, 16, 9, 9), w, {"dilations": (1, 2)}),
        ((1, 16, 9, 9), w[:, :, :2], {}),
        ((1, 16, 3, 9), w, {}),
        ((1, 16, 9), w[:, :, 0], {}),
        ((1, 3, 9, 9), w[:, :3], {}),
    ):
        assert not planned(shape, np.ascontiguousarray(weights), **geometry).geometry.patches
    monkeypatch.undo()
    assert planned((1, 16, 14, 14), w).geometry.patches
    assert not planned((1, 16, 4, 4), w).geometry.patches


@pytest.mark.parametrize("number", range(len(edges.FLOAT_PATCHES)))
def test_nodes(number: int) -> None:
    rng = np.random.default_rng(9)
    for kind in ("normal", "special"):
        x, w, bias, geometry = case(kind, rng, number)
        for inputs in ([x, w, bias], [x, w]):
            model, feeds = node_model("Conv", inputs, geometry, constants=(1, 2))
            assert same_everywhere(model, feeds).events[0].backend == "native"


@pytest.mark.parametrize("size", [(16, 32, 128), (49, 32, 128), (49, 256, 256), (784, 64, 64), (16, 512, 512)])
def test_no_thread_is_left_without_work(size: tuple[int, int, int]) -> None:
    """size: patches, columns and depth."""
    for threads in (2, 3, 4):
        patches, panels = float_winograd._cut(1, size, (4, 32, 64), threads)
        assert -(-size[0] // patches) * -(-size[1] // (32 * panels)) >= min(threads, 2 * size[0] // 16)
