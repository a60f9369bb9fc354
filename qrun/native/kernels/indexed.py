"""Plans gathers and scatters: copies by constant indices along each axis (nearest neighbours, borders that repeat the
image), copies of the rows that indices of the run name, and updates of such rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.expression import KIND_OF, MOVED
from qrun.native.emit.spec import OUTER
from qrun.native.errors import Declined
from qrun.native.kernels.copy import SIZES, Loop, outer_words
from qrun.native.machine.engine import (
    Array,
    Engine,
    Ints,
    KernelCall,
    KernelSpec,
    Operand,
    Operation,
    Order,
    row_tiles,
    size,
)
from qrun.native.machine.operation import TILE_BYTES

_JOINED = 1 << 16
"""The most indices of axes that are joined into one loop: each is a word of a table."""
_ENTRIES = 1 << 20
"""The most entries of all tables together: 8 MiB."""
_UNROLL = 4
"""Vectors of a block, if a row has as many."""
_REPEATS = (2, 3, 4)


@frozen
class _Axis:
    """A loop of a copy. at: the offset in x of each index, in bytes. y: bytes in y from one index to the next.

    step: bytes in x from one index to the next, if they are constant; else None."""

    at: Ints
    y: int
    step: int | None

    def merge(self, inner: _Axis) -> _Axis | None:
        """One loop in place of this one and the one inside it, if both have even steps; else None."""
        count = len(inner.at)
        if self.step is None or inner.step is None:
            return None
        if self.step != count * inner.step or self.y != count * inner.y or len(self.at) * count > _JOINED:
            return None
        return _Axis(np.arange(len(self.at) * count) * inner.step + self.at[0] + inner.at[0], inner.y, inner.step)


class Indexed(Operation):
    """y[i, j, ...] = x[places[0][i], places[1][j], ...]; places None: all of an axis, in order.

    Elements have 1, 2, 4 or 8 bytes. lies: the memory order of both, ``any`` if programs may choose it (`with_layout`).
    Raises Declined for other elements, for more axes than the kernel has, and for more than 1 << 20 rows.
    """

    narrows = True

    def __init__(
        self, engine: Engine, x: Operand, places: Sequence[Ints | None], lies: Order = "any", dtype: Any = None
    ) -> None:
        self.engine, self.places, self.order = engine, tuple(places), lies
        if x.dtype.itemsize not in SIZES or x.dtype.hasobject:
            raise Declined(f"elements of {x.dtype.itemsize} bytes")
        for index, n in zip(self.places, x.shape, strict=True):
            if index is not None and index.size and not 0 <= int(index.min()) <= int(index.max()) < n:
                raise ValueError(f"places from {index.min()} to {index.max()} of {n}")
        shape = tuple(n if p is None else len(p) for n, p in zip(x.shape, self.places, strict=True))
        self.operands = (x, Operand(shape, x.dtype))

    def with_layout(self, order: Order) -> Indexed:
        return self.again(order=order)

    def with_element_type(self, dtype: np.dtype[Any]) -> Indexed:
        """The same copy of elements of another type."""
        return Indexed(self.engine, Operand(self.operands[0].shape, np.dtype(dtype)), self.places, self.order)

    def _axes(self, strides: Sequence[int]) -> list[_Axis]:
        """The loops, outermost in the result first; neighbours that both have even steps are joined."""
        x, y = self._operand_strides(strides)
        found: list[_Axis] = []
        shape = self.result.shape
        for axis in sorted(range(len(shape)), key=lambda axis: -y.steps[axis]):
            places = self.places[axis]
            if places is None:
                loop = _Axis(np.arange(shape[axis]) * x.steps[axis], y.steps[axis], x.steps[axis])
            else:
                even = len(places) < 2 or bool((np.diff(places) == 1).all())
                loop = _Axis(places * x.steps[axis], y.steps[axis], x.steps[axis] if even else None)
            one = found[-1].merge(loop) if found else None
            if one is not None:
                found[-1] = one
            elif len(loop.at) != 1 or loop.at[0] or not found:
                found.append(loop)
        return found

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        itemsize = self.result.dtype.itemsize
        axes, run, start = self._axes(strides), itemsize, 0
        if axes and axes[-1].step == axes[-1].y == itemsize:
            last = axes.pop()
            run, start = len(last.at) * itemsize, int(last.at[0])
        *outer, inner = axes or [_Axis(np.zeros(1, np.int64), run, None)]
        if len(outer) > OUTER:
            raise Declined("a copy along too many axes")
        if sum(len(axis.at) for axis in axes) > _ENTRIES:
            raise Declined(f"more than {_ENTRIES} rows")
        form, block = self._block(inner, run, itemsize)
        count = len(inner.at)
        multiple = max(block[0], 1)
        chunk = min(count, max(TILE_BYTES // run // multiple, 1) * multiple)
        words = outer_words(
            ("y",),
            [Loop(len(a.at), (a.y,)) for a in outer],
            (-(-count // chunk), chunk),
            chunk * run,
            self.engine.threads,
        )
        none = np.zeros(1, np.int64)
        tables = [none] * (OUTER - len(outer)) + [axis.at for axis in outer]
        arrays: dict[str, Array] = {f"at_{n}*": np.ascontiguousarray(t, np.int64) for n, t in enumerate(tables)}
        arrays["at*"] = np.ascontiguousarray(inner.at, np.int64)
        words |= {"x*": start, "count": count, "y_row": inner.y, "bytes": run}
        extents = (
            start + run + sum(int(axis.at.max()) for axis in (*outer, inner)),
            run + sum((len(axis.at) - 1) * axis.y for axis in (*outer, inner)),
        )
        spec = KernelSpec("indexed", self.engine.isa.name, *block, form, "bytes", False)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, extents, arrays),)

    def _block(self, inner: _Axis, run: int, itemsize: int) -> tuple[str, tuple[int, int, int]]:
        """The form of the kernel, and its block: rows, vectors, and bytes of an element or a vector."""
        if run == itemsize:
            times = self._repeats(inner, itemsize)
            if not times:
                return "elements", (0, 0, itemsize)
            lanes = min(4 * self.engine.isa.lanes // itemsize, len(inner.at) // times)
            return "repeats", (times, 1 << (lanes.bit_length() - 1), itemsize)
        vector = 1 << (min(run, 4 * self.engine.isa.lanes).bit_length() - 1)
        return "runs", (0, _UNROLL if run >= 2 * _UNROLL * vector else 1, vector)

    @staticmethod
    def _repeats(inner: _Axis, itemsize: int) -> int:
        """The number of times that each of a row of contiguous elements is repeated; 0 if the loop is not of that
        kind."""
        count = len(inner.at)
        for times in _REPEATS:
            if inner.y == itemsize and count % times == 0 and count >= 2 * times:
                expected = inner.at[0] + np.arange(count) // times * itemsize
                if np.array_equal(inner.at, expected):
                    return times
        return 0


_INDICES = (np.dtype(np.int32), np.dtype(np.int64))


@frozen
class NamedRows:
    """How indices name rows of an array.

    named:  the lengths of the indexed axes: a row has one index for each of them, in order.
    before: places along the axes before these; each has indices of its own if `own`, else all share the same.
    lines:  neighbouring rows that take neighbouring elements of one place; the rows of the next indices follow.
    run:    elements of a row. step: elements from one place along the last of `named` to the next.
    """

    named: tuple[int, ...]
    before: int
    own: bool
    lines: int
    run: int

    @property
    def step(self) -> int:
        """The elements from one index to the next along the indexed axis."""
        return self.lines * self.run


class Gathered(Operation):
    """Gathers the rows of an array [before, *named, lines * run] that indices name. An index is from -s to s-1, where
    s is the length of its axis; a run with any other index ends undecided.

    shapes: of the array and of the indices; y_shape: of the result.
    Raises Declined for indices that are not int32 or int64, for elements not of 1, 2, 4 or 8 bytes, and if there are
    no elements."""

    narrows = True

    def __init__(
        self,
        engine: Engine,
        dtype: np.dtype[Any],
        index_type: np.dtype[Any],
        shapes: Sequence[tuple[int, ...]],
        places: NamedRows,
        y_shape: tuple[int, ...],
    ) -> None:
        if index_type not in _INDICES or dtype.itemsize not in SIZES or dtype.hasobject:
            raise Declined(f"no native copies of {dtype.name} by {index_type.name}")
        data, indices = shapes
        if not size(data) or not size(y_shape):
            raise Declined("no elements")
        whole = places.before * size(places.named) * places.step
        each = size(indices) // len(places.named)
        rows = each if places.own else each * places.before
        if whole != size(data) or rows * places.run != size(y_shape):
            raise ValueError(f"{list(data)} and {list(indices)} do not make {list(y_shape)}")
        self.engine, self.places = engine, places
        self.operands = Operand(data, dtype), Operand(indices, index_type), Operand(y_shape, dtype)

    def with_element_type(self, dtype: np.dtype[Any]) -> Gathered:
        """The same copy of elements of another type."""
        x, indices, y = self.operands
        return self.again(operands=(replace(x, dtype=dtype), indices, replace(y, dtype=dtype)))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        places, engine, (x, indices, y) = self.places, self.engine, self.operands
        item = x.dtype.itemsize
        run, rows = places.run * item, size(y.shape) // places.run
        vector = 1 << (min(run, 4 * engine.isa.lanes).bit_length() - 1)
        vectors = _UNROLL if run >= _UNROLL * vector else 1
        form = "block" if run == vectors * vector else "run"
        words, arrays = _row_words(places, item, rows // places.before, indices)
        words |= row_tiles(rows, run + 16, engine.threads) | {"run": run, "last": run - vectors * vector}
        spec = KernelSpec(
            "gathered", engine.isa.name, 1, vectors, vector, form, "bytes", False, operands=KIND_OF[indices.dtype.name]
        )
        return (
            self.engine.kernels.call(spec, ("x*", "indices*", "y*"), words, self.whole, arrays=arrays, decides=False),
        )


class Scattered(Operation):
    """A copy of x [before, *named, lines * run] in which the rows that indices name, as in Gathered, are replaced by
    the updates, or combined with them, in order.

    operands: x, indices, and updates: as many rows of x's type. how: ``none`` (replace), ``add``, ``mul``, ``max`` or
    ``min``. A run with an index out of range ends undecided.
    Raises Declined for other types, and if there are no elements."""

    def __init__(self, engine: Engine, operands: Sequence[Operand], places: NamedRows, how: str) -> None:
        x, indices, updates = operands
        kind = MOVED.get(x.dtype.itemsize, "") if how == "none" else _combined_kind(x.dtype, how)
        how = {"add": "max", "mul": "min"}.get(how, how) if x.dtype == np.bool_ else how
        if not kind or x.dtype.hasobject or indices.dtype not in _INDICES:
            raise Declined(f"no native {how.replace('none', 'copies')} of {x.dtype.name} by {indices.dtype.name}")
        if not size(x.shape) or not size(indices.shape):
            raise Declined("no elements")
        rows = size(indices.shape) // len(places.named)
        whole = places.before * size(places.named) * places.step
        if whole != size(x.shape) or rows * places.run != size(updates.shape) or updates.dtype != x.dtype:
            raise ValueError(f"{list(updates.shape)} by {list(indices.shape)} do not fit {list(x.shape)}")
        self.engine, self.places, self.how, self.kinds = engine, places, how, KIND_OF[indices.dtype.name] + kind
        self.operands = (*operands, x)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        places, engine, item = self.places, self.engine, self.result.dtype.itemsize
        whole = size(self.result.shape) // places.before
        tiles = row_tiles(places.before, whole * item, engine.threads)
        rows = size(self.operands[1].shape) // len(places.named)
        words, arrays = _row_words(places, item, rows // places.before, self.operands[1])
        words |= {"run": places.run, "whole": whole, "before": tiles.pop("rows")} | tiles
        lanes = 4 * engine.isa.lanes // item
        spec = KernelSpec("scattered", engine.isa.name, lanes, 1, item, self.how, "bytes", False, operands=self.kinds)
        names = ("x*", "indices*", "updates*", "y*")
        return (self.engine.kernels.call(spec, names, words, self.whole, arrays=arrays, decides=False),)


def _combined_kind(dtype: np.dtype[Any], how: str) -> str:
    """The kind of the elements that a kernel combines; bool counts as uint8. "" if no kernel combines them."""
    if dtype.kind in "iub" and dtype.name in KIND_OF:
        return "u" if dtype == np.bool_ else KIND_OF[dtype.name]
    return "d" if dtype == np.float64 and how in ("add", "mul") else ""


def _row_words(places: NamedRows, item: int, count: int, indices: Operand) -> tuple[dict[str, int], dict[str, Array]]:
    """The words and arrays that locate rows of elements of `item` bytes. count: rows for each of the places before."""
    depth, number = len(places.named), indices.dtype.itemsize
    steps = [places.step * item * size(places.named[axis + 1 :]) for axis in range(depth)]
    words = {
        "depth": depth,
        "count": count,
        "outer_step": size(places.named) * places.step * item,
        "lines": places.lines,
        "line_step": places.run * item,
        "index_outer": count * depth * number if places.own else 0,
        "index_row": depth * number,
    }
    return words, {"sizes*": np.array(list(zip(places.named, steps, strict=True)), np.int64)}
