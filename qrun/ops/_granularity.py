"""Per-tensor, per-axis and blocked parameters: which of these a scale is, and views of the tensor that it fits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import OperatorError
from qrun.ir.schema import OPSETS
from qrun.ir.types import shape_text, type_name
from qrun.ops._context import bad_parameter
from qrun.ops._op import Array, Shape, refuse
from qrun.ops._quantize import BLOCK
from qrun.ops._quantized import PER_AXIS_SINCE

_PER_TENSOR = (10, 13)
"""The first version in ai.onnx, which has no axis, and the first version that has one."""
_PER_BLOCK = "export one scale per block of the axis, or without block_size"


@frozen
class Grain:
    """How a scale covers a tensor of `shape`, viewed as [outer, steps, block, inner].

    kind: ``per-tensor``, ``per-axis`` or ``blocked``; axis: non-negative, 0 per tensor; block: 1 unless blocked.
    """

    kind: str
    shape: Shape
    axis: int = 0
    block: int = 1

    def views(self, x: Array, y: Array, scale: Array, zero: Array | None) -> Iterator[tuple[Array, ...]]:
        """Yield 4-D views (x, y, scale, zero) that broadcast together, each small enough to stay in cache.

        x, y: C-contiguous, of the tensor's shape. zero: shaped like scale; if missing, scale is yielded in its place.
        """
        if not x.size:
            return
        parts: list[tuple[Array, ...]]
        if self.kind == "per-tensor":
            whole = (1, 1, 1, x.size)
            parts = [(x.reshape(whole), y.reshape(whole), scale.reshape(1, 1, 1, 1), _as(zero, scale, (1, 1, 1, 1)))]
        else:
            parts = list(self._parts(x, y, scale, zero))
        for part in parts:
            yield from _cut(part, 0)

    def _parts(self, x: Array, y: Array, scale: Array, zero: Array | None) -> Iterator[tuple[Array, ...]]:
        """Views of x, y, scale and zero point that broadcast together, part by part."""
        outer, inner = math.prod(self.shape[: self.axis]), math.prod(self.shape[self.axis + 1 :])
        length = self.shape[self.axis]
        if self.kind == "per-axis":
            grid = (outer, length, 1, inner)
            lanes = (1, length, 1, 1)
            yield x.reshape(grid), y.reshape(grid), scale.reshape(lanes), _as(zero, scale, lanes)
            return
        block = min(self.block, length)
        whole = length // block
        lanes = (outer, -(-length // block), 1, inner)
        steps, zeros = scale.reshape(lanes), _as(zero, scale, lanes)
        flat_x, flat_y = x.reshape(outer, length, inner), y.reshape(outer, length, inner)
        for first, last, size in ((0, whole, block), (whole, lanes[1], length - whole * block)):
            if last > first:
                span = slice(first * block, first * block + (last - first) * size)
                grid = (outer, last - first, size, inner)
                yield (
                    flat_x[:, span].reshape(grid),
                    flat_y[:, span].reshape(grid),
                    steps[:, first:last],
                    zeros[:, first:last],
                )


def _as(zero: Array | None, scale: Array, shape: Shape) -> Array:
    """The zero point in another shape (the scale stands in for a missing one)."""
    return (scale if zero is None else zero).reshape(shape)


def _cut(parts: tuple[Array, ...], axis: int) -> Iterator[tuple[Array, ...]]:
    """Cut views along their axes until each has at most BLOCK elements."""
    x = parts[0]
    if x.size <= BLOCK or axis == 4:
        yield parts
        return
    length = x.shape[axis]
    step = max(1, BLOCK * length // x.size)
    for first in range(0, length, step):
        rows = (slice(None),) * axis + (slice(first, first + step),)
        cut = tuple(p if p.shape[axis] == 1 else p[rows] for p in parts)
        if step > 1:
            yield cut
        else:
            yield from _cut(cut, axis + 1)


def grain(
    x: Array,
    scale: Array,
    zero: Array | None,
    axis: int | None,
    block_size: int,
    op_type: str,
    version: int,
    names: tuple[str, str],
) -> Grain:
    """The granularity that the shape of `scale` selects; refuses what does not fit x.

    axis:  used from version 13 of ai.onnx on, and in com.microsoft. names: of the scale and the zero point.
    Source: ONNX operators, QuantizeLinear-21 (granularity, axis, block_size).
    """
    op = f"{op_type}-{min(version, OPSETS[-1])}"
    if _PER_TENSOR[0] <= version < _PER_TENSOR[1]:
        axis = None
    found = _grain(x, scale, axis, block_size, op, names[0])
    both_single = scale.size == 1 and zero is not None and zero.size == 1 and zero.ndim <= 1
    if zero is not None and zero.shape != scale.shape and not both_single:
        from qrun.ops._advice import zero_point_fix

        what = f"{names[1]} has shape {shape_text(zero.shape)}, {names[0]} {shape_text(scale.shape)}"
        why = f"{op}: scale and zero point have the same shape."
        fix = zero_point_fix(zero, zero.dtype, scale.shape)
        raise refuse(what, names[1], f"{shape_text(scale.shape)}, as {names[0]}", zero, why=why, fix=fix, code="QR302")
    return found


def _grain(x: Array, scale: Array, axis: int | None, block_size: int, op: str, name: str) -> Grain:
    """How a scale's elements belong to x: per tensor, per axis or blocked. Raises OperatorError."""
    if block_size and scale.ndim:
        return _block_grain(x, scale, axis or 0, block_size, op, name)
    if scale.size == 1 and scale.ndim <= 1:
        return Grain("per-tensor", x.shape)
    if axis is None:
        why = f"{op} is per tensor; per-axis scales came with opset 13."
        raise _bad_scale(name, "a scalar or [1]", scale, why, PER_AXIS_SINCE)
    if scale.ndim != 1:
        why = f"{op}: a scale of rank {scale.ndim} means blocked quantization, which needs block_size."
        raise _bad_scale(name, "a scalar or a 1-D tensor", scale, why)
    dim = _axis(x, axis, op)
    if scale.shape[0] != x.shape[dim]:
        from qrun.ops._advice import axis_fix

        fix = axis_fix(x.shape, scale.shape[0], axis)
        want = f"a scalar or [{x.shape[dim]}] (the length of axis {dim} of x {shape_text(x.shape)})"
        raise _bad_scale(name, want, scale, f"{op}: one value per slice along axis.", fix)
    return Grain("per-axis", x.shape, dim)


