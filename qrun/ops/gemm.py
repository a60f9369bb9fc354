"""Gemm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._context import Context, refuse
from qrun.ops._float import is_integer, product, single, widen
from qrun.ops._native import LoweringContext, NativeKernel
from qrun.ops._native_products import matmul_kernel
from qrun.ops._op import Shape, op
from qrun.ops._sums import rounded_products


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    return int(np.prod(outputs[0], dtype=np.int64)) * inputs[0][0 if attributes.get("transA") else 1]


@op("Gemm", since=7, cost=_macs)
def gemm(
    A: Array,
    B: Array,
    C: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    ctx: Context,
) -> Array:
    """Y = alpha * A' @ B' + beta * C, where A' [M,K] is A or its transpose, B' [K,N] likewise; C broadcasts to [M,N].

    All of one type. Each element of floating point is its real value rounded once; float64 is computed in float64.
    Integers wrap; a product with an alpha or beta that is no integer is truncated. Nothing is skipped: beta = 0 times NaN is NaN.
    Raises OperatorError for shapes that do not fit.
    Source: ONNX operators, Gemm-13.
    """
    left, right = _checked(A, B, C, transA, transB, ctx)
    alpha, beta = single(alpha), single(beta)
    with np.errstate(all="ignore"):
        if is_integer(A.dtype):
            total = _times(product(left, right), alpha)
            return total if C is None else np.asarray(total + _times(C, beta))
        return rounded_products(left, right, A.dtype, alpha, None if C is None else widen(C) * beta)


def _checked(a: Array, b: Array, c: Array | None, trans_a: int, trans_b: int, ctx: Context) -> tuple[Array, Array]:
    """Refuse shapes that do not fit, and claim the result; A' and B'."""
    for name, matrix in (("A", a), ("B", b)):
        if matrix.ndim != 2:
            raise refuse(f"{name} is not a matrix", name, "rank 2", matrix, code="QR208")
    left, right = a.T if trans_a else a, b.T if trans_b else b
    if left.shape[1] != right.shape[0]:
        raise refuse(
            "A and B cannot be multiplied",
            "B",
            f"K = {left.shape[1]} rows after transposition, as A has columns",
            f"A' {shape_text(left.shape)}, B' {shape_text(right.shape)}",
            fix="check transA and transB",
            code="QR208",
        )
    shape = (left.shape[0], right.shape[1])
    if c is not None and (c.ndim > 2 or any(n not in (1, s) for n, s in zip(c.shape[::-1], shape[::-1], strict=False))):
        raise refuse(
            "C does not broadcast to the product",
            "C",
            f"a shape that broadcasts to {shape_text(shape)}",
            c,
            code="QR208",
        )
    ctx.claim(shape, 8)
    return left, right


@gemm.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, b, c = site.inputs
    given = site.attributes
    turned = bool(given["transA"]), bool(given["transB"])
    _checked(a, b, c, *turned, site.ctx)
    return matmul_kernel(site, a, b, c, alpha=single(given["alpha"]), beta=single(given["beta"]), turned=turned)


def _times(x: Array, factor: float) -> Array:
    if factor == 1:
        return x
    if abs(factor) < 2**31 and factor == int(factor):
        return np.asarray((x.astype(np.int64) * int(factor)).astype(x.dtype))
    return np.trunc(widen(x) * factor).astype(np.int64).astype(x.dtype)
