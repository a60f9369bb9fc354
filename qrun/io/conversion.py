"""How inputs are converted, as a call states it: image files (``--image``) and element types (``--cast``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import NUMBERS, integer_range, type_name


@frozen
class Conversion:
    """What a call states.

    image: words such as ``size=224``, see `qrun.io.images.KEYS`; of equal keys the last counts.
    cast:  convert arrays to the element types of the inputs.
    """

    image: tuple[str, ...] = ()
    cast: bool = False


AS_GIVEN = Conversion()
"""Nothing is stated: arrays stay as they are, and images are refused."""


class Uncastable(Exception):
    """Raised for values that another element type does not hold. The text is the reason."""


def cast(array: Array, dtype: np.dtype[Any]) -> tuple[Array, str]:
    """Convert numbers or booleans to another element type.

    Returns the array and what was done: ``cast from float64, 3 of 8 values rounded``; the array itself and "" if the
    type is right, or one of the types has no numbers. Only floats are rounded, to the nearest. Raises Uncastable for
    values beyond the type, and for fractions, NaN and infinities that shall become integers or booleans.
    """
    if array.dtype == dtype or not (_has_numbers(array.dtype) and _has_numbers(dtype)):
        return array, ""
    said = f"cast from {type_name(array.dtype)}"
    if dtype.kind == "b" or "int" in type_name(dtype):
        return _whole(array, dtype), said
    with np.errstate(all="ignore"):
        made = array.astype(dtype)
        exact, got = array.astype(np.float64), made.astype(np.float64)
        beyond = np.isfinite(exact) & ~np.isfinite(got)
        if beyond.any():
            raise Uncastable(f"{_first(array, beyond)} is beyond {type_name(dtype)}")
        changed = (got != exact) & ~(np.isnan(got) & np.isnan(exact))
        if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
            changed |= (np.abs(exact) >= 2**53) & (exact.astype(array.dtype) != array)
    count = int(changed.sum())
    return made, f"{said}, {count} of {array.size} values rounded" if count else said


def casts(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether `cast` converts the array."""
    try:
        return bool(cast(array, dtype)[1])
    except Uncastable:
        return False


def _has_numbers(dtype: np.dtype[Any]) -> bool:
    return dtype in NUMBERS and dtype.kind not in "cO"


def _whole(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array in an integer type, or as booleans."""
    low, high = (0, 1) if dtype.kind == "b" else integer_range(dtype)
    if array.dtype.kind == "b":
        return array.astype(dtype)
    if "int" not in type_name(array.dtype):
        exact = array.astype(np.float64)
        if (odd := ~np.isfinite(exact) | (exact != np.rint(exact))).any():
            raise Uncastable(f"{_first(array, odd)} is not a whole number")
        outside = (exact < low) | (exact >= high + 1.0)
    else:
        wide = array if array.dtype.kind in "iu" else array.astype(np.int64)
        outside = (wide < low) | (wide > high)
    if outside.any():
        raise Uncastable(f"{_first(array, outside)} is outside {low} .. {high}")
    return array.astype(dtype)


def _first(array: Array, where: Array) -> str:
    """The first element that a mask selects."""
    return str(array[where].reshape(-1)[0])
