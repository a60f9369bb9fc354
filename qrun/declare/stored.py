"""Arrays that stay in a file: each is read on access, and again once nobody holds it any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from threading import RLock
from typing import Any, overload
from weakref import ref

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_ALIGNMENT = 64


class StoredArray:
    """An array in a file, by its type and shape. fill: reads its bytes; raises QrunError where it cannot."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], fill: Callable[[memoryview], None]) -> None:
        self.dtype, self.shape = dtype, shape
        self.ndim, self.size = len(shape), math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self._fill, self._lock = fill, RLock()
        self._seen: Callable[[], Array | None] = lambda: None
        self._kept: Array | None = None

    def read(self) -> Array:
        """The array, read-only; all callers that hold it at the same time share one."""
        with self._lock:
            array = self._seen()
            if array is None:
                memory = _Memory(self.nbytes + _ALIGNMENT, np.uint8)
                memory.stored, memory.start = self, -_address(memory) % _ALIGNMENT
                self._fill(memory.data[memory.start :][: self.nbytes])
                memory.flags.writeable = False
                array = np.ndarray(self.shape, self.dtype, memory, memory.start)
                self._seen = ref(array)
            return array

    def keep(self) -> Array:
        """The array, which this object holds from now on."""
        self._kept = self.read()
        return self._kept


class _Memory(np.ndarray[Any, np.dtype[Any]]):
    """An array that was read from a file. Views find it through their base."""

    stored: StoredArray
    start: int


class Reloadable:
    """Holds an array; one that is stored in a file, or a view of one, is not held but read again on access."""

    def __init__(self, array: Array) -> None:
        self.dtype, self.strides, self.nbytes = array.dtype, array.strides, array.nbytes
        self.shape: tuple[int, ...] = array.shape
        memory = _memory(array)
        self.stored = memory.stored if memory is not None else None
        self.start = _address(array) - (_address(memory) + memory.start if memory is not None else 0)
        self._array = array if memory is None else None

    @property
    def array(self) -> Array:
        """The elements: in memory, or read from the file again."""
        if self._array is not None:
            return self._array
        assert self.stored is not None
        return view_of(self.stored.read(), self.start, self.shape, self.strides, self.dtype)

    @property
    def key(self) -> Hashable:
        """A key that is equal for the same elements, as long as both are held."""
        return id(self.stored), self.start, self.shape, self.strides, self.dtype


def view_of(array: Array, start: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A view of the memory of a contiguous array, from byte `start` on."""
    return np.ndarray(shape, dtype, array.reshape(-1).view(np.uint8).data, start, strides)


def _memory(array: Any) -> _Memory | None:
    """The memory, read from a file, that holds the elements of an array; None for other arrays."""
    while array is not None and not isinstance(array, _Memory):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array


def _address(array: Array) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])


Part = Array | StoredArray


class StoredConstants(Mapping[str, Array]):
    """Arrays by name. Some stay in files until they are accessed, and are held then. parts: the same without reading
    them."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> Array:
        return hold(self.parts[name])

    def __contains__(self, name: object) -> bool:
        return name in self.parts

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def parts(constants: Mapping[str, Array]) -> Mapping[str, Part]:
    """The arrays by name; those that stay in files as StoredArray, which also has type and shape."""
    return constants.parts if isinstance(constants, StoredConstants) else constants


def constants_of(found: Mapping[str, Part]) -> Mapping[str, Array]:
    """These parts as a mapping of arrays, which reads stored ones on access."""
    if any(type(part) is StoredArray for part in found.values()):
        return StoredConstants(found)
    return found  # type: ignore[return-value]


def part_of(array: Array) -> Part:
    """The StoredArray whose array this is; else the array itself."""
    memory = _memory(array)
    return memory.stored if memory is not None and memory.stored.read() is array else array


@overload
def borrow(part: Part) -> Array: ...


@overload
def borrow(part: None) -> None: ...


@overload
def borrow(part: Part | None) -> Array | None: ...


def borrow(part: Part | None) -> Array | None:
    """The array, for a caller that does not hold it for long."""
    return part.read() if isinstance(part, StoredArray) else part


@overload
def hold(part: Part) -> Array: ...


@overload
def hold(part: None) -> None: ...


@overload
def hold(part: Part | None) -> Array | None: ...


def hold(part: Part | None) -> Array | None:
    """The array, which is held from now on, for a caller that needs it often."""
    return part.keep() if isinstance(part, StoredArray) else part
