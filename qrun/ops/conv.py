"""Convolutions: Conv, ConvInteger, ConvTranspose, and CausalConvWithState of com.microsoft."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._body import InnerNode, nodes_kernel, run_nodes
from qrun.ops._chains import SumOrder, chained_products, ordered_products, ort_conv_order
from qrun.ops._complete import Settled
from qrun.ops._op import Array, Context, Real, Shape, bad_shape, contrib_op, one_of, op, refuse, require, with_shape
from qrun.ops._window import (
    INT32_MAX,
    ConvGeometry,
    SlidingWindow,
    accumulate,
    check_bias,
    check_operands,
    conv_macs,
    conv_params,
    conv_window,
    pad_window,
    patches,
    window,
)
from qrun.ops.lowering.integers import LIMIT, Given, conv_kernel, plan_conv
from qrun.ops.lowering.kernel import Inputs, LoweringContext, NativeKernel, Stage, decline_error, staged_kernel
from qrun.ops.lowering.products import float_conv_kernel, float_conv_transpose_kernel, require_order

COLUMN_ELEMENTS = 1 << 19


@op("Conv", since=1, cost=conv_macs, computes=Real("Conv", {"W": "channel"}, bias="B"))
def conv(X: Array, W: Array, B: Array | None = None, *, geometry: ConvGeometry, ctx: Context) -> Array:
    """Convolve X [N,C,spatial...] with W [M,C/group,kernel...] and add B [M]; all have one floating-point type.

        Y[n,m,o] = sum over c, k of X[n,c,o*stride + k*dilation - pad] * W[m,c,k] + B[m]      padding counts as 0

    Sums have the order of numerics.md, F1, plus B at the end; float64 is added in float64.
    Raises OperatorError for shapes and geometry that the page forbids.
    """
    win = _check_conv(X, W, B, geometry, ctx)
    group, channels = geometry.group, W.shape[0]
    y = np.empty((X.shape[0], group, channels // group, *win.out), X.dtype)
    with np.errstate(all="ignore"):
        if y.size:
            _convolve(X, W, B, win, y, ctx, _order(X, W, win, geometry.group, ctx))
    return y.reshape(X.shape[0], channels, *win.out)


def _order(x: Array, w: Array, win: SlidingWindow, group: int, ctx: Context) -> SumOrder:
    """The order in which the arithmetic adds the products of a Conv."""
    return ort_conv_order(x.shape, w.shape, win, group) if ctx.arith == "ort" and x.dtype == np.float32 else SumOrder()


def _convolve(
    x: Array, w: Array, bias: Array | None, win: SlidingWindow, y: Array, ctx: Context, order: SumOrder
) -> None:
    """Fill y [N,group,M/group,out...], some output rows at a time."""
    ctx.sums.append(order.text)
    group, m = y.shape[1:3]
    k = w[0].size
    weights = w.reshape(group, m, k)
    addend = None if bias is None else bias.reshape(group, m, 1)
    source = pad_window(x, win, 0, ctx)
    width = int(np.prod(win.out[1:], dtype=np.int64))
    rows = max(1, min(win.out[0], COLUMN_ELEMENTS // max(group * (k + m) * width, 1)))
    rows = win.out[0] if order.kind == "lanes" else rows  # these sums depend on groups of four results
    ctx.claim((group * (k + m), rows, width), 8, "convolution columns")
    for n in range(x.shape[0]):
        for first in range(0, win.out[0], rows):
            last = min(first + rows, win.out[0])
            columns = np.array(patches(source[n], win, first, last), order="C")
            columns = columns.reshape(group, k, (last - first) * width)
            if y.dtype == np.float32:
                made = ordered_products(weights, columns, order, bias=addend)
            else:
                made = chained_products(weights, columns, y.dtype, bias=addend)
            y[n, :, :, first:last] = made.reshape(group, m, last - first, *win.out[1:])


def _check_conv(x: Array, w: Array, bias: Array | None, geometry: ConvGeometry, ctx: Context) -> SlidingWindow:
    """Refuse what the page forbids, and claim the result."""
    win = conv_window(x, w, geometry, ("X", "W"))
    check_bias(bias, w.shape[0])
    ctx.claim((x.shape[0], w.shape[0], *win.out), x.itemsize)
    return win


@conv.native
def _lower(site: LoweringContext) -> NativeKernel:
    x, w, bias = site.inputs
    geometry = ConvGeometry.of(site.attributes)
    win = _check_conv(x, w, bias, geometry, site.ctx)
    require_order(_order(x, w, win, geometry.group, site.ctx), w[0].size if len(w) else 0)
    return float_conv_kernel(site, x, w, bias, win)


@op("ConvInteger", since=10, cost=conv_macs, computes=Real("Conv", {"w": "channel"}))
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    geometry: ConvGeometry,
    ctx: Context,
) -> Array:
    """Convolve integer tensors with an int32 result.

    x [N,C,spatial...], w [M,C/group,kernel...], each int8 or uint8; x_zero_point scalar, w_zero_point scalar or [M].

        y = sum (x - x_zero_point) * (w - w_zero_point)              int32, wrapping; padding counts as real 0

    Exact. Raises OperatorError for shapes, types and geometry that the page forbids.
    """
    xz, wz, win = _check((x, w, x_zero_point, w_zero_point), geometry, ctx)
    y = np.empty((x.shape[0], geometry.group, w.shape[0] // geometry.group, *win.out), np.int32)
    for index, acc in accumulate(x, w, xz, wz, None, win, geometry.group, ctx):
        y[index] = acc
    return y.reshape(x.shape[0], w.shape[0], *win.out)


def _check(inputs: Inputs, geometry: ConvGeometry, ctx: Context) -> tuple[Array | None, Array | None, SlidingWindow]:
    """Refuse what the page forbids and claim the output; returns the zero points, x's of rank 0, and the window."""
    x, w, x_zero_point, w_zero_point = inputs
    xz, wz = conv_params(x, w, x_zero_point, w_zero_point, "ConvInteger-10")
    win = conv_window(x, w, geometry)
    ctx.claim((x.shape[0], w.shape[0], *win.out), 4)
    return xz, wz, win


