"""The order in which onnxruntime adds float32 products on x86 with FMA, graph optimizations off, one thread.

A constant matrix on the right side, which it packs, has blocks of 256 fused multiply-adds. Other right sides are cut by
`block_of`. One row, and one column, have kernels without fused multiply-adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops._chains import BLOCK, chained_products
from qrun.ops._window import SlidingWindow
from qrun.shapes import broadcast_shapes

_FLOAT = np.dtype(np.float32)
_STRIDE = 128
"""Rows, and columns, of a right side that onnxruntime copies at a time."""
_LANES = 8


@frozen
class SumOrder:
    """How sums are added.

    chains: blocks of `block` fused multiply-adds each, see `chained_products`.
    fours:  t = ((a0*b0 + a1*b1) + a2*b2) + a3*b3 of four products, y = y + t; then of two, then of one.
    lanes:  eight partial sums by k modulo 8, added in one tree. columns: whether they are the columns of the right
            side that are taken four at a time, else the rows of the left one.
    """

    kind: Literal["chains", "fours", "lanes"] = "chains"
    block: int = BLOCK
    columns: bool = True

    @property
    def text(self) -> str:
        if self.kind == "chains":
            return f"blocks of {self.block} fused multiply-adds"
        return "groups of 4 products" if self.kind == "fours" else "8 partial sums"

    def is_default(self, k: int) -> bool:
        """Whether sums of k products have the same bits as in the order of F1."""
        return self.kind == "chains" and (self.block == BLOCK or k <= min(self.block, BLOCK))


def block_of(n: int, k: int) -> int:
    """The block of k for a right side of n columns that is not packed: one stride is halved while the other one is
    doubled."""
    columns, block = _STRIDE, _STRIDE
    while n >= k and block // 2 >= max(k, 1):
        block //= 2
    while n < k and columns > 16 and columns // 2 >= n:
        columns, block = columns // 2, block * 2
    return block


@frozen
class ProductForm:
    """How operands lie, as far as onnxruntime's choice of a kernel depends on it.

    packed: is the right side a constant matrix? turned: which of the two lie transposed. plain: is alpha 1, and beta 0
    or 1? step: numbers from one row of the right side, as it lies, to the next; None if its rows are neighbours.
    """

    packed: bool = False
    turned: tuple[bool, bool] = (False, False)
    plain: bool = True
    step: int | None = None


_PLAIN = ProductForm()


def order_of(m: int, n: int, k: int, given: ProductForm = _PLAIN) -> SumOrder:
    """The order of the sums of [m,k] times [k,n]."""
    if given.packed:
        return SumOrder()
    if m == 1 and not given.turned[0] and given.plain:
        return SumOrder("lanes") if given.turned[1] else SumOrder("fours")
    step = (k if given.turned[1] else n) if given.step is None else given.step
    if n == 1 and step == 1 and given.plain:
        return SumOrder("fours") if given.turned[0] else SumOrder("lanes", columns=False)
    return SumOrder(block=min(_STRIDE, block_of(n, k)) if given.turned[0] else block_of(n, k))


def matmul_order(a: tuple[int, ...], b: tuple[int, ...], given: ProductForm = _PLAIN) -> tuple[SumOrder, bool]:
    """The order of the sums of [...,M,K] times [...,K,N]; and whether the left side is taken as one matrix."""
    if len(a) == 1 or len(b) == 1:
        return order_of(1, b[-1] if len(b) > 1 else 1, a[-1], given), False
    whole = not given.turned[0] and given.step is None and len(a) >= len(b) and math.prod(b[:-2]) == 1
    return order_of(math.prod(a[:-1]) if whole else a[-2], b[-1], a[-1], given), whole


def conv_order(x: tuple[int, ...], w: tuple[int, ...], win: SlidingWindow, group: int) -> SumOrder:
    """The order of the sums of a convolution: W [M/group,k] times the windows of an image [k,pixels]."""
    m, k, pixels = w[0] // group, math.prod(w[1:]), math.prod(win.out)
    within = len(win.kernel) <= 2 and {*win.strides, *win.dilations} <= {1} and not any((*win.begin, *win.end))
    if within and w[1] == 1 and k > 1 and w[-1] == x[-1]:
        return order_of(m, pixels, k, ProductForm(turned=(False, True), step=w[-1]))
    return order_of(m, pixels, k)


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
    y = _FLOAT.type(0) if first is None else first
    for k, size in _groups(a.shape[-1]):
        y = np.asarray(y + _added(lambda at: a[..., at, None] * b[..., at, None, :], range(k, k + size)))
    return np.asarray(y)


def _lanes(a: Array, b: Array, first: Array | None, columns: bool) -> Array:
    k = a.shape[-1]
    sums = np.zeros((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), _LANES, a.shape[-2], b.shape[-1]), _FLOAT)
    for start in range(0, k, _LANES):
        size = min(_LANES, k - start)
        terms = a[..., start : start + size].swapaxes(-1, -2)[..., None] * b[..., start : start + size, None, :]
        sums[..., :size, :, :] += terms
    sums = np.moveaxis(sums, -3, 0)
    sums = sums if columns else sums.swapaxes(-1, -2)
    made = np.empty(sums.shape[1:], _FLOAT)
    for place, size in _groups(made.shape[-1]):
        made[..., place : place + size] = _TREES[size](sums[..., place : place + size])
    made = made if columns else made.swapaxes(-1, -2)
    return np.asarray(made + (_FLOAT.type(0) if first is None else first))


def _groups(count: int) -> Iterator[tuple[int, int]]:
    """Where groups of four begin, then of two, then of one; and their sizes."""
    yield from ((place, 4) for place in range(0, count - 3, 4))
    rest = count & -4
    if count & 2:
        yield rest, 2
    if count & 1:
        yield count - 1, 1


def _added(term: Callable[[int], Array], places: range) -> Array:
    total = term(places[0])
    for place in places[1:]:
        total = total + term(place)
    return total


_TREES: dict[int, Callable[[Array], Array]] = {
    4: lambda s: (((s[0] + s[1]) + s[2]) + s[3]) + (((s[4] + s[5]) + s[6]) + s[7]),
    2: lambda s: ((s[0] + s[2]) + (s[4] + s[6])) + ((s[1] + s[3]) + (s[5] + s[7])),
    1: lambda s: ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])),
}
"""How eight partial sums are added, by the number of results that are made together."""
