"""What a record keeps of one tensor: its hash, and enough of its values to judge how far another tensor is from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.comparing.differences import integral
from qrun.comparing.ties import before_rounding, tie_distance
from qrun.declare.frozen import frozen
from qrun.documents.record import Signed, omitted
from qrun.io.storable import digest
from qrun.ir import Array, Node
from qrun.ir.types import NUMBERS, PACKED_BITS, computable, integer_range, type_name

SAMPLED = 16
"""Elements of each tensor that are kept."""
QUANTILES = (1, 10, 50, 90, 99)
"""Percentiles that are kept where a histogram would be too long."""
TIE, NEARLY = 1e-5, 1e-3
"""Distances to a tie, in steps of the output (LSB), within which elements are counted."""
_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio; its multiples modulo 2^64 fill the range evenly (Weyl sequence)."""

Number = int | float


@frozen
class Ties:
    """How near the values before rounding come to a tie, in LSB; elements that saturate are left out.

    smallest: the smallest distance, None if every element saturates. tie, near: elements within 1e-5 and 1e-3 LSB.
    """

    smallest: float | None
    tie: int
    near: int


@frozen
class Histogram:
    """How many elements have each code: `counts` from the smallest code that occurs to the largest."""

    first: Signed
    counts: tuple[int, ...]


@frozen
class RecordedModel:
    """What identifies a model: SHA-256 of its file and of those with its data, by name."""

    sha256: str
    nodes: int = 0
    external: Mapping[str, str] | None = omitted(None)


@frozen
class RecordedInput:
    """An input of the run: type with shape, and SHA-256."""

    name: str
    form: str
    sha256: str


@frozen
class RecordHead:
    """What stands before the tensors of a record. label: what ran the model;
    environment: what results may depend on."""

    schema: str
    model: RecordedModel
    inputs: tuple[RecordedInput, ...]
    label: str
    environment: Mapping[str, Any]


@frozen
class RecordEntry:
    """A tensor of a record, as it stands in record.json.

    node, op:   index of the node that makes it, and its operator. type, shape: of the elements and the array.
    sha256:     of the bytes in C order, little endian; types below 8 bits as one byte an element.
    low, high, mean: of the finite elements, None without any. nan, inf: how many are not.
    saturated:  elements at the lowest and at the highest code of an integer type of up to 16 bits.
    histogram:  of types of up to 8 bits that are integers; quantiles: elements at QUANTILES of the other numbers'
                finite ones, in order.
    sample:     the elements at `places`; ties: where the operator's value before rounding is known.
    Of texts, and of tensors that depend on no input, only the hash is kept; of complex numbers the parts are elements.
    """

    name: str
    node: int
    op: str
    type: str
    shape: tuple[int, ...]
    sha256: str
    low: Number | None = omitted(None, "min")
    high: Number | None = omitted(None, "max")
    mean: float | None = omitted(None)
    nan: int = omitted(0)
    inf: int = omitted(0)
    saturated: tuple[int, int] | None = omitted(None)
    quantiles: tuple[Number, ...] = omitted(())
    sample: tuple[Number, ...] = omitted(())
    histogram: Histogram | None = omitted(None)
    ties: Ties | None = omitted(None)

    @classmethod
    def bare(cls, name: str, array: Array, node: Node) -> RecordEntry:
        """An entry of a tensor with its type, shape and hash, but nothing about its values."""
        return cls(name, node.index, node.op, type_name(array.dtype), tuple(array.shape), digest(array))


def filled(bare: RecordEntry, array: Array, node: Node, values: Sequence[Array | None] | None) -> RecordEntry:
    """The entry with all that is kept of the array. values: the node's inputs; None if they are not known."""
    flat = _numbers(array)
    if flat is None:
        return bare
    finite = flat[np.isfinite(flat)] if flat.dtype.kind == "f" else flat
    low, high, mean = (_plain(finite.min()), _plain(finite.max()), _mean(finite)) if finite.size else (None,) * 3
    nan = int(np.count_nonzero(np.isnan(flat))) if flat.dtype.kind == "f" else 0
    narrow = flat.dtype.itemsize == 1 and flat.dtype.kind in "iub"
    return replace(
        bare,
        low=low,
        high=high,
        mean=mean,
        nan=nan,
        inf=flat.size - finite.size - nan,
        saturated=_saturated(array, flat),
        histogram=_histogram(flat) if narrow else None,
        quantiles=() if narrow else _quantiles(finite),
        sample=tuple(_plain(flat[at]) for at in places(flat.size)),
        ties=_ties(array, node, values),
    )


def places(size: int) -> tuple[int, ...]:
    """Flat indices of the elements that are kept of a tensor of `size` elements, in order."""
    if size <= SAMPLED:
        return tuple(range(size))
    return tuple(sorted({(k * _GOLDEN % 2**64) * size >> 64 for k in range(1, SAMPLED + 1)}))


def _numbers(array: Array) -> Array | None:
    """The elements in a row, as a type that numpy computes with exactly; None for texts."""
    if array.dtype.kind in "OUS":
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        return flat.view(np.float32 if flat.dtype.itemsize == 8 else np.float64)
    return computable(flat)


def _plain(value: Any) -> Number:
    """A number that is the shortest text for its type: 0.1 for float32 0.1."""
    if value.dtype.kind in "iub":
        return int(value)
    return float(str(value)) if value.dtype.itemsize < 8 else float(value)


def _mean(finite: Array) -> float:
    """The mean in 9 digits: versions of numpy add in other orders, which changes the later ones."""
    with np.errstate(all="ignore"):
        return float(f"{finite.mean(dtype=np.float64):.9g}")


def _saturated(array: Array, flat: Array) -> tuple[int, int] | None:
    if not integral(array.dtype) or PACKED_BITS.get(NUMBERS.get(array.dtype, 0), 8 * array.dtype.itemsize) > 16:
        return None
    low, high = integer_range(array.dtype)
    return int(np.count_nonzero(flat == low)), int(np.count_nonzero(flat == high))


def _histogram(flat: Array) -> Histogram:
    if not flat.size:
        return Histogram(Signed(0), ())
    codes = flat.astype(np.int16)
    first = int(codes.min())
    return Histogram(Signed(first), tuple(int(n) for n in np.bincount(codes - first)))


def _quantiles(finite: Array) -> tuple[Number, ...]:
    if not finite.size:
        return ()
    ranks = [(finite.size - 1) * q // 100 for q in QUANTILES]
    ordered = np.partition(finite, ranks)
    return tuple(_plain(ordered[rank]) for rank in ranks)


def _ties(array: Array, node: Node, values: Sequence[Array | None] | None) -> Ties | None:
    exact = exact_values(array, node, values)
    if exact is None:
        return None
    low, high = integer_range(array.dtype)
    with np.errstate(all="ignore"):
        distance = tie_distance(exact[(exact > low - 0.5 - NEARLY) & (exact < high + 0.5 + NEARLY)])
    smallest = float(f"{distance.min():.3g}") if distance.size else None
    return Ties(smallest, int(np.count_nonzero(distance <= TIE)), int(np.count_nonzero(distance <= NEARLY)))


def exact_values(array: Array, node: Node, values: Sequence[Array | None] | None) -> Array | None:
    """What the node rounds to make `array`, float64 of its shape, zero point added; None if that is not known."""
    if values is None or not integral(array.dtype):
        return None
    exact = before_rounding(node, values)
    return exact if exact is not None and exact.shape == array.shape else None
