"""Rounding real numbers to float8, float6 and float4, as the tables of Cast say."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import ml_dtypes
import numpy as np

from qrun.ir import Array
from qrun.ir.types import SMALL


def largest(dtype: np.dtype[Any]) -> float:
    """FLT_MAX of a narrow type."""
    return SMALL.get(dtype) or _float8_max(dtype)


@cache
def _float8_max(dtype: np.dtype[Any]) -> float:
    return float(cast(Any, ml_dtypes.finfo)(dtype).max)


def narrow(values: Array, dtype: np.dtype[Any], saturate: bool = True) -> Array:
    """Round float32 or float64 to the nearest value of `dtype`, ties to even.

    float8, saturate:  out of range and infinite become the largest value of that sign, NaN stays.
    float8, otherwise: what rounds past the largest value becomes NaN, in e5m2 infinity.
    float4, float6:    always saturate; NaN, which they lack, becomes the largest value.

    Exact: the value is first cut to bfloat16 by rounding to odd, which keeps every later rounding to at most six
    bits right (Boldo & Melquiond 2008, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd"), and then looked up. Source: ONNX operators, Cast-28 (tables); docs/technical/float4.md.
    """
    single = _odd_single(values) if values.dtype == np.float64 else np.asarray(values, np.float32)
    bits = single.view(np.uint32)
    odd = (bits & np.uint32(0xFFFF)) != 0
    return np.asarray(_table(dtype, saturate or dtype in SMALL)[(bits >> np.uint32(16)) | odd])


def _odd_single(values: Array) -> Array:
    """float64 to float32: inexact values go to the neighbour whose last bit is 1."""
    with np.errstate(all="ignore"):
        single = values.astype(np.float32)
        inexact = single != values
        bits = single.view(np.uint32)
        bits = bits - (inexact & (np.abs(single) > np.abs(values)))
        odd = (bits | (inexact & ~np.isnan(values))).view(np.float32)
    return np.asarray(odd)


@cache
def _table(dtype: np.dtype[Any], saturate: bool) -> Array:
    """`dtype` of every bfloat16 bit pattern."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        values = codes.astype(np.float32)
        if saturate:
            values = np.clip(values, -largest(dtype), largest(dtype))
        if dtype in SMALL:
            values[np.isnan(values)] = largest(dtype)
        return np.asarray(values.astype(dtype))