@conv_integer.native
def _lower_integer(site: LoweringContext) -> NativeKernel:
    """The native kernel of ConvInteger."""
    from qrun.native.kernels.conv import KINDS, dynamic_sums, reach

    x, w, *_ = site.inputs
    xz, wz, win = _check(site.inputs, ConvGeometry.of(site.attributes), site.ctx)
    site.require_constant(1)
    site.require_constant(3)
    if site.fixed[2]:
        return conv_kernel(site, plan_conv(site, x, w, (xz, wz), win))
    conv = plan_conv(site, x, w, (None, wz), win, kinds=KINDS, stores=False)
    prepare, sums = dynamic_sums(conv, Given.input(site, 2).operand, memo=site.memo)
    wraps = site.memo.once("reach", lambda: reach(w, wz)) >= LIMIT
    stages = Stage(prepare, (2,), "prepared"), Stage(sums, (0, "prepared"))
    return staged_kernel(site, stages, (sums,), Settled(not wraps))


def _transpose_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """The multiply-adds of ConvTranspose."""
    return math.prod(inputs[0]) * math.prod(inputs[1][1:])


@op("ConvTranspose", since=1, cost=_transpose_macs)
def conv_transpose(
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    geometry: ConvGeometry,
    output_padding: tuple[int, ...] = (),
    output_shape: tuple[int, ...] = (),
    ctx: Context,
) -> Array:
    """Transposed convolution of X [N,C,spatial...] with W [C,M/group,kernel...], plus B [M]; one floating-point type.

        full[n,m,i*stride + k*dilation] += sum over c of X[n,c,i] * W[c,m,k]
        Y = full without its pads, plus B[m]; places that no product reaches are 0 plus B[m]

    Along each axis Y has stride * (size - 1) + output_padding + extent - pads elements, or `output_shape`, or
    stride * size with SAME_UPPER and SAME_LOWER. The last two set the pads: the odd element goes to the end for
    SAME_UPPER, else to the begin (ConvTranspose-22; the equations of versions 1 and 11 say the reverse and contradict
    their own auto_pad), and they are never negative.
    Sums have the order of numerics.md, F1, plus B at the end; float64 is added in float64.
    Raises OperatorError for shapes and geometry that the page forbids.
    """
    placement = _place(X, W, B, geometry, output_padding, output_shape)
    size, group, m = X.shape[2:], geometry.group, W.shape[1]
    ctx.claim((X.shape[0], group, m, *placement.out), X.itemsize)
    y = np.empty((X.shape[0], group, m, *placement.out), X.dtype)
    if y.size:
        weights = W.reshape(group, -1 if W.size else 0, *W.shape[1:])
        bias = None if B is None else B.reshape(group, m, 1)
        with np.errstate(all="ignore"):
            for n in range(X.shape[0]):
                _fill(X[n].reshape(group, -1 if X.size else 0, *size), weights, bias, placement, y[n], ctx)
    return y.reshape(X.shape[0], group * m, *placement.out)


@conv_transpose.native
def _lower_transpose(site: LoweringContext) -> NativeKernel:
    x, w, bias = site.inputs
    geometry, lengths = (
        ConvGeometry.of(site.attributes),
        [site.attributes[n] for n in ("output_padding", "output_shape")],
    )
    placement, group = _place(x, w, bias, geometry, *lengths), geometry.group
    y_shape = (x.shape[0], group * w.shape[1], *placement.out)
    site.ctx.claim(y_shape, x.itemsize)
    return float_conv_transpose_kernel(
        site,
        x,
        w,
        bias,
        y_shape,
        group=group,
        strides=placement.strides,
        dilations=placement.dilations,
        begin=placement.begin,
    )


