"""Two arrays of one tensor, measured as a report shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.comparing.causes import same
from qrun.differences import Difference, Tolerance, difference, integral, plain, sqnr
from qrun.ir import Array
from qrun.ir.types import describe


@dataclass(frozen=True, slots=True)
class Code:
    """The real number of a quantized one: (q - zero) * scale."""

    scale: float = 1.0
    zero: float = 0.0


PLAIN = Code()


@dataclass(frozen=True, slots=True)
class Pair:
    """What `a` and `b` gave for one tensor.

    type:       type and shape of the first one. identical: are all bits equal (NaN equals NaN)?
    difference: of the first from the second, outside the tolerance.
    a, b:       the values at the largest difference, None if no elements were compared.
    max_abs, max_rel: largest differences of all elements, as real numbers; max_rel relative to the second side.
    sqnr:       in dB, the second side being the signal.
    argmax:     index of the largest element on each side, axes of size 1 left out; None for integers and texts.
    """

    type: str
    difference: Difference
    identical: bool
    a: Any = None
    b: Any = None
    max_abs: float | None = None
    max_rel: float | None = None
    sqnr: float | None = None
    argmax: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def equal(self) -> bool:
        """Within the tolerance?"""
        return self.difference.equal


def pair(a: Array | None, b: Array | None, tolerance: Tolerance, code: Code = PLAIN) -> Pair:
    """Compare what two sides gave for one tensor; None is a missing output. code: what its integers stand for."""
    if a is None or b is None:
        shown = "nothing" if a is None else describe(a)
        total = 0 if a is None and b is None else max(x.size for x in (a, b) if x is not None)
        form = None if a is None and b is None else (shown, "nothing" if b is None else describe(b))
        return Pair(shown, Difference(total, form=form), a is b)
    found = difference(a, b, tolerance)
    if found.form is not None:
        return Pair(describe(a), found, False)
    if same(a, b):
        return Pair(describe(a), found, True, sqnr=float("inf"), argmax=_argmax(a, b))
    place = found.worst if found.differing else _worst(a, b)
    at = {"a": plain(a[place]), "b": plain(b[place])}
    if a.dtype.kind in "OUSc":
        return Pair(describe(a), found, False, **at)
    x, y = ((_wide(v) - code.zero) * code.scale for v in (a, b))
    largest, relative = _largest(x, y)
    return Pair(
        describe(a), found, False, **at, max_abs=largest, max_rel=relative, sqnr=sqnr(x, y), argmax=_argmax(a, b)
    )


def _worst(a: Array, b: Array) -> tuple[int, ...]:
    """Where a difference inside the tolerance is largest."""
    if a.dtype.kind in "OUS":
        return tuple(int(i) for i in np.argwhere(a != b)[0])
    with np.errstate(all="ignore"):
        apart = np.nan_to_num(np.abs(_wide(a) - _wide(b)), nan=np.inf)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), a.shape))


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _largest(x: Array, y: Array) -> tuple[float, float]:
    """The largest finite differences, absolute and relative to y."""
    with np.errstate(all="ignore"):
        apart = np.abs(x - y)
        relative = apart / np.abs(y)
    return tuple(float(v[np.isfinite(v)].max(initial=0.0)) for v in (apart, relative))  # type: ignore[return-value]


def _argmax(a: Array, b: Array) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if a.dtype.kind in "OUScb" or integral(a.dtype) or not a.size or not a.ndim:
        return None
    with np.errstate(all="ignore"):
        return _place(_wide(a)), _place(_wide(b))


def _place(values: Array) -> tuple[int, ...]:
    at = np.unravel_index(int(np.argmax(np.nan_to_num(values, nan=-np.inf))), values.shape)
    return tuple(int(i) for i, size in zip(at, values.shape, strict=True) if size > 1) or (0,)
