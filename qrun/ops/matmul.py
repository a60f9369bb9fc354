"""Matrix products: MatMul, Gemm, Einsum; FusedMatMul and CDist of com.microsoft."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import OperatorError
from qrun.ir.types import shape_text
from qrun.ops._chains import ProductForm, SumOrder, chained_products, ordered_products, ort_matmul_order, ort_order
from qrun.ops._float import is_integer, narrow, product, single, widen
from qrun.ops._matmul import GemmAttributes, check_matmul, gemm_macs, matmul_macs
from qrun.ops._op import Array, Context, Shape, bad_shape, contrib_op, misfit, one_of, op, refuse
from qrun.ops._reduce import sum_over
from qrun.ops._shape import claim
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, transposed_kernel
from qrun.ops.lowering.products import matmul_kernel, require_order
from qrun.shapes import broadcast_shapes, broadcasts_to


@op("MatMul", since=1, cost=matmul_macs)
def matmul(A: Array, B: Array, *, ctx: Context) -> Array:
    """Multiply A [...,M,K] by B [...,K,N]; both have one type, and shapes are as in numpy.matmul.

    Sums of floating point have the order of numerics.md, F1; float64 is added in float64.
    Integers wrap as in two's complement. Raises OperatorError for shapes that do not fit.
    """
    _claim(A, B, ctx)
    if is_integer(A.dtype):
        return product(A, B)
    return _products(A, B, ctx, *_order(A, B, ctx)) if A.dtype == np.float32 else chained_products(A, B, A.dtype)


def _order(a: Array, b: Array, ctx: Context, alpha: float = 1.0, **lie: Any) -> tuple[SumOrder, bool]:
    """The order of the sums of a @ b, float32, and whether a is taken as one matrix. lie: fields of ProductForm."""
    if ctx.arith != "ort":
        return SumOrder(), False
    return ort_matmul_order(a.shape, b.shape, ProductForm(ctx.stores(1) and b.ndim == 2, plain=alpha == 1, **lie))


def _sums(left: Array, right: Array, order: SumOrder, ctx: Context, alpha: float, first: Array | None = None) -> Array:
    """alpha * left @ right + first of float32, summed in this order."""
    ctx.sums.append(order.text)
    return ordered_products(left, right, order, alpha, first)


def _products(a: Array, b: Array, ctx: Context, order: SumOrder, whole: bool, alpha: float = 1.0) -> Array:
    """a @ b in an order of sums; `whole`: as one product of matrices."""
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

    All of one type. Sums of floating point have the order of numerics.md, F1: they begin with beta * C.
    Integers wrap; a product with an alpha or beta that is no integer is truncated. Nothing is skipped: beta = 0 times
    NaN is NaN. Raises OperatorError for shapes that do not fit.
    """
    left, right = _check(A, B, C, attributes, ctx)
    alpha, beta = single(attributes.alpha), single(attributes.beta)
    with np.errstate(all="ignore"):
        if is_integer(A.dtype):
            total = _times(product(left, right), alpha)
            return total if C is None else np.asarray(total + _times(C, beta))
        first = None if C is None or (beta == 0 and ctx.arith == "ort") else _scaled_bias(C, beta)
        if A.dtype == np.float32:
            return _sums(left, right, _gemm_order(left, right, C, attributes, ctx), ctx, alpha, first)
        return chained_products(left, right, A.dtype, alpha, first)


def _gemm_order(left: Array, right: Array, c: Array | None, attributes: GemmAttributes, ctx: Context) -> SumOrder:
    """The order of the sums of A' @ B'."""
    if ctx.arith != "ort":
        return SumOrder()
    plain = attributes.alpha == 1 and (c is None or attributes.beta in (0, 1))
    given = ProductForm(ctx.stores(1), (bool(attributes.transA), bool(attributes.transB)), plain)
    return ort_order(left.shape[0], right.shape[1], left.shape[1], given)


