"""Operators that order elements: TopK, Unique and NonMaxSuppression."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._float import axis_in, is_integer, widen
from qrun.ops._op import Array, Context, misfit, one_of, op, refuse
from qrun.ops._shape import scalar
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel
from qrun.ops.lowering.pool import top_kernel


@op("TopK", since=1)
def top_k_1(X: Array, *, axis: int = -1, k: int, ctx: Context) -> tuple[Array, Array]:
    """TopK-10 with k as an attribute. Source: ONNX operators, TopK-1."""
    return _top_k(X, k, axis, True, "k", ctx)


@op("TopK", since=10)
def top_k(
    X: Array, K: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1, ctx: Context
) -> tuple[Array, Array]:
    """Return the K largest or smallest elements along an axis as Values, and their positions as Indices (int64).

    In descending or ascending order, even if sorted = 0 leaves the order open; equal elements keep their order.
    NaN counts as larger than every number. K: an int64 scalar, 0 to the axis' length. Exact.
    Raises OperatorError for another K and for an axis outside [-r, r-1].
    """
    return _top_k(X, scalar(K, "K"), axis, bool(largest), "K", ctx)


def _top_k(x: Array, k: int, axis: int, largest: bool, name: str, ctx: Context) -> tuple[Array, Array]:
    """The k largest or smallest elements along an axis, sorted, and their indices."""
    dim = _check_axis(x, k, axis, name, ctx)
    size = x.shape[dim]
    keys = x if is_integer(x.dtype) or x.dtype == np.float32 else widen(x)
    flat = (math.prod(x.shape[:dim]), size, math.prod(x.shape[dim + 1 :]))  # numpy sorts along up to 32 axes
    keys, rows = keys.reshape(flat), x.reshape(flat)
    ascending = np.argsort(keys[:, ::-1] if largest else keys, axis=1, kind="stable")
    order = size - 1 - ascending[:, ::-1] if largest else ascending
    chosen = order[:, :k].astype(np.int64, copy=False)
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    return np.take_along_axis(rows, chosen, axis=1).reshape(shape), chosen.reshape(shape)


def _check_axis(x: Array, k: int, axis: int, name: str, ctx: Context) -> int:
    """The axis, counted from the front; refuses one with fewer than k elements, and claims the memory needed."""
    dim = axis_in(axis, x.ndim)
    size = x.shape[dim]
    if not 0 <= k <= size:
        raise refuse(f"{k} elements of {size} are asked for", name, f"0 to {size}, as axis {dim} of X", k)
    ctx.claim(x.shape, 8 + x.itemsize)
    return dim


@top_k_1.native
def _lower_top_k_1(site: LoweringContext) -> NativeKernel:
    return _lower(site, site.attributes["k"], "k", True)


@top_k.native
def _lower_top_k(site: LoweringContext) -> NativeKernel:
    return _lower(site, scalar(site.inputs[1], "K"), "K", bool(site.attributes["largest"]))


def _lower(site: LoweringContext, k: int, name: str, largest: bool) -> NativeKernel:

    dim = _check_axis(site.inputs[0], k, site.attributes["axis"], name, site.ctx)
    site.require_constants()
    return top_kernel(site, k, dim, largest)


@op("Unique", since=11)
def unique(X: Array, *, axis: int | None = None, sorted: int = 1, ctx: Context) -> tuple[Array, Array, Array, Array]:
    """Return each distinct element of X, or slice along an axis, once. Outputs: Y, indices, inverse_indices, counts.

    In ascending order (parts by their elements, in order), or, unless sorted, in that of their first places. indices
    int64: those places; inverse_indices: for each element its place in Y; counts: how often it is there. -0 equals 0;
    each NaN is a separate element, after all numbers. Exact. Raises OperatorError for an axis that does not exist.
    """
    one_of("sorted", sorted, (0, 1))
    dim = None if axis is None else axis_in(axis, X.ndim)
    ctx.claim((X.size + 1,), 2 * X.itemsize + 40)
    rows = X.reshape(-1, 1) if dim is None else np.moveaxis(X, dim, 0)
    lines = rows.reshape(len(rows), -1) if rows.size else np.zeros((len(rows), 0), X.dtype)
    order = _order(lines)
    ranked = lines[order]
    fresh = np.ones(len(order), bool)
    if len(order) > 1:
        fresh[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    groups = np.cumsum(fresh) - 1
    firsts = order[fresh]
    inverse = np.empty(len(order), np.int64)
    inverse[order] = groups
    counts = np.bincount(groups, minlength=len(firsts)).astype(np.int64) if len(order) else np.zeros(0, np.int64)
    if not sorted:
        by_place = np.argsort(firsts, kind="stable")
        rank = np.empty_like(by_place)
        rank[by_place] = np.arange(len(by_place))
        firsts, counts, inverse = firsts[by_place], counts[by_place], rank[inverse] if len(rank) else inverse
    taken: Any = X.reshape(-1)[firsts] if dim is None else np.take(X, firsts, axis=dim)
    return taken, firsts.astype(np.int64), inverse, counts


def _order(lines: Array) -> Array:
    """Indices of the lines in ascending order; equal lines keep their order."""
    if lines.dtype == object:
        texts = lines.tolist()
        places = list(range(len(texts)))
        places.sort(key=texts.__getitem__)
        return np.array(places, np.int64)
    if not lines.shape[1]:
        return np.arange(len(lines))
    keys = lines.astype(np.float32) if lines.dtype.kind == "V" else lines
    return np.lexsort(tuple(keys[:, column] for column in reversed(range(keys.shape[1]))))


_UNIT = 2.0**-53
_STEPS = 16
"""A bound on the number of float64 operations in a comparison of two boxes."""
_BLOCK = 128
"""Candidates that are compared with each other at a time."""
_KEPT = 256
"""Selected boxes that a block is compared with at a time."""


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
    ctx: Context,
) -> Array:
    """Select boxes per batch and class, best score first, skipping those that overlap a selected box too much.

    Two boxes overlap too much if their intersection over union exceeds iou_threshold.

    boxes [batches,n,4] float32: [y1,x1,y2,x2], any two opposite corners, or with center_point_box = 1
    [x_center,y_center,width,height]. scores [batches,classes,n] float32. Scalars: max_output_boxes_per_class (int64; 0,
    the default, or less selects nothing), iou_threshold (0 to 1, default 0), score_threshold (selects only boxes with a
    higher score; default: all boxes). Returns int64 [selected,3]: the batch, class and box, ordered by batch and class.

    Exact: intersection and union are exact real numbers; iou_threshold is a float32 number. Among boxes with equal
    scores, the first one wins; NaN ranks below every number. A box with an infinite or NaN coordinate overlaps no box.
    Raises OperatorError for other shapes, another center_point_box, and an iou_threshold outside 0 to 1.
    """
    _check(boxes, scores, center_point_box)
    most = 0 if max_output_boxes_per_class is None else scalar(max_output_boxes_per_class, "max_output_boxes_per_class")
    threshold = 0.0 if iou_threshold is None else scalar(iou_threshold, "iou_threshold")
    if not 0 <= threshold <= 1:
        raise refuse("iou_threshold is not between 0 and 1", "iou_threshold", "0 to 1", threshold)
    least = None if score_threshold is None else scalar(score_threshold, "score_threshold")
    found: list[tuple[int, int, Array]] = []
    count = 0
    for batch in range(boxes.shape[0] if most > 0 else 0):
        pairs = min(_BLOCK, boxes.shape[1]) * min(_KEPT, boxes.shape[1])
        ctx.claim((8 * boxes.shape[1] + 12 * pairs,), 8, "corners and pairs of boxes")
        corners = _Boxes.of(boxes[batch], bool(center_point_box))
        for kind in range(scores.shape[1]):
            order = _by_score(scores[batch, kind], least)
            ctx.claim((count + min(most, order.size), 4), 8)
            chosen = _select(corners, order, threshold, most)
            found.append((batch, kind, chosen))
            count += chosen.size
    ctx.claim((count, 3), 8)
    rows = [np.column_stack([np.full_like(c, batch), np.full_like(c, kind), c]) for batch, kind, c in found]
    return np.concatenate([np.empty((0, 3), np.int64), *rows])


def _check(boxes: Array, scores: Array, center: int) -> None:
    """Raise OperatorError for boxes and scores that do not fit."""
    if boxes.ndim != 3 or boxes.shape[2] != 4:
        raise misfit("boxes have another shape", "boxes", "[batches,n,4]", boxes)
    if scores.ndim != 3 or (scores.shape[0], scores.shape[2]) != boxes.shape[:2]:
        expected = f"[{boxes.shape[0]},classes,{boxes.shape[1]}], for boxes {shape_text(boxes.shape)}"
        raise misfit("scores do not fit the boxes", "scores", expected, scores)
    if center not in (0, 1):
        raise refuse("center_point_box is not 0 or 1", "center_point_box", "0, 1", center, code="QR204")


def _by_score(scores: Array, least: float | None) -> Array:
    """Indices of the scores above `least`, or of all, by falling score."""
    places = np.arange(scores.size) if least is None else np.flatnonzero(scores > np.float32(least))
    return places[np.argsort(-scores[places], kind="stable")].astype(np.int64, copy=False)


@frozen
class _Boxes:
    """low, high: the corners [2,n] in float64. slack: bound of their error, 0 if they are exact. given: [n,4]."""

    low: Array
    high: Array
    slack: Array
    given: Array
    center: bool

    @staticmethod
    def of(given: Array, center: bool) -> _Boxes:
        """Boxes with corners in float64, and bounds of the rounding error."""
        pairs = given.T.astype(np.float64)
        first, second = pairs[:2], pairs[2:]
        with np.errstate(all="ignore"):
            slack = np.zeros(given.shape[0])
            low, high = np.minimum(first, second), np.maximum(first, second)
            if center:
                half = second / 2
                low, high = first - half, first + half
                exact = ((high - first == half) & (high - half == first)).all(axis=0)
                exact &= ((first - low == half) & (low + half == first)).all(axis=0)
                slack = np.where(exact, 0.0, 4 * _UNIT * np.maximum(np.abs(low), np.abs(high)).max(axis=0))
        infinite = ~np.isfinite(given).all(axis=1)
        low[:, infinite], high[:, infinite], slack[infinite] = 0, 0, 0
        return _Boxes(low, high, slack, given, center)

    def overlap(self, rows: Array, columns: Array, threshold: float) -> Array:
        """Which pairs overlap by more than the threshold: bool [rows,columns]."""
        (a_low, b_low), (a_high, b_high) = ([e[:, rows, None], e[:, None, columns]] for e in (self.low, self.high))
        y, x = np.minimum(a_high, b_high) - np.maximum(a_low, b_low)
        slack = self.slack[rows, None] + self.slack[columns]
        shared = np.where((y > 0) & (x > 0), y * x, 0.0)
        areas = np.prod(a_high - a_low, axis=0) + np.prod(b_high - b_low, axis=0)
        above = shared - threshold * (areas - shared)
        reach = _STEPS * _UNIT * (shared + threshold * (areas + shared))
        doubtful = (np.abs(above) <= reach) & (shared > 0)
        doubtful |= (slack > 0) & (np.minimum(y, x) >= -2 * slack)
        made: Array = (above > 0) & (shared > 0)
        for i, j in np.argwhere(doubtful).tolist():
            made[i, j] = self._exactly(int(rows[i]), int(columns[j]), Fraction(threshold))
        return made

    def _exactly(self, a: int, b: int, threshold: Fraction) -> bool:
        """Whether boxes a and b overlap by more than the threshold, in fractions."""
        shared, areas = Fraction(1), [Fraction(1), Fraction(1)]
        (a_low, a_high), (b_low, b_high) = (self._corners(index) for index in (a, b))
        for axis in (0, 1):
            shared *= max(min(a_high[axis], b_high[axis]) - max(a_low[axis], b_low[axis]), Fraction(0))
            areas = [areas[0] * (a_high[axis] - a_low[axis]), areas[1] * (b_high[axis] - b_low[axis])]
        return shared > threshold * (sum(areas) - shared) and shared > 0

    def _corners(self, index: int) -> tuple[list[Fraction], list[Fraction]]:
        """The low and high corner of a box, in fractions."""
        numbers = [Fraction(v) for v in self.given[index].tolist()]
        pairs = list(zip(numbers[:2], numbers[2:], strict=True))
        if self.center:
            return [c - size / 2 for c, size in pairs], [c + size / 2 for c, size in pairs]
        return [min(pair) for pair in pairs], [max(pair) for pair in pairs]


def _select(boxes: _Boxes, order: Array, threshold: float, most: int) -> Array:
    """The indices in `order` that are selected, at most `most` of them."""
    if threshold == 1:
        return order[:most]
    chosen: list[int] = []
    for start in range(0, order.size, _BLOCK):
        block = order[start : start + _BLOCK]
        for first in range(0, len(chosen), _KEPT):
            kept = np.array(chosen[first : first + _KEPT])
            block = block[~boxes.overlap(kept, block, threshold).any(axis=0)]
        gone = np.zeros(block.size, bool)
        pairs = boxes.overlap(block, block, threshold)
        for index, box in enumerate(block.tolist()):
            if not gone[index]:
                chosen.append(box)
                gone |= pairs[index]
                if len(chosen) == most:
                    return np.array(chosen, np.int64)
    return np.array(chosen, np.int64)
