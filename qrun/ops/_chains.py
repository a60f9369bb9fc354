"""Float32 sums of products, defined by their order (numerics.md, F1).

k is cut into blocks of BLOCK. A block is a chain of fused multiply-adds, k ascending, each rounded once to float32;
blocks are added in order. float64 replaces the fused multiply-add that numpy lacks: a product of float32 numbers is
exact there, and rounding its sum with a third number to float64 and then to float32 equals one rounding, unless the
float64 is exactly in the middle between two float32 numbers. Those few are computed again with the bits float64 lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops._float import narrow, product, widen
from qrun.ops._rounding import DROPPED, LEAST_NORMAL, MIDDLE, fma32
from qrun.ops._window import SlidingWindow
from qrun.shapes import broadcast_shapes

BLOCK = 256
"""Elements of k in one chain."""
_FLOAT = np.dtype(np.float32)
_ELEMENTS = 1 << 14
"""Sums that are computed together: they stay in the second-level cache."""
_FINITE = np.uint64(0x7FEFFFFFFFFFFFFF)
"""The bits of the greatest finite float64."""
_LEAST = 2.0**-149


def chained_products(
    a: Array,
    b: Array,
    dtype: np.dtype[Any],
    alpha: float = 1.0,
    first: Array | None = None,
    bias: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """alpha * a @ b + first + bias in the order of F1, rounded to `dtype`.

    a [...,M,K], b [...,K,N] as numpy.matmul takes them, of one type of up to 32 bits. alpha: a float32 number; each
    block is added with one fused multiply-add, `fma(alpha, block, y)`. first: the value of y before the first block;
    bias: added after the last one; both float32, and both broadcast to the result of operands of two axes or more. NaN
    has one bit pattern. With dtype float64, everything is plain float64 in numpy's order.
    """
    left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    lead = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    whole = (*lead, left.shape[-2], right.shape[-1])
    shape = (*lead, *((a.shape[-2],) if a.ndim > 1 else ()), *((b.shape[-1],) if b.ndim > 1 else ()))
    with np.errstate(all="ignore"):
        if dtype == np.float64:
            y = product(a, b).reshape(whole)
            y = y * alpha if alpha != 1 else y
            for added in (first, bias):
                y = y if added is None else y + added
            return np.asarray(y).reshape(shape)
        y = _blocks(left, right, whole, alpha, first, block)
        y = y if bias is None else y + bias.astype(_FLOAT)
        y[np.isnan(y)] = np.nan
        return (y if dtype == _FLOAT else narrow(y, dtype)).reshape(shape)


def _blocks(a: Array, b: Array, shape: tuple[int, ...], alpha: float, first: Array | None, block: int) -> Array:
    """a @ b in blocks of the depth: each block a chain of fused multiply-adds, blocks added one by one."""
    y = None if first is None else np.broadcast_to(first.astype(_FLOAT), shape)
    for k in range(0, max(a.shape[-1], 1), block):
        sums = _chains(widen(a[..., k : k + block]), widen(b[..., k : k + block, :]), shape)
        if alpha != 1:
            y = np.float32(alpha) * sums if y is None else fma32(np.float32(alpha), sums, y)
        else:
            y = sums if y is None else y + sums
    assert y is not None
    return y


def _chains(a: Array, b: Array, shape: tuple[int, ...]) -> Array:
    """One block of k for all results, float32. a, b: float64."""
    made = np.zeros(shape, _FLOAT)
    if not made.size or not a.shape[-1]:
        return made
    exact = _step(a) * _step(b) >= _LEAST
    *lead, rows, columns = shape
    a, b = np.broadcast_to(a, (*lead, *a.shape[-2:])), np.broadcast_to(b, (*lead, *b.shape[-2:]))
    high = max(1, _ELEMENTS // max(columns, 1))
    wide = max(1, _ELEMENTS // min(high, rows))
    for index in np.ndindex(*lead):
        for row in range(0, rows, high):
            for column in range(0, columns, wide):
                part = *index, slice(row, row + high), slice(column, column + wide)
                made[part] = _chain(a[*index, row : row + high], b[*index, :, column : column + wide], exact)
    return made


def _chain(a: Array, b: Array, exact: bool) -> Array:
    """A chain of [M,K] and [K,N]. exact: whether sums below the normal float32 numbers need no rounding."""
    turned, b = np.ascontiguousarray(a.T)[:, :, None], np.ascontiguousarray(b)
    sums = np.zeros((a.shape[0], b.shape[1]))
    single = np.empty(sums.shape, _FLOAT)
    terms, bits = np.empty_like(sums), np.empty(sums.shape, np.int64)
    for left, right in zip(turned, b, strict=True):
        np.multiply(left, right, out=terms)
        terms += sums
        np.bitwise_and(terms.view(np.int64), DROPPED, out=bits)
        doubtful = bits == MIDDLE
        if not exact:
            doubtful |= (np.abs(terms) < LEAST_NORMAL) & (terms != 0)
        single[...] = terms
        if doubtful.any():
            row, column = np.nonzero(doubtful)
            single[row, column] = fma32(left[row, 0], right[column], sums[row, column])
        sums[...] = single
    return single


def _step(x: Array) -> float:
    """A power of two of which all numbers are multiples."""
    sizes = np.abs(x).view(np.uint64) - np.uint64(1)  # 0 wraps to the greatest
    least = np.uint64(sizes.min(initial=_FINITE)) + np.uint64(1)
    exponent = int(np.frexp(least.view(np.float64))[1])
    return float(np.ldexp(1.0, exponent - 24)) if least <= _FINITE else np.inf


_STRIDE = 128
"""Rows, and columns, of a right operand that onnxruntime copies at a time."""
_LANES = 8


@frozen
class SumOrder:
    """The order in which products are summed.

    chains: blocks of `block` fused multiply-adds each, see `chained_products`.
    fours:  t = ((a0*b0 + a1*b1) + a2*b2) + a3*b3 of four products, y = y + t; then of two, then of one.
    lanes:  eight partial sums by k modulo 8, added in one tree. columns: whether columns of the right operand are taken
            four at a time, else rows of the left one.
    """

    kind: Literal["chains", "fours", "lanes"] = "chains"
    block: int = BLOCK
    columns: bool = True

    @property
    def text(self) -> str:
        """The order in words."""
        if self.kind == "chains":
            return f"blocks of {self.block} fused multiply-adds"
        return "groups of 4 products" if self.kind == "fours" else "8 partial sums"

    def is_default(self, k: int) -> bool:
        """Whether sums of k products have the same bits as in the order of F1."""
        return self.kind == "chains" and (self.block == BLOCK or k <= min(self.block, BLOCK))


def ort_block(n: int, k: int) -> int:
    """onnxruntime's block of k for an unpacked right operand of n columns: one stride is halved while the other one is
    doubled."""
    columns, block = _STRIDE, _STRIDE
    while n >= k and block // 2 >= max(k, 1):
        block //= 2
    while n < k and columns > 16 and columns // 2 >= n:
        columns, block = columns // 2, block * 2
    return block


@frozen
class ProductForm:
    """The layout of operands, as far as onnxruntime's choice of a kernel depends on it.

    packed: is the right operand a constant matrix? turned: which of the two are transposed. plain: is alpha 1, and beta
    0 or 1? step: numbers from one row of the right operand, in memory, to the next; None if its rows are neighbours.
    """

    packed: bool = False
    turned: tuple[bool, bool] = (False, False)
    plain: bool = True
    step: int | None = None


_PLAIN = ProductForm()


def ort_order(m: int, n: int, k: int, given: ProductForm = _PLAIN) -> SumOrder:
    """onnxruntime's order of the sums of [m,k] times [k,n]."""
    if given.packed:
        return SumOrder()
    if m == 1 and not given.turned[0] and given.plain:
        return SumOrder("lanes") if given.turned[1] else SumOrder("fours")
    step = (k if given.turned[1] else n) if given.step is None else given.step
    if n == 1 and step == 1 and given.plain:
        return SumOrder("fours") if given.turned[0] else SumOrder("lanes", columns=False)
    return SumOrder(block=min(_STRIDE, ort_block(n, k)) if given.turned[0] else ort_block(n, k))


