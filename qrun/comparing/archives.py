"""Two .npz files, key by key: which arrays differ, by how much, and where."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from qrun.comparing.differences import Difference, Tolerance, difference, plain, sqnr
from qrun.comparing.settings import lone
from qrun.declare.frozen import frozen
from qrun.io.arrays import Npz, no_such_file
from qrun.io.storable import restored
from qrun.ir import Array
from qrun.ir.types import NUMBERS, describe
from qrun.memory import Budget, default_limit

SCRATCH = 40
"""Bytes that comparing takes for each element: distances, limits and masks."""


@frozen
class ElementPair:
    """An element in both files."""

    index: tuple[int, ...]
    a: Any
    b: Any


@frozen
class ArrayPair:
    """One key in both files.

    a, b:         type and shape, such as ``uint8 [1,10]``.
    difference:   how b differs from a.
    first, worst: the first element outside the tolerance, and the one with the largest difference.
    sqnr:         in dB, a being the signal; None where no element was compared, or none is a number.
    """

    name: str
    a: str
    b: str
    difference: Difference
    first: ElementPair | None = None
    worst: ElementPair | None = None
    sqnr: float | None = None


@frozen
class Archives:
    """Two .npz files: the pairs in the order of `a`, and the keys that only one of them has."""

    a: Path
    b: Path
    tolerance: Tolerance
    pairs: tuple[ArrayPair, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """The same keys, and under each the same type, shape and, within the tolerance, elements."""
        return not self.only_a and not self.only_b and all(pair.difference.equal for pair in self.pairs)


def compare_npz(
    a: Path,
    b: Path,
    tolerance: Tolerance,
    *,
    types: Mapping[str, np.dtype[Any]] | None = None,
    max_memory: int | None = None,
) -> Archives:
    """Compare two .npz files; one pair of arrays is in memory at a time. `a` is what `b` should be.

    types: element types by key, for those that .npz does not have: an array in the stored form of such a type
           (`qrun.io.storable.storable`: bit patterns, int4 as int8) is taken back to it first. Without, bit patterns
           are compared as the unsigned integers that they are stored as.
    max_memory: bytes to hold at once; None: 80 % of what is free.
    Raises CallError for a file that is missing, damaged or holds pickles, MemoryLimitError above the limit.
    """
    known = types or {}
    with _opened(a) as first, _opened(b) as second:
        left, right = Npz(str(a), first), Npz(str(b), second)
        pairs = []
        for key in left.members:
            if key in right.members:
                budget = Budget(default_limit if max_memory is None else max_memory)
                one, other = (_read(side, key, known.get(key), budget) for side in (left, right))
                pairs.append(_pair(key, one, other, tolerance, budget))
        return Archives(a, b, tolerance, tuple(pairs), *lone(left.members, right.members))


def _opened(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise no_such_file(path, error) from None


def _read(side: Npz, key: str, dtype: np.dtype[Any] | None, budget: Budget) -> Array:
    array = side.read(key, budget)
    budget.hold(array)
    if dtype is not None:
        array, _ = restored(array, dtype)
    if array.dtype.kind == "V" and array.dtype not in NUMBERS:
        bits = array.dtype.itemsize
        array = array.view(f"u{bits}" if bits in (1, 2, 4, 8) else f"({bits},)u1")
    return array


def _pair(key: str, a: Array, b: Array, tolerance: Tolerance, budget: Budget) -> ArrayPair:
    budget.claim((a.size,), SCRATCH, key)
    found = difference(b, a, tolerance)
    if found.form is not None:
        return ArrayPair(key, describe(a), describe(b), found)

    def place(index: tuple[int, ...]) -> ElementPair:
        return ElementPair(index, plain(a[index]), plain(b[index]))

    first, worst = (place(found.first), place(found.worst)) if found.differing else (None, None)
    noise = None if a.dtype.kind in "USOcb" else sqnr(b, a)
    return ArrayPair(key, describe(a), describe(b), found, first, worst, noise)
