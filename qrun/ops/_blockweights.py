"""Weights of 2, 4 or 8 bits with one scale per block along a row, and products with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._chains import chained_products
from qrun.ops._float import narrow, widen
from qrun.ops._op import Array, Context

_INT8 = 4
"""The accuracy_level that lets a runtime quantize A."""
_BLOCKS_OF_2_BITS = (32, 64, 128)
"""The block sizes for which onnxruntime quantizes A with 2-bit weights."""
_CHUNK = 1 << 22
"""The number of weights that are dequantized at a time."""


@frozen
class BlockWeights:
    """The weights of a MatMulNBits, as its docstring describes them; scales and zero points have two axes.

    groups: g_idx, the block of each row k of the weights; None: row k is in block k // `block`.
    """

    codes: Array
    scales: Array
    zero_points: Array | None
    groups: Array | None
    depth: int
    bits: int
    block: int

    @property
    def at_once(self) -> int:
        """Columns of the product that are computed together, so that few weights are dequantized at a time."""
        return max(1, _CHUNK // max(1, self.depth))

    def part(self, columns: slice | Array | int) -> BlockWeights:
        """The weights of some columns of the product; if there are several products, the weights of one product."""
        zeros = None if self.zero_points is None else self.zero_points[columns]
        return replace(self, codes=self.codes[columns], scales=self.scales[columns], zero_points=zeros)

    def in_int8(self, accuracy_level: int) -> bool:
        """Whether onnxruntime quantizes A and multiplies its codes."""
        packed = self.zero_points is None or self.zero_points.dtype == np.uint8
        known = self.bits != 2 or self.block in _BLOCKS_OF_2_BITS
        return accuracy_level == _INT8 and packed and known and self.groups is None

    def unpack(self) -> Array:
        """The codes, uint8 [N, blocks * block_size]."""
        return unpack(self.codes.reshape(len(self.codes), -1), self.bits)

    def zeros(self) -> Array:
        """A zero point for each block, uint8 or of A's type [N, blocks]."""
        if self.zero_points is None:
            return np.full(self.scales.shape, 2 ** (self.bits - 1), np.uint8)
        if self.zero_points.dtype != np.uint8:
            return self.zero_points
        return unpack(self.zero_points, self.bits)[:, : self.scales.shape[1]]

    def values(self, depth: int) -> Array:
        """The real weights, float32 [N, depth]. depth: K, or K rounded up to whole blocks if there is no g_idx."""
        blocks = np.arange(depth) // self.block if self.groups is None else self.groups[:depth]
        with np.errstate(all="ignore"):
            wide = self.unpack()[:, :depth].astype(np.float32)
            wide -= self.zeros().astype(np.float32)[:, blocks]
            wide *= self.scales.astype(np.float32)[:, blocks]
            return wide


def unpack(codes: Array, bits: int) -> Array:
    """The codes that are packed in bytes along the last axis, lowest bits first: uint8, one code per element."""
    if bits == 8:
        return codes
    parts = [(codes >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*codes.shape[:-1], codes.shape[-1] * len(parts))


def dequantized_product(
    rows: Array, weights: BlockWeights, bias: Array | None, accuracy_level: int, ctx: Context
) -> Array:
    """rows [M,K] @ the dequantized weights + bias: [M,N], as MatMulNBits says."""
    columns = len(weights.codes)
    ctx.claim((len(rows), columns), 8)
    ctx.claim((min(columns, weights.at_once), weights.depth), 24, "dequantized weights")
    product = _int8_product if ctx.arith == "ort" and weights.in_int8(accuracy_level) else _product
    made = np.empty((len(rows), columns), rows.dtype)
    for start in range(0, columns, weights.at_once):
        part = slice(start, start + weights.at_once)
        made[:, part] = product(rows, weights.part(part), None if bias is None else bias[part])
    return made


def _product(rows: Array, weights: BlockWeights, bias: Array | None) -> Array:
    """rows times the dequantized weights, plus bias, as onnxruntime adds them."""
    return chained_products(rows, weights.values(weights.depth).T, rows.dtype, bias=bias)


def _int8_product(rows: Array, weights: BlockWeights, bias: Array | None) -> Array:
    """rows times the weights with rows quantized to int8 by blocks."""
    block, (columns, blocks) = weights.block, weights.scales.shape
    padding = [(0, 0), (0, blocks * block - weights.depth)]
    padded = np.pad(rows.astype(np.float32), padding).reshape(len(rows), blocks, block)
    codes = weights.unpack().reshape(columns, blocks, block).astype(np.float64)
    zeros, scales = widen(weights.zeros()), widen(weights.scales)
    total = np.zeros((len(rows), columns))
    with np.errstate(all="ignore"):
        steps = np.abs(padded).max(axis=2) / np.float32(127)
        inverse = np.where(steps == 0, np.float32(0), np.float32(1) / steps)
        quantized = widen(np.rint(padded * inverse[..., None]))
        for number in range(blocks):
            integers = quantized[:, number] @ (codes[:, number] - zeros[:, number, None]).T
            total += integers * widen(steps[:, number, None]) * scales[:, number]
        return narrow(total if bias is None else total + widen(bias), rows.dtype)