def _check(a: Array, b: Array, c: Array | None, attributes: GemmAttributes, ctx: Context) -> tuple[Array, Array]:
    """Refuse shapes that do not fit, and claim the result; returns A' and B'."""
    for name, matrix in (("A", a), ("B", b)):
        if matrix.ndim != 2:
            raise misfit(f"{name} is not a matrix", name, "rank 2", matrix)
    left, right = a.T if attributes.transA else a, b.T if attributes.transB else b
    if left.shape[1] != right.shape[0]:
        expected = f"K = {left.shape[1]} rows after transposition, as A has columns"
        got = f"A' {shape_text(left.shape)}, B' {shape_text(right.shape)}"
        raise misfit("A and B cannot be multiplied", "B", expected, got, fix="check transA and transB")
    shape = (left.shape[0], right.shape[1])
    if c is not None and not broadcasts_to(c.shape, shape):
        raise bad_shape("C", f"a shape that broadcasts to {shape_text(shape)}", c)
    ctx.claim(shape, 8)
    return left, right


@gemm.native
def _lower_gemm(site: LoweringContext) -> NativeKernel:
    a, b, c = site.inputs
    given = GemmAttributes.of(site.attributes)
    left, right = _check(a, b, c, given, site.ctx)
    require_order(_gemm_order(left, right, c, given, site.ctx), left.shape[1])
    turned = bool(given.transA), bool(given.transB)
    return matmul_kernel(site, a, b, c, alpha=single(given.alpha), beta=single(given.beta), turned=turned)


def _scaled_bias(c: Array, beta: float) -> Array:
    """beta * C, rounded once; float64 for float64, else float32."""
    made = widen(c) * beta
    return made if c.dtype == np.float64 else made.astype(np.float32)


def _times(x: Array, factor: float) -> Array:
    """x * factor, truncated for integers."""
    if factor == 1:
        return x
    if abs(factor) < 2**31 and factor == int(factor):
        return np.asarray((x.astype(np.int64) * int(factor)).astype(x.dtype))
    return np.trunc(widen(x) * factor).astype(np.int64).astype(x.dtype)


def _fused_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """The multiply-adds of FusedMatMul."""
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
    B' likewise. A vector stays as it is. Sums have the order of numerics.md, F1: y = fma(alpha, block, y).
    Raises OperatorError for shapes that do not fit.
    """
    given = {"transA": transA, "transB": transB, "transBatchA": transBatchA, "transBatchB": transBatchB}
    left, right = (x.transpose(_perm(x.ndim, given, name)) for x, name in ((A, "A"), (B, "B")))
    _claim(left, right, ctx)
    if A.dtype == np.float32:
        return _products(left, right, ctx, *_order(left, right, ctx, alpha, **_lie(A, B, given)), single(alpha))
    return chained_products(left, right, A.dtype, single(alpha))


def _lie(a: Array, b: Array, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The layout of a product's operands, as fields of ProductForm."""
    turned = tuple(bool(x.ndim > 1 and attributes.get(f"trans{name}")) for name, x in (("A", a), ("B", b)))
    apart = any(attributes.get(f"transBatch{name}") for name in "AB")
    beside = math.prod(b.shape[1:]) if attributes.get("transBatchB") else b.shape[-1]
    return {"turned": turned, "step": beside if apart else None}


def _perm(rank: int, attributes: Mapping[str, Any], name: str) -> list[int]:
    """For each axis of A' or B', the operand's axis."""
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
    perms = {index: _perm(x.ndim, site.attributes, name) for index, (x, name) in enumerate(((a, "A"), (b, "B")))}
    left, right = a.transpose(perms[0]), b.transpose(perms[1])
    _claim(left, right, site.ctx)
    order = _order(left, right, site.ctx, site.attributes["alpha"], **_lie(a, b, site.attributes))[0]
    require_order(order, left.shape[-1])
    kernel = matmul_kernel(site, left, right, alpha=single(site.attributes["alpha"]))
    operands = [index for index in (0, 1) if index in kernel.stages[0].inputs]
    turns: dict[int, Sequence[int]] = {
        index: perms[index] for index in operands if perms[index] != sorted(perms[index])
    }
    return transposed_kernel(site, kernel, operands, turns) if turns else kernel


