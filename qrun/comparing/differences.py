"""Measures how two arrays differ: elements outside a tolerance, distances in steps or absolute, and signal to noise
over one or several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from qrun.declare.frozen import frozen, keys
from qrun.ir import Array
from qrun.ir.compound import form_difference, is_compound, numbers
from qrun.ir.types import describe, type_name


@frozen
class Tolerance:
    """The allowed difference: `lsb` steps for integers, ``atol + rtol * |want|`` for floats. Results of sums may differ
    by `eps` float32 epsilons (2^-23) of the largest magnitude in their tensor: a sum is as exact as its terms, however
    small its result is.
    """

    lsb: int = 0
    rtol: float = 1e-3
    atol: float = 1e-7
    eps: int = 0

    def noise(self, largest: float) -> float:
        """The absolute difference that `eps` allows in a tensor whose largest magnitude is `largest`."""
        return self.eps * _EPSILON * largest


EXACT = Tolerance(0, 0.0, 0.0)
NOISE = 16
"""Default `eps` for sums in another order. In real networks they differ by less;
half a step of 16-bit codes is 64 epsilons."""
_EPSILON = 2.0**-23


@frozen
class Difference:
    """How `got` differs from `want`.

    form:      descriptions of both, if they differ in type or shape; then no elements were compared.
    total:     number of elements; differing: number of elements outside the tolerance.
    largest:   the largest finite difference, inside the tolerance or not: steps between integers, else absolute.
    first:     index of the first element outside the tolerance.
    worst:     index of the largest difference outside it (a NaN or infinity on one side only counts as the largest).
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
        """Whether shapes and types are the same and no element is out of tolerance."""
        return self.form is None and not self.differing


def difference(
    got: Array, want: Array, tolerance: Tolerance = EXACT, step: Array | None = None, noise: float = 0.0
) -> Difference:
    """Compare two arrays element by element. NaN equals NaN, -0 equals 0. Strings and booleans must be equal.

    step:  the quantization step of dequantized floats, broadcast with them: `lsb` then counts these steps too.
    noise: an absolute difference that floats may have even if `rtol` and `atol` allow less; see `Tolerance.noise`.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return Difference(max(got.size, want.size), form=(describe(got), describe(want)))
    whole = is_integral(got.dtype)
    if not got.size:
        return Difference(0, integral=whole)
    apart = distances(got, want)
    bad = _outside(got, want, apart, tolerance, step, noise)
    finite = apart[np.isfinite(apart)] if apart.dtype.kind == "f" else apart
    largest = float(finite.max()) if finite.size else 0.0
    count = int(np.count_nonzero(bad))
    if not count:
        return Difference(got.size, largest=largest, integral=whole)
    ranked = np.where(bad, apart, -1) if apart.dtype == object else np.where(bad, np.nan_to_num(apart, nan=np.inf), -1)
    return Difference(got.size, count, largest, index_of_largest(bad), index_of_largest(ranked), whole)


def difference_mask(got: Array, want: Array) -> Array:
    """A mask of the elements that differ between two arrays of one type and shape; NaN equals NaN."""
    return np.asarray((got != want) & ~((got != got) & (want != want)), bool)


def same(a: Array, b: Array) -> bool:
    """Have both the same type, shape and values? NaN equals NaN. Compound values are equal if their tensors are."""
    if is_compound(a) or is_compound(b):
        return form_difference(a, b) is None and same(numbers(a), numbers(b))
    return a.dtype == b.dtype and a.shape == b.shape and not bool(difference_mask(a, b).any())


def distances(got: Array, want: Array) -> Array:
    """Distances element by element: exact steps between integers, else absolute; 0 or 1 for strings and booleans."""
    if got.dtype.kind in "OUSb":
        return np.asarray(got != want).astype(np.float64)
    if is_integral(got.dtype):
        kind = object if got.dtype.itemsize == 8 else np.int64
        return np.asarray(np.abs(got.astype(kind) - want.astype(kind)))
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(wide(got) - wide(want)))


def is_integral(dtype: np.dtype[Any]) -> bool:
    """Are these integers, compared in steps?"""
    return dtype.kind in "iu" or type_name(dtype).startswith(("int", "uint"))


def sqnr(got: Array, want: Array) -> float:
    """Signal to quantization noise ratio in dB, ``10 log10(sum(want^2) / sum((got - want)^2))``;
    inf if they are equal."""
    a, b = (np.asarray(x, np.float64).reshape(-1) for x in (got, want))
    with np.errstate(all="ignore"):
        noise, signal = float(np.square(a - b).sum()), float(np.square(b).sum())
    if noise == 0:
        return float("inf")
    if not np.isfinite(noise) or signal == 0:
        return float("nan") if not np.isfinite(noise) else float("-inf")
    return float(10 * np.log10(signal / noise))


def plain(value: Any) -> Any:
    """An element as a Python number or string."""
    item = value.item() if hasattr(value, "item") else value
    return (
        item if isinstance(item, (bool, int, float, str)) else float(item) if hasattr(item, "__float__") else str(item)
    )


def magnitude(array: Array) -> float:
    """The largest finite magnitude in an array of real or complex floats; 0 for other types."""
    if array.dtype.kind in "OUSb" or is_integral(array.dtype):
        return 0.0
    size = np.abs(wide(array))
    return float(size[np.isfinite(size)].max(initial=0.0))


def wide(array: Array) -> Array:
    """Numbers as float64, or complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _outside(got: Array, want: Array, apart: Array, tolerance: Tolerance, step: Array | None, noise: float) -> Array:
    """Which elements are out of tolerance; `apart` is their distance, `step` the scale of a float tensor."""
    if got.dtype.kind in "OUSb":
        return np.asarray(apart, bool)
    if is_integral(got.dtype):
        return np.asarray(apart > tolerance.lsb, bool)
    size = np.abs(wide(want))
    with np.errstate(all="ignore"):
        close = apart <= np.maximum(tolerance.atol + tolerance.rtol * size, noise)
        if step is not None and tolerance.lsb:
            close |= np.rint(apart / np.abs(step)) <= tolerance.lsb
    return np.asarray(~(close & np.isfinite(size)) & difference_mask(got, want), bool)


