"""Two arrays of one tensor, measured as a report shows them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from qrun.comparing.differences import (
    Difference,
    Tolerance,
    class_axis,
    difference,
    differing,
    distances,
    index_of_largest,
    integral,
    magnitude,
    plain,
    same,
    sqnr,
    wide,
)
from qrun.declare.frozen import frozen, keys
from qrun.ir import Array
from qrun.ir.types import describe

NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
"""Floats that a runtime may widen between nodes."""


@frozen
class Code:
    """The real number of a quantized one: (q - zero) * scale."""

    scale: float = 1.0
    zero: float = 0.0


PLAIN = Code()


@frozen
class TensorPair:
    """What `a` and `b` gave for one tensor.

    type:       type and shape of the first one. identical: are all bits equal (NaN equals NaN)?
    difference: of the first from the second, outside the tolerance.
    other_bits: how many elements differ at all, inside the tolerance or not.
    beyond:     the largest difference outside the tolerance, in the unit of `difference`; 0 without any.
    a, b:       the values there, or at the largest difference if none is outside; None if no elements were compared.
    max_abs, max_rel: largest differences of all elements, as real numbers; max_rel relative to the second side.
    sqnr:       in dB, the second side being the signal.
    argmax:     index of the largest element on each side, axes of size 1 left out; None for integers and texts.
    agreed:     of how many rows of scores of classes in how many the largest element is at the same place;
                None where `argmax` is.
    stepped:    are these real numbers whose steps the tolerance counts, as those of integers?
    noise:      by how much they may differ as sums in another order do, absolute; 0 where the tolerance has none of it.
    """

    KEYS = keys(
        "type form=difference.form equal identical elements=difference.total differing=difference.differing "
        "largest=difference.largest other_bits largest_beyond=beyond noise unit where a b max_abs max_rel sqnr_db=sqnr argmax "
        "argmax_agreed=same_rows argmax_total=rows"
    )

    type: str
    difference: Difference
    identical: bool
    other_bits: int = 0
    beyond: float = 0.0
    a: Any = None
    b: Any = None
    max_abs: float | None = None
    max_rel: float | None = None
    sqnr: float | None = None
    argmax: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    agreed: tuple[int, int] | None = None
    stepped: bool = False
    noise: float = 0.0

    @property
    def equal(self) -> bool:
        """Within the tolerance?"""
        return self.difference.equal

    @property
    def unit(self) -> str:
        """Of the differences: ``step`` or ``absolute``."""
        return "step" if self.difference.integral else "absolute"

    @property
    def where(self) -> tuple[int, ...] | None:
        """The index of the largest difference, if an element is outside the tolerance."""
        return self.difference.worst if self.difference.differing else None

    @property
    def same_rows(self) -> int | None:
        return self.agreed[0] if self.agreed else None

    @property
    def rows(self) -> int | None:
        return self.agreed[1] if self.agreed else None


def pair(
    a: Array | None,
    b: Array | None,
    tolerance: Tolerance,
    code: Code = PLAIN,
    step: Array | None = None,
    noise: float = 0.0,
) -> TensorPair:
    """Compare what two sides gave for one tensor; None is a missing output.

    code: what its integers stand for. step, noise: of floats, see `qrun.comparing.differences.difference`.
    """
    if a is None or b is None:
        shown = "nothing" if a is None else describe(a)
        total = 0 if a is None and b is None else max(x.size for x in (a, b) if x is not None)
        form = None if a is None and b is None else (shown, "nothing" if b is None else describe(b))
        return TensorPair(shown, Difference(total, form=form), a is b)
    found = difference(a, b, tolerance, step, noise)
    if found.form is not None:
        return TensorPair(describe(a), found, False)
    told: dict[str, Any] = {"stepped": step is not None, "noise": noise, **_decided(a, b)}
    if same(a, b):
        return TensorPair(describe(a), found, True, sqnr=float("inf"), **told)
    place = found.worst if found.differing else _worst(a, b)
    counted: dict[str, Any] = {
        "other_bits": int(np.count_nonzero(differing(a, b))),
        "beyond": _beyond(a[place], b[place]) if found.differing else 0.0,
        "a": plain(a[place]),
        "b": plain(b[place]),
    }
    if a.dtype.kind in "OUSc":
        return TensorPair(describe(a), found, False, **counted)
    x, y = ((wide(v) - code.zero) * code.scale for v in (a, b))
    with np.errstate(all="ignore"):
        apart = np.abs(x - y)
        counted |= {"max_abs": magnitude(apart), "max_rel": magnitude(apart / np.abs(y)), "sqnr": sqnr(x, y)}
    return TensorPair(describe(a), found, False, **counted, **told)


def _beyond(x: Any, y: Any) -> float:
    """The distance of two elements; inf if one of them is no finite number."""
    step = float(distances(np.asarray(x), np.asarray(y)))
    return step if step == step else float("inf")


def _worst(a: Array, b: Array) -> tuple[int, ...]:
    """The index of the largest difference; of texts and objects, of the first one."""
    if a.dtype.kind in "OUS":
        return index_of_largest(a != b)
    with np.errstate(all="ignore"):
        return index_of_largest(np.nan_to_num(np.abs(wide(a) - wide(b)), nan=np.inf))


def _decided(a: Array, b: Array) -> dict[str, Any]:
    """`argmax` and `agreed` of a pair; neither where the largest element means nothing."""
    if a.dtype.kind in "OUScb" or integral(a.dtype) or not a.size or not a.ndim:
        return {}
    with np.errstate(all="ignore"):
        x, y = (np.nan_to_num(wide(v), nan=-np.inf) for v in (a, b))
    fields: dict[str, Any] = {"argmax": (_place(x), _place(y))}
    axis = class_axis(a.shape)
    if axis is not None:
        rows = np.argmax(x, axis) == np.argmax(y, axis)
        fields["agreed"] = int(np.count_nonzero(rows)), int(np.size(rows))
    return fields


def _place(values: Array) -> tuple[int, ...]:
    at = index_of_largest(values)
    return tuple(i for i, size in zip(at, values.shape, strict=True) if size > 1) or (0,)
