"""LinearAttention of com.microsoft."""

from __future__ import annotations

import math

import numpy as np

from qrun.ops._float import narrow, single, widen
from qrun.ops._op import Array, Context, Shape, bad_shape, contrib_op, one_of, refuse, require, with_shape

_FLOATS = "float float16 bfloat16"
_RULES = ("linear", "gated", "delta", "gated_delta")


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

    query [B,T,Hq*dk], key [B,T,Hk*dk], value [B,T,Hk*dv], past_state as present_state, zeros if left out. H is the
    larger of Hq and Hk, which the smaller one divides: neighbouring heads share.
    For each token, where update_rule names them:

        S = exp(decay) * S                      gated: decay [B,T,Hk] or [B,T,Hk*dk], one for each row of S
        v = beta * (value - S' key)             delta: beta [B,T,Hk] or [B,T,1]; else v = value
        S = S + key v'
        output = scale * S' query               scale 0 stands for 1 / sqrt(dk)

    In float64 for all tokens; output is then rounded once to its type, present_state to past_state's (query's, if left
    out). chunk_size changes nothing. Limits: state_window 0.
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
    """Refuse an input that is missing, or has none of these shapes, where a rule takes it;
    rule: "" for one that does not."""
    if rule and given is None:
        raise refuse(f"{name} is missing", name, f"{name}, for update_rule {rule}", "nothing", code="QR205")
    with_shape(given if rule else None, name, *shapes)


def _attended(q: Array, k: Array, v: Array, state: Array, fades: Array | None, rates: Array | None) -> Array:
    """Of each token [B,T,H,dv] what it finds in the state [B,Hk,dk,dv], which is changed in place;
    all float64, heads apart.

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