def _fill(x: Array, w: Array, bias: Array | None, placement: _Placement, y: Array, ctx: Context) -> None:
    """Fill y [group,M,out...] from x [group,C,size...], w [group,C,M,kernel...] and bias [group,M,1].

    Results whose positions leave the same remainders modulo the strides use the same taps of the kernel: they are one
    product per group, whose k runs over channels, then these taps.
    """
    group, m, *out = y.shape
    rank = len(out)
    axes = list(zip(out, placement.begin, w.shape[3:], placement.strides, placement.dilations, strict=True))
    for firsts in itertools.product(*(range(min(axis[3], axis[0])) for axis in axes)):
        met = [_find_taps(first, *axis) for first, axis in zip(firsts, axes, strict=True)]
        where: tuple[Any, ...] = (..., *(slice(first, None, axis[3]) for first, axis in zip(firsts, axes, strict=True)))
        target = y[where]
        columns, weights = x, w
        for axis, (taps, places) in enumerate(met):
            columns = _take(columns, places, 2 + 2 * axis)
            weights = np.take(weights, taps, 3 + axis)
        order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
        ctx.claim(columns.shape, 4, "convolution columns")
        k = weights[0, :, 0].size
        turned = np.moveaxis(weights, 2, 1).reshape(group, m, k)
        made = chained_products(
            turned, columns.transpose(order).reshape(group, k, math.prod(target.shape[2:])), y.dtype, bias=bias
        )
        target[...] = made.reshape(target.shape)


