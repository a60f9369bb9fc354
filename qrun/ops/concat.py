"""Joining and cutting: Concat, and its inverse Split; Slice, and its inverse Pad."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from qrun.ir.types import shape_text, type_name
from qrun.ops._float import axes_in, axis_in
from qrun.ops._op import Array, Context, bad_shape, misfit, one_of, op, refuse
from qrun.ops._shape import claim, ints, same_but, same_length
from qrun.ops.lowering.copies import INDICES, indexed_kernel, moving_kernel, order_of, slice_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, decline_error
from qrun.ops.lowering.pointwise import concat_kernel


@op("Concat", since=4)
def concat(*inputs: Array, axis: int, ctx: Context) -> Array:
    """Join tensors along `axis`; their other dimensions are equal. Source: ONNX operators, Concat-13.

    Refuses other ranks, dimensions or types, and inputs that are omitted.
    """
    return np.concatenate(inputs, axis=_check(inputs, axis, ctx))


def _check(inputs: Sequence[Array], axis: int, ctx: Context) -> int:
    """The axis, counted from the front; refuses inputs that do not fit together."""
    if not inputs or any(x is None for x in inputs):
        raise refuse("an input is missing", "inputs", "one or more tensors", "nothing", code="QR205")
    first = inputs[0]
    dim = axis_in(axis, first.ndim)
    for number, x in enumerate(inputs[1:], 2):
        if not same_but(x.shape, first.shape, dim) or x.dtype != first.dtype:
            wanted = [*first.shape]
            if wanted and x.ndim == first.ndim:
                wanted[dim] = x.shape[dim]
            expected = f"{type_name(first.dtype)} {shape_text(tuple(wanted))}"
            got = f"{type_name(x.dtype)} {shape_text(x.shape)}"
            why = f"Concat: all dimensions except axis {axis} are equal."
            raise misfit(f"inputs[{number}] does not fit inputs[1]", f"inputs[{number}]", expected, got, why=why)
    length = sum(x.shape[dim] for x in inputs)
    claim(ctx, (*first.shape[:dim], length, *first.shape[dim + 1 :]), first.dtype, "inputs")
    return dim


@concat.native
def _lower(site: LoweringContext) -> NativeKernel:
    dim = _check(cast(Sequence[Array], site.inputs), site.attributes["axis"], site.ctx)
    return concat_kernel(site, range(len(site.inputs)), dim, [None] * len(site.inputs))


def _cut(input: Array, axis: int, lengths: Sequence[int], ctx: Context) -> tuple[Array, ...]:
    """Split a tensor into parts of these lengths along an axis. Raises OperatorError."""
    dim = axis_in(axis, input.ndim)
    size = input.shape[dim]
    if len(lengths) != ctx.outputs:
        raise misfit(f"the node names {ctx.outputs} outputs", "split", f"{ctx.outputs} lengths", list(lengths))
    if any(n < 0 for n in lengths) or sum(lengths) != size:
        raise misfit("the lengths do not fit", "split", f"numbers of 0 or more that add up to {size}", list(lengths))
    parts = []
    start = 0
    for n in lengths:
        parts.append(input[(builtins.slice(None),) * dim + (builtins.slice(start, start + n),)])
        start += n
    return tuple(parts)


def _equal(input: Array, axis: int, count: int) -> list[int]:
    """The lengths of `count` equal parts. Raises OperatorError."""
    size = input.shape[axis_in(axis, input.ndim)]
    if count < 1 or size % count:
        raise misfit(
            f"axis {axis} does not split into {count} equal parts", "input", f"a multiple of {count}", str(size)
        )
    return [size // count] * count


@op("Split", since=2, form="moves")
def split_2(input: Array, *, axis: int = 0, split: tuple[int, ...] = (), ctx: Context) -> tuple[Array, ...]:
    """Split a tensor along `axis` into views of the lengths `split`, or into equal parts, one per output.

    Source: ONNX operators, Split-11.
    """
    return _cut(input, axis, split or _equal(input, axis, ctx.outputs), ctx)


@op("Split", since=13, form="moves")
def split_13(input: Array, split: Array | None = None, *, axis: int = 0, ctx: Context) -> tuple[Array, ...]:
    """Split a tensor along `axis` into views of the lengths `split`, or into equal parts, one per output.

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
    """Split a tensor along `axis` into views of the lengths `split`, or into `num_outputs` parts.

    The parts have ceil(size / num_outputs) elements, the last one the rest; refused if that is negative.
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
        what = f"{size} elements do not fill {num_outputs} parts of {length}"
        expected = f"parts of ceil({size} / {num_outputs}) = {length} elements, the last one of 0 or more"
        raise misfit(what, "num_outputs", expected, num_outputs)
    return _cut(input, axis, [length] * (num_outputs - 1) + [last], ctx)


def _lower_split(site: LoweringContext) -> NativeKernel:
    from qrun.ops.lowering.moves import split_kernel

    return split_kernel(site, site.attributes["axis"] % max(site.inputs[0].ndim, 1))


for _declared in (split_2, split_13, split):
    _declared.native(_lower_split)


def _lengths(split: Array) -> list[int]:
    """The lengths of a Split, from its input."""
    if split.ndim != 1 or split.dtype.kind != "i":
        return list(ints(split, "split"))
    return [int(n) for n in split.tolist()]


def _cuts(
    data: Array, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> tuple[builtins.slice, ...]:
    """Slice's parameters as one Python slice per axis. Raises OperatorError."""
    same_length(ends, len(starts), "ends", "Slice: one end for each start.")
    if axes is None:
        axes = range(len(starts))
        if len(starts) > data.ndim:
            same_length(starts, data.ndim, "starts", "Slice: at most one start for each axis of data.")
    same_length(axes, len(starts), "axes", "Slice: one axis for each start.")
    if steps is None:
        steps = (1,) * len(starts)
    same_length(steps, len(starts), "steps", "Slice: one step for each start.")
    if 0 in steps:
        raise refuse("a step is 0", "steps", "steps other than 0", list(steps), code="QR204")
    cuts = [builtins.slice(None)] * data.ndim
    for axis, start, end, step in zip(axes_in(axes, data.ndim), starts, ends, steps, strict=True):
        cuts[axis] = _clamp(data.shape[axis], start, end, step)
    return tuple(cuts)


