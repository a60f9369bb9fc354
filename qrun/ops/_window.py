"""Sliding windows of any rank: the geometry of convolutions and pools, and integer convolution as matrix products over
image columns (im2col), block by block so that no large intermediate is made.

Source: ONNX Conv, MaxPool and QLinearConv pages (auto_pad, pads, strides, dilations, ceil_mode).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._context import bad_shape, per_channel, same_type, scalar
from qrun.ops._matmul import Weights, add_bias, centre, magnitude, wrap32
from qrun.ops._op import Array, Context, Shape, refuse
from qrun.ops._rounding import decide, two_product
from qrun.ops._signature import Attributes
from qrun.shapes import MOST_AXES

INT32_MAX = 2**31 - 1


@frozen
class PoolGeometry(Attributes):
    """The attributes of a pool; a tuple of length 0 means the default."""

    kernel_shape: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def window(self, size: Sequence[int], dilations: Sequence[int] = ()) -> SlidingWindow:
        """The window over spatial axes of this size."""
        given = self.strides, dilations, self.pads, self.auto_pad
        return window(size, self.kernel_shape, *given, ceil_mode=bool(self.ceil_mode))


@frozen
class SlidingWindow:
    """One sliding window. All tuples have one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """Size of the dilated kernel."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def geometry(self, group: int) -> dict[str, Any]:
        """The keyword arguments of the engine's convolutions."""
        return {"group": group, "strides": self.strides, "dilations": self.dilations, "pads": (*self.begin, *self.end)}


def check_rank(rank: int, param: str) -> None:
    """Refuse too many spatial axes: a view of all windows takes two axes for each of them."""
    most = MOST_AXES // 2 - 1
    if rank > most:
        why = f"arrays have at most {MOST_AXES} axes, and sums over windows take two for each spatial one."
        fix = "drop axes of one element with a Reshape before the node, and add them again after it"
        raise refuse(f"{param} has too many spatial axes", param, f"at most {most}", str(rank), why=why, fix=fix)


def _axes(values: Sequence[int] | None, rank: int, name: str, default: int, least: int) -> tuple[int, ...]:
    """A list of strides or dilations with one number per spatial axis. Raises OperatorError."""
    if not values:
        return (default,) * rank
    if len(values) != rank or any(v < least or v > INT32_MAX for v in values):
        raise refuse(
            f"{name} does not fit", name, f"{rank} numbers of at least {least}", shape_text(tuple(values)), code="QR216"
        )
    return tuple(values)


