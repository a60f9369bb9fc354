"""Native lowerings of elementwise operators on 8-bit tensors, by tables that the reference kernels fill.

The reference kernel runs once on all codes, or on all pairs of codes. Its observations there bound what it may observe
in the tensors themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.memo import Memo
from qrun.ir.types import type_name
from qrun.ops._codes import all_codes, common_shape
from qrun.ops._complete import ALWAYS, NEVER, Between, Complete, EachPart, FewEnds
from qrun.ops._granularity import Grain
from qrun.ops._op import Array, Context, Shape
from qrun.ops.lowering.kernel import (
    EIGHT,
    FLOAT,
    LoweringContext,
    NativeKernel,
    Stage,
    decline_error,
    elementwise_of,
    kernel_of,
    staged_kernel,
)

if TYPE_CHECKING:
    from qrun.native.proof.fits import CodeProduct, CodeSum, Expected

Near = Callable[..., "CodeSum | CodeProduct"]
_IN_RESULTS = ("saturated", "nan-quantized")
JOINED = 256
"""The most inputs of a native concatenation: each of its kernel calls carries data about all inputs."""
_PARAMETERS = (1, 2, 4, 5, 6, 7)


def table_kernel(
    site: LoweringContext,
    x: Array,
    table: Array,
    axis: int | None = None,
    complete: Complete = ALWAYS,
    index: int = 0,
    likely: Expected | None = None,
) -> NativeKernel:
    """The kernel of y = table[x], or with a table for each index of `axis`. x is the node's input number `index`.

    likely: an estimate of each table as a line (native/proof/fits.py), which is tried first.
    """
    from qrun.native.kernels.point import Point

    point = Point(site.engine, x.shape, table, x_type=x.dtype, axis=axis, memo=site.memo, likely=likely)
    return kernel_of(site, point, (index,), complete)


def unary_kernel(site: LoweringContext, zero: int | None = None) -> NativeKernel:
    """The kernel of an operator on one 8-bit tensor, whose other inputs are parameters. zero: the number of the input
    that is the result's zero point."""
    x = site.inputs[0]
    if x is None or x.dtype not in EIGHT:
        raise decline_error(f"no native kernel for {type_name(x.dtype) if x is not None else 'nothing'}")

    def results() -> tuple[Array, Context]:
        seen = Context(site.ctx.arith, site.ctx.version)
        return site.reference((all_codes(x.dtype), *site.inputs[1:]), seen), seen

    if not all(site.fixed[1:]):
        results()
        site.require_constants()
    table, seen = site.memo.once(("results", x.dtype), results)
    note(site, seen)
    point = None if zero is None else site.inputs[zero]
    return table_kernel(site, x, table, complete=completeness(seen, table.dtype, point))


def note(site: LoweringContext, seen: Context) -> None:
    """Record the observations that the reference kernel made in the parameters, which hold for every run."""
    site.ctx.observations.extend(o for o in seen.observations if o.kind not in _IN_RESULTS)


def completeness(seen: Context, dtype: np.dtype[Any], zero: Array | None, param: str = "") -> Complete:
    """The check whether the reference would observe nothing in a result. seen: its observations in all possible ones.

    param: count only observations under this name, that of one of several results; "": count all.
    """
    kinds = {o.kind for o in seen.observations if param in ("", o.param)}
    if "nan-quantized" in kinds:
        return NEVER
    return FewEnds.of(dtype, 0 if zero is None else int(zero.reshape(()))) if "saturated" in kinds else ALWAYS


def binary_kernel(
    site: LoweringContext,
    op_type: str,
    near: Near,
    scalar_side: Callable[[Shape, Shape], str],
) -> NativeKernel:
    """The kernel of a com.microsoft operator on A and B, with parameters of A, B and C.

    near:        makes an estimate of the function from the scales of A, B, C and their zero points for unsigned codes.
    scalar_side: the operand that the reference treats as scalar ("a" or "b"), which may change its rounding.
    """
    a, b = site.inputs[0], site.inputs[3]
    shape = common_shape(op_type, A=a, B=b)
    swap = scalar_side(a.shape, b.shape) == "a"
    for index in _PARAMETERS:
        if not site.fixed[index]:
            _pairs(site, swap)
            raise decline_error(f"{site.names[index]} is not constant")
    site = replace(site, memo=site.memo.once(("swap", swap), Memo))
    table, seen = site.memo.once("pairs", lambda: _pairs(site, swap))
    site.ctx.claim(shape, 1)
    note(site, seen)
    complete = completeness(seen, table.dtype, site.inputs[7])
    for fixed, moving, by_moving in ((3, 0, table), (0, 3, table.T)):
        constant, x = site.inputs[fixed], site.inputs[moving]
        axis = _axis(constant.shape, x.shape) if site.fixed[fixed] and not site.fixed[moving] else None
        if axis is not None and shape == x.shape:
            chosen = site.memo.once(("chosen", moving), partial(_lines, by_moving, constant))
            if constant.size == 1:
                return table_kernel(site, x, chosen[0], None, complete, moving)
            likely = site.memo.once(("likely", moving), partial(_expected_lines, site, near, (moving, fixed)))
            return table_kernel(site, x, chosen, axis, complete, moving, likely)
    return _pair_kernel(site, table, near, complete, swap)