def index_of_largest(values: Array) -> tuple[int, ...]:
    """The index of the largest element."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(values)), values.shape))


@frozen
class Noise:
    """The error of a tensor, summed over all runs.

    sqnr:    signal to quantization noise ratio, ``10 log10(sum(want^2) / sum((got - want)^2))`` dB; inf without noise,
             -inf if the signal is 0 or `outliers` is not, nan if there are no elements.
    cosine:  cosine of the angle between both as vectors; 1 if both are 0, 0 if one is.
    largest: the largest absolute error.
    count:   number of elements.
    outliers: elements that are NaN or infinite on one side only, or infinite with different signs. The sums leave out
             every element that is NaN or infinite on some side.
    ratio:   noise to signal ratio: sum((got - want)^2) / sum(want^2).
    """

    KEYS = keys("sqnr_db=sqnr cosine max_abs=largest elements=count odd=outliers")

    sqnr: float
    cosine: float
    largest: float
    count: int
    outliers: int
    ratio: float


class ErrorSums:
    """Accumulates the error of one tensor, run by run. whole: were all reference arrays integers or booleans?"""

    __slots__ = ("count", "largest", "noise", "outliers", "power", "product", "signal", "whole")

    def __init__(self) -> None:
        self.signal = self.power = self.product = self.noise = self.largest = 0.0
        self.count = self.outliers = 0
        self.whole = True

    def add(self, got: Array, want: Array) -> None:
        """Add the elements of one run; the arrays have the same number of elements."""
        self.whole &= want.dtype.kind == "b" or is_integral(want.dtype)
        a, b = (np.asarray(x, np.float64).reshape(-1) for x in (got, want))
        self.count += a.size
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            self.outliers += int(np.count_nonzero(~finite & ~same))
            a, b = a[finite], b[finite]
        if not a.size:
            return
        error = a - b
        self.signal += float(b @ b)
        self.power += float(a @ a)
        self.product += float(a @ b)
        self.noise += float(error @ error)
        self.largest = max(self.largest, float(np.abs(error).max()))

    @property
    def ratio(self) -> float:
        """Noise power over signal power."""
        if self.outliers:
            return math.inf
        if not self.noise:
            return 0.0
        return self.noise / self.signal if self.signal else math.inf

    def result(self) -> Noise:
        """The noise: SQNR, cosine, largest error and counts."""
        size = math.sqrt(self.signal) * math.sqrt(self.power)
        cosine = min(1.0, self.product / size) if size else float(not self.signal and not self.power)
        sqnr = decibels(self.ratio) if self.count else math.nan
        return Noise(sqnr, cosine, self.largest, self.count, self.outliers, self.ratio)


def decibels(ratio: float) -> float:
    """Convert a noise to signal ratio to SQNR in dB."""
    return math.inf if ratio == 0 else -math.inf if ratio == math.inf else -10 * math.log10(ratio)


def class_axis(shape: Sequence[int], samples: int | None = None) -> int | None:
    """The axis along which each sample has one score per class; None for boxes, maps and lists, whose largest element
    means no class. samples: the batch size of the inputs, if known."""
    wide = [axis for axis, size in enumerate(shape) if size > 1]
    if wide == [0] and (len(shape) > 1 or samples == shape[0]):
        return None
    if len(wide) == 2 and wide[0] == 0 and samples in (None, shape[0]):
        return wide[1]
    return wide[0] if len(wide) == 1 else None


NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
"""Float types that a runtime may widen to float32 between nodes."""


@frozen
class AffineScale:
    """The parameters of quantized values q, whose real numbers are (q - zero) * scale."""

    scale: float = 1.0
    zero: float = 0.0


IDENTITY = AffineScale()


@frozen
class TensorPair:
    """The comparison of one tensor on two sides, `a` and `b`.

    type:       type and shape on the first side. identical: are all elements equal (NaN equals NaN)?
    difference: how the first side differs from the second, under the tolerance.
    other_bits: the number of elements that differ, inside the tolerance or not.
    beyond:     the largest difference outside the tolerance, in the unit of `difference`; 0 if there is none.
    a, b:       the values there, or at the largest difference if none is outside; None if no elements were compared.
    max_abs, max_rel: largest differences of all elements, as real numbers; max_rel is relative to the second side.
    sqnr:       in dB, with the second side as the signal.
    argmax:     index of the largest element on each side, without axes of size 1; None for integers and strings.
    agreed:     rows of class scores with the largest element at the same place, and all rows;
                None without class scores.
    stepped:    are these dequantized numbers, for which the tolerance counts quantization steps?
    noise:      the absolute difference allowed for sums in another order; 0 if the tolerance allows none.
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
        """Are all elements within the tolerance?"""
        return self.difference.equal

    @property
    def unit(self) -> str:
        """The unit of the differences: ``step`` or ``absolute``."""
        return "step" if self.difference.integral else "absolute"

    @property
    def where(self) -> tuple[int, ...] | None:
        """The index of the largest difference, if an element is outside the tolerance."""
        return self.difference.worst if self.difference.differing else None

    @property
    def same_rows(self) -> int | None:
        """The number of rows with the same argmax; None if not counted."""
        return self.agreed[0] if self.agreed else None

    @property
    def rows(self) -> int | None:
        """The number of rows whose argmax is compared; None if not counted."""
        return self.agreed[1] if self.agreed else None


