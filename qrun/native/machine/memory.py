"""Arrays that kernels work on: on 64-byte boundaries, and poisoned by tests where nobody may rely on what they hold."""

from __future__ import annotations

import sys
from ctypes import addressof, c_char, c_ssize_t
from functools import cache
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Ints = np.ndarray[Any, np.dtype[np.int64]]
_LARGEST_REUSED = 1 << 24
LINE = 64
"""Bytes of a cache line, and of the widest vector."""

poison: int | None = None
"""What tests put into every byte of memory whose contents nobody may rely on; None leaves it as it is."""


def keep_freed_memory() -> None:
    """Make glibc's malloc reuse what is freed while plans are made, where it would give large arrays back to the system
    and take them again, a page fault at a time: it does so only with blocks larger than any that was ever freed.
    """
    np.empty(_LARGEST_REUSED, np.uint8)


def aligned(shape: tuple[int, ...] | int, dtype: Any, fill: int | None = None) -> Array:
    """An array on a 64-byte boundary, uninitialised unless `fill` is given."""
    shape, dtype = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
    raw = np.empty(prod(shape) * dtype.itemsize + 64, np.uint8)
    array: Array = np.ndarray(shape, dtype, raw, -address(raw) % 64)
    if fill is None:
        forget(array)
    else:
        array[...] = fill
    return array


def fresh(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array."""
    array: Array = np.empty(shape, dtype)
    if poison is not None:
        forget(array)
    return array


def new_aligned(shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> tuple[Array, int]:
    """An uninitialised array on a 64-byte boundary, in memory of at least so many bytes from there on; and its address."""
    raw = np.empty(nbytes + 64, np.uint8)
    forget(raw)
    start = address(raw)
    ahead = -start % 64
    return np.ndarray(shape, dtype, raw, ahead), start + ahead


@cache
def elements_at() -> int:
    """Where in an array object, in bytes, the address of its first element is, as numpy's C headers have it: behind what every
    object begins with. -1 where that is not so."""
    if sys.implementation.name != "cpython":
        return -1
    place = object.__basicsize__
    seen = [np.zeros(1), np.arange(24.0).reshape(2, 3, 4)[1:, ::2], np.frombuffer(b"01234567", np.uint8, 5, 2)]
    return place if all(c_ssize_t.from_address(id(a) + place).value == address(a) for a in seen) else -1


def aligned_copy(values: np.ndarray[Any, Any], dtype: Any = None) -> Array:
    """A contiguous copy on a 64-byte boundary, of the type `dtype` if it is given."""
    made = aligned(values.shape, values.dtype if dtype is None else dtype)
    made[...] = values
    return made


def address(array: np.ndarray[Any, Any]) -> int:
    """Where the array's first element is."""
    buffer: Any = array
    try:
        return addressof(c_char.from_buffer(buffer))
    except (TypeError, ValueError):  # it has no buffer that can be written to, or nothing in it
        return int(array.__array_interface__["data"][0])


def array_at(start: int, dtype: Any, shape: tuple[int, ...]) -> Array:
    """The memory at an address as an array."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, (c_char * nbytes).from_address(start)) if nbytes else np.empty(shape, dtype)


def aligned_up(nbytes: int) -> int:
    """So many bytes as whole lines of a cache."""
    return -(-nbytes // LINE) * LINE


def forget(array: np.ndarray[Any, Any]) -> None:
    """Say that what this contiguous array holds is not to be read before it is written."""
    if poison is not None:
        array.reshape(-1).view(np.uint8)[...] = poison