def _axis(x: Array, axis: int, op: str) -> int:
    """The axis, counted from 0. Raises OperatorError if x has no such axis."""
    if not -x.ndim <= axis < x.ndim:
        what = f"axis {axis} is out of range for a rank-{x.ndim} x"
        expected = f"{-x.ndim} to {x.ndim - 1}" if x.ndim else "a scalar scale: x has no axes"
        why = f"{op}: axis is 1 unless given." if axis == 1 else ""
        fix = "write axis=0" if x.ndim == 1 else ""
        raise refuse(what, "axis", expected, str(axis), why=why, fix=fix, code="QR204")
    return axis % x.ndim


def _block_grain(x: Array, scale: Array, axis: int, block_size: int, op: str, name: str) -> Grain:
    """The grain of a blocked scale. Raises OperatorError if its shape does not fit x."""
    if block_size < 0:
        raise _bad_block("a positive number, or 0 for none", block_size, op)
    if scale.ndim != x.ndim or not x.ndim:
        why = f"{op}: with block_size, the scale has x's rank."
        raise _bad_scale(name, f"rank {x.ndim}, x is {shape_text(x.shape)}", scale, why, _PER_BLOCK)
    dim = _axis(x, axis, op)
    length, steps = x.shape[dim], scale.shape[dim]
    others = all(n == s for i, (n, s) in enumerate(zip(x.shape, scale.shape, strict=True)) if i != dim)
    if others and steps == -(-length // block_size):
        return Grain("blocked", x.shape, dim, block_size)
    if others and 0 < steps <= length:
        low = -(-length // steps)
        high = -(-length // (steps - 1)) - 1 if steps > 1 else None
        if high is None or low <= high:
            want = f"{low} or more" if high is None else f"{low} to {high}" if low < high else str(low)
            raise _bad_block(f"{want} ({length} elements of axis {dim} in {steps} blocks)", block_size, op)
    want_shape = (*x.shape[:dim], -(-length // block_size), *x.shape[dim + 1 :])
    why = f"{op}: the scale has x's shape, with axis {dim} divided by block_size {block_size}, rounded up."
    raise _bad_scale(name, shape_text(want_shape), scale, why, _PER_BLOCK)


def _bad_scale(name: str, expected: str, scale: Array, why: str, fix: str = "") -> OperatorError:
    """The error of a scale whose shape does not fit."""
    from qrun.ops._advice import PER_AXIS

    return bad_parameter(name, expected, scale, why=why, fix=fix or PER_AXIS)


def _bad_block(expected: str, got: int, op: str) -> OperatorError:
    """The error of a block_size that does not fit."""
    why = f"{op}: the scale's shape and block_size must agree."
    return refuse(f"block_size is {got}", "block_size", expected, str(got), why=why, code="QR204")


def check_no_zero_point(zero: Array, name: str, why: str) -> None:
    """Refuse a zero point of float8, float6 or float4 that is not 0."""
    bad = ~(zero.astype(np.float32) == 0)
    if bad.any():
        message, got = f"{name} of {type_name(zero.dtype)} is not 0", str(zero.reshape(-1)[int(np.argmax(bad))])
        raise refuse(message, name, "0", got, why=why, fix="use a zero point of 0")
