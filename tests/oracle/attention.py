"""Attention of short sequences, number by number: fractions, and decimals of 50 digits for exponentials.

Every step is rounded to the type, as the docstrings of the operators say: product of Q and K, scale, softcap, each
bias, Softmax, product with V. Products are float32 sums in the order of numerics.md, F1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction as F
from typing import Any

import numpy as np

from oracle.cast import nearest
from oracle.chains import chained
from oracle.polynomials import softmax
from oracle.polynomials import tanh as single_tanh
from oracle.recurrent import exp, tanh

Round = Callable[[F], F]


def rounded(dtype: Any) -> Round:
    return lambda value: F(nearest(F(value), dtype))


def numbers(row: np.ndarray) -> list[F]:
    return [F(float(v)) for v in row]


def dot(a: Sequence[F], b: Sequence[F]) -> F:
    return sum((x * y for x, y in zip(a, b, strict=True)), F(0))


def shares_of(scores: Sequence[F | None], sink: F | None, r: Round) -> list[F]:
    """Softmax; None is -infinity. Without any score nothing has a share."""
    known = [s for s in scores if s is not None] + ([] if sink is None else [sink])
    if not known:
        return [F(0)] * len(scores)
    if r(1 + F(2) ** -40) == 1:  # no float64
        return [r(share) for share in softmax([*scores, *([] if sink is None else [sink])])][: len(scores)]
    top = max(known)
    parts = [F(0) if s is None else exp(s - top) for s in scores]
    total = sum(parts, F(0)) + (F(0) if sink is None else exp(sink - top))
    return [r(part / total) for part in parts]


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    bias: Callable[[int, int, int, int], Sequence[float]],
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
    group: int = 1,
) -> dict[str, np.ndarray]:
    """q [B,N,S,H]; head n takes keys and values n // group. bias(b, n, s, t): what is added, one after the other."""
    r = rounded(q.dtype)
    batch, heads, rows, _ = q.shape
    columns, cap = k.shape[2], F(float(np.float32(softcap)))
    names = {"products": columns, "capped": columns, "biased": columns, "shares": columns, "y": v.shape[3]}
    made = {name: np.zeros((batch, heads, rows, width), q.dtype) for name, width in names.items()}
    for b, n, s in np.ndindex(batch, heads, rows):
        keys, values = k[b, n // group], v[b, n // group]
        products = [F(chained(numbers(q[b, n, s]), numbers(key), q.dtype)) for key in keys]
        if scale is not None:
            products = [r(p * F(float(np.asarray(scale, q.dtype)))) for p in products]
        bent = single_tanh if q.dtype == np.float32 else tanh
        capped = [r(r(bent(r(p / cap))) * cap) for p in products] if softcap else products
        biased: list[F | None] = list(capped)
        for t in range(columns):
            for added in bias(b, n, s, t):
                held = biased[t]
                total = -np.inf if held is None or added == -np.inf else nearest(held + F(float(added)), q.dtype)
                biased[t] = None if total == -np.inf else F(total)
        sink = None if sinks is None else F(float(sinks[n]))
        shares = shares_of(biased, sink, r)
        y = [F(chained(shares, numbers(column), q.dtype)) for column in values.T]
        shown = {"products": products, "capped": capped, "shares": shares, "y": y}
        for name, row in shown.items():
            made[name][b, n, s] = [float(value) for value in row]
        made["biased"][b, n, s] = [-np.inf if value is None else float(value) for value in biased]
    return made


def projected(x: np.ndarray, weights: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """x @ weights + bias."""
    width = weights.shape[1]
    made = np.zeros((*x.shape[:2], width), x.dtype)
    for b, s, n in np.ndindex(made.shape):
        added = None if bias is None else F(float(bias[n]))
        made[b, s, n] = chained(numbers(x[b, s]), numbers(weights[:, n]), x.dtype, bias=added)
    return made


def q_attention(x, w, bias, x_scale, w_scale, mask=None, x_zero=None, w_zero=None, past=None, *, num_heads,
                unidirectional=0, mask_filter_value=-10000.0, scale=None):  # fmt: skip
    """QAttention: the result, and keys and values with the past ones. mask [batch]: how many keys a sequence has."""
    columns = w.shape[1]
    scales = np.broadcast_to(np.asarray(w_scale).reshape(-1), (columns,))
    zeros = np.broadcast_to(np.asarray(0 if w_zero is None else w_zero).reshape(-1).astype(int), (columns,))
    start = 0 if x_zero is None else int(np.asarray(x_zero).reshape(()))
    rows = np.zeros((*x.shape[:2], columns), bias.dtype)
    for b, s, n in np.ndindex(rows.shape):
        total = sum((p - start) * (q - int(zeros[n])) for p, q in zip(x[b, s].tolist(), w[:, n].tolist(), strict=True))
        rows[b, s, n] = nearest(total * F(float(x_scale)) * F(float(scales[n])) + F(float(bias[n])), bias.dtype)
    q, k, v = (split(part, num_heads) for part in np.split(rows, 3, axis=2))
    before = 0 if past is None else past.shape[3]
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)

    def added(b, n, s, t):
        hidden = mask is not None and t >= int(mask[b])
        later = [0.0 if t <= s + before else float(np.finfo(bias.dtype).min)] if unidirectional else []
        return ([float(bias.dtype.type(mask_filter_value)) if hidden else 0.0] if mask is not None else []) + later

    factor = 1 / np.sqrt(np.float32(q.shape[3])) if scale is None else scale
    return joined(attend(q, k, v, added, scale=factor)["y"]), np.stack([k, v])


def rotary(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, places: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [B,N,S,H] turned; cos and sin [positions,width/2]; each product, and each sum, rounded."""
    r, half, made = rounded(x.dtype), cos.shape[1], x.copy()
    for b, n, s in np.ndindex(x.shape[:3]):
        for i in range(half):
            one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
            a, c = F(float(x[b, n, s, one])), F(float(x[b, n, s, two]))
            co, si = F(float(cos[places[b, s], i])), F(float(sin[places[b, s], i]))
            made[b, n, s, one] = float(r(r(co * a) - r(si * c)))
            made[b, n, s, two] = float(r(r(si * a) + r(co * c)))
    return made


def split(x: np.ndarray, heads: int) -> np.ndarray:
    """[B,S,N*H] as [B,N,S,H]."""
    size = x.shape[2] // heads
    return np.stack([x[:, :, n * size : (n + 1) * size] for n in range(heads)], axis=1)


def joined(x: np.ndarray) -> np.ndarray:
    """[B,N,S,H] as [B,S,N*H]."""
    return np.concatenate([x[:, n] for n in range(x.shape[1])], axis=2)
