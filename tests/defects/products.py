"""QLinearConv, QLinearMatMul, ConvInteger and MatMulInteger as products of matrices, whose sums defects spoil."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from defects.node import Node
from qrun.ir import Array

Sums = Callable[[Array, Array], Array]
"""Computes sums from differences [...,M,K] and [...,K,N] of int64."""


class Products:
    """left [...,M,K], right [...,K,N]: codes minus zero points; shaped: gives sums the shape of the output."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_conv = "Conv" in node.node.op_type
        (self.left, self.right), self.raw = self._of_conv() if self.is_conv else self._of_matmul()
        bias = node.inputs.get("B") if node.node.op_type == "QLinearConv" else None
        self.bias = 0 if bias is None else bias.astype(np.int64).reshape(-1, *(1,) * (node.expected.ndim - 2))

    def _named(self, *names: str) -> Array | None:
        return next((self.node.inputs[n] for n in names if self.node.inputs.get(n) is not None), None)

    def _of_matmul(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        a, b = self._named("a", "A"), self._named("b", "B")
        az, bz = self._named("a_zero_point"), self._named("b_zero_point")
        assert a is not None
        assert b is not None
        assert a.ndim > 1
        assert b.ndim > 1
        rows = (
            0
            if az is None
            else np.asarray(az, np.int64)[:, None]
            if az.ndim == 1 and az.size > 1
            else np.asarray(az, np.int64)
        )
        columns = 0 if bz is None else np.asarray(bz, np.int64)
        return (a.astype(np.int64) - rows, b.astype(np.int64) - columns), (a, b)

    def _of_conv(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        x, w = self._named("x"), self._named("w")
        xz, wz = self._named("x_zero_point"), self._named("w_zero_point")
        assert x is not None
        assert w is not None
        assert not self.node.node.attributes.get("auto_pad")
        rank = x.ndim - 2
        given = self.node.node.attributes
        steps, holes = given.get("strides") or [1] * rank, given.get("dilations") or [1] * rank
        pads, group = given.get("pads") or [0] * (2 * rank), given.get("group", 1)
        blank = 0 if xz is None else int(xz.reshape(()))
        wide = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=blank)
        out = self.node.expected.shape[2:]
        taps = [
            wide[(slice(None), slice(None), *(slice(k * h, k * h + (o - 1) * s + 1, s) for k, h, o, s in zip(tap, holes, out, steps, strict=True)))]
            for tap in product(*map(range, w.shape[2:]))
        ]  # fmt: skip
        seen = np.stack(taps, 2).reshape(x.shape[0], group, w.shape[1] * len(taps), -1)
        filters = w.reshape(1, group, w.shape[0] // group, -1)
        zeros = np.zeros((), np.int64) if wz is None else wz.astype(np.int64)
        zeros = np.broadcast_to(zeros.reshape(-1), (w.shape[0],)).reshape(1, group, -1, 1)
        return (filters.astype(np.int64) - zeros, seen.astype(np.int64) - blank), (filters, seen)

    def answer(self, sums: Array) -> Array | None:
        """The output for these sums of products, rounded once; None if the right sums do not give the right output."""
        right = self.requantized(self.wrapped(self.shaped(self.left @ self.right) + self.bias))
        if right is None or not np.array_equal(right, self.node.expected):
            return None
        return self.requantized(self.wrapped(self.shaped(sums) + self.bias))

    def shaped(self, sums: Array) -> Array:
        return np.asarray(sums, np.float64 if np.asarray(sums).dtype.kind == "f" else np.int64).reshape(
            self.node.expected.shape
        )

    @staticmethod
    def wrapped(sums: Array) -> Array:
        return (sums.astype(np.int64) + 2**31) % 2**32 - 2**31

    def multiplier(self) -> Array | None:
        """x_scale * w_scale / y_scale in float64, to broadcast to the output; None without scales or with odd ones."""
        left, right, y = self._named("x_scale", "a_scale"), self._named("w_scale", "b_scale"), self._named("y_scale")
        if left is None or right is None or y is None:
            return None
        a, b, c = (s.astype(np.float64) for s in (left, right, y))
        if self.is_conv:
            a, b = a.reshape(()), b.reshape(-1, *(1,) * (self.node.expected.ndim - 2)) if b.size > 1 else b.reshape(())
        else:
            a = a[:, None] if a.ndim == 1 and a.size > 1 else a
        ratio = a * b / c.reshape(())
        return ratio if np.isfinite(ratio).all() and (ratio > 0).all() else None

    def requantized(self, sums: Array) -> Array | None:
        """The codes for sums; the sums themselves for the integer operators."""
        if self.node.expected.dtype == np.int32:
            return sums.astype(np.int32)
        ratio = self.multiplier()
        return None if ratio is None else self.node.coded(np.rint(sums * ratio) + self.node.zero())

    def sums(self) -> Array:
        """The right sums with the bias."""
        return self.wrapped(self.shaped(self.left @ self.right) + self.bias)


def spoiled(sums: Sums) -> Callable[[Node], Array | None]:
    """The defect of a runtime that adds products in another way."""

    def defect(n: Node) -> Array | None:
        try:
            p = Products(n)
        except AssertionError:
            return None
        return p.answer(sums(p.left, p.right))

    return defect