def _lines(by_moving: Array, constant: Array) -> Array:
    """For each element of the constant operand: a table for the moving operand's 256 codes."""
    return np.ascontiguousarray(by_moving.T[constant.reshape(-1).view(np.uint8)])


def _expected_lines(site: LoweringContext, near: Near, operands: tuple[int, int]) -> Expected:
    """For each element of the constant second operand: an estimate of the result as a line in the first one's codes."""
    from qrun.native.proof.fits import expected_lines

    constant = site.inputs[operands[1]]
    with np.errstate(all="ignore"):
        return expected_lines(_estimate(site, near, operands), constant.reshape(-1) + np.int64(_shift(constant)))


def _estimate(site: LoweringContext, near: Near, operands: tuple[int, int]) -> CodeSum | CodeProduct:
    """An estimate of the operator's function of unsigned codes."""
    scales, zeros = [], []
    for tensor in (*operands, 5):
        scale, zero, x = site.inputs[tensor + 1], site.inputs[tensor + 2], site.inputs[tensor] if tensor != 5 else None
        scales.append(np.float64(scale.reshape(())))
        zeros.append((0 if zero is None else int(zero.reshape(()))) + (0 if x is None else _shift(x)))
    with np.errstate(all="ignore"):
        return near(*scales, *zeros, site.ctx.arith == "ort")


def _shift(x: Array) -> int:
    """The number that, added to a code, makes it unsigned."""
    return 128 if x.dtype == np.int8 else 0


def _pairs(site: LoweringContext, swap: bool) -> tuple[Array, Context]:
    """The operator's results for all pairs of codes [256 of A, 256 of B], and the reference's observations in them."""
    a = site.inputs[0]
    codes = all_codes(a.dtype)
    column, row = codes[:, None], codes[None, :]
    arguments: list[Any] = list(site.inputs)
    arguments[0], arguments[3] = (column, row) if swap else (row, column)
    seen = Context(site.ctx.arith, site.ctx.version)
    table = site.reference(arguments, seen)
    return table if swap else table.T, seen


def _pair_kernel(site: LoweringContext, table: Array, near: Near, complete: Complete, swap: bool) -> NativeKernel:
    """The kernel of table[a, b]. swap: exchange a and b, as the reference treats A as the scalar: it adds A first."""
    from qrun.native.kernels.copy import broadcast_copy
    from qrun.native.kernels.point import PairLookup, row_shapes

    operands = (3, 0) if swap else (0, 3)
    x, y = (site.inputs[index] for index in operands)
    about = _estimate(site, near, operands)
    entries = np.ascontiguousarray(table.T if swap else table)
    shapes = row_shapes(x.shape, y.shape)
    pair = PairLookup(site.engine, shapes, entries, x_type=x.dtype, near=about, memo=site.memo)
    stages, read = [], []
    for index, own, shape in zip(operands, (x.shape, y.shape), shapes, strict=True):
        if own != shape:
            stages.append(Stage(broadcast_copy(site.engine, own, x.dtype, shape), (index,), f"repeated {index}"))
        read.append(index if own == shape else f"repeated {index}")
    if not stages:
        return kernel_of(site, pair, operands, complete)
    return staged_kernel(site, [*stages, Stage(pair, tuple(read))], (pair,), complete)


def _axis(constant: Shape, x: Shape) -> int | None:
    """The one axis of x, 1 or the last, along which the constant varies; the last for a single number; else None."""
    padded = (1,) * (len(x) - len(constant)) + constant
    axes = [i for i, n in enumerate(padded) if n != 1]
    if len(padded) != len(x) or len(axes) > 1 or any(i not in (1, len(x) - 1) for i in axes):
        return None
    return axes[0] if axes else max(len(x) - 1, 0)


