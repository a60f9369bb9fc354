"""CausalConvWithState of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qrun.ops._body import InnerNode, nodes_kernel, run_nodes
from qrun.ops._context import Given
from qrun.ops._op import Array, Context, Shape, bad_shape, contrib_op, one_of, require, with_shape
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined

_ACTIVATIONS = ("none", "silu", "swish")


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
    """A depthwise convolution of past_state and input, and what of these the next call takes for past_state.

    input [B,C,L]; weight [C,1,k]; bias [C]; past_state [B,C,(k-1)*dilation], zeros if left out. With channels_last
    input and states are [B,L,...], C elements each. As the nodes Concat, Conv, Slice, and Swish for silu and swish,
    each rounded to input's type.
    Limits: ndim 1 and state_window 0.
    Raises OperatorError for shapes and attributes that do not fit.
    """
    shape = _check(input, weight, bias, past_state, (activation, channels_last, dilation, ndim, state_window))
    batch, length, *own = input.shape if channels_last else (input.shape[0], input.shape[2], input.shape[1])
    ctx.claim(input.shape, 3 * input.itemsize)
    ctx.claim(shape, 2 * input.itemsize)

    def first(x: Array) -> Array:
        return x.reshape(batch, x.shape[1], math.prod(own)).transpose(0, 2, 1) if channels_last else x

    def last(x: Array) -> Array:
        return np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(batch, x.shape[2], *own) if channels_last else x

    past = np.zeros(shape, input.dtype) if past_state is None else past_state
    nodes = _nodes(weight.shape[0], past.shape[1 if channels_last else 2], length, dilation, activation)
    made = run_nodes(nodes, (first(input), weight, bias, first(past)), ctx)
    return last(made[""]), last(made["state"])


@causal_conv_with_state.native
def _lower_causal_conv(site: LoweringContext) -> NativeKernel:
    given, (x, weight, bias, past) = site.attributes, site.inputs
    names = ("activation", "channels_last", "dilation", "ndim", "state_window")
    _check(x, weight, bias, past, [given[name] for name in names])
    if given["channels_last"] or past is None:
        raise declined("channels_last, or no past_state")
    nodes = _nodes(len(weight), past.shape[2], x.shape[2], given["dilation"], given["activation"])
    return nodes_kernel(site, nodes, {"state": 1})


def _nodes(channels: int, kept: int, length: int, dilation: int, activation: str) -> list[InnerNode]:
    """Of input, weight, bias and past_state, channels first; `kept` positions of all that there are remain."""
    ends = {"axes": (2,), "starts": (length,), "ends": (length + kept,)}
    conv = InnerNode("Conv", ("whole", 1, 2), {"group": channels, "dilations": (dilation,)}, "sums")
    nodes = [
        InnerNode("Concat", (3, 0), {"axis": 2}, "whole"),
        InnerNode("Slice", ("whole",), ends, "state", version=1),
        conv,
        InnerNode("Swish", ("sums",)),
    ]
    return nodes if activation != "none" else [*nodes[:2], InnerNode("Conv", conv.inputs, conv.attributes)]


def _check(x: Array, weight: Array, bias: Given, past: Given, attributes: Sequence[str | int]) -> Shape:
    """The shape of the states; refuses what does not fit."""
    activation, turned, dilation, ndim, window = attributes
    one_of("activation", activation, _ACTIVATIONS)
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
