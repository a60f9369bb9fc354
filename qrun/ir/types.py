"""Element types: ONNX numbers, numpy dtypes (low-bit ones from ml_dtypes) and their ONNX names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np

from qrun.declare.stored import StoredArray
from qrun.shapes import MOST_AXES

_TABLE: tuple[tuple[int, str, type], ...] = (
    (1, "float", np.float32),
    (2, "uint8", np.uint8),
    (3, "int8", np.int8),
    (4, "uint16", np.uint16),
    (5, "int16", np.int16),
    (6, "int32", np.int32),
    (7, "int64", np.int64),
    (8, "string", np.object_),
    (9, "bool", np.bool_),
    (10, "float16", np.float16),
    (11, "double", np.float64),
    (12, "uint32", np.uint32),
    (13, "uint64", np.uint64),
    (14, "complex64", np.complex64),
    (15, "complex128", np.complex128),
    (16, "bfloat16", ml_dtypes.bfloat16),
    (17, "float8e4m3fn", ml_dtypes.float8_e4m3fn),
    (18, "float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    (19, "float8e5m2", ml_dtypes.float8_e5m2),
    (20, "float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    (21, "uint4", ml_dtypes.uint4),
    (22, "int4", ml_dtypes.int4),
    (23, "float4e2m1", ml_dtypes.float4_e2m1fn),
    (24, "float8e8m0", ml_dtypes.float8_e8m0fnu),
    (25, "uint2", ml_dtypes.uint2),
    (26, "int2", ml_dtypes.int2),
    (27, "float6e2m3", ml_dtypes.float6_e2m3fn),
    (28, "float6e3m2", ml_dtypes.float6_e3m2fn),
)

SEQUENCE, OPTIONAL, MAP = (np.dtype([(name, np.uint8)]) for name in ("sequence", "optional", "map"))
"""Element types of values that are no tensors (compound.py); ONNX has no numbers for them."""
DTYPES: dict[int, np.dtype] = {number: np.dtype(t) for number, _, t in _TABLE}
NUMBERS: dict[np.dtype, int] = {dtype: number for number, dtype in DTYPES.items()}
ONNX_NAMES: dict[np.dtype, str] = {np.dtype(t): name for _, name, t in _TABLE}
BY_ONNX_NAME: dict[str, np.dtype] = {name: np.dtype(t) for _, name, t in _TABLE}
PACKED_BITS: dict[int, int] = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2, 27: 6, 28: 6}
"""Element types stored with fewer than 8 bits an element."""
PACKED_INTEGERS: dict[np.dtype, int] = {DTYPES[number]: PACKED_BITS[number] for number in (21, 22, 25, 26)}
"""Integer types of fewer than 8 bits, and their bits."""
FLOAT8 = frozenset(
    np.dtype(t)
    for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz)
)
SMALL = {
    np.dtype(ml_dtypes.float4_e2m1fn): 6.0,
    np.dtype(ml_dtypes.float6_e2m3fn): 7.5,
    np.dtype(ml_dtypes.float6_e3m2fn): 28.0,
}
"""Types without inf and NaN, and their largest value."""


def computable(array: np.ndarray) -> np.ndarray:
    """The array; for element types of ml_dtypes the same numbers as int8, uint8 or float32, with which numpy
    computes."""
    if not is_extension(array.dtype):
        return array
    name = type_name(array.dtype)
    return array.astype(np.int8 if name.startswith("int") else np.uint8 if name.startswith("uint") else np.float32)


def is_extension(dtype: np.dtype) -> bool:
    """Whether the type comes from ml_dtypes. A copy of a dtype, as unpickling makes it, is not `isbuiltin` any more."""
    return dtype.isbuiltin == 2


@lru_cache(256)
def type_name(dtype: np.dtype | None) -> str:
    """The name people know: ``float32``, ``uint8``, ``int4``, ``float8e4m3fn``."""
    if dtype is None:
        return "?"
    if dtype.names:
        return dtype.names[0]
    name = ONNX_NAMES.get(dtype, str(dtype))
    return {"float": "float32", "double": "float64"}.get(name, name)


LONGEST_NAME = 64
"""The longest name of an axis, in characters, that is printed in full or passed to shape inference. Files may declare
names of a million characters, and as many axes, which each mention of a tensor would repeat."""


def shape_text(shape: tuple[int | str | None, ...] | None) -> str:
    """``[1,3,N]``; ``scalar`` for rank 0; ``?`` when the rank is unknown. Many axes and long names are cut short."""
    if shape is None:
        return "?"
    if not shape:
        return "scalar"
    return (
        "["
        + ",".join(_with_rest_count(["?" if d is None else _axis(str(d)) for d in shape[:MOST_AXES]], len(shape)))
        + "]"
    )


def sizes_text(sizes: Mapping[str, int]) -> str:
    """The sizes of named axes: ``N=1, T=16``. Many axes and long names are cut short."""
    lines = [f"{_axis(name)}={size}" for name, size in islice(sizes.items(), MOST_AXES)]
    return ", ".join(_with_rest_count(lines, len(sizes)))


def _axis(name: str) -> str:
    """An axis name, shortened if it is long."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."


def _with_rest_count(lines: list[str], count: int) -> list[str]:
    """Lines, and how many more there are than these."""
    return [*lines, f"... {count - len(lines)} more"] if count > len(lines) else lines


def describe(array: np.ndarray | StoredArray) -> str:
    """``float32 [1,3,224,224]``."""
    return f"{type_name(array.dtype)} {shape_text(array.shape)}"


def texts(array: np.ndarray, dtype: np.dtype | None) -> np.ndarray:
    """The array; where strings are wanted, numpy's texts (dtype ``<U5`` or StringDType) as an array of str."""
    return array.astype(object) if array.dtype.kind in "UT" and dtype is not None and dtype.kind == "O" else array


def odd_objects(array: np.ndarray) -> list[Any]:
    """The first element of an array of objects that is no text, as a list of one; empty if there is none."""
    if array.dtype.kind != "O":
        return []
    return list(islice((element for element in array.reshape(-1) if not isinstance(element, str)), 1))


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The smallest and the largest value of an integer type, including 2- and 4-bit ones."""
    bits = PACKED_BITS.get(NUMBERS[dtype], 8 * dtype.itemsize)
    low = -(1 << (bits - 1)) if type_name(dtype).startswith("int") else 0
    return low, low + (1 << bits) - 1


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether the type is float8, float6 or float4 (not the scale type float8e8m0)."""
    return dtype in FLOAT8 or dtype in SMALL
