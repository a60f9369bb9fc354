"""Tensors as bytes, for a process whose Python may have only numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PLAIN: dict[int, Any] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16,
    11: np.float64, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
EXTENDED = {
    16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip


class NoSuchType(Exception):
    """The runtime, or its Python, has no arrays of this element type."""


@dataclass(frozen=True)
class Tensor:
    """An array as bytes: the number of its ONNX element type, its shape, and its elements in order, with one byte for
    each element of less than 8 bits."""

    type: int
    shape: tuple[int, ...]
    data: bytes

    def numpy(self) -> Any:
        """Convert to a numpy array. Raises NoSuchType."""
        return np.frombuffer(self.data, dtype_of(self.type)).reshape(self.shape).copy()


def dtype_of(number: int) -> Any:
    """The numpy type of an ONNX element type, from ml_dtypes if numpy has none. Raises NoSuchType."""
    if number in PLAIN:
        return np.dtype(PLAIN[number])
    try:
        import ml_dtypes
    except ImportError:
        raise NoSuchType(f"element type {number} needs ml_dtypes") from None
    if number not in EXTENDED or not hasattr(ml_dtypes, EXTENDED[number]):
        raise NoSuchType(f"element type {number}")
    return np.dtype(getattr(ml_dtypes, EXTENDED[number]))


def tensor(array: Any) -> Tensor:
    """Convert a numpy array to a Tensor. Raises NoSuchType."""
    array = np.asarray(array)
    for number in (*PLAIN, *EXTENDED):
        try:
            if dtype_of(number) == array.dtype:
                return Tensor(number, tuple(array.shape), np.ascontiguousarray(array).tobytes())
        except NoSuchType:
            continue
    raise NoSuchType(str(array.dtype))


PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
"""Element types that runtimes store without padding, the first element in the lowest bits, with their number of
bits."""


def packed(given: Tensor) -> bytes:
    """The elements as runtimes store them: those of PACKED without padding, all others as they are."""
    if given.type not in PACKED:
        return given.data
    bits = PACKED[given.type]
    share, codes = 8 // bits, np.frombuffer(given.data, np.uint8) & ((1 << bits) - 1)
    rows = np.append(codes, np.zeros(-codes.size % share, np.uint8)).reshape(-1, share)
    shifted = rows << (np.arange(share, dtype=np.uint8) * bits)
    return bytes(np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8).tobytes())


def packed_size(number: int, shape: Sequence[int]) -> int:
    """The number of bytes in which runtimes store a tensor of this element type and shape. Raises NoSuchType."""
    count = int(np.prod(shape, dtype=np.int64))
    if number in PACKED:
        return -(-count * PACKED[number] // 8)
    if number not in PLAIN and number not in EXTENDED:
        raise NoSuchType(f"element type {number}")
    return count * (np.dtype(PLAIN[number]).itemsize if number in PLAIN else 2 if number == 16 else 1)


def unpacked(number: int, shape: Sequence[int], data: bytes) -> Tensor:
    """The tensor whose elements a runtime stores as `data`."""
    if number in PACKED:
        bits = PACKED[number]
        places = np.arange(8 // bits, dtype=np.uint8) * bits
        codes = (np.frombuffer(data, np.uint8)[:, None] >> places) & ((1 << bits) - 1)
        data = codes.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].tobytes()
    return Tensor(number, tuple(shape), data)