def concat_kernel(
    site: LoweringContext,
    places: Sequence[int],
    axis: int,
    tables: Sequence[Array | None],
    complete: Sequence[Complete] = (),
) -> NativeKernel:
    """The kernel that concatenates the inputs of these numbers, each through its table. complete: each part's check."""
    from qrun.native.kernels.rearrange import Concat

    tensors = [x for x in (site.inputs[index] for index in places) if x is not None]
    if len(tensors) > JOINED:
        raise decline_error(f"more than {JOINED} inputs")
    types = [x.dtype for x in tensors]
    y_type = types[0] if tables[0] is None else tables[0].dtype
    operation = Concat(site.engine, [x.shape for x in tensors], axis, tables, x_types=types, y_type=y_type)
    ends = np.cumsum([x.shape[axis] for x in tensors]).tolist()
    told = all(check is ALWAYS for check in complete)
    whole = ALWAYS if told else EachPart(axis, tuple(ends), tuple(complete))
    return kernel_of(site, operation, tuple(places), whole)


_SIXTEEN = {np.dtype(np.uint16): "quantize_u16", np.dtype(np.int16): "quantize_i16"}
"""The functions of native/emit/functions.py that quantize to 16 bits, by type."""


def quantize_kernel(
    site: LoweringContext, x: Array, scale: Array, zero: Array | None, target: np.dtype[Any], form: Grain
) -> NativeKernel:
    """The kernel of a checked QuantizeLinear that divides in float32."""
    from qrun.native.kernels.quantize import Quantize

    if x.dtype != FLOAT or scale.dtype != FLOAT or target not in (*EIGHT, *_SIXTEEN):
        names = " by ".join(type_name(t) for t in (x.dtype, scale.dtype))
        raise decline_error(f"no native division of {names} to {type_name(target)}")
    site.require_constants()
    scale, zero, axis = _parameters(scale, zero, target, form)
    if target in _SIXTEEN:
        if site.narrow:
            raise decline_error(f"no native division in {type_name(site.narrow)}")
        info, start = np.iinfo(target), int(_single(zero))
        constants = float(_single(scale)), info.min - start, info.max - start, start
        return kernel_of(
            site, elementwise_of(site, _SIXTEEN[target], x, constants=constants), (0,), _complete(scale, zero)
        )
    operation = Quantize(site.engine, x.shape, scale, zero, axis)
    return kernel_of(site, operation, (0,), _complete(scale, zero))


def dequantize_kernel(
    site: LoweringContext, x: Array, scale: Array, zero: Array | None, target: np.dtype[Any], form: Grain
) -> NativeKernel:
    """The kernel of a checked DequantizeLinear."""
    from qrun.native.kernels.quantize import Dequantize

    if x.dtype not in (*EIGHT, *_SIXTEEN, np.dtype(np.int32)) or scale.dtype != FLOAT or target != FLOAT:
        names = " by ".join(type_name(t) for t in (x.dtype, scale.dtype))
        raise decline_error(f"no native product of {names} to {type_name(target)}")
    site.require_constants()
    scale, zero, axis = _parameters(scale, zero, x.dtype, form)
    if x.dtype in _SIXTEEN:
        constants = float(_single(scale)), float(_single(zero))
        return kernel_of(site, elementwise_of(site, "dequantize", x, constants=constants), (0,), ALWAYS)
    operation = Dequantize(site.engine, x.shape, scale, zero, axis)
    return kernel_of(site, operation, (0,), ALWAYS)


def _parameters(scale: Array, zero: Array | None, dtype: np.dtype[Any], form: Grain) -> tuple[Array, Array, int | None]:
    """Scale and zero point of rank 0, or [n] along the axis."""
    if form.kind == "blocked":
        raise decline_error("the scales are blocked")
    shape, axis = ((), None) if form.kind == "per-tensor" else ((-1,), form.axis)
    zero = np.zeros(scale.shape, dtype) if zero is None else zero
    return scale.reshape(shape), zero.reshape(shape), axis


def _complete(scale: Array, zero: Array) -> Complete:
    """A conservative check of results: the least and the greatest code may come from NaN or infinity."""
    info = np.iinfo(zero.dtype)
    with np.errstate(invalid="ignore"):
        plain = bool((np.isfinite(scale) & (scale > 0)).all())
    return Between(int(info.min), int(info.max)) if plain else NEVER


def _single(value: Array) -> Array:
    """The scalar parameter of 16-bit codes. Raises Declined for parameters per axis."""
    if value.ndim:
        raise decline_error("16-bit codes with a scale per axis")
    return value
