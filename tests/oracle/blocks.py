"""Exact answers of operators with weights in blocks, bit by bit, from their definitions."""

from __future__ import annotations

import struct
from fractions import Fraction

import ml_dtypes
import numpy as np

from oracle.cast import nearest
from oracle.chains import chained


def code(row: np.ndarray, place: int, bits: int) -> int:
    """Number `place` of the codes packed in a row of bytes, from the low bits up."""
    return int.from_bytes(row.tobytes(), "little") >> place * bits & (1 << bits) - 1


def codes(row: np.ndarray, bits: int) -> list[int]:
    """All codes of a row of bytes."""
    number = int.from_bytes(row.tobytes(), "little")
    return [number >> place & (1 << bits) - 1 for place in range(0, 8 * row.size, bits)]


def weight(difference: int | Fraction, scale: float) -> Fraction:
    """What a code stands for, by its difference from the zero point: difference and product rounded to float32.

    A whole difference is exact, and so is its product with a float32 number in float64.
    """
    if isinstance(difference, int):
        return Fraction(struct.unpack("f", struct.pack("f", difference * scale))[0])
    return Fraction(nearest(Fraction(nearest(difference, np.float32)) * Fraction(scale), np.float32))


def matmul_n_bits(a, b, scales, zeros=None, groups=None, bias=None, *, K, N, block_size, bits=4, **ignored):
    """Fractions throughout; each weight is rounded to float32 twice, then sums are chains. No weights: the bias."""
    blocks = -(-K // block_size)
    if not b.size:
        return np.full((*a.shape[:-1], N), 0 if bias is None else bias, a.dtype)
    scales = np.asarray(scales).reshape(N, blocks)
    rows = a.reshape(-1, K)
    y = np.empty((len(rows), N), a.dtype)
    for n in range(N):
        row, weights = codes(b[n], bits), []
        if zeros is None:
            starts = [2 ** (bits - 1)] * blocks
        elif zeros.dtype == np.uint8:
            starts = codes(zeros.reshape(N, -1)[n], bits)
        else:
            starts = [Fraction(float(zero)) for zero in zeros.reshape(N, blocks)[n]]
        for k in range(K):
            block = k // block_size if groups is None else int(groups[k])
            weights.append(weight(row[k] - starts[block], float(scales[n, block])))
        for m, row in enumerate(rows):
            added = None if bias is None else Fraction(float(bias[n]))
            y[m, n] = chained([Fraction(float(x)) for x in row], weights, a.dtype, bias=added)
    return y.reshape(*a.shape[:-1], N)


def gather_block_quantized(
    data, indices, scales, zeros=None, *, bits=4, block_size=128, gather_axis=0, quantize_axis=1
):
    """Each chosen code minus its zero point times its scale, in float32 steps; an index that does not exist gives 0.

    block_size 0: one scale for the whole axis. uint8 data has `bits` bits to a number along its last axis.
    """
    packed = data.dtype == np.uint8
    size = (*data.shape[:-1], data.shape[-1] * 8 // bits) if packed else data.shape
    along, blocked, rank = gather_axis % len(size), quantize_axis % len(size), indices.ndim

    def number(x, at):
        return Fraction(code(x[at[:-1]], at[-1], bits)) if packed else Fraction(float(x[at]))

    made = np.zeros((*size[:along], *indices.shape, *size[along + 1 :]), scales.dtype)
    for at in np.ndindex(made.shape):
        index, most = int(indices[at[along : along + rank]]), size[along]
        if not -most <= index < most:
            continue
        place = (*at[:along], index % most, *at[along + rank :])
        where = tuple((n // block_size if block_size else 0) if axis == blocked else n for axis, n in enumerate(place))
        zero = Fraction(2 ** (bits - 1)) if packed else Fraction(0)
        zero = zero if zeros is None else number(zeros, where)
        scale = Fraction(float(scales[tuple(min(n, m - 1) for n, m in zip(where, scales.shape, strict=True))]))
        product = nearest(Fraction(nearest(number(data, place) - zero, np.float32)) * scale, np.float32)
        made[at] = nearest(Fraction(product), made.dtype)
    return made


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