def _find_taps(first: int, out: int, begin: int, kernel: int, stride: int, dilation: int) -> tuple[list[int], Array]:
    """Along one axis: the taps that meet an input at the results `first`, first + stride, ...; and the positions of
    these inputs, [taps, results], some of them beyond the image."""
    taps = [tap for tap in range(kernel) if (first + begin - tap * dilation) % stride == 0]
    begins = np.array([(first + begin - tap * dilation) // stride for tap in taps], np.int64)
    return taps, begins[:, None] + np.arange(-(-(out - first) // stride))


def _take(x: Array, places: Array, axis: int) -> Array:
    """The elements at these positions of an axis, which is replaced by the axes of `places`; 0 beyond its ends."""
    size = x.shape[axis]
    if not size:
        return np.zeros((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]), x.dtype)
    inside = (places >= 0) & (places < size)
    taken = np.take(x, np.clip(places, 0, size - 1), axis)
    return np.where(inside.reshape(*inside.shape, *(1,) * (x.ndim - axis - 1)), taken, x.dtype.type(0))


@frozen
class _Placement:
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    full: tuple[int, ...]
    begin: tuple[int, ...]
    out: tuple[int, ...]


def _axis_numbers(values: Sequence[int], rank: int, name: str, below: Sequence[int]) -> tuple[int, ...]:
    """A number for each spatial axis, below a limit; 0 if not given. Raises OperatorError."""
    if not values:
        return (0,) * rank
    if len(values) != rank or any(not 0 <= v < limit for v, limit in zip(values, below, strict=True)):
        expected = f"{rank} numbers from 0 to {shape_text(tuple(b - 1 for b in below))}"
        raise refuse(f"{name} does not fit", name, expected, shape_text(tuple(values)), code="QR216")
    return tuple(values)


def _place(
    x: Array,
    w: Array,
    bias: Array | None,
    geometry: ConvGeometry,
    output_padding: Sequence[int],
    output_shape: Sequence[int],
) -> _Placement:
    """The position in the result where products are added; refuses what the page forbids."""
    check_operands(x, w, geometry.group, geometry.kernel_shape, ("X", "W"), transposed=True)
    check_bias(bias, w.shape[1] * geometry.group)
    size, auto_pad = x.shape[2:], geometry.auto_pad
    rank, given = len(size), geometry.pads if not output_shape else ()
    win = window(size, w.shape[2:], geometry.strides, geometry.dilations, given, auto_pad, empty_ok=True)
    most = [max(s, d) for s, d in zip(win.strides, win.dilations, strict=True)]
    extra = _axis_numbers(output_padding, rank, "output_padding", most)
    shape = _axis_numbers(output_shape, rank, "output_shape", [INT32_MAX] * rank)
    full = tuple(s * (n - 1) + e if n else 0 for s, n, e in zip(win.strides, size, win.extent, strict=True))
    if not output_shape and auto_pad in ("NOTSET", "VALID"):
        out = [f + x - b - e for f, x, b, e in zip(full, extra, win.begin, win.end, strict=True)]
        return _Placement(win.strides, win.dilations, full, win.begin, tuple(max(o, 0) for o in out))
    if not output_shape:
        shape = tuple(n * s for n, s in zip(size, win.strides, strict=True))
    total = [max(f + x - o, 0) for f, x, o in zip(full, extra, shape, strict=True)]
    begin = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total)
    return _Placement(win.strides, win.dilations, full, begin, shape)


_CAUSAL_ACTIVATIONS = ("none", "silu", "swish")


@contrib_op("CausalConvWithState", types={"T": ("float float16 bfloat16", "input weight bias past_state")})
def causal_conv_with_state(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    ndim: int = 1,
    state_window: int = 0,
    ctx: Context,
) -> tuple[Array, Array]:
    """A depthwise convolution of past_state followed by input; and the present state, past_state of the next call.

    input [B,C,L]; weight [C,1,k]; bias [C]; past_state [B,C,(k-1)*dilation], zeros if left out. With channels_last
    input and states are [B,L,...], C elements each. As the nodes Concat, Conv, Slice, and Swish for silu and swish,
    each rounded to input's type.
    Limits: ndim 1 and state_window 0.
    Raises OperatorError for shapes and attributes that do not fit.
    """
    shape = _check_causal(input, weight, bias, past_state, (activation, channels_last, dilation, ndim, state_window))
    batch, length, *own = input.shape if channels_last else (input.shape[0], input.shape[2], input.shape[1])
    ctx.claim(input.shape, 3 * input.itemsize)
    ctx.claim(shape, 2 * input.itemsize)

    def first(x: Array) -> Array:
        return x.reshape(batch, x.shape[1], math.prod(own)).transpose(0, 2, 1) if channels_last else x

    def last(x: Array) -> Array:
        return np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(batch, x.shape[2], *own) if channels_last else x

    past = np.zeros(shape, input.dtype) if past_state is None else past_state
    nodes = _causal_nodes(weight.shape[0], past.shape[1 if channels_last else 2], length, dilation, activation)
    made = run_nodes(nodes, (first(input), weight, bias, first(past)), ctx)
    return last(made[""]), last(made["state"])


@causal_conv_with_state.native
def _lower_causal_conv(site: LoweringContext) -> NativeKernel:
    given, (x, weight, bias, past) = site.attributes, site.inputs
    names = ("activation", "channels_last", "dilation", "ndim", "state_window")
    _check_causal(x, weight, bias, past, [given[name] for name in names])
    if given["channels_last"] or past is None:
        raise decline_error("channels_last, or no past_state")
    nodes = _causal_nodes(len(weight), past.shape[2], x.shape[2], given["dilation"], given["activation"])
    return nodes_kernel(site, nodes, {"state": 1})


def _causal_nodes(channels: int, kept: int, length: int, dilation: int, activation: str) -> list[InnerNode]:
    """The nodes on input, weight, bias and past_state, channels first. kept: the number of positions in the state."""
    ends = {"axes": (2,), "starts": (length,), "ends": (length + kept,)}
    conv = InnerNode("Conv", ("whole", 1, 2), {"group": channels, "dilations": (dilation,)}, "sums")
    nodes = [
        InnerNode("Concat", (3, 0), {"axis": 2}, "whole"),
        InnerNode("Slice", ("whole",), ends, "state", version=1),
        conv,
        InnerNode("Swish", ("sums",)),
    ]
    return nodes if activation != "none" else [*nodes[:2], InnerNode("Conv", conv.inputs, conv.attributes)]


def _check_causal(
    x: Array, weight: Array, bias: Array | None, past: Array | None, attributes: Sequence[str | int]
) -> Shape:
    """The shape of the states; refuses what does not fit."""
    activation, turned, dilation, ndim, window = attributes
    one_of("activation", activation, _CAUSAL_ACTIVATIONS)
    one_of("ndim", ndim, (1,))
    one_of("state_window", window, (0,))
    require("dilation", int(dilation) >= 1, "1 or more", dilation)
    if x.ndim != 3 and not (turned and x.ndim > 3):
        raise bad_shape("input", "[B,L,...]" if turned else "[B,C,L]", x)
    channels = math.prod(x.shape[2:]) if turned else x.shape[1]
    if weight.ndim != 3 or weight.shape[:2] != (channels, 1) or not weight.shape[2]:
        raise bad_shape("weight", f"[{channels},1,k]", weight)
    with_shape(bias, "bias", (channels,))
    kept = (weight.shape[2] - 1) * int(dilation)
    shape = (x.shape[0], kept, *x.shape[2:]) if turned else (*x.shape[:2], kept)
    with_shape(past, "past_state", shape)
    return shape