_TERM = re.compile(r"[A-Za-z]*(\.\.\.[A-Za-z]*)?")


@frozen
class _Operand:
    """A tensor whose axes have labels: a letter, or a number for an axis covered by the ellipsis."""

    array: Array
    labels: tuple[str, ...]


@op("Einsum", since=12)
def einsum(*Inputs: Array, equation: str, ctx: Context) -> Array:
    """Sums of products by Einstein's convention: output[out] = sum over all other indices of Inputs[0][t0] * ...

    equation: ``t0,t1,...->out``; terms of letters, one for each axis, and at most one ellipsis, which stands for axes
    that broadcast. Without ``->out`` the ellipsis comes first, then the letters that occur once, in ASCII order.
    Repeated letters in a term take the diagonal. An axis of length 1 broadcasts.
    Inputs are multiplied from left to right, two at a time. Sums of floating point have the order of numerics.md,
    F1, each step in float32, and float64 in float64. Integers wrap.
    Raises OperatorError for an equation that is malformed or does not fit the inputs.
    """
    if not Inputs or any(x is None for x in Inputs):
        raise refuse("an input is missing", "Inputs", "one tensor or more", "nothing", code="QR205")
    dtype = Inputs[0].dtype
    terms, out = _parse(equation, Inputs)
    sizes = _sizes(terms, Inputs)
    claim(ctx, [sizes[label] for label in out], dtype, "equation")
    kept = is_integer(dtype) or dtype == np.float64
    arrays = Inputs if kept else [x.astype(np.float32) for x in Inputs]
    pending = [_operand(x, labels, sizes) for x, labels in zip(arrays, terms, strict=True)]
    total = pending.pop(0)
    while pending:
        following = pending.pop(0)
        needed = {*out, *(label for operand in pending for label in operand.labels)}
        total = _contract(total, following, needed, sizes, ctx)
    total = _reduce_labels(total, set(out))
    result = total.array.transpose([total.labels.index(label) for label in out])
    return result if is_integer(dtype) else narrow(result, dtype)


def _equation_error(message: str, expected: str, equation: str) -> OperatorError:
    """The error of an Einsum equation."""
    return refuse(message, "equation", expected, equation[:80], code="QR204")


