"""Decoders without caches that grow: CausalConvWithState and LinearAttention of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qrun.ops._body import InnerNode, nodes_kernel, run_nodes
from qrun.ops._context import Given
from qrun.ops._float import narrow, single, widen
from qrun.ops._native import LoweringContext, NativeKernel, declined
from qrun.ops._op import Array, Context, Shape, bad_shape, contrib_op, one_of, refuse, require, with_shape

_FLOATS = "float float16 bfloat16"
_RULES = ("linear", "gated", "delta", "gated_delta")
_ACTIVATIONS = ("none", "silu", "swish")


@contrib_op("CausalConvWithState", types={"T": (_FLOATS, "input weight bias past_state")})
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

    input [B,C,L]; weight [C,1,k]; bias [C]; past_state [B,C,(k-1)*dilation], zeros if left out. With channels_last input and
    states are [B,L,...], C elements each. As the nodes Concat, Conv, Slice, and Swish for silu and swish, each rounded to
    input's type.
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


@contrib_op("LinearAttention", types={"T": (_FLOATS, "query key value decay beta"), "S": (_FLOATS, "past_state")})
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
    ctx: Context,
) -> tuple[Array, Array]:
    """What queries find in a state that each token changes: output [B,T,H*dv] and present_state [B,Hk,dk,dv].

    query [B,T,Hq*dk], key [B,T,Hk*dk], value [B,T,Hk*dv], past_state as present_state, zeros if left out. H is the larger of Hq
    and Hk, which the smaller one divides: neighbouring heads share. For each token, where update_rule names them:

        S = exp(decay) * S                      gated: decay [B,T,Hk] or [B,T,Hk*dk], one for each row of S
        v = beta * (value - S' key)             delta: beta [B,T,Hk] or [B,T,1]; else v = value
        S = S + key v'
        output = scale * S' query               scale 0 stands for 1 / sqrt(dk)

    In float64 for all tokens; output is then rounded once to its type, present_state to past_state's (query's, if left out).
    chunk_size changes nothing.
    Limits: state_window 0.
    Raises OperatorError for shapes and attributes that do not fit.
    """
    one_of("update_rule", update_rule, _RULES)
    one_of("state_window", state_window, (0,))
    tokens, state_shape = _check_tokens(query, key, value, q_num_heads, kv_num_heads)
    (batch, _, depth, width), heads = state_shape, max(q_num_heads, kv_num_heads)
    with_shape(past_state, "past_state", state_shape)
    gated, delta = update_rule.startswith("gated"), update_rule.endswith("delta")
    each = batch, tokens, kv_num_heads
    _check_rule("decay", decay, update_rule if gated else "", each, (batch, tokens, kv_num_heads * depth))
    _check_rule("beta", beta, update_rule if delta else "", each, (batch, tokens, 1))
    ctx.claim((batch, tokens, heads, 2 * width + 2 * depth), 8)
    ctx.claim((batch, heads, depth, width), 24)
    state = np.zeros(state_shape) if past_state is None else widen(past_state).copy()
    q, k, v = _heads(query, q_num_heads), _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    with np.errstate(all="ignore"):
        fades = np.exp(_heads(decay, kv_num_heads)) if gated and decay is not None else None
        made = _attended(q, k, v, state, fades, widen(beta) if delta and beta is not None else None)
        made *= single(scale) or 1 / math.sqrt(depth)
    present = narrow(state, (query if past_state is None else past_state).dtype)
    return narrow(made.reshape(batch, tokens, heads * width), query.dtype), present


def _check_rule(name: str, given: Array | None, rule: str, *shapes: tuple[int, ...]) -> None:
    """Refuse an input that is missing, or has none of these shapes, where a rule takes it; rule: "" for one that does not."""
    if rule and given is None:
        raise refuse(f"{name} is missing", name, f"{name}, for update_rule {rule}", "nothing", code="QR205")
    with_shape(given if rule else None, name, *shapes)


def _attended(q: Array, k: Array, v: Array, state: Array, fades: Array | None, rates: Array | None) -> Array:
    """Of each token [B,T,H,dv] what it finds in the state [B,Hk,dk,dv], which is changed in place; all float64, heads apart.

    fades: factors of the state's rows, [B,T,Hk,dk] or [B,T,Hk,1]; rates: beta."""
    heads, stored = max(q.shape[2], k.shape[2]), k.shape[2]
    made = np.empty((*v.shape[:2], heads, v.shape[3]))
    for t in range(v.shape[1]):
        if fades is not None:
            state *= fades[:, t, :, :, None]
        new = v[:, t]
        if rates is not None:
            new = rates[:, t, :, None] * (new - np.matmul(k[:, t, :, None], state)[:, :, 0])
        state += k[:, t, :, :, None] * new[:, :, None]
        seen = np.repeat(state, heads // stored, axis=1)
        asked = np.repeat(q[:, t], heads // q.shape[2], axis=1)
        made[:, t] = np.matmul(asked[:, :, None], seen)[:, :, 0]
    return made


def _heads(x: Array, count: int) -> Array:
    """[B,T,count*d] in float64, as [B,T,count,d]."""
    return widen(x).reshape(*x.shape[:2], count, x.shape[2] // count)


def _check_tokens(query: Array, key: Array, value: Array, q_heads: int, kv_heads: int) -> tuple[int, Shape]:
    """How many tokens there are, and the shape of the state; refuses what does not fit."""
    most, least = max(q_heads, kv_heads), min(q_heads, kv_heads)
    require("q_num_heads", least > 0 and most % least == 0, f"a divisor or multiple of {kv_heads}", q_heads)
    if query.ndim != 3 or query.shape[2] % q_heads or not query.shape[2]:
        raise bad_shape("query", f"[B,T,{q_heads}*dk]", query)
    batch, tokens, size = query.shape
    with_shape(key, "key", (batch, tokens, size // q_heads * kv_heads))
    if value.shape[:-1] != (batch, tokens) or value.shape[2] % kv_heads:
        raise bad_shape("value", f"[{batch},{tokens},{kv_heads}*dv]", value)
    return tokens, (batch, kv_heads, size // q_heads, value.shape[2] // kv_heads)