def pair(
    a: Array | None,
    b: Array | None,
    tolerance: Tolerance,
    affine: AffineScale = IDENTITY,
    step: Array | None = None,
    noise: float = 0.0,
) -> TensorPair:
    """Compare the results of two sides for one tensor; None is a missing output.

    affine: turns integers into the real numbers of max_abs, max_rel and sqnr. step, noise: for floats, see
    `qrun.comparing.differences.difference`."""
    if a is None or b is None:
        shown = "nothing" if a is None else describe(a)
        total = 0 if a is None and b is None else max(x.size for x in (a, b) if x is not None)
        form = None if a is None and b is None else (shown, "nothing" if b is None else describe(b))
        return TensorPair(shown, Difference(total, form=form), a is b)
    found = difference(a, b, tolerance, step, noise)
    if found.form is not None:
        return TensorPair(describe(a), found, False)
    told: dict[str, Any] = {"stepped": step is not None, "noise": noise, **_decide(a, b)}
    if same(a, b):
        return TensorPair(describe(a), found, True, sqnr=float("inf"), **told)
    index = found.worst if found.differing else _worst(a, b)
    counted: dict[str, Any] = {
        "other_bits": int(np.count_nonzero(difference_mask(a, b))),
        "beyond": _element_distance(a[index], b[index]) if found.differing else 0.0,
        "a": plain(a[index]),
        "b": plain(b[index]),
    }
    if a.dtype.kind in "OUSc":
        return TensorPair(describe(a), found, False, **counted)
    x, y = ((wide(v) - affine.zero) * affine.scale for v in (a, b))
    with np.errstate(all="ignore"):
        apart = np.abs(x - y)
        counted |= {"max_abs": magnitude(apart), "max_rel": magnitude(apart / np.abs(y)), "sqnr": sqnr(x, y)}
    return TensorPair(describe(a), found, False, **counted, **told)