def _clamp(size: int, start: int, end: int, step: int) -> builtins.slice:
    """The slice with start in [0, size] (backward: [0, size-1]) and end in [0, size] (backward: [-1, size-1])."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0 or not size:
        return builtins.slice(min(max(start, 0), size), min(max(end, 0), size), step)
    end = min(max(end, -1), size - 1)
    return builtins.slice(min(max(start, 0), size - 1), None if end < 0 else end, step)


@op("Slice", since=1, form="moves")
def slice_1(
    data: Array, *, starts: tuple[int, ...], ends: tuple[int, ...], axes: tuple[int, ...] | None = None
) -> Array:
    """data[start:end] along each of `axes` (0, 1, ... if not given), clamped to the axis. A view.

    Source: ONNX operators, Slice-1.
    """
    return data[_cuts(data, starts, ends, axes, None)]


@op("Slice", since=10, form="moves")
def slice(data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    """data[start:end:step] along each of `axes` (0, 1, ... if omitted). A view.

    starts, ends, axes, steps: 1-D int32 or int64 of one length. Negative starts and ends count from the end; then
    start is clamped to [0, size], end too; with a negative step to [0, size-1] and [-1, size-1]. So a backward slice
    that starts before the first element keeps that element, unlike numpy's.
    Refuses a step of 0 and axes named twice.
    """
    return data[_input_cuts(data, starts, ends, axes, steps)]


def _input_cuts(
    data: Array, starts: Array, ends: Array, axes: Array | None, steps: Array | None
) -> tuple[builtins.slice, ...]:
    """Slice's inputs as one Python slice per axis. Raises OperatorError."""
    return _cuts(
        data,
        ints(starts, "starts"),
        ints(ends, "ends"),
        None if axes is None else ints(axes, "axes"),
        None if steps is None else ints(steps, "steps"),
    )


@slice_1.native
def _lower_1(site: LoweringContext) -> NativeKernel:
    """The native kernel of Slice-1, whose parameters are attributes."""
    (data,), a = site.inputs, site.attributes
    return slice_kernel(site, lambda: _cuts(data, a["starts"], a["ends"], a["axes"], None))


@slice.native
def _lower_slice(site: LoweringContext) -> NativeKernel:
    inputs = site.inputs
    return slice_kernel(site, lambda: _input_cuts(*inputs))


_WRAP_SINCE = 19


@op("Pad", since=2)
def pad_2(data: Array, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0, ctx: Context) -> Array:
    """Pad-18 with pads and a float value as attributes. Source: ONNX operators, Pad-2."""
    return _pad(data, pads, _attribute(value, data.dtype), None, mode, ctx)


def _attribute(value: float, dtype: np.dtype[Any]) -> Array:
    """A float attribute in the data's type."""
    with np.errstate(all="ignore"):
        return np.array(value, np.float32).astype(dtype)


@op("Pad", since=11)
def pad(
    data: Array,
    pads: Array,
    constant_value: Array | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
    ctx: Context,
) -> Array:
    """Add elements before and after the given axes, or remove them where pads are negative.

    pads: [begin of each axis ..., end of each axis ...], 1-D int64; axes: 1-D, all if omitted.
    mode: constant (constant_value, else 0, "" or False), reflect (without the edge), edge, wrap (since 19).

    Modes other than constant first remove, then copy from what remains; a pad longer than that reflects or wraps
    repeatedly, as numpy.pad does. Refuses a negative output size, and copies of an empty axis.
    """
    places = None if axes is None else ints(axes, "axes")
    return _pad(data, ints(pads, "pads"), constant_value, places, mode, ctx)


