"""MatMul and Gemm, and FusedMatMul of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._chains import chained_products
from qrun.ops._float import is_integer, product, single, widen
from qrun.ops._matmul import GemmAttributes, check_matmul, gemm_macs, matmul_macs
from qrun.ops._op import Array, Context, Shape, bad_shape, contrib_op, misfit, op
from qrun.ops._ortorder import ProductForm, SumOrder, matmul_order, order_of, ordered_products
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel
from qrun.ops.lowering.products import matmul_kernel, require_order
from qrun.ops.lowering.turned import turned_kernel
from qrun.shapes import broadcast_shapes, broadcasts_to


@op("MatMul", since=1, cost=matmul_macs)
def matmul(A: Array, B: Array, *, ctx: Context) -> Array:
    """Matrix product of A [...,M,K] and B [...,K,N], shapes as numpy.matmul; both of one type.

    Sums of floating point have the order of docs/numerics.md, F1; float64 is added in float64.
    Integers wrap as in two's complement. Raises OperatorError for shapes that do not fit.
    """
    _claim(A, B, ctx)
    if is_integer(A.dtype):
        return product(A, B)
    return _products(A, B, ctx, *_order(A, B, ctx)) if A.dtype == np.float32 else chained_products(A, B, A.dtype)


def _order(a: Array, b: Array, ctx: Context, alpha: float = 1.0, **lie: Any) -> tuple[SumOrder, bool]:
    """The order of the sums of a @ b, float32, and whether a is taken as one matrix. lie: as in ProductForm."""
    if ctx.arith != "ort":
        return SumOrder(), False
    return matmul_order(a.shape, b.shape, ProductForm(ctx.stores(1) and b.ndim == 2, plain=alpha == 1, **lie))


def _sums(left: Array, right: Array, order: SumOrder, ctx: Context, alpha: float, first: Array | None = None) -> Array:
    """alpha * left @ right + first of float32 in this order."""
    ctx.sums.append(order.text)
    return ordered_products(left, right, order, alpha, first)


def _products(a: Array, b: Array, ctx: Context, order: SumOrder, whole: bool, alpha: float = 1.0) -> Array:
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) if whole else a
    made = _sums(rows, b.reshape(b.shape[-2:]) if whole else b, order, ctx, alpha)
    return made.reshape((*a.shape[:-1], b.shape[-1])) if whole else made


def _claim(a: Array, b: Array, ctx: Context) -> None:
    """Check the shapes, and claim the result."""
    check_matmul(a, b)
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    ctx.claim((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns), 8)


@matmul.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, b = site.inputs
    _claim(a, b, site.ctx)
    require_order(_order(a, b, site.ctx)[0], a.shape[-1])
    return matmul_kernel(site, a, b)


@op("Gemm", since=7, cost=gemm_macs)
def gemm(A: Array, B: Array, C: Array | None = None, *, attributes: GemmAttributes, ctx: Context) -> Array:
    """Y = alpha * A' @ B' + beta * C, where A' [M,K] is A or its transpose, B' [K,N] likewise; C broadcasts to [M,N].

    All of one type. Sums of floating point have the order of docs/numerics.md, F1: they begin with beta * C.
    Integers wrap; a product with an alpha or beta that is no integer is truncated. Nothing is skipped: beta = 0 times
    NaN is NaN. Raises OperatorError for shapes that do not fit.
    """
    left, right = _checked(A, B, C, attributes, ctx)
    alpha, beta = single(attributes.alpha), single(attributes.beta)
    with np.errstate(all="ignore"):
        if is_integer(A.dtype):
            total = _times(product(left, right), alpha)
            return total if C is None else np.asarray(total + _times(C, beta))
        first = None if C is None or (beta == 0 and ctx.arith == "ort") else _begun(C, beta)
        if A.dtype == np.float32:
            return _sums(left, right, _gemm_order(left, right, C, attributes, ctx), ctx, alpha, first)
        return chained_products(left, right, A.dtype, alpha, first)


def _gemm_order(left: Array, right: Array, c: Array | None, attributes: GemmAttributes, ctx: Context) -> SumOrder:
    """The order of the sums of A' @ B'."""
    if ctx.arith != "ort":
        return SumOrder()
    plain = attributes.alpha == 1 and (c is None or attributes.beta in (0, 1))
    given = ProductForm(ctx.stores(1), (bool(attributes.transA), bool(attributes.transB)), plain)
    return order_of(left.shape[0], right.shape[1], left.shape[1], given)


def _checked(a: Array, b: Array, c: Array | None, attributes: GemmAttributes, ctx: Context) -> tuple[Array, Array]:
    """Refuse shapes that do not fit, and claim the result; A' and B'."""
    for name, matrix in (("A", a), ("B", b)):
        if matrix.ndim != 2:
            raise misfit(f"{name} is not a matrix", name, "rank 2", matrix)
    left, right = a.T if attributes.transA else a, b.T if attributes.transB else b
    if left.shape[1] != right.shape[0]:
        raise misfit(
            "A and B cannot be multiplied",
            "B",
            f"K = {left.shape[1]} rows after transposition, as A has columns",
            f"A' {shape_text(left.shape)}, B' {shape_text(right.shape)}",
            fix="check transA and transB",
        )
    shape = (left.shape[0], right.shape[1])
    if c is not None and not broadcasts_to(c.shape, shape):
        raise bad_shape("C", f"a shape that broadcasts to {shape_text(shape)}", c)
    ctx.claim(shape, 8)
    return left, right


@gemm.native
def _lower_gemm(site: LoweringContext) -> NativeKernel:
    a, b, c = site.inputs
    given = GemmAttributes.of(site.attributes)
    left, right = _checked(a, b, c, given, site.ctx)
    require_order(_gemm_order(left, right, c, given, site.ctx), left.shape[1])
    turned = bool(given.transA), bool(given.transB)
    return matmul_kernel(site, a, b, c, alpha=single(given.alpha), beta=single(given.beta), turned=turned)


def _begun(c: Array, beta: float) -> Array:
    """beta * C, rounded once; float64 for float64, else float32."""
    made = widen(c) * beta
    return made if c.dtype == np.float64 else made.astype(np.float32)


def _times(x: Array, factor: float) -> Array:
    if factor == 1:
        return x
    if abs(factor) < 2**31 and factor == int(factor):
        return np.asarray((x.astype(np.int64) * int(factor)).astype(x.dtype))
    return np.trunc(widen(x) * factor).astype(np.int64).astype(x.dtype)


def _fused_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    a = inputs[0]
    return matmul_macs([tuple(a[axis] for axis in _perm(len(a), attributes, "A"))], outputs, {})


@contrib_op("FusedMatMul", types={"T": ("float16 float double bfloat16", "A B")}, cost=_fused_macs)
def fused_matmul(
    A: Array,
    B: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    ctx: Context,
) -> Array:
    """alpha * A' @ B', shapes as numpy.matmul, floating point of one type.

    A' is A; with transBatchA its first axis becomes the last but one; with transA the last two axes then change places.
    B' likewise. A vector stays as it is. Sums have the order of docs/numerics.md, F1: y = fma(alpha, block, y).
    Raises OperatorError for shapes that do not fit.
    """
    given = {"transA": transA, "transB": transB, "transBatchA": transBatchA, "transBatchB": transBatchB}
    left, right = (x.transpose(_perm(x.ndim, given, name)) for x, name in ((A, "A"), (B, "B")))
    _claim(left, right, ctx)
    if A.dtype == np.float32:
        return _products(left, right, ctx, *_order(left, right, ctx, alpha, **_lie(A, B, given)), single(alpha))
    return chained_products(left, right, A.dtype, single(alpha))


def _lie(a: Array, b: Array, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """How the operands of a product lie, as in ProductForm."""
    turned = tuple(bool(x.ndim > 1 and attributes.get(f"trans{name}")) for name, x in (("A", a), ("B", b)))
    apart = any(attributes.get(f"transBatch{name}") for name in "AB")
    beside = math.prod(b.shape[1:]) if attributes.get("transBatchB") else b.shape[-1]
    return {"turned": turned, "step": beside if apart else None}


def _perm(rank: int, attributes: Mapping[str, Any], name: str) -> list[int]:
    """Which axis of the operand each of A' or B' is."""
    axes = list(range(rank))
    if rank > 1 and attributes.get(f"transBatch{name}"):
        axes = [*axes[1:-1], 0, axes[-1]]
    if rank > 1 and attributes.get(f"trans{name}"):
        axes[-2:] = axes[:-3:-1]
    return axes


@contrib_op("TransposeMatMul", types={"T": ("float16 float double bfloat16", "A B")}, cost=_fused_macs)
def transpose_matmul(
    A: Array, B: Array, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, ctx: Context
) -> Array:
    """FusedMatMul of com.microsoft, which it was called once, without transBatchA and transBatchB."""
    return np.asarray(fused_matmul(A, B, alpha=alpha, transA=transA, transB=transB, ctx=ctx))


@transpose_matmul.native
@fused_matmul.native
def _lower_fused(site: LoweringContext) -> NativeKernel:
    a, b = site.inputs
    perms = {place: _perm(x.ndim, site.attributes, name) for place, (x, name) in enumerate(((a, "A"), (b, "B")))}
    left, right = a.transpose(perms[0]), b.transpose(perms[1])
    _claim(left, right, site.ctx)
    order = _order(left, right, site.ctx, site.attributes["alpha"], **_lie(a, b, site.attributes))[0]
    require_order(order, left.shape[-1])
    kernel = matmul_kernel(site, left, right, alpha=single(site.attributes["alpha"]))
    operands = [place for place in (0, 1) if place in kernel.stages[0].inputs]
    turns: dict[int, Sequence[int]] = {
        place: perms[place] for place in operands if perms[place] != sorted(perms[place])
    }
    return turned_kernel(site, kernel, operands, turns) if turns else kernel
