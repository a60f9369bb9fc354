"""Native products of float32 with constant weights, two products of three in pairs, equal the reference's,
bit for bit."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.float_conv import assert_placed
from helpers.native import Array, engine
from helpers.placed import run_placed, same_everywhere
from helpers.sums import KINDS, SPECIAL, all_in_doubt, assert_bits, beside_ties, exact, operands
from helpers.support import node_model
from helpers.widths import every_width, thin_width

from qrun.native.emit.float_pairs import DEPTH, PAIRED, TURN
from qrun.native.emit.isa import ISAS, adds_apart, available
from qrun.native.kernels import float_pairs
from qrun.native.kernels.float_conv import FloatConv
from qrun.native.kernels.float_matmul import FloatMatmul
from qrun.ops._sums import rounded_products
from qrun.ops.conv import conv
from qrun.ops.lowering.products import exact_sums

F = np.float32
DTYPE = np.dtype(F)
UNIT = 2.0**-53
SIZES = (*edges.FLOAT_PRODUCTS, (3, 384, 17), (14, 385, 33), (25, 769, 40), (13, 1160, 16))


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pairs wherever it is possible."""
    monkeypatch.setattr(float_pairs, "worthwhile", lambda isa, stack: True)


def made(isa: str, a: Array, b: Array, threads: int = 1, **options: Any) -> FloatMatmul:
    factors = (options.get("alpha", 1.0), options.get("beta", 1.0))
    operation = FloatMatmul(engine(isa, threads), a.shape, b.shape, exact_sums(*factors), weights=b, **options)
    assert all(call.spec.kind == "float_pairs" for call in operation.tight)
    return operation


def columns(kind: str, rng: np.random.Generator, k: int, n: int) -> Array:
    """A right matrix of a kind whose columns are about as long as each other."""
    b = operands(kind, rng, 1, k, n)[1]
    if not float_pairs.weight(np.linalg.norm(b.astype("d"), axis=0)):
        b = rng.standard_normal((k, n)).astype(F)
    return b


@thin_width(*SIZES, name="sizes")
@pytest.mark.parametrize("at_end", [True, False])
def test_sizes(isa: str, sizes: tuple[int, int, int], at_end: bool) -> None:
    rng = np.random.default_rng(1)
    for kind in ("normal", "ties"):
        a, b = operands(kind, rng, *sizes)
        b[0] += F(0.5)
        want = rounded_products(a, b, DTYPE)
        for threads in (1, 2):
            got = run_placed(engine(isa, threads), made(isa, a, b, threads), [a], (0, 0), at_end)
            assert_bits(got, want, f"{kind} {threads}")


@every_width
@pytest.mark.parametrize("kind", SPECIAL)
def test_kinds_of_numbers(isa: str, kind: str) -> None:
    """Rows of all kinds, and columns of those that suit; with what is added to them."""
    rng = np.random.default_rng(2)
    for m, k, n in ((3, 40, 50), (30, 40, 50), (20, 400, 20)):
        a, b = operands(kind, rng, m, k, n)[0], columns(kind, rng, k, n)
        a[::4] *= F(2.0**-9)
        with np.errstate(all="ignore"):
            want = rounded_products(a, b, DTYPE)
        assert_bits(engine(isa).run(made(isa, a, b), [a]), want, f"{kind} {m}x{k}x{n}")
        for alpha, beta in ((1.0, 1.0), (0.3, -1.7), (-1.0, 0.0)):
            scale = F(np.nan_to_num(np.abs(want), nan=0, posinf=0, neginf=0).max())
            c = rng.choice(np.array([0, -0.0, 1, -0.37, 0.11], F), n) * min(scale, F(1e37))
            alpha, beta = float(F(alpha)), float(F(beta))
            with np.errstate(all="ignore"):
                want_c = rounded_products(a, b, DTYPE, alpha, c.astype("d") * beta)
            held = made(isa, a, b, constant=c, alpha=alpha, beta=beta)
            assert_bits(engine(isa).run(held, [a]), want_c, f"{kind} {alpha} {beta}")


