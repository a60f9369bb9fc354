"""Converts element types that .npy files do not have to types that they have, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import NUMBERS, integer_range, is_extension, texts, type_name


def storable(array: Array) -> tuple[Array, str]:
    """The array in a type that .npy files have, and a description of the conversion ("" if none).

    2- and 4-bit integers become int8 or uint8; bfloat16 and floats of 8 bits or fewer become their bit patterns.
    """
    if array.dtype.kind == "O":  # numpy looks for the longest text along at most 32 axes
        return array.reshape(-1).astype(str).reshape(array.shape), ""
    if not is_extension(array.dtype):
        return array, ""
    name = type_name(array.dtype)
    if name in ("int4", "int2"):
        return array.astype(np.int8), f"{name} as int8"
    if name in ("uint4", "uint2"):
        return array.astype(np.uint8), f"{name} as uint8"
    bits = np.dtype(f"uint{8 * array.dtype.itemsize}")
    return np.asarray(array, order="C").view(bits), f"{name} as {bits} bit patterns"


def digest(array: Array) -> str:
    """The SHA-256 of an array's elements; for strings, of their list."""
    from hashlib import sha256

    if array.dtype.kind == "O":
        return sha256(repr(array.tolist()).encode("utf-8", "surrogatepass")).hexdigest()
    stored = np.ascontiguousarray(storable(array)[0])
    little = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
    return sha256(little.reshape(-1).view(np.uint8).data).hexdigest()


def restore(array: Array, dtype: np.dtype[Any]) -> tuple[Array, str]:
    """The inverse of `storable`: the array as `dtype`, and a description; unchanged if it is not the stored form."""
    if array.dtype == dtype:
        return array, ""
    if dtype.kind == "O":
        return texts(array, dtype), ""
    if dtype not in NUMBERS or not is_extension(dtype):
        return array, ""
    name = type_name(dtype)
    if array.dtype == np.dtype(f"V{dtype.itemsize}"):
        return array.view(dtype), f"the file does not say its type; read as {name}"
    if name in ("int4", "int2", "uint4", "uint2"):
        stored = np.int8 if name.startswith("i") else np.uint8
        low, high = integer_range(dtype)
        if array.dtype == stored and (not array.size or (low <= array.min() and array.max() <= high)):
            return array.astype(dtype), f"{array.dtype} read as {name}"
        return array, ""
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    if array.dtype == bits:
        return np.asarray(array, order="C").view(dtype), f"{bits} read as {name} bit patterns"
    return array, ""
