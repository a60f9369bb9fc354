"""FusedMatMul of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qrun.ir import Array
from qrun.ops._context import Context
from qrun.ops._float import single
from qrun.ops._matmul import check_matmul, matmul_macs
from qrun.ops._native import LoweringContext, NativeKernel, turned_kernel
from qrun.ops._native_products import matmul_kernel
from qrun.ops._op import Shape, op
from qrun.ops._sums import rounded_products
from qrun.shapes import broadcast_shapes


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    a = inputs[0]
    return matmul_macs([tuple(a[axis] for axis in _perm(len(a), attributes, "A"))], outputs, {})


@op(
    "FusedMatMul",
    since=1,
    domain="com.microsoft",
    types={"T": ("float16 float double bfloat16", "A B")},
    cost=_macs,
)
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
    B' likewise. A vector stays as it is. Each element is its real value rounded once; float64 is computed in float64.
    Raises OperatorError for shapes that do not fit.
    Source: onnxruntime ContribOperators, com.microsoft.FusedMatMul.
    """
    given = {"transA": transA, "transB": transB, "transBatchA": transBatchA, "transBatchB": transBatchB}
    left, right = (x.transpose(_perm(x.ndim, given, name)) for x, name in ((A, "A"), (B, "B")))
    _claim(left, right, ctx)
    return rounded_products(left, right, A.dtype, single(alpha))


def _perm(rank: int, attributes: Mapping[str, Any], name: str) -> list[int]:
    """Which axis of the operand each of A' or B' is."""
    axes = list(range(rank))
    if rank > 1 and attributes.get(f"transBatch{name}"):
        axes = [*axes[1:-1], 0, axes[-1]]
    if rank > 1 and attributes.get(f"trans{name}"):
        axes[-2:] = axes[:-3:-1]
    return axes


def _claim(left: Array, right: Array, ctx: Context) -> None:
    """Check the shapes, and claim the result."""
    check_matmul(left, right)
    rows, columns = left.shape[-2:-1], right.shape[-1:] if right.ndim > 1 else ()
    ctx.claim((*broadcast_shapes(left.shape[:-2], right.shape[:-2]), *rows, *columns), 8)


@fused_matmul.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, b = site.inputs
    perms = {place: _perm(x.ndim, site.attributes, name) for place, (x, name) in enumerate(((a, "A"), (b, "B")))}
    left, right = a.transpose(perms[0]), b.transpose(perms[1])
    _claim(left, right, site.ctx)
    kernel = matmul_kernel(site, left, right, alpha=single(site.attributes["alpha"]))
    operands = [place for place in (0, 1) if place in kernel.stages[0].inputs]
    turns: dict[int, Sequence[int]] = {
        place: perms[place] for place in operands if perms[place] != sorted(perms[place])
    }
    return turned_kernel(site, kernel, operands, turns) if turns else kernel