@every_width
@pytest.mark.parametrize("kind", KINDS)
def test_products_against_fractions(isa: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    a, b = operands(kind, rng, 15, 40, 9)[0], columns(kind, rng, 40, 9)
    assert_bits(engine(isa).run(made(isa, a, b), [a]), exact(a, b), kind)


@every_width
def test_sums_beside_ties(isa: str) -> None:
    """What decides them is smaller than float64's last bit, and than what pairs lose."""
    rng = np.random.default_rng(4)
    for k, m, n in ((130, 14, 17), (600, 9, 5)):
        a, b = beside_ties(k, m, n, rng)
        b[:] = np.sign(b) * 2.0 ** rng.integers(-2, 3, n)
        assert_bits(engine(isa).run(made(isa, a, b), [a]), exact(a, b), str(a.shape))


@every_width
def test_nothing_is_decided_by_the_reach_alone(isa: str) -> None:
    """If all sums are in doubt, they are settled; and if that decides nothing either, all are added exactly."""
    rng = np.random.default_rng(5)
    for lost in (None, 2.0):
        for kind in SPECIAL:
            a, b = operands(kind, rng, 20, 150, 37)[0], columns(kind, rng, 150, 37)
            with all_in_doubt(lost):
                got = engine(isa).run(made(isa, a, b), [a])
            with np.errstate(all="ignore"):
                assert_bits(got, rounded_products(a, b, DTYPE), f"{kind} {lost}")


@every_width
def test_few_elements_go_to_the_reference(isa: str) -> None:
    """Nor do rows of zeros, or those that are far longer or shorter than others, leave more in doubt."""
    rng, asked = np.random.default_rng(6), list[int]()

    def counted(rows: Array, columns: Array, addend: Array) -> Array:
        asked.append(len(rows))
        return exact_sums()(rows, columns, addend)

    a, b = operands("normal", rng, 60, 200, 90)
    a[::7], a[1::7], a[2::7] = 0, a[1::7] * F(2.0**90), a[2::7] * F(2.0**-90)
    want = rounded_products(a, b, DTYPE)
    settled = RowsSettled(b)
    assert_bits(engine(isa).run(FloatMatmul(engine(isa), a.shape, b.shape, counted, weights=b), [a]), want)
    assert not asked
    assert settled.share(a) < 2.0**-9


class RowsSettled:
    """How many sums the kernel's own bound leaves in doubt, of numbers as the kernel makes them."""

    def __init__(self, b: Array) -> None:
        self.b, self.lengths = b, np.linalg.norm(b.astype("d"), axis=0)

    def share(self, a: Array) -> float:
        isa = ISAS[0]
        real, rows = a.astype("d") @ self.b.astype("d"), np.linalg.norm(a.astype("d"), axis=1)
        length = np.sqrt(2) * float_pairs.weight(self.lengths)
        inverse = np.where(rows > 0, np.exp2(-np.floor(np.log2(length / np.where(rows, rows, 1)))), 0)
        off = inverse[:, None] * (float_pairs.links(isa, a.shape[1]) + 6) * UNIT * (length + self.lengths) ** 2 / 2
        return float((F(real - off) != F(real + off)).mean())


@every_width
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e38, 2.0**-140])
def test_a_row_leaves_no_trace_in_others(isa: str, odd: float) -> None:
    rng = np.random.default_rng(7)
    a, b = operands("normal", rng, 29, 50, 40)
    for row in (0, 13, 28):
        changed = a.copy()
        changed[row, 7] = odd
        with np.errstate(all="ignore"):
            assert_bits(
                engine(isa).run(made(isa, changed, b), [changed]), rounded_products(changed, b, DTYPE), str(row)
            )


