"""The types that QuantizeLinear, DequantizeLinear and Cast take by the installed onnx, with numbers of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from _conformance_case import Rng
from onnx import TensorProto, defs, helper
from oracle.cast import LARGEST
from oracle.quantize import RANGES

f32 = np.float32
WHOLE = ("uint8", "int8", "uint16", "int16", "int32", "uint4", "int4", "uint2", "int2")
"""Integer types of quantization; all others are floats."""


def numpy_type(name: str) -> Any:
    """The numpy type for a name as onnx writes it, such as ``float8e4m3fn``."""
    return helper.tensor_dtype_to_np_dtype(number(name))


def number(name: str) -> int:
    """TensorProto's number of a type."""
    return int(TensorProto.DataType.Value(name.upper()))


@cache
def allowed(op: str, version: int, parameter: str) -> tuple[str, ...]:
    """The names of the types that a parameter (T1, T2, ...) of an operator may have; () if it has none of that name."""
    found = (t for t in defs.get_schema(op, version, "").type_constraints if t.type_param_str == parameter)
    return tuple(name[7:-1] for t in found for name in t.allowed_type_strs)


def some_scales(rng: Rng, name: str, shape: Sequence[int] = (), plain: bool = True) -> Any:
    """Scales: of float32 small odd numbers times powers of two, by which products and quotients are exact.

    plain: scales of 16 bits are powers of two; then every type in which one may divide gives the same quotients.
    """
    kind = numpy_type(name)
    if name == "int32":
        return np.asarray(rng.integers(1, 9, shape)).astype(kind)
    if name == "float8e8m0":
        return np.asarray(2.0 ** rng.integers(-4, 3, shape)).astype(f32).astype(kind)
    if name != "float" and not plain:
        return np.asarray(rng.uniform(0.05, 0.9, shape)).astype(kind)
    odd = rng.choice([1, 3, 5, 7, 11], shape) if name == "float" else 1
    return np.asarray(odd * 2.0 ** rng.integers(-7, -2, shape)).astype(kind)


def some_zeros(rng: Rng, name: str, shape: Sequence[int] = ()) -> Any:
    """Zero points; those of floats are 0."""
    kind = numpy_type(name)
    if name not in WHOLE:
        return np.zeros(shape, kind)
    low, high = (-9, 9) if name == "int32" else RANGES[name]
    return np.asarray(rng.integers(low, high + 1, shape)).astype(kind)


def spread(name: str) -> float:
    """The largest number of a type."""
    return float(RANGES[name][1]) if name in WHOLE else LARGEST[numpy_type(name).name]


def to_quantize(rng: Rng, shape: Sequence[int], wide: Any, target: str, x_name: str) -> Any:
    """Numbers for these scales (an array of the shape, or one): small ones, ties and a few that saturate.

    They are multiples of an eighth of the scale, or have 6 bits of it.
    """
    low, high = (
        RANGES[target] if target in WHOLE else (-LARGEST[numpy_type(target).name], LARGEST[numpy_type(target).name])
    )
    count = int(np.prod(shape))
    if target in WHOLE:
        steps = (
            np.round(
                np.resize(rng.uniform(low - 0.2 * (high - low), high + 0.2 * (high - low), min(count, 67)), shape) * 8
            )
            / 8
        )
        steps = np.where(np.resize(rng.random(61) < 0.4, shape), np.floor(steps / max(1, high / 30)) + 0.5, steps)
    else:
        share, power = np.frexp(2.0 ** rng.uniform(-7, np.log2(high) + 0.4, min(count, 67)))
        steps = np.resize(np.ldexp(np.round(share * 64) / 64, power) * rng.choice([-1, 1], len(share)), shape)
    x = steps * np.asarray(wide, np.float64)
    if x_name == "int32":
        return np.rint(np.clip(x, -(2**30), 2**30)).astype(np.int32)
    with np.errstate(over="ignore"):
        return x.astype(numpy_type(x_name))


def every_code(name: str) -> Any:
    """All numbers of a type of 8 bits or fewer."""
    kind = numpy_type(name)
    if name in WHOLE:
        low, high = RANGES[name]
        return np.arange(low, high + 1).astype(kind)
    bits = {"float4e2m1": 4, "float6e2m3": 6, "float6e3m2": 6}.get(name, 8)
    return np.arange(2**bits, dtype=np.uint8).view(kind)


def some_codes(rng: Rng, name: str, shape: Sequence[int]) -> Any:
    """Codes of a type; finite ones, of int32 of up to 2^20."""
    count = int(np.prod(shape))
    if name in ("int32", "uint16", "int16"):
        low, high = (-(2**20), 2**20) if name == "int32" else RANGES[name]
        return np.resize(rng.integers(low, high + 1, min(count, 67)), shape).astype(numpy_type(name))
    every = every_code(name)
    finite = every[np.isfinite(every.astype(f32))]
    return np.resize(rng.choice(finite, min(count, 67)), shape)


def shape_of(scale_form: str, shape: Sequence[int], axis: int, block: int) -> tuple[int, ...]:
    """The shape of the scale: ``tensor``, ``axis`` or ``block``."""
    if scale_form == "tensor":
        return ()
    if scale_form == "axis":
        return (shape[axis],)
    return tuple(-(-n // block) if at == axis % len(shape) else n for at, n in enumerate(shape))


def widened(scale: Any, shape: Sequence[int], axis: int, block: int) -> Any:
    """Scales as float64, one for each element of x."""
    wide = scale.astype(f32).astype(np.float64)
    if not wide.ndim:
        return wide
    if wide.ndim == 1 and not block:
        return wide.reshape([-1 if at == axis % len(shape) else 1 for at in range(len(shape))])
    return np.repeat(wide, block, axis % len(shape)).take(range(shape[axis]), axis % len(shape))