def _parse(equation: str, inputs: Sequence[Array]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The labels of each input's axes, and of the output's."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    for text in (*texts, right):
        if not _TERM.fullmatch(text):
            raise _equation_error("a term is malformed", "letters and at most one ellipsis in each term", equation)
    if len(texts) != len(inputs):
        raise _equation_error(f"{len(texts)} terms for {len(inputs)} inputs", f"{len(inputs)} terms", equation)
    letters = [text.replace("...", "") for text in texts]
    hidden = 0
    for index, (text, x) in enumerate(zip(texts, inputs, strict=True)):
        more = x.ndim - len(letters[index])
        if more < 0 or ("..." not in text and more):
            expected = f"rank {len(letters[index])}" + (" or more" if "..." in text else "")
            raise misfit(f"term {text!r} does not fit Inputs[{index}]", f"Inputs[{index}]", expected, x)
        hidden = max(hidden, more)
    every = "".join(letters)
    if not arrow:
        once = sorted(c for c in set(every) if every.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    plain = right.replace("...", "")
    if len(set(plain)) < len(plain) or not set(plain) <= set(every) or ("..." in right and "..." not in left):
        raise _equation_error("the output term does not fit", "each letter of the inputs at most once", equation)

    def labels(text: str, rank: int) -> tuple[str, ...]:
        before, dots, after = text.partition("...")
        count = rank - len(before) - len(after) if dots else 0
        return (*before, *(str(i) for i in range(hidden - count, hidden)), *after)

    terms = [labels(text, x.ndim) for text, x in zip(texts, inputs, strict=True)]
    return terms, labels(right, len(plain) + hidden)


def _sizes(terms: Sequence[tuple[str, ...]], inputs: Sequence[Array]) -> dict[str, int]:
    """The size of each index of an Einsum equation. Raises OperatorError if two inputs differ."""
    sizes: dict[str, int] = {}
    for index, (labels, x) in enumerate(zip(terms, inputs, strict=True)):
        for label, n in zip(labels, x.shape, strict=True):
            known = sizes.get(label, 1)
            if known != n and 1 not in (known, n):
                what = f"index {label} has {known} places before, {n} in Inputs[{index}]"
                raise misfit(what, f"Inputs[{index}]", f"{known} or 1 places", f"{n}, in {shape_text(x.shape)}")
            sizes[label] = n if known == 1 else known
    return sizes


def _operand(x: Array, labels: tuple[str, ...], sizes: dict[str, int]) -> _Operand:
    """x with each label once; axes that broadcast are dropped."""
    kept = [axis for axis, label in enumerate(labels) if x.shape[axis] == sizes[label]]
    array = x.reshape([x.shape[axis] for axis in kept])
    left = [labels[axis] for axis in kept]
    for label in dict.fromkeys(left):
        while left.count(label) > 1:
            first = left.index(label)
            second = left.index(label, first + 1)
            array = np.diagonal(array, 0, first, second)
            left = [c for axis, c in enumerate(left) if axis not in (first, second)] + [label]
    return _Operand(array, tuple(left))


def _reduce_labels(operand: _Operand, needed: set[str]) -> _Operand:
    """The operand summed over the labels that are not needed."""
    gone = tuple(axis for axis, label in enumerate(operand.labels) if label not in needed)
    if not gone:
        return operand
    with np.errstate(all="ignore"):
        if is_integer(operand.array.dtype):
            made = np.asarray(np.sum(operand.array, axis=gone, dtype=operand.array.dtype))
        else:
            made = sum_over(operand.array, gone, False).astype(operand.array.dtype)
    return _Operand(made, tuple(label for label in operand.labels if label in needed))


def _contract(a: _Operand, b: _Operand, needed: set[str], sizes: dict[str, int], ctx: Context) -> _Operand:
    """a * b, summed over the labels that are no longer needed."""
    a, b = _reduce_labels(a, needed | set(b.labels)), _reduce_labels(b, needed | set(a.labels))
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    rows = [label for label in a.labels if label not in shared]
    columns = [label for label in b.labels if label not in shared]
    labels = (*batch, *rows, *columns)
    shape = claim(ctx, [sizes[label] for label in labels], a.array.dtype, "equation")

    def matrices(operand: _Operand, first: Sequence[str], second: Sequence[str]) -> Array:
        order = [operand.labels.index(label) for label in (*batch, *first, *second)]
        dims = [math.prod(sizes[label] for label in group) for group in (batch, first, second)]
        return operand.array.transpose(order).reshape(dims)

    left, right = matrices(a, rows, inner), matrices(b, inner, columns)
    made = product(left, right) if is_integer(left.dtype) else chained_products(left, right, left.dtype)
    return _Operand(made.reshape(shape), labels)


@contrib_op("CDist", types={"T": ("float double", "A B")})
def cdist(A: Array, B: Array, *, metric: str = "sqeuclidean", ctx: Context) -> Array:
    """The distance between each row of A [M,N] and each of B [K,N], or its square: [M,K], of their type.

    metric: sqeuclidean, the sum of the squares of differences, or euclidean, its root. In float64 and rounded once.
    Raises OperatorError for shapes that do not fit and other metrics.
    """
    one_of("metric", metric, ("sqeuclidean", "euclidean"))
    if A.ndim != 2:
        raise bad_shape("A", "[M,N]", A)
    if B.ndim != 2 or B.shape[1] != A.shape[1]:
        raise misfit("rows of A and B differ in length", "B", f"[K,{A.shape[1]}]", B)
    ctx.claim((len(A), len(B)), 8)
    ctx.claim(B.shape, 24)
    made, others = np.empty((len(A), len(B))), widen(B)
    with np.errstate(all="ignore"):
        for row, x in zip(made, widen(A), strict=True):
            np.square(others - x).sum(axis=1, out=row)
        return narrow(np.sqrt(made) if metric == "euclidean" else made, A.dtype)
