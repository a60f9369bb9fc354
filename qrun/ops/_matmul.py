"""Integer matrix products with numpy.matmul's shapes, and the quantized operators' forms of zero points and scales.

They use BLAS and are exact, because a bound on the real operands keeps every partial sum in range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._context import Given, bad_parameter, note_scale, parameter_kind, same_type
from qrun.ops._op import Array, Context, Shape, first_place, misfit, refuse
from qrun.ops._rounding import scale_sums
from qrun.ops._signature import Attributes
from qrun.shapes import broadcast_shapes

EXACT32 = 2**24
"""float32 holds every integer up to this, so sums bounded by it are exact in any order."""


@frozen
class GemmAttributes(Attributes):
    """The attributes of alpha * A' @ B' + beta * C."""

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0


def matmul(a: Array, b: Array) -> Array:
    """numpy.matmul(a, b), both of one type. Empty operands give zeros at once; numpy would loop over all other axes."""
    if a.size and b.size:
        # Kernels of BLAS read past the last column and raise flags for elements that are not part of the product.
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(a, b))
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return np.zeros((*lead, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ())), a.dtype)


class Weights:
    """The left operand of exact products: centred codes (code - zero point) [..., M, K], float32.

    limit: largest magnitude of the other operand's centred codes.
    bound: no sum over K exceeds it. chunks: slices of K; the product over each slice is exact in `dtype`.
    """

    def __init__(self, values: Array, limit: int) -> None:
        self.values = values
        size = np.abs(self.values)
        total = float(size.sum(axis=-1, dtype=np.float64).max()) * limit if size.size else 0.0
        k = self.values.shape[-1]
        self.bound = total
        self.chunks = [slice(0, k)]
        self.dtype: type = np.float32
        if total >= EXACT32:
            pieces = int(total // EXACT32) + 1
            edges = [round(i * k / pieces) for i in range(pieces + 1)]
            self.chunks = [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
            worst = max(float(size[..., c].sum(axis=-1, dtype=np.float64).max(initial=0.0)) for c in self.chunks)
            if pieces > 4 or worst * limit >= EXACT32:
                self.chunks, self.dtype = [slice(0, k)], np.float64
                self.values = self.values.astype(np.float64)

    def times(self, other: Array) -> Array:
        """values @ other, exact integers: float32 if their bound allows, else float64.

        other: centred codes [..., K, N], float32.
        """
        if self.dtype is np.float64:
            return matmul(self.values, other.astype(np.float64))
        if len(self.chunks) == 1:
            return matmul(self.values, other)
        total: Array | None = None
        for c in self.chunks:
            part = np.matmul(self.values[..., c], other[..., c, :])
            total = part.astype(np.float64) if total is None else np.add(total, part, out=total)
        assert total is not None
        return total


def centre(codes: Array, zero_point: Array | None) -> Array:
    """code - zero point in float32 (exact: at most 9 bits); the zero point broadcasts."""
    values = codes.astype(np.float32)
    if zero_point is not None and np.any(zero_point):
        values -= zero_point.astype(np.float32)
    return values


def magnitude(dtype: np.dtype[Any], zero_point: Array | None) -> int:
    """The largest |code - zero point| that 8-bit codes of this type can have."""
    info = np.iinfo(dtype)
    if zero_point is None or not zero_point.size:
        return max(abs(int(info.min)), int(info.max))
    return max(int(zero_point.max()) - int(info.min), int(info.max) - int(zero_point.min()))


def add_bias(acc: Array, bias: Array | None, bound: float) -> tuple[Array, float]:
    """acc + bias exactly; returns the sum and its bound."""
    if bias is None:
        return acc, bound
    bound += float(np.abs(bias.astype(np.float64)).max(initial=0.0))
    if acc.dtype == np.float32 and bound >= EXACT32:
        acc = acc.astype(np.float64)
    acc += bias.astype(acc.dtype)
    return acc, bound


def wrap32(
    acc: Array,
    bound: float,
    ctx: Context,
    index_in_y: Callable[[tuple[int, ...]], Sequence[int]] = lambda index: index,
) -> Array:
    """acc with sums outside int32 wrapped (two's complement) and observed.

    index_in_y: maps an index of acc to one of y."""
    if bound < 2**31:
        return acc
    outside = (acc >= 2.0**31) | (acc < -(2.0**31))
    count = int(np.count_nonzero(outside))
    if count:
        ctx.observe("accumulator-wrap", "y", count, acc.size, index_in_y(first_place(outside)))
        acc = acc.astype(np.int64).astype(np.int32).astype(np.float64)
    return acc


def check_matmul(a: Array, b: Array, names: tuple[str, str] = ("A", "B")) -> None:
    """Refuse shapes that numpy.matmul refuses."""
    ok = a.ndim >= 1 and b.ndim >= 1 and a.shape[-1] == b.shape[-2 if b.ndim > 1 else 0]
    if ok:
        try:
            broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            ok = False
    if not ok:
        expected = f"[...,K,N] for {names[0]} [...,M,K], leading axes that broadcast"
        got = f"{names[0]} {shape_text(a.shape)}, {names[1]} {shape_text(b.shape)}"
        raise misfit(f"{names[0]} and {names[1]} cannot be multiplied", names[1], expected, got)


def row_param(array: Given, name: str, a: Array, op_type: str) -> Given:
    """A parameter of the left operand [...,M,K]: scalar, [M] if it is 2-D, or [...,M,1]; reshaped to broadcast."""
    return _param(array, name, a, -2, op_type)


def column_param(array: Given, name: str, b: Array, op_type: str) -> Given:
    """A parameter of the right operand [...,K,N]: scalar, [N] if it is 2-D, or [...,1,N]; reshaped to broadcast."""
    return _param(array, name, b, -1, op_type)


def _param(array: Given, name: str, matrix: Array, axis: int, op_type: str) -> Given:
    """A scale or zero point in the shape that broadcasts with its matrix. Raises OperatorError."""
    if array is None:
        return None
    if array.ndim <= 1 and array.size == 1:
        return array.reshape(())
    kind = "row" if axis == -2 else "column"
    length = matrix.shape[axis] if matrix.ndim > 1 else 1
    full = list(matrix.shape)
    if matrix.ndim > 1:
        full[-1 if axis == -2 else -2] = 1
    if array.ndim == 1 and matrix.ndim == 2 and array.shape[0] == length:
        return array.reshape(-1, 1) if axis == -2 else array
    fits = array.ndim == matrix.ndim > 1 and all(p in (1, n) for p, n in zip(array.shape[:-2], full[:-2], strict=True))
    if fits and list(array.shape[-2:]) == full[-2:]:
        return array
    inner = matrix.shape[-2] if axis == -1 and matrix.ndim > 1 else -1
    why = f"{op_type}: one value per {kind}, or a scalar."
    if array.ndim == 1 and array.shape[0] == inner:
        why = f"{op_type}'s text says K elements for b; that is a slip for N, one per column."
    expected = f"a scalar{f', [{length}]' if matrix.ndim == 2 else ''} or {shape_text(tuple(full))} (one per {kind})"
    thing = parameter_kind(name)
    raise bad_parameter(name, expected, array, why=why, fix=f"export one {thing} per {kind}, or a single {thing}")


def integer_matmul(
    a: Array, b: Array, a_zero: Array | None, b_zero: Array | None, ctx: Context, bias: Array | None = None
) -> Array:
    """sum over k of (a - a_zero) * (b - b_zero) [+ bias], at least 2-D [..., M, N], wrapped to int32.

    Exact integers in float32 or float64. 1-D operands become a row and a column.
    """
    left, right = claim_product(a, b, ctx)
    weights = Weights(np.swapaxes(centre(right, b_zero), -1, -2), magnitude(a.dtype, a_zero))
    acc, bound = np.swapaxes(weights.times(np.swapaxes(centre(left, a_zero), -1, -2)), -1, -2), weights.bound
    if ctx.lost is not None:
        acc, bound = add_bias(acc.astype(np.float64), ctx.lost(left, right), bound)
    acc, bound = add_bias(acc, bias, bound)
    return wrap32(acc, bound, ctx)


def claim_product(a: Array, b: Array, ctx: Context, itemsize: int = 8) -> tuple[Array, Array]:
    """Claim the accumulator of a checked product; returns the operands, 1-D ones as a row and a column."""
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    lead = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    ctx.claim((*lead, left.shape[-2], right.shape[-1]), itemsize, "accumulator")
    return left, right


def matmul_shape(acc: Array, a: Array, b: Array) -> Array:
    """Drop the axes that were added to 1-D operands."""
    if b.ndim == 1:
        acc = acc[..., 0]
    if a.ndim == 1:
        acc = acc[..., 0, :] if b.ndim > 1 else acc[..., 0]
    return acc


def matmul_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """The multiply-adds of a matrix product."""
    return int(np.prod(outputs[0], dtype=np.int64)) * (inputs[0][-1] if inputs[0] else 0)


def gemm_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """Multiply-adds of a product of two matrices; the first one may be transposed."""
    return int(np.prod(outputs[0], dtype=np.int64)) * inputs[0][0 if attributes.get("transA") else 1]


def float_matmul(
    a: Array,
    a_scale: Array,
    a_zero: Array | None,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    bias: Array | None,
    op_type: str,
    ctx: Context,
) -> Array:
    """(sum over k of (a - a_zero) * (b - b_zero_point)) * a_scale * b_scale + bias in a_scale's type.

    a's parameters are rank 0 and checked; b's are scalar, [N], or [...,1,N]. The integer sum wraps to
    int32. The real result is rounded once; in ``ort`` sum, product and addition are float32 operations.
    """
    bz, bs = check_product(a, a_scale, b, b_scale, b_zero_point, bias, op_type, ctx)
    acc = integer_matmul(a, b, a_zero, bz, ctx)
    if ctx.arith != "ort" or a_scale.dtype != np.float32:
        y = scale_sums(acc, (a_scale, bs), bias, a_scale.dtype)
    else:
        with np.errstate(all="ignore"):
            y = acc.astype(np.float32) * (a_scale * bs)
            y = y if bias is None else y + bias
    return np.asarray(matmul_shape(y, a, b))


def check_product(
    a: Array,
    a_scale: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None,
    bias: Array | None,
    op_type: str,
    ctx: Context,
) -> tuple[Array | None, Array]:
    """Refuse what these pages forbid and observe the scales; returns b's zero point and scale, to broadcast."""
    check_matmul(a, b)
    same_type(b_zero_point, b.dtype, "b_zero_point", "B")
    bz = _column_of(b_zero_point, "b_zero_point", b, op_type)
    bs = _column_of(b_scale, "b_scale", b, op_type)
    note_scale(ctx, a_scale, "a_scale")
    note_scale(ctx, bs, "b_scale")
    columns = b.shape[-1] if b.ndim > 1 else 1
    if bias is not None and bias.shape != (columns,):
        expected = f"[{columns}] (one per column of B)"
        why = f"{op_type}: bias is 1-D, as long as B's last dimension."
        raise refuse("the bias has the wrong shape", "bias", expected, bias, why=why, code="QR305")
    return bz, bs


def _column_of(array: Given, name: str, b: Array, op_type: str) -> Given:
    """A parameter of the right operand: scalar, [N] for any rank of it, or [...,1,N]; reshaped to broadcast.

    For a stack of matrices, [N] becomes [1,...,1,N]: these pages, unlike MatMulInteger's, allow 1-D for any rank of B.
    """
    if array is not None and array.ndim == 1 and b.ndim > 2 and array.shape[0] == b.shape[-1]:
        array = array.reshape((1,) * (b.ndim - 1) + (-1,))
    return column_param(array, name, b, op_type)