def _pad(
    data: Array, pads: Sequence[int], constant: Array | None, axes: Sequence[int] | None, mode: str, ctx: Context
) -> Array:
    """Pad with a constant, with edge elements, or by reflection or wrapping."""
    sizes = _check_pads(data, pads, axes, mode, ctx)
    if mode == "constant":
        made = np.empty([n + b + e for n, b, e in sizes], data.dtype)
        made[...] = _fill(constant, data.dtype)
        inside = [(max(0, b), max(0, b, min(n + b, n + b + e))) for n, b, e in sizes]
        made[tuple(builtins.slice(i, j) for i, j in inside)] = data[
            tuple(builtins.slice(i - b, j - b) for (i, j), b in zip(inside, (size[1] for size in sizes), strict=True))
        ]
        return made
    for axis, (n, b, e) in enumerate(sizes):
        if b or e:
            ctx.claim((n + b + e,), 8, "indices")
            claim(ctx, (*data.shape[:axis], n + b + e, *data.shape[axis + 1 :]), data.dtype, "pads")
            data = np.take(data, _source(mode, n, b, e, axis), axis=axis)
    return data


def _check_pads(
    data: Array, pads: Sequence[int], axes: Sequence[int] | None, mode: str, ctx: Context
) -> list[tuple[int, int, int]]:
    """The length of each axis, and the numbers added before and after it; claims the result."""
    modes = ("constant", "reflect", "edge", "wrap")[: 4 if ctx.version >= _WRAP_SINCE else 3]
    one_of("mode", mode, modes)
    begin, end = _amounts(data, pads, axes)
    sizes = list(zip(data.shape, begin, end, strict=True))
    shape = [n + b + e for n, b, e in sizes]
    if any(n < 0 for n in shape):
        raise misfit("pads remove more than there is", "pads", "dimensions of 0 or more", shape_text(tuple(shape)))
    claim(ctx, shape, data.dtype, "pads")
    return sizes


def _amounts(data: Array, pads: Sequence[int], axes: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """The numbers of elements to add before and after each axis of data."""
    places = axes_in(range(data.ndim) if axes is None else axes, data.ndim)
    same_length(pads, 2 * len(places), "pads", "Pad: a begin and an end for each axis.")
    begin, end = [0] * data.ndim, [0] * data.ndim
    for number, index in enumerate(places):
        begin[index], end[index] = pads[number], pads[number + len(places)]
    return begin, end


def _source(mode: str, length: int, begin: int, end: int, axis: int) -> Array:
    """For each position on the padded axis, the position that it copies."""
    first = max(0, -begin)
    length -= first + max(0, -end)
    if length < 0 or (not length and max(begin, end) > 0):
        raise misfit(f"axis {axis} has nothing to {mode}", "pads", "a rest of 1 or more", f"{begin} and {end}")
    positions = np.arange(-max(0, begin), length + max(0, end), dtype=np.int64)
    if mode == "edge":
        positions = np.clip(positions, 0, length - 1)
    elif mode == "wrap":
        positions %= max(1, length)
    else:
        turn = max(1, 2 * (length - 1))
        positions %= turn
        positions = np.minimum(positions, turn - positions)
    return positions + first


def _fill(value: Array | None, dtype: np.dtype[Any]) -> Any:
    """The padding value in the data's type; 0 if not given."""
    if value is None:
        return "" if dtype == np.object_ else np.zeros((), dtype)
    if value.size != 1 or value.ndim > 1:
        raise bad_shape("constant_value", "a scalar", value)
    return value.reshape(())


@pad_2.native
def _lower_2(site: LoweringContext) -> NativeKernel:
    """The native kernel of Pad-2, whose parameters are attributes."""
    (data,), a = site.inputs, site.attributes
    return _lower_pads(site, a["pads"], lambda: _attribute(a["value"], data.dtype), None)


@pad.native
def _lower_pad(site: LoweringContext) -> NativeKernel:
    data, pads, constant, axes = site.inputs
    places = None if axes is None else ints(axes, "axes")
    return _lower_pads(site, ints(pads, "pads"), lambda: np.asarray(_fill(constant, data.dtype)), places)


def _lower_pads(
    site: LoweringContext, pads: Sequence[int], value: Callable[[], Array], axes: Sequence[int] | None
) -> NativeKernel:
    """The native kernel of a Pad; `value` makes the padding value."""
    from qrun.native.kernels.copy import pad_copy

    data, engine = site.inputs[0], site.engine
    if site.attributes["mode"] == "constant":
        return moving_kernel(
            site, lambda x, y: pad_copy(engine, x.shape, value(), *_amounts(data, pads, axes), order_of(x))
        )
    sizes = _check_pads(data, pads, axes, site.attributes["mode"], site.ctx)
    site.require_constants()
    moved = {axis: size for axis, size in enumerate(sizes) if any(size[1:])}
    if sum(map(sum, moved.values())) > INDICES:
        raise decline_error(f"axes of more than {INDICES} elements")
    return indexed_kernel(site, {axis: _source(site.attributes["mode"], *n, axis) for axis, n in moved.items()})
