"""Pad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.errors import OperatorError
from qrun.ir.types import shape_text
from qrun.ops._float import axes_in
from qrun.ops._native import LoweringContext, NativeKernel, declined, pad_kernel
from qrun.ops._op import Array, Context, op, refuse
from qrun.ops._shape import claim, ints, same_length

_WRAP_SINCE = 19


@op("Pad", since=2)
def pad_2(data: Array, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0, ctx: Context) -> Array:
    """Pad-18 with pads and a float value as attributes. Source: ONNX operators, Pad-2."""
    return _pad(data, pads, _attribute(value, data.dtype), None, mode, ctx)


def _attribute(value: float, dtype: np.dtype[Any]) -> Array:
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
    Source: ONNX operators, Pad-25.
    """
    places = None if axes is None else ints(axes, "axes")
    return _pad(data, ints(pads, "pads"), constant_value, places, mode, ctx)


def _pad(
    data: Array, pads: Sequence[int], constant: Array | None, axes: Sequence[int] | None, mode: str, ctx: Context
) -> Array:
    modes = ("constant", "reflect", "edge", "wrap")[: 4 if ctx.version >= _WRAP_SINCE else 3]
    if mode not in modes:
        raise refuse(f"mode {mode!r} does not exist", "mode", ", ".join(modes), mode, code="QR204")
    begin, end = _amounts(data, pads, axes)
    sizes = list(zip(data.shape, begin, end, strict=True))
    shape = [n + b + e for n, b, e in sizes]
    if any(n < 0 for n in shape):
        raise _refused("pads remove more than there is", "dimensions of 0 or more", shape_text(tuple(shape)))
    claim(ctx, shape, data.dtype, "pads")
    if mode == "constant":
        made = np.empty(shape, data.dtype)
        made[...] = _fill(constant, data.dtype)
        inside = [(max(0, b), max(0, b, min(n + b, n + b + e))) for n, b, e in sizes]
        made[tuple(slice(i, j) for i, j in inside)] = data[
            tuple(slice(i - b, j - b) for (i, j), b in zip(inside, begin, strict=True))
        ]
        return made
    for axis, (n, b, e) in enumerate(sizes):
        if b or e:
            ctx.claim((n + b + e,), 8, "indices")
            claim(ctx, (*data.shape[:axis], n + b + e, *data.shape[axis + 1 :]), data.dtype, "pads")
            data = np.take(data, _source(mode, n, b, e, axis), axis=axis)
    return data


def _amounts(data: Array, pads: Sequence[int], axes: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """What to add before and after each axis of data."""
    places = axes_in(range(data.ndim) if axes is None else axes, data.ndim)
    same_length(pads, 2 * len(places), "pads", "Pad: a begin and an end for each axis.")
    begin, end = [0] * data.ndim, [0] * data.ndim
    for number, place in enumerate(places):
        begin[place], end[place] = pads[number], pads[number + len(places)]
    return begin, end


def _refused(message: str, expected: str, got: str) -> OperatorError:
    return refuse(message, "pads", expected, got, code="QR208")


def _source(mode: str, length: int, begin: int, end: int, axis: int) -> Array:
    """For each place of the padded axis, the place of the axis it copies."""
    first = max(0, -begin)
    length -= first + max(0, -end)
    if length < 0 or (not length and max(begin, end) > 0):
        raise _refused(f"axis {axis} has nothing to {mode}", "a rest of 1 or more", f"{begin} and {end}")
    place = np.arange(-max(0, begin), length + max(0, end), dtype=np.int64)
    if mode == "edge":
        place = np.clip(place, 0, length - 1)
    elif mode == "wrap":
        place %= max(1, length)
    else:
        turn = max(1, 2 * (length - 1))
        place %= turn
        place = np.minimum(place, turn - place)
    return place + first


def _fill(value: Array | None, dtype: np.dtype[Any]) -> Any:
    if value is None:
        return "" if dtype == np.object_ else np.zeros((), dtype)
    if value.size != 1 or value.ndim > 1:
        raise refuse(
            f"constant_value has shape {shape_text(value.shape)}", "constant_value", "a scalar", value, code="QR208"
        )
    return value.reshape(())


@pad_2.native
def _lower_2(site: LoweringContext) -> NativeKernel:
    (data,), a = site.inputs, site.attributes
    return _lowered(site, a["pads"], lambda: _attribute(a["value"], data.dtype), None)


@pad.native
def _lower(site: LoweringContext) -> NativeKernel:
    data, pads, constant, axes = site.inputs
    places = None if axes is None else ints(axes, "axes")
    return _lowered(site, ints(pads, "pads"), lambda: np.asarray(_fill(constant, data.dtype)), places)


def _lowered(
    site: LoweringContext, pads: Sequence[int], value: Callable[[], Array], axes: Sequence[int] | None
) -> NativeKernel:
    data = site.inputs[0]
    if site.attributes["mode"] != "constant":
        raise declined("its mode is not constant")
    return pad_kernel(site, value, lambda: _amounts(data, pads, axes))
