"""Exact answers of the com.microsoft pools and matrix products, element by element, from their definitions."""

from __future__ import annotations

import itertools
import math
import operator
import struct
from fractions import Fraction as F

import numpy as np

from oracle.cast import nearest
from oracle.ms import _filled, _scale, _zero, add, div, mul, num, quantize

# --- pools ------------------------------------------------------------------------------------------------------------


def qlinear_global_average_pool(x, sx, zx, sy, zy, *, channels_last=0):
    sx, sy, zx, zy = _scale(sx), _scale(sy), _zero(zx), _zero(zy)
    nchw = np.moveaxis(x, -1, 1) if channels_last else x
    n = math.prod(nchw.shape[2:])
    flat = nchw.reshape(*nchw.shape[:2], n)
    values = [
        quantize(div(mul(sx, F(sum(v - zx for v in flat[i, c].tolist()))), mul(sy, F(n))), zy, x.dtype)
        for i in range(flat.shape[0])
        for c in range(flat.shape[1])
    ]
    y = _filled((*nchw.shape[:2], *(1,) * (x.ndim - 2)), values, x.dtype)
    return np.moveaxis(y, 1, -1) if channels_last else y


def _pool_axis(n, k, s, begin, end, auto_pad, ceil):
    if auto_pad.startswith("SAME"):
        out = -(-n // s)
        total = max((out - 1) * s + k - n, 0)
        begin, end = (total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2)
    else:
        span = n + begin + end - k
        out = (-(-span // s) if ceil else span // s) + 1
        if ceil and (out - 1) * s >= n + begin:
            out -= 1
    return out, begin, end


def qlinear_average_pool(x, sx, zx, sy, zy=None, *, kernel_shape, strides=(), pads=(), auto_pad="NOTSET", ceil_mode=0,
                         channels_last=0, count_include_pad=0):  # fmt: skip
    sx, sy, zx, zy = _scale(sx), _scale(sy), _zero(zx), _zero(zy)
    nchw = np.moveaxis(x, -1, 1) if channels_last else x
    rank = x.ndim - 2
    strides, pads = strides or (1,) * rank, pads or (0,) * (2 * rank)
    size = nchw.shape[2:]
    axes = [
        _pool_axis(size[i], kernel_shape[i], strides[i], pads[i], pads[i + rank], auto_pad, ceil_mode)
        for i in range(rank)
    ]
    y = np.empty((*nchw.shape[:2], *(a[0] for a in axes)), x.dtype)
    for index in np.ndindex(y.shape):
        starts = [o * s - a[1] for o, s, a in zip(index[2:], strides, axes, strict=True)]
        total, count = 0, 0
        for tap in itertools.product(*(range(k) for k in kernel_shape)):
            at = [b + t for b, t in zip(starts, tap, strict=True)]
            if all(0 <= p < n for p, n in zip(at, size, strict=True)):
                total += int(nchw[(*index[:2], *at)]) - zx
                count += 1
            elif count_include_pad and all(-a[1] <= p < n + a[2] for p, n, a in zip(at, size, axes, strict=True)):
                count += 1
        y[index] = quantize(div(mul(sx, F(total)), mul(sy, F(count))), zy, x.dtype)
    return np.moveaxis(y, 1, -1) if channels_last else y


def nhwc_max_pool(x, *, kernel_shape, strides=(), pads=(), dilations=(), auto_pad="NOTSET", ceil_mode=0):
    """The greatest code of each window of x [N,spatial...,C]; padding never counts."""
    rank = x.ndim - 2
    strides, pads, dilations = strides or (1,) * rank, pads or (0,) * (2 * rank), dilations or (1,) * rank
    size = x.shape[1:-1]
    axes = [
        _pool_axis(n, (k - 1) * d + 1, s, pads[i], pads[i + rank], auto_pad, ceil_mode)
        for i, (n, k, d, s) in enumerate(zip(size, kernel_shape, dilations, strides, strict=True))
    ]
    y = np.full((x.shape[0], *(a[0] for a in axes), x.shape[-1]), np.iinfo(x.dtype).min, x.dtype)
    for index in np.ndindex(y.shape):
        for tap in itertools.product(*map(range, kernel_shape)):
            at = [
                o * s - a[1] + t * d for o, s, a, t, d in zip(index[1:-1], strides, axes, tap, dilations, strict=True)
            ]
            if all(0 <= p < n for p, n in zip(at, size, strict=True)):
                y[index] = max(y[index], x[(index[0], *at, index[-1])])
    return y


# --- matrix products --------------------------------------------------------------------------------------------------


def wrap32(n: int) -> int:
    return (n + 2**31) % 2**32 - 2**31


def accumulators(a, za, b, zb, bias=None):
    """Wrapped integer sums [...,M,N] as nested lists flattened with their shape; 1-D operands as in numpy.matmul."""
    a2, b2 = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    lead = np.broadcast_shapes(a2.shape[:-2], b2.shape[:-2])
    a2 = np.broadcast_to(a2, lead + a2.shape[-2:])
    b2 = np.broadcast_to(b2, lead + b2.shape[-2:])
    za = np.broadcast_to(np.asarray(0 if za is None else za).astype(int).reshape(()), a2.shape)
    zb = _column(0 if zb is None else zb, b2).astype(int)
    shape = (*lead, a2.shape[-2], b2.shape[-1])
    acc = np.empty(shape, object)
    added = np.zeros(shape, int) if bias is None else np.broadcast_to(bias, shape)
    for lead_index in np.ndindex(lead):
        rows = (a2[lead_index].astype(int) - za[lead_index]).tolist()
        columns = (b2[lead_index].astype(int) - zb[lead_index]).T.tolist()
        for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
            total = sum(map(operator.mul, row, column))
            acc[(*lead_index, i, j)] = wrap32(total + int(added[(*lead_index, i, j)]))
    return acc


def _column(p, b2):
    p = np.asarray(p)
    return np.broadcast_to(p.reshape(()) if p.size == 1 and p.ndim <= 1 else p, b2.shape)


def qgemm(a, sa, za, b, sb, zb, c=None, sy=None, zy=None, *, alpha=1.0, transA=0, transB=0):
    a, b = (a.T if transA else a), (b.T if transB else b)
    acc = accumulators(a, za, b, zb, c)
    scales = np.broadcast_to(np.asarray(sb).reshape(-1), (b.shape[1],))
    quantized = sy is not None and zy is not None
    out = np.empty(acc.shape, np.asarray(zy).dtype if quantized else np.float32)
    for i, j in np.ndindex(acc.shape):
        real = mul(F(acc[i, j]), num(np.float32(alpha)), _scale(sa), num(scales[j]))
        if quantized:
            out[i, j] = quantize(div(real, _scale(sy)), _zero(zy), out.dtype)
        else:
            out[i, j] = float(real) if isinstance(real, str) else nearest(real, np.float32)
    return out


def matmul_integer_to_float(a, b, sa, sb, za=None, zb=None, bias=None):
    acc = accumulators(a, za, b, zb)
    b2 = b[:, None] if b.ndim == 1 else b
    if np.asarray(sb).ndim > 1:
        scales = np.broadcast_to(sb, acc.shape)
    else:
        scales = np.broadcast_to(np.asarray(sb).reshape(-1), acc.shape)
    dtype = np.asarray(sa).dtype
    out = np.empty(acc.shape, dtype)
    for index in np.ndindex(acc.shape):
        real = mul(F(acc[index]), _scale(sa), num(scales[index]))
        if bias is not None:
            real = add(real, num(bias[index[-1]]))
        out[index] = float(real) if isinstance(real, str) else nearest(real, dtype)
    assert b2.shape[-1] == acc.shape[-1]
    if b.ndim == 1:
        out = out[..., 0]
    if a.ndim == 1:
        out = out[..., 0, :] if b.ndim > 1 else out[..., 0]
    return out


def matmul_integer16(a, b):
    """Sums that keep their low 32 bits; unsigned only of two unsigned matrices."""
    acc = accumulators(a, None, b, None).astype(np.int64)
    acc = acc[..., 0] if b.ndim == 1 else acc
    acc = acc[0] if a.ndim == 1 else acc
    return acc.astype(np.uint32 if a.dtype == b.dtype == np.uint16 else np.int32)


def f32(x) -> float:
    """x rounded to float32 by the C conversion of struct."""
    return struct.unpack("f", struct.pack("f", x))[0]


def dynamic_quantize_matmul(a, b, sb, zb=None, bias=None):
    flat = [float(v) for v in a.reshape(-1)]
    top, bottom = max([0.0, *flat]), min([0.0, *flat])
    scale = f32(f32(top - bottom) / 255)
    if scale == 0:
        scale, zero = 1.0, 0
    else:
        zero = round(min(max(f32(0 - f32(bottom / scale)), 0), 255))
    codes = _filled(a.shape, (quantize(num(f32(v / scale)), zero, np.uint8) for v in flat), np.uint8)
    return matmul_integer_to_float(codes, b, np.float32(scale), sb, np.uint8(zero), zb, bias)
