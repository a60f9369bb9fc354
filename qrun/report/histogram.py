"""Histograms of tensors, drawn with block characters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qrun.documents.answers import Bin, CodeUse, TensorHistogram
from qrun.ir import Array
from qrun.ir.types import integer_range, shape_text, type_name
from qrun.report.grid import Column, Grid
from qrun.report.screen import Screen
from qrun.report.stats import numeric
from qrun.report.text import bar, number, percent

BINS = 16
"""The most bins."""
WIDTH = 24
"""Columns of the longest bar."""
_CODES = 2
"""Integers of at most so many bytes are codes of a quantized tensor."""


def histograms(arrays: Mapping[str, Array]) -> list[TensorHistogram]:
    """The histogram of each array of numbers."""
    numbers = ((name, array, numeric(array)) for name, array in arrays.items())
    return [_histogram(name, array, values) for name, array, values in numbers if values is not None]


def _histogram(name: str, array: Array, values: Array) -> TensorHistogram:
    flat = values.reshape(-1)
    finite = flat if flat.dtype.kind in "biu" else flat[np.isfinite(flat)]
    nan = 0 if flat.dtype.kind in "biu" else int(np.isnan(flat).sum())
    whole = flat.dtype.kind == "b" or "int" in type_name(array.dtype)
    bins = tuple(_whole_bins(finite) if whole else _real_bins(finite.astype(np.float64)))
    form = name, type_name(array.dtype), tuple(array.shape)
    counts = nan, flat.size - finite.size - nan
    codes = _codes(flat, array) if whole and flat.dtype.kind != "b" and array.dtype.itemsize <= _CODES else None
    return TensorHistogram(*form, bins[0].low if bins else None, bins[-1].high if bins else None, *counts, bins, codes)


def _whole_bins(values: Array) -> Iterator[Bin]:
    """Bins of equally many integers, from the smallest to the largest value; `high` is the last integer of a bin."""
    if not values.size:
        return
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // BINS)
    wide = values if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)
    places = (wide - np.uint64(low % 2**64)) // np.uint64(width)
    counts = np.bincount(places.astype(np.int64))
    for place, count in enumerate(counts):
        first = low + place * width
        yield Bin(first, min(first + width - 1, high), int(count))


def _real_bins(values: Array) -> Iterator[Bin]:
    """Bins of equal width, from the smallest to the largest value; all but the last are without their `high`."""
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    scale = 1.0 if np.isfinite(high - low) else 0.5
    counts, edges = np.histogram(values * scale, BINS if high > low else 1, (low * scale, high * scale))
    edges = np.concatenate([[low], edges[1:-1] / scale, [high]])
    for first, last, count in zip(edges[:-1], edges[1:], counts, strict=True):
        yield Bin(float(first), float(last), int(count))


def _codes(flat: Array, array: Array) -> CodeUse | None:
    if not flat.size:
        return None
    low, high = integer_range(array.dtype)
    at_low, at_high = (float(np.mean(flat == end)) for end in (low, high))
    return CodeUse(low, high, len(np.unique(flat)), at_low, at_high)


def print_histograms(screen: Screen, found: Sequence[TensorHistogram]) -> None:
    """Prints each histogram: what it is of, then a row for each bin."""
    for each in found:
        screen.line()
        screen.wrapped("", "  ", (each.name, "bold"), f"  {', '.join(_about(each))}")
        if each.bins:
            screen.grid(_grid(each.bins, screen.encoding))


def _grid(bins: Sequence[Bin], encoding: str) -> Grid:
    total, most = sum(each.count for each in bins), max(each.count for each in bins)

    def drawn(each: Bin) -> str:
        return bar(max(each.count / most, 1 / (8 * WIDTH)), WIDTH, encoding) if each.count else ""

    columns = [
        Column("from", right=True, cell=lambda each: number(each.low)),
        Column("to", right=True, cell=lambda each: number(each.high)),
        Column("count", right=True, cell=lambda each: str(each.count)),
        Column("share", right=True, cell=lambda each: percent(each.count / total)),
        Column("", cell=drawn),
    ]
    return Grid.of(columns, bins)


def _about(found: TensorHistogram) -> Iterator[str]:
    """Type, shape, extremes, values that no bin holds, and for codes how many are used and the share at the ends."""
    yield f"{found.type} {shape_text(found.shape)}"
    yield f"min {number(found.min)}"
    yield f"max {number(found.max)}"
    yield from (f"{count} {name}" for count, name in ((found.nan, "NaN"), (found.inf, "Inf")) if count)
    if found.codes is not None:
        codes = found.codes
        yield f"{codes.used} of {codes.high - codes.low + 1} codes used"
        yield f"{percent(codes.at_low)} at {codes.low}"
        yield f"{percent(codes.at_high)} at {codes.high}"