def _element_distance(x: Any, y: Any) -> float:
    """The distance of two elements; inf if one of them is NaN or infinite."""
    step = float(distances(np.asarray(x), np.asarray(y)))
    return step if step == step else float("inf")


def _worst(a: Array, b: Array) -> tuple[int, ...]:
    """The index of the largest difference, NaN on one side being infinitely far from the other; for strings and
    objects, of the first difference."""
    if a.dtype.kind in "OUS":
        return index_of_largest(a != b)
    with np.errstate(all="ignore"):
        apart = np.nan_to_num(np.abs(wide(a) - wide(b)), nan=np.inf)
    return index_of_largest(np.where(difference_mask(a, b), apart, -1.0))


def _decide(a: Array, b: Array) -> dict[str, Any]:
    """The fields `argmax` and `agreed` of a pair; none for types or shapes whose largest element means nothing."""
    if a.dtype.kind in "OUScb" or is_integral(a.dtype) or not a.size or not a.ndim:
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
    """The index of the largest element, without axes of length 1."""
    at = index_of_largest(values)
    return tuple(i for i, size in zip(at, values.shape, strict=True) if size > 1) or (0,)


_UNLIKE = 16.0
"""The smallest factor between the largest values of neighbouring parts, and between their medians."""
_MOST = 4
"""The most parts of an output. More parts are not ranges, but values that happen to be small."""
_ENOUGH = 16
"""The fewest values per place of the axis from which a range is estimated."""
LOST = 3.0
"""A part with an SQNR below this many dB is lost."""


@frozen
class Columns:
    """The slice from `first` up to, but without, `last` along an axis."""

    axis: int
    first: int
    last: int

    def of(self, array: Array) -> Array:
        """The columns of an array."""
        return array[(slice(None),) * self.axis + (slice(self.first, self.last),)]

    def name(self, output: str) -> str:
        """The columns' name, as a slice of the output."""
        return f"{output}[{':, ' * self.axis}{self.first}:{self.last}]"


def columns(array: Array) -> tuple[Columns, ...]:
    """Split an output along the first axis on which neighbouring places have very different ranges; () if none has."""
    if array.dtype.kind != "f" or array.ndim < 2 or not array.size or not np.isfinite(array).all():
        return ()
    for axis in range(1, array.ndim):
        count = array.shape[axis]
        if count < 2 or array.size // count < _ENOUGH:
            continue
        values = np.abs(np.moveaxis(array, axis, 0).reshape(count, -1))
        sizes, middles = values.max(1), np.median(values, 1)
        if middles.min() <= 0:
            continue
        apart = np.all([np.maximum(x[1:] / x[:-1], x[:-1] / x[1:]) >= _UNLIKE for x in (sizes, middles)], axis=0)
        edges = [0, *(np.flatnonzero(apart) + 1).tolist(), count]
        if 2 <= len(edges) - 1 <= _MOST and sizes.max() > 1:
            return tuple(Columns(axis, a, b) for a, b in zip(edges, edges[1:], strict=False))
    return ()


@frozen
class PartAccuracy:
    """The accuracy of a part of an output that mixes ranges. wanted, got: the smallest and largest value in the first
    and in the second model."""

    KEYS = keys("name sqnr_db=noise.sqnr max_abs=noise.largest reference=wanted quantized=got lost")

    name: str
    noise: Noise
    wanted: tuple[float, float]
    got: tuple[float, float]

    @property
    def lost(self) -> bool:
        """Whether the part has lost its signal."""
        return self.noise.sqnr < LOST


class PartSums:
    """Accumulates the error of a part of an output, run by run, and its range of values in both models."""

    def __init__(self, part: Columns, output: str) -> None:
        self.part, self.name, self.sums = part, part.name(output), ErrorSums()
        self.ends = [[np.inf, -np.inf], [np.inf, -np.inf]]

    def add(self, got: Array, want: Array) -> None:
        """Add an array and the wanted one."""
        pair = self.part.of(want), self.part.of(got)
        self.sums.add(pair[1], pair[0])
        for ends, array in zip(self.ends, pair, strict=True):
            ends[:] = min(ends[0], float(np.min(array))), max(ends[1], float(np.max(array)))

    def result(self) -> PartAccuracy:
        """The part's accuracy, with the ranges of both sides."""
        wanted, got = ((low, high) for low, high in self.ends)
        return PartAccuracy(self.name, self.sums.result(), wanted, got)
