"""Integer products as sums over K of differences (code minus zero point), and the output that other sums give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Suspect
from qrun.comparing.causes._steps import snap
from qrun.comparing.causes.pairs import parts
from qrun.comparing.ties import unwrapped_sums
from qrun.declare.frozen import frozen
from qrun.ir import Array

CONVS = ("QLinearConv", "ConvInteger")
MATMULS = ("QLinearMatMul", "MatMulInteger")
Sums = Callable[[Array, Array], Array]
"""Adds the products of left [...,P,K] and right [...,K,N], float64, in another way."""


@frozen
class IntegerProduct:
    """One matrix product inside a node. where: the place of its result in the channels-first sums.
    turned: does the result have the axes [N,P] there?"""

    left: Array
    right: Array
    where: tuple[Any, ...]
    turned: bool

    @property
    def depth(self) -> int:
        """The number of products in a sum."""
        return int(self.left.shape[-1])


@frozen
class Products:
    """The matrix products of a node. reach: no partial sum is larger in magnitude."""

    s: Suspect
    each: tuple[IntegerProduct, ...]
    reach: float

    @property
    def depth(self) -> int:
        """The number of products in a sum."""
        return self.each[0].depth

    def output(self, sums: Sums) -> Array | None:
        """The node's output if it adds its products in another way; None if the sums do not change."""
        s = self.s
        last = bool(s.node.attributes.get("channels_last")) and s.mine.ndim > 2
        shape = (s.mine.shape[0], s.mine.shape[-1], *s.mine.shape[1:-1]) if last else s.mine.shape
        change = np.zeros(shape, np.float64)
        for part in self.each:
            lost = sums(part.left, part.right) - part.left @ part.right
            change[part.where] += (lost.T if part.turned else lost).reshape(change[part.where].shape)
        return from_sums(s, np.moveaxis(change, 1, -1) if last else change) if change.any() else None


def from_sums(s: Suspect, change: Array) -> Array | None:
    """The node's output after `change`, in the output's shape, is added to its sums; these wrap to int32."""
    if s.mine.dtype == np.int32:
        return wrap(s.mine + change).astype(np.int32)
    known = unwrapped_sums(s.node, s.args)
    if known is None:
        return None
    acc, factor, zero = known
    made = s.to_codes(np.rint(snap(wrap(acc + change) * factor)), zero)
    return made if made is not None and made.shape == s.mine.shape else None


def wrap(sums: Array) -> Array:
    """Whole numbers wrapped to int32, as float64."""
    return np.asarray((sums + 2.0**31) % 2.0**32 - 2.0**31)


def products(s: Suspect) -> Products | None:
    """The matrix products of a node; None for operators without, or with sums over nothing."""
    if not s.is_op(*CONVS, *MATMULS) or not s.mine.size:
        return None
    try:
        each = tuple(_of_conv(s) if s.is_op(*CONVS) else _of_matmul(s))
    except (ValueError, IndexError, AssertionError):
        return None
    if not each or not each[0].depth:
        return None
    reach = max(float(np.abs(p.left).max(initial=0) * np.abs(p.right).max(initial=0)) * p.depth for p in each)
    return Products(s, each, reach)


def _of_conv(s: Suspect) -> Iterator[IntegerProduct]:
    """The products of a convolution, one for each image and group."""
    x_zero, w_zero = _number(s.arg("x_zero_point")), _number(s.arg("w_zero_point")).reshape(-1)
    for part in parts(s, last=False):
        codes, weights = (part.left, part.right) if part.turned else (part.right.T, part.left.T)
        zero = w_zero[part.where[1]] if w_zero.size > 1 else w_zero
        yield IntegerProduct(codes - x_zero.reshape(()), weights - zero, part.where, True)


def _of_matmul(s: Suspect) -> Iterator[IntegerProduct]:
    """The product of a QLinearMatMul or MatMulInteger."""
    a, b = s.arg("A"), s.arg("B")
    rows, columns = _number(s.arg("a_zero_point")), _number(s.arg("b_zero_point"))
    if a is None or b is None or min(a.ndim, b.ndim) < 2:
        return
    rows = rows[:, None] if rows.ndim == 1 and rows.size > 1 else rows
    yield IntegerProduct(a.astype(np.float64) - rows, b.astype(np.float64) - columns, (...,), False)


def _number(parameter: Array | None) -> Array:
    """A zero point as float64; 0 if absent."""
    return np.zeros(1) if parameter is None else np.asarray(parameter, np.float64)
