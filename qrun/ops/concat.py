"""Concat, and its inverse Split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from qrun.ir.types import shape_text, type_name
from qrun.ops._float import axis_in
from qrun.ops._op import Array, Context, misfit, op, refuse
from qrun.ops._shape import claim, ints, same_but
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel
from qrun.ops.lowering.pointwise import concat_kernel


@op("Concat", since=4)
def concat(*inputs: Array, axis: int, ctx: Context) -> Array:
    """Join tensors along `axis`; their other dimensions are equal. Source: ONNX operators, Concat-13.

    Refuses other ranks, dimensions or types, and inputs that are omitted.
    """
    return np.concatenate(inputs, axis=_check(inputs, axis, ctx))


def _check(inputs: Sequence[Array], axis: int, ctx: Context) -> int:
    """The axis, counted from the front; refuses inputs that do not fit each other."""
    if not inputs or any(x is None for x in inputs):
        raise refuse("an input is missing", "inputs", "one or more tensors", "nothing", code="QR205")
    first = inputs[0]
    place = axis_in(axis, first.ndim)
    for number, x in enumerate(inputs[1:], 2):
        if not same_but(x.shape, first.shape, place) or x.dtype != first.dtype:
            wanted = [*first.shape]
            if wanted and x.ndim == first.ndim:
                wanted[place] = x.shape[place]
            raise misfit(
                f"inputs[{number}] does not fit inputs[1]",
                f"inputs[{number}]",
                f"{type_name(first.dtype)} {shape_text(tuple(wanted))}",
                f"{type_name(x.dtype)} {shape_text(x.shape)}",
                why=f"Concat: all dimensions except axis {axis} are equal.",
            )
    length = sum(x.shape[place] for x in inputs)
    claim(ctx, (*first.shape[:place], length, *first.shape[place + 1 :]), first.dtype, "inputs")
    return place


@concat.native
def _lower(site: LoweringContext) -> NativeKernel:
    place = _check(cast(Sequence[Array], site.inputs), site.attributes["axis"], site.ctx)
    return concat_kernel(site, range(len(site.inputs)), place, [None] * len(site.inputs))


def _cut(input: Array, axis: int, lengths: Sequence[int], ctx: Context) -> tuple[Array, ...]:
    place = axis_in(axis, input.ndim)
    size = input.shape[place]
    if len(lengths) != ctx.outputs:
        raise misfit(f"the node names {ctx.outputs} outputs", "split", f"{ctx.outputs} lengths", list(lengths))
    if any(n < 0 for n in lengths) or sum(lengths) != size:
        raise misfit("the lengths do not fit", "split", f"numbers of 0 or more that add up to {size}", list(lengths))
    parts = []
    start = 0
    for n in lengths:
        parts.append(input[(slice(None),) * place + (slice(start, start + n),)])
        start += n
    return tuple(parts)


def _equal(input: Array, axis: int, count: int) -> list[int]:
    size = input.shape[axis_in(axis, input.ndim)]
    if count < 1 or size % count:
        raise misfit(
            f"axis {axis} does not split into {count} equal parts", "input", f"a multiple of {count}", str(size)
        )
    return [size // count] * count


@op("Split", since=2, form="moves")
def split_2(input: Array, *, axis: int = 0, split: tuple[int, ...] = (), ctx: Context) -> tuple[Array, ...]:
    """Cut a tensor along `axis` into views of the lengths `split`, or into equal parts, one for each output.

    Source: ONNX operators, Split-11.
    """
    return _cut(input, axis, split or _equal(input, axis, ctx.outputs), ctx)


@op("Split", since=13, form="moves")
def split_13(input: Array, split: Array | None = None, *, axis: int = 0, ctx: Context) -> tuple[Array, ...]:
    """Cut a tensor along `axis` into views of the lengths `split`, or into equal parts, one for each output.

    Source: ONNX operators, Split-13.
    """
    lengths = _equal(input, axis, ctx.outputs) if split is None else _lengths(split)
    return _cut(input, axis, lengths, ctx)


@op("Split", since=18, form="moves")
def split(
    input: Array,
    split: Array | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    ctx: Context,
) -> tuple[Array, ...]:
    """Cut a tensor along `axis` into views of the lengths `split`, or into `num_outputs` parts.

    The parts have ceil(size / num_outputs) elements, the last one what is left; refused where that is negative.
    Exactly one of split and num_outputs is given.
    """
    if (split is None) == (num_outputs is None):
        got = "neither" if split is None else "both"
        raise misfit("either split or num_outputs is given", "split", "one of them", got)
    if split is not None:
        return _cut(input, axis, _lengths(split), ctx)
    assert num_outputs is not None
    size = input.shape[axis_in(axis, input.ndim)]
    if num_outputs < 1 or num_outputs != ctx.outputs:
        raise misfit(f"the node names {ctx.outputs} outputs", "num_outputs", str(ctx.outputs), num_outputs)
    length = -(-size // num_outputs)
    last = size - length * (num_outputs - 1)
    if last < 0:
        raise misfit(
            f"{size} elements do not fill {num_outputs} parts of {length}",
            "num_outputs",
            f"parts of ceil({size} / {num_outputs}) = {length} elements, the last one of 0 or more",
            num_outputs,
        )
    return _cut(input, axis, [length] * (num_outputs - 1) + [last], ctx)


def _lower_split(site: LoweringContext) -> NativeKernel:
    from qrun.ops.lowering.moves import split_kernel

    return split_kernel(site, site.attributes["axis"] % max(site.inputs[0].ndim, 1))


for _declared in (split_2, split_13, split):
    _declared.native(_lower_split)


def _lengths(split: Array) -> list[int]:
    if split.ndim != 1 or split.dtype.kind != "i":
        return list(ints(split, "split"))
    return [int(n) for n in split.tolist()]
