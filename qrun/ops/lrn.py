"""LRN."""

from __future__ import annotations

import numpy as np

from qrun.ops._complete import ALWAYS
from qrun.ops._float import narrow, single, slide, widen
from qrun.ops._native import LoweringContext, NativeKernel, declined, kernel_of
from qrun.ops._op import Array, Context, op, refuse

_BLOCK = 1 << 17
"""Elements in work at once, so that they stay in the cache."""
_FEW = 16
"""Up to so many squares are added one after the other."""


@op("LRN", since=1)
def lrn(
    X: Array,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    size: int,
    ctx: Context,
) -> Array:
    """Y[n,c] = X[n,c] / (bias + alpha / size * sum over i of X[n,i]**2) ** beta

    X [N,C,spatial...], floating point; i runs over the `size` channels from c - floor((size-1)/2) to
    c + ceil((size-1)/2) that exist. In float64 and rounded once to X's type; float64 stays float64.
    Raises OperatorError for a size below 1 and for rank 1 or less.
    Source: ONNX operators, LRN-13.
    """
    if X.ndim < 2:
        raise refuse("X has no channels", "X", "[N,C,spatial...]", X, code="QR208")
    if size < 1:
        raise refuse("size is not positive", "size", "1 or more", str(size), code="QR204")
    if not X.size:
        return X
    channels = X.shape[1]
    before, after = _sides(size, channels)
    count = before + after + 1
    rows = X.reshape(X.shape[0], channels, -1)
    step = max(1, _BLOCK // (len(rows) * channels))
    ctx.claim((len(rows), channels + before + after, step), 16, "squares")
    y = np.empty(rows.shape, X.dtype)
    for start in range(0, rows.shape[2], step):
        part = widen(rows[:, :, start : start + step])
        with np.errstate(all="ignore"):
            squares = np.pad(np.square(part), [(0, 0), (before, after), (0, 0)])
            if count <= _FEW:
                total = squares[:, :channels].copy()
                for tap in range(1, count):
                    total += squares[:, tap : tap + channels]
            else:
                total = slide((squares,), 1, count, 1, 1, channels, lambda a, b: (a[0] + b[0],))[0]
            power = _power(single(bias) + single(alpha) / size * total, single(beta))
            y[:, :, start : start + step] = narrow(part / power, X.dtype)
    return y.reshape(X.shape)


def _sides(size: int, channels: int) -> tuple[int, int]:
    """How many channels before and after each one are summed, of those that may exist."""
    return min((size - 1) // 2, channels - 1), min(size // 2, channels - 1)


@lrn.native
def lower_lrn(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.normalize import Lrn

    x, beta, bias, size = site.inputs[0], *(site.attributes[name] for name in ("beta", "bias", "size"))
    if x.dtype != np.float32 or single(beta) != 0.75:
        raise declined("not float32 to the power of 0.75")
    if x.ndim < 2 or size < 1 or not x.size:
        raise declined("no channels")
    before, after = _sides(size, x.shape[1])
    if before + after >= _FEW:
        raise declined(f"sums of more than {_FEW} squares")
    factor = float(single(site.attributes["alpha"]) / size)
    operation = Lrn(site.engine, x.shape, before, after, factor, float(single(bias)))
    return kernel_of(site, operation, (0,), ALWAYS)


def _power(base: Array, exponent: float) -> Array:
    """base ** exponent; 0.75 from square roots, within two units in the last place."""
    if exponent != 0.75:
        return np.asarray(base**exponent)
    root = np.sqrt(base)
    return np.asarray(root * np.sqrt(root))
