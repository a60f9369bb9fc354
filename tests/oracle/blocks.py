"""Exact answers of operators with weights in blocks, bit by bit, from their definitions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np


def nearest(value: Fraction, dtype) -> float:
    """The number of this type nearest to a real one, ties to even; beyond the type an infinity."""
    mantissa, least, top = {
        "float32": (23, -126, 128),
        "float16": (10, -14, 16),
        "bfloat16": (7, -126, 128),
    }[np.dtype(dtype).name]
    if not value:
        return 0.0
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - mantissa)
    made = round(abs(value) / unit) * unit
    size = float("inf") if made >= Fraction(2) ** top else float(made)
    return size if value > 0 else -size


def code(row: np.ndarray, place: int, bits: int) -> int:
    """Number `place` of the codes packed in a row of bytes, from the low bits up."""
    first = place * bits
    return sum(((int(row[(first + bit) // 8]) >> ((first + bit) % 8)) & 1) << bit for bit in range(bits))


def matmul_n_bits(a, b, scales, zeros=None, groups=None, bias=None, *, K, N, block_size, bits=4, **ignored):
    """Fractions throughout; each weight is rounded to float32 twice and to A's type, each result once."""
    blocks = -(-K // block_size)
    scales = np.asarray(scales).reshape(N, blocks)
    rows = a.reshape(-1, K)
    y = np.empty((len(rows), N), a.dtype)
    for n in range(N):
        weights = []
        for k in range(K):
            block = k // block_size if groups is None else int(groups[k])
            if zeros is None:
                zero = Fraction(2 ** (bits - 1))
            elif zeros.dtype == np.uint8:
                zero = Fraction(code(zeros.reshape(N, -1)[n], block, bits))
            else:
                zero = Fraction(float(zeros.reshape(N, blocks)[n, block]))
            difference = nearest(code(b[n].reshape(-1), k, bits) - zero, np.float32)
            product = nearest(Fraction(difference) * Fraction(float(scales[n, block])), np.float32)
            weights.append(Fraction(nearest(Fraction(product), a.dtype)))
        for m, row in enumerate(rows):
            total = sum((Fraction(float(x)) * w for x, w in zip(row, weights, strict=True)), Fraction(0))
            y[m, n] = nearest(total + (0 if bias is None else Fraction(float(bias[n]))), a.dtype)
    return y.reshape(*a.shape[:-1], N)


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
