"""LSTM, GRU and RNN of short sequences, number by number: fractions, and decimals of 50 digits for exponentials.

Every step is rounded to float32, as the docstrings of the operators say; a product is Gemm as numerics.md, F1,
orders it.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction as F

import numpy as np

from oracle.cast import nearest
from oracle.polynomials import sigmoid
from oracle.polynomials import tanh as single_tanh

SINGLE = np.float32


def r(value: F) -> F:
    """To float32."""
    return F(nearest(F(value), SINGLE))


def exp(x: F) -> F:
    with localcontext() as ctx:
        ctx.prec = 50
        return F((Decimal(x.numerator) / Decimal(x.denominator)).exp())


def log1p(x: F) -> F:
    with localcontext() as ctx:
        ctx.prec = 50
        return F((1 + Decimal(x.numerator) / Decimal(x.denominator)).ln())


def tanh(x: F) -> F:
    e = exp(-2 * abs(x))
    return (1 - e) / (1 + e) * (1 if x >= 0 else -1)


FUNCTIONS = {
    "Sigmoid": sigmoid,
    "Tanh": single_tanh,
    "Relu": lambda x: max(x, F(0)),
    "Softsign": lambda x: x / (1 + abs(x)),
    "Softplus": lambda x: log1p(exp(x)),
    "LeakyRelu": lambda x, a: x if x >= 0 else a * x,
    "ThresholdedRelu": lambda x, a: x if x > a else F(0),
    "Elu": lambda x, a: x if x >= 0 else a * (exp(x) - 1),
    "HardSigmoid": lambda x, a, b: max(F(0), min(F(1), a * x + b)),
    "Affine": lambda x, a, b: a * x + b,
    "ScaledTanh": lambda x, a, b: a * tanh(b * x),
}
DEFAULTS = {"LeakyRelu": ("0.01",), "ThresholdedRelu": ("1",), "Elu": ("1",), "HardSigmoid": ("0.2", "0.5")}
USES = {"LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1, "HardSigmoid": 2, "Affine": 2, "ScaledTanh": 2}


def functions(names, alphas, betas, clip):
    """The activations, rounded; alpha and beta in the order in which they are needed."""
    alphas, betas, made = list(alphas), list(betas), []
    for name in names:
        given = []
        for place in range(USES.get(name, 0)):
            rest = (alphas, betas)[place]
            value = F(float(rest.pop(0))) if rest else F(DEFAULTS[name][place])
            given.append(r(value))

        def function(x, name=name, given=given):
            if clip:
                x = max(-r(F(clip)), min(r(F(clip)), x))
            return r(FUNCTIONS[name](x, *given))

        made.append(function)
    return made


def chains(row, column, added=F(0)):
    """Blocks of 256 elements, each a chain of fused multiply-adds, added to what the sum begins with."""
    for first in range(0, len(row), 256):
        made = F(0)
        for a, b in zip(row[first : first + 256], column[first : first + 256], strict=True):
            made = r(a * b + made)
        added = r(added + made)
    return added


def exact(row, column, added=F(0)):
    return r(sum((a * b for a, b in zip(row, column, strict=True)), F(0)) + added)


def fractions(array):
    if array is None or array.dtype == object:
        return array
    return np.vectorize(lambda v: F(float(v)), otypes=[object])(array)


def run(op, x, w, rec, b=None, lens=None, h0=None, c0=None, p=None, *, direction="forward", activations=None,
        activation_alpha=(), activation_beta=(), clip=0.0, input_forget=0, linear_before_reset=0, layout=0,
        hidden_size=0, dot=chains, seen=lambda rows: rows):  # fmt: skip
    """Y, Y_h and for an LSTM Y_c; inputs as those of the operators, float32 or shorter, or fractions. dot: a row
    times a column, plus a number; seen: what it sees of the states h of the sequences that run, [[fraction]]."""
    made = x.dtype
    default = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}[op]
    made = SINGLE if made.kind == "O" else made
    dirs, hidden = rec.shape[0], rec.shape[2]
    names = activations or default * dirs
    each = len(default)
    acts = functions(names, activation_alpha, activation_beta, clip)
    if layout:
        x = x.swapaxes(0, 1)
        h0, c0 = (None if s is None else s.swapaxes(0, 1) for s in (h0, c0))
    seq, batch, _ = x.shape
    x, w, rec, b, h0, c0, p = map(fractions, (x, w, rec, b, h0, c0, p))
    y = np.zeros((seq, dirs, batch, hidden), object)
    ends = [np.zeros((dirs, batch, hidden), object) for _ in range(2)]
    for d in range(dirs):
        backward = direction == "reverse" or d == 1
        f = acts[d * each : (d + 1) * each]
        lengths = [seq] * batch if lens is None else [int(n) for n in lens]
        h = [list(h0[d, n]) if h0 is not None else [F(0)] * hidden for n in range(batch)]
        c = [list(c0[d, n]) if c0 is not None else [F(0)] * hidden for n in range(batch)]
        bias = b[d] if b is not None else None
        peep = p[d] if p is not None else None
        for step in range(seq):
            running = [n for n in range(batch) if step < lengths[n]]
            for n, own in zip(running, seen([h[n] for n in running]), strict=True):
                t = lengths[n] - 1 - step if backward else step
                h[n], c[n] = STEPS[op](
                    dot, x[t, n], own, c[n], w[d], rec[d], bias, peep, f, input_forget, linear_before_reset
                )
                y[t, d, n] = h[n]
        for n in range(batch):
            ends[0][d, n], ends[1][d, n] = h[n], c[n]
    results = [y, *ends[: 2 if op == "LSTM" else 1]]
    if layout:
        results = [y.transpose(2, 0, 1, 3), *(e.swapaxes(0, 1) for e in results[1:])]
    return [np.vectorize(lambda v: nearest(F(v), made), otypes=[np.float64])(a).astype(made) for a in results]


def quantized(rows):
    """The numbers that DynamicQuantizeLinear's codes of [[fraction]] stand for; every step is rounded."""
    values = [v for row in rows for v in row]
    top, bottom = max([F(0), *values]), min([F(0), *values])
    scale = r(r(top - bottom) / 255)
    if not scale:
        scale, zero = F(1), 0
    else:
        zero = round(min(max(r(-r(bottom / scale)), F(0)), F(255)))

    def code(v):
        return min(max(round(r(v / scale)) + zero, 0), 255)

    return [[(code(v) - zero) * scale for v in row] for row in rows]


