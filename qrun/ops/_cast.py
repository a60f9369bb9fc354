"""Conversions between element types, each rounded once."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import ml_dtypes
import numpy as np

from qrun.ir import Array
from qrun.ir.schema import OPSETS, schema
from qrun.ir.types import DTYPES, is_narrow, type_name
from qrun.ops._context import Context, first_place, refuse
from qrun.ops._float import narrow as round_float
from qrun.ops._quantize import narrow as round_narrow

ROUND_MODES = ("up", "down", "nearest")
_LOW_BIT = frozenset(np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2))
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_FNUZ = frozenset(np.dtype(t) for t in (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz))
_FLOATS = frozenset(np.dtype(t) for t in (np.float16, np.float32, np.float64))
_iinfo: Callable[[Any], Any] = ml_dtypes.iinfo
_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)


def output_types(op_type: str, ctx: Context) -> tuple[int, frozenset[np.dtype[Any]] | None]:
    """The version of an ai.onnx operator that a node has, and the element types its output may have in that."""
    known = schema("", op_type, min(ctx.version, OPSETS[-1]))
    return (known.version, known.outputs[0].types) if known else (ctx.version, None)


def type_of(number: int, op_type: str, param: str, message: str, ctx: Context) -> np.dtype[Any]:
    """The element type with this ONNX number; refuses a type that this version of the operator cannot output.
    message: the error's text, in which {} is replaced by the version."""
    version, types = output_types(op_type, ctx)
    allowed, dtype = types or frozenset(DTYPES.values()), DTYPES.get(number)
    if dtype is None or dtype not in allowed:
        expected = ", ".join(f"{each} {type_name(t)}" for each, t in DTYPES.items() if t in allowed)
        got = f"{number} {type_name(dtype)}" if dtype else number
        raise refuse(message.format(version), param, expected, got, code="QR203")
    return dtype


def convert(x: Array, dtype: np.dtype[Any], saturate: bool, round_mode: str, ctx: Context) -> Array:
    """x converted to `dtype` by the rules of Cast."""
    if x.dtype == dtype:
        return x
    ctx.claim(x.shape, dtype.itemsize)
    if dtype == np.object_:
        return _to_text(_plain(x))
    x = _from_text(x, dtype) if x.dtype == np.object_ else _plain(x)
    if dtype == np.bool_:
        return np.asarray(x != 0)
    if dtype.kind in "iu" or dtype in _LOW_BIT:
        return _to_integer(x, dtype, ctx)
    with np.errstate(all="ignore"):
        if dtype in _FLOATS:
            return x.astype(dtype, copy=False)
        if dtype == _E8M0:
            return _to_e8m0(_real(x), saturate, round_mode)
        if is_narrow(dtype):
            made = round_narrow(_real(x), dtype, saturate)
            if ctx.version < 24 and dtype in _FNUZ:
                made[np.isinf(x)] = np.nan
            return made
        single = x.dtype == np.float32 or x.itemsize <= 2
        return x.astype(np.float32).astype(dtype) if single else round_float(_real(x), dtype)


def _plain(x: Array) -> Array:
    """Low-bit integers and bool as int8, small floats as float32; exact."""
    if x.dtype == np.bool_ or x.dtype in _LOW_BIT:
        return x.astype(np.int8)
    return x.astype(np.float32) if x.dtype in (_BFLOAT16, _E8M0) or is_narrow(x.dtype) else x


def _real(x: Array) -> Array:
    """float32 or float64; 64-bit integers are rounded to odd, so that one more rounding is right."""
    if x.dtype.kind == "f":
        return x if x.dtype == np.float64 else x.astype(np.float32)
    if x.itemsize < 8:
        return x.astype(np.float64)
    sticky = ((x & 0x7FF) != 0).astype(x.dtype)
    big = (x > 2**53) | (x < -(2**53)) if x.dtype.kind == "i" else x > 2**53
    return np.where(big, (x & ~x.dtype.type(0x7FF)) | (sticky << 11), x).astype(np.float64)


def _to_e8m0(x: Array, saturate: bool, round_mode: str) -> Array:
    """Convert to float8e8m0: a power of two."""
    least, most = 2.0**-127, 2.0**127
    inside = (x >= least) & (x <= most)
    mantissa, exponent = np.frexp(np.where(inside, x, 1.0).astype(np.float64))
    bump = {"up": mantissa > 0.5, "nearest": mantissa >= 0.75, "down": np.False_}[round_mode]
    code = np.where(inside, exponent + 126 + bump, 255)
    if saturate:
        code = np.where(x > most, 254, np.where((x >= 0) & (x < least), 0, code))
    return code.astype(np.uint8).view(_E8M0)