def ort_matmul_order(a: tuple[int, ...], b: tuple[int, ...], given: ProductForm = _PLAIN) -> tuple[SumOrder, bool]:
    """onnxruntime's order of the sums of [...,M,K] times [...,K,N]; and whether it takes the left operand as one
    matrix."""
    if len(a) == 1 or len(b) == 1:
        return ort_order(1, b[-1] if len(b) > 1 else 1, a[-1], given), False
    whole = not given.turned[0] and given.step is None and len(a) >= len(b) and math.prod(b[:-2]) == 1
    return ort_order(math.prod(a[:-1]) if whole else a[-2], b[-1], a[-1], given), whole


def ort_conv_order(x: tuple[int, ...], w: tuple[int, ...], win: SlidingWindow, group: int) -> SumOrder:
    """onnxruntime's order of the sums of a float32 convolution: W [M/group,k] times the windows of an image [k,pixels].
    A kernel as wide as the image, on one channel, without strides, dilations and pads, reads the image in place."""
    m, k, pixels = w[0] // group, math.prod(w[1:]), math.prod(win.out)
    within = len(win.kernel) <= 2 and {*win.strides, *win.dilations} <= {1} and not any((*win.begin, *win.end))
    if within and w[1] == 1 and k > 1 and w[-1] == x[-1]:
        return ort_order(m, pixels, k, ProductForm(turned=(False, True), step=w[-1]))
    return ort_order(m, pixels, k)