def dynamic(x, w, rec, b, lens, h0, c0, p, w_scale, w_zero, r_scale, r_zero, **attributes):
    """DynamicQuantizeLSTM: Y, Y_h, Y_c."""

    def real(codes, scale, zero):
        scale, zero = (np.broadcast_to(v.reshape(len(codes), 1, -1), codes.shape) for v in (scale, zero))
        pairs = zip(codes.flat, zero.flat, scale.flat, strict=True)
        made = np.array([(int(q) - int(z)) * F(float(s)) for q, z, s in pairs], object)
        return made.reshape(codes.shape).transpose(0, 2, 1)

    seq, x = len(x), x if lens is None else x[: max(lens)]
    flat = quantized([[F(float(v)) for v in x.reshape(-1)]])
    inputs = np.array(flat[0], object).reshape(x.shape)
    weights = real(w, w_scale, w_zero), real(rec, r_scale, r_zero)
    y, *ends = run("LSTM", inputs, *weights, b, lens, h0, c0, p, dot=exact, seen=quantized, **attributes)
    return [np.pad(y, [(0, seq - len(y)), (0, 0), (0, 0), (0, 0)]), *ends]


def _inputs(dot, x, w, b, count):
    """What x gives to each gate row, with both biases."""
    return [dot(x, w[row], r(b[row] + b[row + count]) if b is not None else F(0)) for row in range(count)]


def _lstm(dot, x, h, c, w, rec, b, p, f, coupled, _):
    n = len(h)
    share = _inputs(dot, x, w, b, 4 * n)
    gates = [dot(h, rec[row], share[row]) for row in range(4 * n)]
    new_h, new_c = [], []
    for j in range(n):
        i, o, g, s = (gates[j + k * n] for k in range(4))
        if p is not None:
            i, g = r(i + r(p[j] * c[j])), r(g + r(p[2 * n + j] * c[j]))
        i = f[0](i)
        forget = r(1 - i) if coupled else f[0](g)
        cell = r(r(forget * c[j]) + r(i * f[1](s)))
        if p is not None:
            o = r(o + r(p[n + j] * cell))
        new_c.append(cell)
        new_h.append(r(f[0](o) * f[2](cell)))
    return new_h, new_c


def _gru(dot, x, h, c, w, rec, b, p, f, _, linear):
    n = len(h)
    share = _inputs(dot, x, w, b, 3 * n)
    if linear and b is not None:
        share[2 * n :] = [dot(x, w[row], b[row]) for row in range(2 * n, 3 * n)]
    z = [f[0](dot(h, rec[row], share[row])) for row in range(n)]
    reset = [f[0](dot(h, rec[row], share[row])) for row in range(n, 2 * n)]
    if linear:
        own = [dot(h, rec[row], b[3 * n + row] if b is not None else F(0)) for row in range(2 * n, 3 * n)]
        new = [f[1](r(r(q * o) + s)) for q, o, s in zip(reset, own, share[2 * n :], strict=True)]
    else:
        left = [r(q * v) for q, v in zip(reset, h, strict=True)]
        new = [f[1](dot(left, rec[row], share[row])) for row in range(2 * n, 3 * n)]
    return [r(r(r(1 - a) * m) + r(a * v)) for a, m, v in zip(z, new, h, strict=True)], c


def _rnn(dot, x, h, c, w, rec, b, p, f, *_):
    share = _inputs(dot, x, w, b, len(h))
    return [f[0](dot(h, rec[row], share[row])) for row in range(len(h))], c


STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
