"""How two arrays of one tensor differ: counted, in steps or absolute, and as signal to noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import describe, type_name


@frozen
class Tolerance:
    """Integers may differ by `lsb` steps, floats by ``atol + rtol * |want|``, and those that come of sums by `eps` float32
    epsilons (2^-23) of the largest magnitude in their tensor: a sum is as exact as its terms, however small its result is.
    """

    lsb: int = 0
    rtol: float = 1e-3
    atol: float = 1e-7
    eps: int = 0

    def noise(self, largest: float) -> float:
        """What `eps` allows in sums that reach this magnitude."""
        return self.eps * _EPSILON * largest


EXACT = Tolerance(0, 0.0, 0.0)
NOISE = 16
"""Epsilons for sums in another order, which differ by fewer in real networks; half a step of 16-bit codes is 64 of them."""
_EPSILON = 2.0**-23


@frozen
class Difference:
    """How `got` differs from `want`.

    form:      both, described, if they differ in type or shape; then no element was compared.
    total:     elements; differing: those outside the tolerance.
    largest:   the largest difference, inside the tolerance or not: steps between integers, else absolute; of the finite
               ones.
    first:     index of the first element outside the tolerance; worst: of the one with the largest difference (a NaN or
               an infinity on one side only counts as larger than all).
    integral:  are they integers, compared in steps?
    """

    total: int
    differing: int = 0
    largest: float = 0.0
    first: tuple[int, ...] = ()
    worst: tuple[int, ...] = ()
    integral: bool = False
    form: tuple[str, str] | None = None

    @property
    def equal(self) -> bool:
        return self.form is None and not self.differing


def difference(
    got: Array, want: Array, tolerance: Tolerance = EXACT, step: Array | None = None, noise: float = 0.0
) -> Difference:
    """Element by element; NaN equals NaN, -0 equals 0. Strings and booleans must be equal.

    step:  of floats that are multiples of it, as it broadcasts with them: `lsb` counts these too.
    noise: by which floats may differ, absolute, if that is more than `rtol` and `atol` allow; see `Tolerance.noise`.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return Difference(max(got.size, want.size), form=(describe(got), describe(want)))
    whole = integral(got.dtype)
    apart = distances(got, want)
    bad = _outside(got, want, apart, tolerance, step, noise)
    finite = apart[np.isfinite(apart)] if apart.dtype.kind == "f" else apart
    largest = float(finite.max()) if finite.size else 0.0
    count = int(np.count_nonzero(bad))
    if not count:
        return Difference(got.size, largest=largest, integral=whole)
    ranked = np.where(bad, apart, -1) if apart.dtype == object else np.where(bad, np.nan_to_num(apart, nan=np.inf), -1)
    return Difference(got.size, count, largest, _index(bad), _index(ranked), whole)


def differing(got: Array, want: Array) -> Array:
    """Where two arrays of one type and shape are not equal; NaN equals NaN."""
    return np.asarray((got != want) & ~((got != got) & (want != want)), bool)


def distances(got: Array, want: Array) -> Array:
    """Element by element: steps between integers (exact), else absolute; 0 or 1 for strings and booleans."""
    if got.dtype.kind in "OUSb":
        return np.asarray(got != want).astype(np.float64)
    if integral(got.dtype):
        wide = object if got.dtype.itemsize == 8 else np.int64
        return np.asarray(np.abs(got.astype(wide) - want.astype(wide)))
    kind = np.complex128 if got.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(got.astype(kind) - want.astype(kind)))


def integral(dtype: np.dtype[Any]) -> bool:
    """Are these integers, compared in steps?"""
    return dtype.kind in "iu" or type_name(dtype).startswith(("int", "uint"))


def sqnr(got: Array, want: Array) -> float:
    """Signal to quantization noise ratio in dB, ``10 log10(sum(want^2) / sum((got - want)^2))``; inf if they are equal."""
    a, b = (np.asarray(x, np.float64).reshape(-1) for x in (got, want))
    with np.errstate(all="ignore"):
        noise, signal = float(np.square(a - b).sum()), float(np.square(b).sum())
    if noise == 0:
        return float("inf")
    if not np.isfinite(noise) or signal == 0:
        return float("nan") if not np.isfinite(noise) else float("-inf")
    return float(10 * np.log10(signal / noise))


def cosine(got: Array, want: Array) -> float:
    """Cosine of the angle between two arrays as vectors; 1 if both are zero, 0 if one is."""
    a, b = (np.asarray(x, np.float64).reshape(-1) for x in (got, want))
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    if size == 0:
        return float(not a.any() and not b.any())
    return float(a @ b / size)


def plain(value: Any) -> Any:
    """An element as a Python number or string."""
    item = value.item() if hasattr(value, "item") else value
    return (
        item if isinstance(item, (bool, int, float, str)) else float(item) if hasattr(item, "__float__") else str(item)
    )


def magnitude(array: Array) -> float:
    """The largest finite one of an array of real or complex floats; 0 of others."""
    if array.dtype.kind in "OUSb" or integral(array.dtype):
        return 0.0
    size = _sizes(array)
    return float(size[np.isfinite(size)].max(initial=0.0))


def _sizes(array: Array) -> Array:
    return np.asarray(np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)))


def _outside(got: Array, want: Array, apart: Array, tolerance: Tolerance, step: Array | None, noise: float) -> Array:
    if got.dtype.kind in "OUSb":
        return np.asarray(apart, bool)
    if integral(got.dtype):
        return np.asarray(apart > tolerance.lsb, bool)
    size = _sizes(want)
    with np.errstate(all="ignore"):
        close = apart <= np.maximum(tolerance.atol + tolerance.rtol * size, noise)
        if step is not None and tolerance.lsb:
            close |= np.rint(apart / np.abs(step)) <= tolerance.lsb
    return np.asarray(~(close & np.isfinite(size)) & differing(got, want), bool)


def _index(values: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))
