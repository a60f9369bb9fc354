"""One module for each runtime: ``version()``, ``run(model, inputs, outputs, option)`` and ``UNSUPPORTED``.

``run`` gets the model's bytes, the inputs by name, type and shape of each output by name, and what follows the
runtime's name on the command line; it returns the outputs in order and raises whatever the runtime raises.
``UNSUPPORTED`` are parts of messages that say that there is no such operator or type at all,
rather than that a form of it is refused.

May be imported by the process of a runtime, which may have another Python with other packages: numpy is all that is
taken for granted. Knows nothing of cases.
"""

from __future__ import annotations

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
    """An array as bytes: number of its ONNX element type, shape, and one element after the other,
    low-bit ones in bytes."""

    type: int
    shape: tuple[int, ...]
    data: bytes

    def numpy(self) -> Any:
        """Raises NoSuchType."""
        return np.frombuffer(self.data, dtype_of(self.type)).reshape(self.shape).copy()


def dtype_of(number: int) -> Any:
    """The numpy type, of ml_dtypes where numpy has none. Raises NoSuchType."""
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
    """An array of numpy as a Tensor. Raises NoSuchType."""
    array = np.asarray(array)
    for number in (*PLAIN, *EXTENDED):
        try:
            if dtype_of(number) == array.dtype:
                return Tensor(number, tuple(array.shape), np.ascontiguousarray(array).tobytes())
        except NoSuchType:
            continue
    raise NoSuchType(str(array.dtype))
