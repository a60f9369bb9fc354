"""CausalConvWithState, LinearAttention and CDist of com.microsoft: element by element, beside onnxruntime."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_rounded, qrun_node
from helpers.placed import same_everywhere
from helpers.support import MS, assert_equal, node_model
from oracle.blocks import nearest
from oracle.chains import chained
from oracle.polynomials import swish

import qrun

F, H, BF, D = np.float32, np.float16, ml_dtypes.bfloat16, np.float64
Q = Fraction


def real(value: Any) -> Q:
    return Q(float(value))


def convolved(x: Any, w: Any, b: Any, past: Any, dilation: int, activation: str) -> tuple[np.ndarray, np.ndarray]:
    """Of [B,C,L], each sum in the order of numerics.md, F1, and Swish of it."""
    whole = np.concatenate([past, x], axis=2)
    made = np.zeros(x.shape, x.dtype)
    for n, c, t in np.ndindex(x.shape):
        taps = range(w.shape[2])
        row, column = [real(whole[n, c, t + j * dilation]) for j in taps], [real(w[c, 0, j]) for j in taps]
        value = Q(chained(row, column, x.dtype, bias=real(b[c]) if b is not None else None))
        made[n, c, t] = float(value) if activation == "none" else nearest(swish(value), x.dtype)
    return made, whole[:, :, x.shape[2] :]


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_causal_conv(dtype: Any) -> None:
    peer = Peer()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        batch, channels, length, k, dilation = (int(n) for n in rng.integers(1, 5, 5))
        dilation = 1 if seed % 3 else dilation
        kept = (k - 1) * dilation
        x, past = (rng.normal(size=(batch, channels, n)).astype(dtype) for n in (length, kept))
        w, b = rng.normal(size=(channels, 1, k)).astype(dtype), rng.normal(size=channels).astype(dtype)
        attributes: dict[str, Any] = {"activation": ("none", "silu", "swish")[seed % 3], "ndim": 1}
        attributes |= {"dilation": dilation} if dilation > 1 else {}
        bias, state = (b if seed % 2 else None), (past if seed % 4 else None)
        inputs = [x, w, bias, state]
        want = convolved(x, w, bias, past if seed % 4 else past * 0, dilation, attributes["activation"])
        given = {"domain": MS, "opset": 17, "outputs": (dtype, dtype)}
        for got, wanted in zip(qrun_node("CausalConvWithState", inputs, attributes, **given), want, strict=True):
            assert_equal(got, wanted, f"seed {seed}", signed_zeros=False)
        same_everywhere(*node_model("CausalConvWithState", inputs, attributes, constants=[1, 2], **given))
        if dtype == F and kept:
            peer.check("CausalConvWithState", inputs, attributes, message=f"seed {seed}", **given)
        turned = [x.transpose(0, 2, 1), w, bias, None if state is None else state.transpose(0, 2, 1)]
        turned[0] = turned[0].reshape(batch, length, channels, 1)
        turned[3] = None if state is None else turned[3].reshape(batch, kept, channels, 1)
        made = qrun_node("CausalConvWithState", turned, {**attributes, "channels_last": 1}, **given)
        for got, wanted in zip(made, want, strict=True):
            assert_equal(got[..., 0].transpose(0, 2, 1), wanted, f"seed {seed}", signed_zeros=False)
    if dtype == F:
        peer.finish()


def test_a_call_goes_on_where_the_last_one_ended() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 9)).astype(F), rng.normal(size=(3, 1, 4)).astype(F)
    given = {"domain": MS, "outputs": (F, F)}
    whole, end = qrun_node("CausalConvWithState", [x, w], **given)
    first, state = qrun_node("CausalConvWithState", [x[:, :, :2], w], **given)
    second, last = qrun_node("CausalConvWithState", [x[:, :, 2:], w, None, state], **given)
    assert_equal(np.concatenate([first, second], axis=2), whole)
    assert_equal(last, end)


def attended(q: Any, k: Any, v: Any, state: Any, decay: Any, beta: Any, heads: tuple[int, int], scale: float) -> Any:
    """Token by token and element by element, in Python's floats; state [B,Hk,dk,dv]."""
    batch, tokens = q.shape[:2]
    _, kv, depth, width = state.shape
    s = state.astype(D).tolist()
    made = np.zeros((batch, tokens, max(heads), width))
    for n in range(batch):
        for t in range(tokens):
            for h in range(kv):
                key, value = (x[n, t].reshape(kv, -1)[h].astype(D).tolist() for x in (k, v))
                if decay is not None:
                    fade = decay[n, t].reshape(kv, -1)[h].astype(D)
                    s[n][h] = [[e * math.exp(fade[i % len(fade)]) for e in row] for i, row in enumerate(s[n][h])]
                if beta is not None:
                    rate = float(beta[n, t, h % beta.shape[2]])
                    value = [
                        rate * (e - math.fsum(key[i] * s[n][h][i][j] for i in range(depth)))
                        for j, e in enumerate(value)
                    ]
                s[n][h] = [[e + key[i] * value[j] for j, e in enumerate(row)] for i, row in enumerate(s[n][h])]
            for o in range(max(heads)):
                asked = q[n, t].reshape(heads[0], -1)[o * heads[0] // max(heads)].astype(D)
                own = s[n][o * kv // max(heads)]
                for j in range(width):
                    made[n, t, o, j] = scale * math.fsum(asked[i] * own[i][j] for i in range(depth))
    return made.reshape(batch, tokens, -1), np.array(s)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(rule: str) -> None:
    peer = Peer()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        batch, tokens, depth, width = (
            1 + seed % 2,
            int(rng.integers(1, 5)),
            int(rng.integers(1, 5)),
            int(rng.integers(1, 5)),
        )
        heads = ((2, 2), (4, 2), (1, 1), (2, 4))[seed % 4]
        q, k = (rng.normal(size=(batch, tokens, count * depth)).astype(F) / 2 for count in heads)
        v = rng.normal(size=(batch, tokens, heads[1] * width)).astype(F)
        state = rng.normal(size=(batch, heads[1], depth, width)).astype(F)
        decay = -rng.random((batch, tokens, heads[1] * (depth if seed % 3 else 1))).astype(F)
        beta = rng.random((batch, tokens, heads[1] if seed % 2 else 1)).astype(F)
        gates = [decay if rule.startswith("gated") else None, beta if rule.endswith("delta") else None]
        past = state if seed % 3 else None
        attributes = {"q_num_heads": heads[0], "kv_num_heads": heads[1], "update_rule": rule}
        attributes |= {"scale": 0.75} if seed % 2 else {}
        inputs = [q, k, v, past, *gates]
        given = {"domain": MS, "opset": 17, "outputs": (F, F)}
        scale = 0.75 if seed % 2 else 1 / math.sqrt(depth)
        want = attended(q, k, v, state if seed % 3 else state * 0, *gates, heads, scale)
        for got, wanted in zip(qrun_node("LinearAttention", inputs, attributes, **given), want, strict=True):
            assert_rounded(got, wanted, f"seed {seed}")
        peer.check("LinearAttention", inputs, attributes, message=f"seed {seed}", rtol=1e-4, atol=1e-5, **given)
    peer.finish()


def test_linear_attention_of_short_floats() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(1, 3, 4)).astype(H) for _ in range(3))
    state = rng.normal(size=(1, 2, 2, 2)).astype(F)
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    made = qrun_node("LinearAttention", [q, k, v, state], attributes, domain=MS, outputs=(H, F))
    for got, wanted in zip(made, attended(q, k, v, state, None, None, (2, 2), 1 / math.sqrt(2)), strict=True):
        assert_rounded(got, wanted)