def window(
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    *,
    ceil_mode: bool = False,
    empty_ok: bool = False,
) -> SlidingWindow:
    """The window over an input of spatial `size`.

    Refuses what the pages forbid: wrong lengths, non-positive strides or dilations, negative pads, pads together with
    auto_pad, and a dilated kernel larger than the padded input (unless `empty_ok`).

    VALID with ceil_mode rounds up, as ONNX's shape inference and onnxruntime do; the pages' formula for it does not.
    """
    rank = len(size)
    if len(kernel) != rank or any(k < 1 or k > INT32_MAX for k in kernel):
        what = "kernel_shape does not fit"
        raise refuse(what, "kernel_shape", f"{rank} positive numbers", shape_text(tuple(kernel)), code="QR216")
    step = _axes(strides, rank, "strides", 1, 1)
    dilation = _axes(dilations, rank, "dilations", 1, 1)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    begin, end = _padding(size, extent, step, pads, auto_pad)
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    out: list[int] = []
    for n, e, s, b, f in zip(size, extent, step, begin, end, strict=True):
        if n + b + f < e and not empty_ok and not same:
            what = "the kernel is larger than the padded input"
            expected = f"at most {n + b + f} along this axis"
            fix = "check pads, dilations and the input's size"
            raise refuse(what, "kernel_shape", expected, f"{e} (dilated)", fix=fix, code="QR206")
        out.append(-(-n // s) if same else _places(n, e, s, b, f, ceil_mode))
    return SlidingWindow(tuple(kernel), step, dilation, tuple(begin), tuple(end), tuple(out))


def _places(n: int, extent: int, stride: int, begin: int, end: int, ceil_mode: bool) -> int:
    """The number of positions of a window along an axis of n elements; with ceil_mode the last one may reach beyond the
    padding, but starts before it."""
    room = n + begin + end - extent
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (count - 1) * stride >= n + begin:
        count -= 1
    return max(count, 0)


def _padding(
    size: Sequence[int], extent: Sequence[int], step: Sequence[int], pads: Sequence[int] | None, auto_pad: str
) -> tuple[list[int], list[int]]:
    """The padding before and after each spatial axis. Raises OperatorError."""
    rank = len(size)
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise refuse(
            f"auto_pad is {auto_pad!r}", "auto_pad", "NOTSET, SAME_UPPER, SAME_LOWER or VALID", auto_pad, code="QR216"
        )
    if pads and auto_pad != "NOTSET":
        what = "pads and auto_pad are both given"
        got = f"pads {shape_text(tuple(pads))}, auto_pad {auto_pad}"
        why = "the two cannot be used simultaneously."
        raise refuse(what, "pads", "one of them", got, why=why, fix="remove auto_pad, or remove pads", code="QR215")
    if auto_pad in ("NOTSET", "VALID"):
        both = _axes(pads, 2 * rank, "pads", 0, 0)
        return list(both[:rank]), list(both[rank:])
    total = [max((-(-n // s) - 1) * s + e - n, 0) for n, s, e in zip(size, step, extent, strict=True)]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def pad_window(x: Array, win: SlidingWindow, fill: Any, ctx: Context) -> Array:
    """x [..., spatial] with `fill` around it, extended to where ceil_mode reaches past the end pads."""
    rank = len(win.kernel)
    lead, size = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    reach = [(o - 1) * s + e if o else 0 for o, s, e in zip(win.out, win.strides, win.extent, strict=True)]
    full = [max(b + n, r) for b, n, r in zip(win.begin, size, reach, strict=True)]
    if list(size) == full and not any(win.begin):
        return x
    ctx.claim((*lead, *full), x.itemsize, "padded input")
    result = np.full((*lead, *full), fill, x.dtype)
    inner: tuple[slice, ...] = tuple(slice(b, b + n) for b, n in zip(win.begin, size, strict=True))
    result[(slice(None),) * len(lead) + inner] = x
    return result


def patches(x: Array, win: SlidingWindow, first: int = 0, last: int | None = None) -> Array:
    """A read-only view of a padded x [..., spatial] as [..., kernel..., out...].

    first, last: only these positions of the first output axis.
    """
    rank = len(win.kernel)
    out = ((last if last is not None else win.out[0]) - first, *win.out[1:])
    lead = x.ndim - rank
    spatial = x.strides[lead:]
    taps = tuple(d * st if k > 1 else 0 for d, st, k in zip(win.dilations, spatial, win.kernel, strict=True))
    steps = tuple(s * st if o > 1 else 0 for s, st, o in zip(win.strides, spatial, win.out, strict=True))
    origin = x[(slice(None),) * lead + (slice(first * win.strides[0], None),)] if first else x
    return np.lib.stride_tricks.as_strided(
        origin, x.shape[:lead] + win.kernel + out, x.strides[:lead] + taps + steps, writeable=False
    )


Spans = list[tuple[Array, Array]]
"""For each spatial axis: first and one-past-last input position of each window, inside the input."""


def channel_layout(x: Array, channels_last: bool, op_type: str) -> tuple[int, ...]:
    """The spatial axes of x [N,C,spatial...] or [N,spatial...,C]; refuses rank < 3."""
    if x.ndim < 3:
        layout = "[N,spatial...,C]" if channels_last else "[N,C,spatial...]"
        raise bad_shape("X", f"{layout} of rank 3 or more", x, f"{op_type} pools over the spatial axes.")
    return tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))


def spans(size: tuple[int, ...], win: SlidingWindow) -> Spans:
    """The input positions under each window."""
    found = []
    for n, k, s, b, o in zip(size, win.kernel, win.strides, win.begin, win.out, strict=True):
        start = np.arange(o, dtype=np.int64) * s - b
        found.append((np.clip(start, 0, n), np.clip(start + k, 0, n)))
    return found


def window_sums(x: Array, axes: tuple[int, ...], where: Spans) -> Array:
    """Sums of codes over windows, int32 or int64: differences of running sums, one axis after another."""
    most = 1
    for start, end in where:
        most *= int((end - start).max(initial=0))
    wide = np.int32 if most < 1 << 23 else np.int64
    total = x
    for axis, (start, end) in zip(axes, where, strict=True):
        shape = list(total.shape)
        shape[axis] += 1
        running = np.zeros(shape, wide)
        after = (slice(None),) * axis + (slice(1, None),)
        np.cumsum(total, axis=axis, dtype=wide, out=running[after])
        total = np.take(running, end, axis=axis)
        total -= np.take(running, start, axis=axis)
    return total


def counts(where: Spans, axes: tuple[int, ...], rank: int) -> Array:
    """The number of input positions under each window, float64, shaped to broadcast over the output."""
    result = np.ones((1,) * rank)
    for axis, (start, end) in zip(axes, where, strict=True):
        result = result * (end - start).astype(np.float64).reshape([-1 if a == axis else 1 for a in range(rank)])
    return result


def round_means(acc: Array, x_scale: Array, y_scale: Array, count: Array) -> Array:
    """RNE(acc * x_scale / (y_scale * count)) for exact integers acc; float64."""
    with np.errstate(all="ignore"):
        den = y_scale * count
        full = np.broadcast_to(den, acc.shape)
        return decide(acc * x_scale / den, lambda at: (two_product(acc[at].astype(np.float64), x_scale), full[at]))


COLUMN_ELEMENTS = 1 << 21


@frozen
class ConvGeometry(Attributes):
    """The attributes of a convolution; a tuple of length 0 means the default."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


def conv_window(x: Array, w: Array, geometry: ConvGeometry, names: tuple[str, str] = ("x", "w")) -> SlidingWindow:
    """Check x [N,C,spatial] against w [M,C/group,kernel] and place the window.

    names: the specification's names of x and w.
    Refuses rank < 3, different ranks, channels that do not fit the groups, and kernel_shape unlike w's.
    """
    check_operands(x, w, geometry.group, geometry.kernel_shape, names)
    return window(x.shape[2:], w.shape[2:], geometry.strides, geometry.dilations, geometry.pads, geometry.auto_pad)


def check_operands(
    x: Array, w: Array, group: int, kernel_shape: Sequence[int], names: tuple[str, str], transposed: bool = False
) -> None:
    """The checks of `conv_window`. transposed: for a transposed convolution, whose w is [C,M/group,kernel]."""
    xn, wn = names
    layout = "C,M/group" if transposed else "M,C/group"
    if x.ndim < 3 or w.ndim != x.ndim:
        raise refuse(
            f"{xn} and {wn} do not fit together",
            wn,
            f"{xn} [N,C,spatial...], {wn} [{layout},kernel...] of one rank of 3 or more; {wn} of rank {max(x.ndim, 3)}",
            f"{xn} {shape_text(x.shape)}, {wn} {shape_text(w.shape)}",
        )
    check_rank(x.ndim - 2, xn)
    if group < 1 or x.shape[1] != (w.shape[0] if transposed else w.shape[1] * group) or w.shape[0] % group:
        what = "channels do not fit the groups"
        expected = f"{wn} [{layout},...] with C = {x.shape[1]}, group = {group} and {layout[0]} a multiple of group"
        fix = f"check group and the layout of {xn}: channels are axis 1"
        raise refuse(what, wn, expected, f"{wn} {shape_text(w.shape)}", fix=fix, code="QR207")
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        what = f"kernel_shape differs from {wn}"
        got = shape_text(tuple(kernel_shape))
        fix = f"remove kernel_shape; {wn} gives it"
        raise refuse(what, "kernel_shape", shape_text(w.shape[2:]), got, fix=fix, code="QR214")


def check_bias(bias: Array | None, channels: int, why: str = "") -> None:
    """Refuse a B that is not [channels]."""
    if bias is not None and bias.shape != (channels,):
        expected = f"[{channels}] (one per output channel)"
        raise refuse("the bias has the wrong shape", "B", expected, bias, why=why, code="QR305")


def accumulate(
    x: Array,
    w: Array,
    x_zero_point: Array | None,
    w_zero_point: Array | None,
    bias: Array | None,
    win: SlidingWindow,
    group: int,
    ctx: Context,
) -> Iterator[tuple[tuple[Any, ...], Array]]:
    """Yield (index into y [N,group,M/group,out...], int32 sums) for blocks of images and output rows.

    The sums are exact integers in float32 or float64, wrapped to int32 like the specification's accumulator.
    """
    m = w.shape[0] // group
    k = math.prod(w.shape[1:])
    zero = None if w_zero_point is None else w_zero_point.reshape(-1, *(1,) * (w.ndim - 1))
    weights = Weights(centre(w, zero).reshape(group, m, k), magnitude(x.dtype, x_zero_point))
    addend = None if bias is None else bias.reshape(group, m, 1)
    if any(win.begin) or any(win.end):
        sides = zip(win.begin, x.shape[2:], win.end, strict=True)
        ctx.claim((*x.shape[:2], *(sum(s) for s in sides)), 5, "padded input")
    source = centre(pad_window(x, win, 0 if x_zero_point is None else x_zero_point, ctx), x_zero_point)
    places = math.prod(win.out[1:])
    columns = group * k * places
    rows = max(1, min(win.out[0], COLUMN_ELEMENTS // max(columns, 1)))
    images = max(1, min(x.shape[0], COLUMN_ELEMENTS // max(columns * win.out[0], 1)))
    ctx.claim((images, columns, rows), 4, "convolution columns")
    for start in range(0, x.shape[0], images):
        batch = source[start : start + images]
        for first in range(0, win.out[0], rows):
            last = min(first + rows, win.out[0])
            view = patches(batch, win, first, last)
            acc = weights.times(view.reshape(len(batch), group, k, (last - first) * places))
            acc, bound = add_bias(acc, addend, weights.bound)
            acc = wrap32(acc, bound, ctx, partial(_place, start, first, m, win.out))
            index = (slice(start, start + images), slice(None), slice(None), slice(first, last))
            yield index, acc.reshape(len(batch), group, m, last - first, *win.out[1:])


def _place(start: int, first: int, m: int, out: Shape, index: tuple[int, ...]) -> tuple[int, ...]:
    """The index into y [N,M,out...] of element [n,group,M/group,place] of the block from image `start`, row `first`."""
    n, group, channel, position = index
    row, *rest = np.unravel_index(position, (out[0], *out[1:]))
    return (start + n, group * m + channel, first + int(row), *(int(i) for i in rest))


def conv_params(
    x: Array, w: Array, x_zero_point: Array | None, w_zero_point: Array | None, op_type: str
) -> tuple[Array | None, Array | None]:
    """The zero points of x (scalar) and w (scalar or one per output channel), checked."""
    same_type(x_zero_point, x.dtype, "x_zero_point", "x")
    same_type(w_zero_point, w.dtype, "w_zero_point", "w")
    return (
        scalar(x_zero_point, "x_zero_point", op_type),
        per_channel(w_zero_point, "w_zero_point", w.shape[0] if w.ndim else 0, op_type),
    )


def conv_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any], w: int = 1) -> int:
    """Multiply-adds of a convolution: each output element sums one kernel of one group."""
    return int(np.prod(outputs[0], dtype=np.int64)) * int(np.prod(inputs[w][1:], dtype=np.int64))