def ordered_products(
    a: Array,
    b: Array,
    order: SumOrder,
    alpha: float = 1.0,
    first: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """alpha * a @ b + first + bias of float32 in this order; operands as in `chained_products`."""
    if order.kind == "chains" or not a.shape[-1]:
        return chained_products(a, b, _FLOAT, alpha, first, bias, order.block)
    left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    with np.errstate(all="ignore"):
        y = _fours(left, right, first) if order.kind == "fours" else _lanes(left, right, first, order.columns)
        y = y if bias is None else y + bias
        y[np.isnan(y)] = np.nan
    return y.reshape((*y.shape[:-2], *((y.shape[-2],) if a.ndim > 1 else ()), *((y.shape[-1],) if b.ndim > 1 else ())))


def _fours(a: Array, b: Array, first: Array | None) -> Array:
    """a @ b with groups of four products, each group summed before it is added."""
    y = _FLOAT.type(0) if first is None else first
    for k, size in _groups(a.shape[-1]):
        y = np.asarray(y + _sum_in_chains(lambda at: a[..., at, None] * b[..., at, None, :], range(k, k + size)))
    return np.asarray(y)


def _lanes(a: Array, b: Array, first: Array | None, columns: bool) -> Array:
    """a @ b with 8 partial sums, joined in a tree at the end."""
    k = a.shape[-1]
    sums = np.zeros((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), _LANES, a.shape[-2], b.shape[-1]), _FLOAT)
    for start in range(0, k, _LANES):
        size = min(_LANES, k - start)
        terms = a[..., start : start + size].swapaxes(-1, -2)[..., None] * b[..., start : start + size, None, :]
        sums[..., :size, :, :] += terms
    sums = np.moveaxis(sums, -3, 0)
    sums = sums if columns else sums.swapaxes(-1, -2)
    made = np.empty(sums.shape[1:], _FLOAT)
    for index, size in _groups(made.shape[-1]):
        made[..., index : index + size] = _TREES[size](sums[..., index : index + size])
    made = made if columns else made.swapaxes(-1, -2)
    return np.asarray(made + (_FLOAT.type(0) if first is None else first))


def _groups(count: int) -> Iterator[tuple[int, int]]:
    """Yields the starts and sizes of groups of four, then of two, then of one."""
    yield from ((index, 4) for index in range(0, count - 3, 4))
    rest = count & -4
    if count & 2:
        yield rest, 2
    if count & 1:
        yield count - 1, 1


def _sum_in_chains(term: Callable[[int], Array], places: range) -> Array:
    """The sum of terms, one after the other."""
    total = term(places[0])
    for index in places[1:]:
        total = total + term(index)
    return total


_TREES: dict[int, Callable[[Array], Array]] = {
    4: lambda s: (((s[0] + s[1]) + s[2]) + s[3]) + (((s[4] + s[5]) + s[6]) + s[7]),
    2: lambda s: ((s[0] + s[2]) + (s[4] + s[6])) + ((s[1] + s[3]) + (s[5] + s[7])),
    1: lambda s: ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])),
}
"""How eight partial sums are added, by the number of results that are computed together."""