@pytest.mark.parametrize("dtype", [F, D])
@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_distances(metric: str, dtype: Any) -> None:
    peer = Peer()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rows, others, width = (int(n) for n in rng.integers(1, 9, 3))
        a, b = (rng.normal(size=(count, width)).astype(dtype) for count in (rows, others))
        squares = [[math.fsum((x - y) ** 2 for x, y in zip(p, o, strict=True)) for o in b.tolist()] for p in a.tolist()]
        want = np.sqrt(squares) if metric == "euclidean" else np.array(squares)
        made = qrun_node("CDist", [a, b], {"metric": metric}, domain=MS)
        if dtype == F:
            assert_rounded(made, want)
        else:
            np.testing.assert_allclose(made, want, 1e-14)
        peer.check(
            "CDist", [a, b], {"metric": metric}, message=f"seed {seed}", domain=MS, opset=17, rtol=1e-4, atol=1e-5
        )
    peer.finish()


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, F)


HEADS = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}


@pytest.mark.parametrize(
    ("text", "op_type", "inputs", "attributes"),
    [
        ("input has shape", "CausalConvWithState", [ones(2, 3), ones(3, 1, 2)], {}),
        ("weight has shape", "CausalConvWithState", [ones(2, 3, 4), ones(2, 1, 2)], {}),
        ("weight has shape", "CausalConvWithState", [ones(2, 3, 4), ones(3, 1, 0)], {}),
        ("bias has shape", "CausalConvWithState", [ones(2, 3, 4), ones(3, 1, 2), ones(1)], {}),
        ("past_state has shape", "CausalConvWithState", [ones(2, 3, 4), ones(3, 1, 2), None, ones(2, 3, 2)], {}),
        ("ndim is 2", "CausalConvWithState", [ones(2, 3, 4), ones(3, 1, 2)], {"ndim": 2}),
        ("state_window is 1", "CausalConvWithState", [ones(2, 3, 4), ones(3, 1, 2)], {"state_window": 1}),
        ("dilation is 0", "CausalConvWithState", [ones(2, 3, 4), ones(3, 1, 2)], {"dilation": 0}),
        ("activation is relu", "CausalConvWithState", [ones(2, 3, 4), ones(3, 1, 2)], {"activation": "relu"}),
        ("query has shape", "LinearAttention", [ones(1, 2, 3), ones(1, 2, 4), ones(1, 2, 4)], HEADS),
        ("key has shape", "LinearAttention", [ones(1, 2, 4), ones(1, 2, 2), ones(1, 2, 4)], HEADS),
        ("value has shape", "LinearAttention", [ones(1, 2, 4), ones(1, 2, 4), ones(1, 2, 3)], HEADS),
        ("value has shape", "LinearAttention", [ones(1, 2, 4), ones(1, 2, 4), ones(4)], HEADS),
        ("past_state has", "LinearAttention", [*[ones(1, 2, 4)] * 3, ones(1, 2, 2, 3)], HEADS),
        ("q_num_heads is 3", "LinearAttention", [ones(1, 2, 6), *[ones(1, 2, 4)] * 2], {**HEADS, "q_num_heads": 3}),
        ("q_num_heads is 0", "LinearAttention", [ones(1, 2, 6), *[ones(1, 2, 4)] * 2], {**HEADS, "q_num_heads": 0}),
        ("decay is missing", "LinearAttention", [ones(1, 2, 4)] * 3, {**HEADS, "update_rule": "gated"}),
        ("beta is missing", "LinearAttention", [ones(1, 2, 4)] * 3, {**HEADS, "update_rule": "delta"}),
        ("update_rule is rwkv", "LinearAttention", [ones(1, 2, 4)] * 3, {**HEADS, "update_rule": "rwkv"}),
        ("A has shape", "CDist", [ones(3), ones(2, 3)], {}),
        ("differ in length", "CDist", [ones(4, 2), ones(2, 3)], {}),
        ("metric is cosine", "CDist", [ones(4, 3), ones(2, 3)], {"metric": "cosine"}),
    ],
)  # fmt: skip
def test_refusals(text: str, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node(op_type, inputs, attributes, domain=MS, outputs=(F,) if op_type == "CDist" else (F, F))
