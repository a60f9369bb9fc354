"""Whether a native kernel's result leaves the reference kernel nothing to observe: wrap-around, NaN, saturation.

The checks are records of plain values, so that they can be kept with a program that another process runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array

ENDS_SHARE = 20
"""A native kernel reports no saturation if at most one in this many results is an end of its type's range."""
FEW_SHARE = 4
"""Codes are few if they lie within this fraction (1 / FEW_SHARE) of an integer type's range."""
Complete = Callable[[Any], bool]


@frozen
class Settled:
    """Every result is complete, or none is."""

    complete: bool

    def __call__(self, made: object) -> bool:
        return self.complete


ALWAYS, NEVER = Settled(True), Settled(False)


@frozen
class FewEnds:
    """At most one in ENDS_SHARE results is a code of `ends`: too few for saturation to be worth reporting."""

    ends: tuple[int, ...]

    def __call__(self, y: Array) -> bool:
        if not y.flags.c_contiguous:  # walking elements in memory order is faster
            y = y.transpose(sorted(range(y.ndim), key=lambda axis: -abs(y.strides[axis])))
        return sum(int(np.count_nonzero(y == end)) for end in self.ends) * ENDS_SHARE <= y.size

    @classmethod
    def of(cls, dtype: np.dtype[Any], zero: int) -> FewEnds:
        """The check for an 8-bit type. The least code does not count if it is the zero point: Relu makes it too."""
        info = np.iinfo(dtype)
        return cls((int(info.max), *([int(info.min)] if zero > info.min else [])))


@frozen
class Between:
    """All results are greater than `low` and less than `high`."""

    low: int
    high: int

    def __call__(self, y: Array) -> bool:
        return not y.size or (self.low < int(y.min()) and int(y.max()) < self.high)


@frozen
class EachPart:
    """Each part of a result passes its own check; the parts are joined along an axis and end at `ends`."""

    axis: int
    ends: tuple[int, ...]
    checks: tuple[Complete, ...]

    def __call__(self, y: Array) -> bool:
        bounds = zip((0, *self.ends), self.ends, self.checks, strict=False)
        return all(check(y[(*(slice(None),) * self.axis, slice(start, end))]) for start, end, check in bounds)


@frozen
class Finite:
    """All results are finite."""

    def __call__(self, y: Array) -> bool:
        return bool(np.isfinite(y).all())


@frozen
class KnownScale:
    """For three results (codes, scale and zero point): the scale is positive and finite."""

    def __call__(self, made: tuple[Array, Array, Array]) -> bool:
        return bool(0 < made[1] < np.inf)


_SAMPLED = 64


def few_codes(made: Any) -> tuple[int, int] | None:
    """The least and the greatest code of a tensor of 8 or 16 bits, the first result, if they are so close that few
    codes are between them; else None."""
    y = made[0] if isinstance(made, tuple) else made
    if y.dtype.kind not in "iu" or y.dtype.itemsize > 2 or not y.size:
        return None
    flat = y.reshape(-1) if y.flags.c_contiguous else y.transpose(np.argsort(y.strides)[::-1]).reshape(-1)
    near = 2 ** (8 * y.dtype.itemsize) // FEW_SHARE
    for part in (flat[:: -(-flat.size // _SAMPLED)], flat):  # for most tensors a sample is enough
        low, high = int(part.min()), int(part.max())
        if high - low >= near:
            return None
    return low, high


_RECORDS = {record.__name__: record for record in (Settled, FewEnds, Between, EachPart, Finite, KnownScale)}


def to_fields(check: Complete) -> tuple[Any, ...] | None:
    """The check as plain values; None if it is none of these records."""
    if type(check) not in _RECORDS.values():
        return None
    fields: list[Any] = [getattr(check, name) for name in check.__slots__]  # type: ignore[attr-defined]
    if isinstance(check, EachPart):
        parts = tuple(map(to_fields, check.checks))
        if None in parts:
            return None
        fields[-1] = parts
    return (type(check).__name__, *fields)


def from_fields(fields: tuple[Any, ...]) -> Complete:
    """The check from which `to_fields` made these values."""
    name, *values = fields
    if name == "EachPart":
        values[-1] = tuple(map(from_fields, values[-1]))
    made: Complete = _RECORDS[name](*values)
    return made
