"""Exact answers of operators with weights in blocks, bit by bit, from their definitions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np

from oracle.cast import nearest
from oracle.chains import chained


def code(row: np.ndarray, place: int, bits: int) -> int:
    """Number `place` of the codes packed in a row of bytes, from the low bits up."""
    first = place * bits
    return sum(((int(row[(first + bit) // 8]) >> ((first + bit) % 8)) & 1) << bit for bit in range(bits))


def matmul_n_bits(a, b, scales, zeros=None, groups=None, bias=None, *, K, N, block_size, bits=4, **ignored):
    """Fractions throughout; each weight is rounded to float32 twice, then sums are chains."""
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
            weights.append(Fraction(product))
        for m, row in enumerate(rows):
            added = None if bias is None else Fraction(float(bias[n]))
            y[m, n] = chained([Fraction(float(x)) for x in row], weights, a.dtype, bias=added)
    return y.reshape(*a.shape[:-1], N)


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