def _to_integer(x: Array, dtype: np.dtype[Any], ctx: Context) -> Array:
    """Convert to an integer type; numbers outside its range are observed."""
    if x.dtype.kind in "iu":
        return x.astype(np.int8).astype(dtype) if dtype in _LOW_BIT else x.astype(dtype)
    with np.errstate(all="ignore"):
        whole = np.trunc(x.astype(np.float32) if x.dtype == np.float16 else x)
        if ctx.observing:
            info = _iinfo(dtype)
            bad = ~((whole >= float(info.min)) & (whole < float(int(info.max) + 1)))
            if bad.any():
                first = first_place(bad)
                count = int(np.count_nonzero(bad))
                ctx.observe("undefined-cast", "input", count, bad.size, first, repr(x[first].item()))
        if dtype in (np.dtype(np.uint32), np.dtype(np.uint64)):
            signed = np.dtype(f"i{dtype.itemsize}")
            half = 2.0 ** (8 * dtype.itemsize - 1)
            upper = whole >= half
            bits = _to_signed(np.where(upper, whole - half, whole).astype(whole.dtype), signed).view(dtype)
            return np.asarray(bits ^ (upper.astype(dtype) << np.array(8 * dtype.itemsize - 1, dtype)))
        if dtype.itemsize == 8:
            return _to_signed(whole, dtype)
        low = _to_signed(whole, np.dtype(np.int32))
        return low.astype(np.int8).astype(dtype) if dtype in _LOW_BIT else low.astype(dtype)


def _to_signed(whole: Array, dtype: np.dtype[Any]) -> Array:
    """Converts to int32 or int64; a value that does not fit becomes the type's smallest value."""
    half = 2.0 ** (8 * dtype.itemsize - 1)
    return np.where((whole >= -half) & (whole < half), whole, -half).astype(dtype)


def _to_text(x: Array) -> Array:
    """Convert to strings."""
    text = np.empty(x.size, object)
    if x.dtype.kind in "iu":
        text[:] = [str(v) for v in x.reshape(-1).tolist()]
    else:
        text[:] = [np.format_float_positional(v, trim="-") for v in x.reshape(-1)]
        flat = x.reshape(-1)
        text[np.isnan(flat)] = "NaN"
        text[np.isposinf(flat)] = "INF"
        text[np.isneginf(flat)] = "-INF"
    return text.reshape(x.shape)


def _from_text(x: Array, dtype: np.dtype[Any]) -> Array:
    """float64 (rounded to odd unless float64 is wanted), or for integers the low 64 bits as uint64."""
    integers = dtype.kind in "iu" or dtype in _LOW_BIT
    values: list[float] = []
    for index, item in enumerate(x.reshape(-1).tolist()):
        text = str(item).strip()
        if not _NUMBER.fullmatch(text):
            raise _not_a_number(x, index, text, "a number such as 3.14, -2e5, INF or NaN")
        number = float(text)
        if integers:
            whole = int(Decimal(text)) if abs(number) < 2.0**65 else 2**65
            if not -(2**63) <= whole < 2**64:
                raise _not_a_number(x, index, text, f"a number within 64 bits, for {type_name(dtype)}")
            values.append(whole % 2**64)
        else:
            values.append(number if dtype == np.float64 or dtype == np.bool_ else _odd(number, text))
    return np.array(values, np.uint64 if integers else np.float64).reshape(x.shape)


def _odd(number: float, text: str) -> float:
    """The float64 of `text`, rounded to odd."""
    if number == 0 or not np.isfinite(number):
        return number
    exact, near = Decimal(text), Decimal(number)
    bits = np.array(number).view(np.int64)
    if exact != near and not int(bits) & 1:
        bits = bits + (1 if exact.copy_abs() > near.copy_abs() else -1)
    return float(bits.view(np.float64))


def _not_a_number(x: Array, index: int, text: str, expected: str) -> Exception:
    """The error of a string that is no number; `index` is its flat index."""
    where = [int(i) for i in np.unravel_index(index, x.shape)]
    return refuse(f"the string at {where} is not such a number", "input", expected, repr(text)[:60])
