"""One tensor of a dump."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import BY_ONNX_NAME, shape_text, type_name

_GUESSED: tuple[type[np.generic], ...] = (np.int8, np.uint8, np.int16, np.uint16, np.float32, np.int32, np.float16)
"""The element types that bytes without a type may have."""
_C_TYPES = {"float": "float32", "float32_t": "float32", "double": "float64", "float64": "float64"}


@frozen(eq=False)
class DumpTensor:
    """A tensor as a dump stores it.

    data:   the array; uint8 [n], the bytes, if the element type is not known (`typed`).
    shaped: does the file say the shape? If not, `data` has one axis.
    scale, zero_point: as the file states them; None where it does not.
    """

    name: str
    data: Array
    typed: bool = True
    shaped: bool = True
    scale: float | None = None
    zero_point: int | None = None

    def views(self, dtype: np.dtype | None = None) -> Iterator[Array]:
        """Yield the data in its element type, or in every type that it may have; only in `dtype` if that is given."""
        if self.typed:
            if dtype in (None, self.data.dtype):
                yield self.data
            return
        flat = self.data.reshape(-1)
        for kind in (dtype,) if dtype is not None else map(np.dtype, _GUESSED):
            if self.data.shape[-1] % kind.itemsize == 0:
                shape = self.data.shape[:-1] if self.shaped else ()
                yield flat.view(kind).reshape((*shape, -1) if flat.size else shape)

    def describe(self) -> str:
        """``int8 [1,8,4,4]``, ``float32, 128 elements``, or ``512 bytes``."""
        if not self.typed:
            return f"{self.data.size} bytes"
        kind = type_name(self.data.dtype)
        return f"{kind} {shape_text(self.data.shape)}" if self.shaped else f"{kind}, {self.data.size} elements"


def named_type(name: str) -> np.dtype | None:
    """The element type of this name in numpy, ONNX or C (``int8``, ``int8_t``, ``float``); None if there is none."""
    name = _C_TYPES.get(name, name.removesuffix("_t"))
    if name in BY_ONNX_NAME and BY_ONNX_NAME[name].kind in "biuf":
        return BY_ONNX_NAME[name]
    kinds = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
        "float16",
        "float32",
        "float64",
    }
    return np.dtype(name) if name in kinds else None


def from_bytes(
    name: str,
    data: bytes,
    dtype: np.dtype | None = None,
    shape: tuple[int, ...] | None = None,
    **more: float | int | None,
) -> DumpTensor:
    """A tensor from raw little-endian bytes. Raises ValueError, which says what is wrong, if they do not fit."""
    flat = np.frombuffer(data, np.uint8)
    if dtype is not None:
        if flat.size % dtype.itemsize:
            raise ValueError(f"{flat.size} bytes, which is no whole number of {type_name(dtype)} elements")
        array = flat.view(dtype.newbyteorder("<") if dtype.isbuiltin == 1 else dtype)
        if shape is not None:
            if int(np.prod(shape, dtype=object)) != array.size:
                raise ValueError(f"{array.size} elements instead of {shape_text(shape)}")
            array = array.reshape(shape)
        return DumpTensor(name, array, True, shape is not None, **more)  # type: ignore[arg-type]
    if shape is None:
        return DumpTensor(name, flat, False, False, **more)  # type: ignore[arg-type]
    return DumpTensor(name, _rows(flat, shape), False, True, **more)  # type: ignore[arg-type]


def _rows(flat: Array, shape: tuple[int, ...]) -> Array:
    """Bytes of a known shape, the bytes of an element along the last axis, without padding at the ends of rows.

    The type is the widest whose elements fill the bytes; rows that are longer than the shape says are of bytes.
    Raises ValueError if there are too few.
    """
    count = int(np.prod(shape, dtype=object))
    if not count or flat.size < count:
        raise ValueError(f"{flat.size} bytes, fewer than {shape_text(shape)} has elements")
    if flat.size % count == 0 and flat.size // count in (1, 2, 4):
        return flat.reshape(*shape[:-1], -1)
    rows = count // shape[-1]
    if flat.size % rows == 0:
        return flat.reshape(*shape[:-1], -1)[..., : shape[-1]].copy()
    raise ValueError(f"{flat.size} bytes, which fit neither {shape_text(shape)} nor rows of equal length")
