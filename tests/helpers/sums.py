"""Operands of sums of products of every kind: that cancel, underflow, overflow, lie beside middles, or are special."""

from __future__ import annotations

import numpy as np

from helpers.native import Array

F = np.float32
KINDS = ("normal", "cancelling", "cancelled", "middles", "ties", "tiny", "huge", "subnormal", "wide", "signs")
SPECIAL = (*KINDS, "special")


def operands(kind: str, rng: np.random.Generator, m: int, k: int, n: int) -> tuple[Array, Array]:
    """Matrices [m,k] and [k,n]."""
    a, b = rng.standard_normal((m, k)).astype(F), rng.standard_normal((k, n)).astype(F)
    if not k:
        return a, b
    if kind == "cancelling":
        half = k // 2
        a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half]
        a[:, -1] *= F(2.0**-30)
        b[0] *= 1 + F(2.0**-20)
    elif kind == "cancelled":  # to 0, or in some rows to one product that is much less than what float64 loses
        half = k // 2
        a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half]
        a[:, 2 * half :] = 0
        a[::3, half : half + 1] *= 1 + F(2.0**-23)
        a[1::3, 2 * half :] = F(2.0**-100)
    elif (
        kind == "middles" and k > 3
    ):  # of two float32 numbers; beside them by a product's last bits, which float64 loses
        a[:], b = 0, np.broadcast_to(np.exp2(rng.integers(-5, 5, n)).astype(F), (k, n)).copy()
        a[::2, :3], a[1::2, [0, 3]] = F([1, 2.0**-23, 1 + 2.0**-18]), F([1, 1 + 2896 * 2.0**-23])
        b[2:4] *= F([[1 - 2.0**-18], [1 - 2895 * 2.0**-23]]) * F(2.0**-24)
        a *= rng.choice(F([1, -1]), (m, 1))
    elif kind == "ties":
        a, b = (rng.integers(-2048, 2049, x.shape).astype(F) for x in (a, b))
        a[0] += F(2.0**-12)
    elif kind == "tiny":
        a, b = a * F(2.0**-70), b * F(2.0**-72)
    elif kind == "huge":
        a, b = a * F(2.0**66), b * F(2.0**60)
    elif kind == "subnormal":
        a, b = (rng.integers(-9, 10, x.shape).astype(F) * F(2.0**-149) for x in (a, b))
        b = b * F(2.0**127) * F(2.0**13)
    elif kind == "wide":
        a, b = (x * np.exp2(rng.integers(-60, 60, x.shape)).astype(F) for x in (a, b))
    elif kind == "signs":
        a, b = (np.where(rng.random(x.shape) < 0.6, rng.choice(np.array([0, -0.0], F), x.shape), x) for x in (a, b))
    elif kind == "special":
        odd = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 3e38, 1e-45], F)
        a, b = (np.where(rng.random(x.shape) < 0.5 / k, rng.choice(odd, x.shape), x) for x in (a, b))
    return a, b


def assert_bits(got: Array, want: Array, message: str = "") -> None:
    """Of float32, the signs of zeros too; NaN has one form."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), message
    same = got.view(np.uint32) == want.view(np.uint32)
    assert same.all(), f"{message}: {np.argwhere(~same)[:3].tolist()} {got[~same][:3]}, want {want[~same][:3]}"