@every_width
def test_several_matrices(isa: str) -> None:
    rng = np.random.default_rng(8)
    for shapes in (
        ((2, 15, 20), (2, 20, 40)),
        ((3, 9, 30), (3, 30, 5)),
        ((2, 3, 4, 9), (9, 20)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
    ):
        a, b = (rng.standard_normal(shape).astype(F) for shape in shapes)
        b += F(0.1)
        assert_bits(engine(isa, 2).run(made(isa, a, b, 2), [a]), rounded_products(a, b, DTYPE), str(shapes))


@every_width
def test_convolutions_of_single_pixels(isa: str) -> None:
    """1x1 kernels, of groups too, with rows that lie apart, and pixels of zeros."""
    rng = np.random.default_rng(14)
    for x_shape, w_shape, geometry in (
        ((2, 40, 5, 7), (19, 40, 1, 1), {}), ((1, 24, 9, 3), (20, 12, 1, 1), {"group": 2}), ((3, 30, 11), (33, 30, 1), {}),
    ):  # fmt: skip
        x, w, bias = (rng.standard_normal(shape).astype(F) for shape in (x_shape, w_shape, w_shape[:1]))
        x[0, :, 2] = np.maximum(x[0, :, 2], 0)
        x[0, :, 1] = 0
        for added in (bias, None):
            plan = partial(convolution, isa, x, w, added, geometry)
            want = np.asarray(conv(x, w, added, **{"group": 1, **geometry}))
            assert_placed(isa, plan, x, want, True, (4 * (x_shape[1] + 3), 4 * (w_shape[0] + 5)))


def convolution(isa: str, x: Array, w: Array, bias: Array | None, geometry: dict[str, Any], threads: int) -> FloatConv:
    planned = FloatConv(engine(isa, threads), x.shape, w, exact_sums(), bias=bias, **geometry)
    assert [call.spec.kind for call in planned.sections((0, 0))] == ["float_pairs"]
    return planned


def test_weights_that_do_not_suit() -> None:
    """Columns of zeros, far longer ones than others, some that are not finite or far too long: these are not paired."""
    rng = np.random.default_rng(9)
    a, b = operands("normal", rng, 130, 60, 40)
    for column, factor in ((3, 0.0), (5, 2.0**-40), (7, np.inf), (9, np.nan), (slice(None), 2.0**110)):
        with np.errstate(all="ignore"):
            spoilt = b.copy()
            spoilt[:, column] *= F(factor)
            planned = FloatMatmul(engine(""), a.shape, b.shape, exact_sums(), weights=spoilt)
            assert planned.tight[0].spec.kind == "float_product"
            assert_bits(engine("").run(planned, [a]), rounded_products(a, spoilt, DTYPE))


@pytest.mark.parametrize("depth", [1, 2, 5, 6, 7, 40, 383, 384, 385, 1000])
def test_pairs_of_a_column(depth: int) -> None:
    """The sums of products of neighbours, against fractions; each within as many roundings as are counted."""
    b = np.random.default_rng(10).standard_normal((2, depth, 3)).astype(F)
    blocks, size = float_pairs.steps(depth)
    assert size % TURN == 0
    assert 0 < size <= DEPTH
    assert (blocks - 1) * size < depth <= blocks * size
    for matrix, found in zip(b, float_pairs.neighbours(b), strict=True):
        for column, total in zip(matrix.T.tolist(), found.tolist(), strict=True):
            terms = []
            for start in range(0, depth, size):
                block = column[start : start + size]
                end = min(-(-len(block) // TURN) * PAIRED, len(block) // 2 * 2)
                terms += [Fraction(block[k]) * Fraction(block[k + 1]) for k in range(0, end - 1, 2)]
            off = abs(Fraction(total) - sum(terms, Fraction(0)))
            assert off <= depth.bit_length() * Fraction(UNIT) * sum(map(abs, terms), Fraction(0))


@pytest.mark.parametrize("kind", ["normal", "wide", "alike", "opposite"])
def test_sums_are_within_their_reach(kind: str) -> None:
    """The steps in float64 without fused operations, and fractions: what a sum is off is less than what lengths allow
    for."""
    rng, depth, worst = np.random.default_rng(11), 48, 0.0
    for _ in range(40):
        x, y = rng.standard_normal((2, depth)).astype(F)
        if kind == "wide":
            x, y = (z * np.exp2(rng.integers(-20, 20, depth)).astype(F) for z in (x, y))
        elif kind != "normal":
            y = x[np.arange(depth) ^ 1] * F(1 if kind == "alike" else -1)
        length = float(np.linalg.norm(y.astype("d")))
        factor = 2.0 ** np.floor(np.log2(np.sqrt(2) * length / np.linalg.norm(x.astype("d"))))
        scaled, column = (x.astype("d") * factor).tolist(), y.astype("d").tolist()
        split, total = depth // TURN * PAIRED, 0.0
        for k in range(0, split, 2):
            total += (scaled[k] + column[k + 1]) * (scaled[k + 1] + column[k])
        for k in range(split, depth):
            total += scaled[k] * column[k]
        row, own = (sum(z[k] * z[k + 1] for k in range(0, split, 2)) for z in (scaled, column))
        made = (total - row - own) / factor
        real = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True))
        reach = float_pairs.links(ISAS[-1], depth) * UNIT * (np.sqrt(2) * length + length) ** 2 / 2 / factor
        worst = max(worst, float(abs(Fraction(made) - real) / Fraction(reach)))
    assert 1e-5 < worst < 1


def test_where_pairs_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where additions have units of their own, for products of some size."""
    monkeypatch.undo()
    best = available()[0]
    rng = np.random.default_rng(12)
    for sizes, paired in (
        ((1024, 384, 384), True),
        ((64, 384, 384), False),
        ((1024, 20, 384), False),
        ((1024, 384, 9), False),
    ):
        a, b = operands("normal", rng, *sizes)
        planned = FloatMatmul(engine(best.name), a.shape, b.shape, exact_sums(), weights=b)
        assert (planned.tight[0].spec.kind == "float_pairs") == (paired and adds_apart(best)), sizes
    assert not any(adds_apart(isa) for isa in ISAS if isa.lanes != 16)


def test_nodes() -> None:
    rng = np.random.default_rng(13)
    for m, k, n in edges.FLOAT_PRODUCTS:
        a, b = operands("normal", rng, m, k, n)
        model, feeds = node_model("MatMul", [a, b], constants=(1,))
        assert same_everywhere(model, feeds).events[0].backend == "native"
        a[m // 2, 0], c = np.inf, rng.standard_normal(n).astype(F)
        model, feeds = node_model("Gemm", [a, b, c], {"alpha": -0.5}, constants=(1, 2))
        assert same_everywhere(model, feeds).events[0].backend == "native"
