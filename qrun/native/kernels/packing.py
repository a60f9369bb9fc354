"""Weights that are known at run time: packed for product kernels in each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.pack import COLUMNS, ROWS
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.batch import Batch, BatchCall, Buffer
from qrun.native.machine.call import struct
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Ints, address, aligned, forget

Array = np.ndarray[Any, Any]
_FLIP = 0x80808080


@frozen
class Panels:
    """Columns that one product kernel computes: where they start, how they are packed, and where in the packed bytes."""

    first: int
    panels: int
    quads: int
    width: int
    start: int

    @property
    def nbytes(self) -> int:
        return self.panels * self.quads * self.width * 4


class Packing:
    """Packs matrices [..., K, N] of 8-bit codes as int8 [panels][K / 4][width][4]; uint8 codes become 128 less.

    count: matrices; nbytes: packed bytes of one; columns: of its sums, N up to whole vectors.
    """

    def __init__(self, engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], panels: tuple[Panels, ...]) -> None:
        self.engine, self.lead, self.dtype, self.panels = engine, tuple(shape[:-2]), dtype, panels
        self.k, self.n = shape[-2:]
        self.count = int(np.prod(self.lead, dtype=np.int64))
        self.shift = 128 if dtype == np.uint8 else 0
        self.quads = panels[0].quads
        self.nbytes = sum(p.nbytes for p in panels)
        self.columns = -(-self.n // engine.isa.lanes) * engine.isa.lanes

    def room(self) -> Packer:
        """Memory for one run at a time."""
        return Packer(self)


class Packer:
    """Packs in memory of its own: packed uint8 [count, nbytes], sums int32 [count, columns]."""

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self.packed = Buffer(aligned((packing.count, packing.nbytes), np.uint8))
        self.sums = aligned((packing.count, packing.columns), np.int32)
        self._plans: dict[tuple[int, ...], _Plan] = {}

    def run(self, b: Array) -> None:
        """b of the planned shape and type, any strides."""
        p = self.packing
        forget(self.packed.array)
        forget(self.sums)
        if not (_reaches(b, -1, p.n) or _reaches(b, -2, p.k)):
            b = np.ascontiguousarray(b)
        plan = self._plans.get(b.strides)
        if plan is None:
            self._plans.clear()
            plan = self._plans[b.strides] = _Plan(self, b)
        plan.run(b)


class _Plan:
    """The calls that pack matrices of certain strides.

    Rows next to b's end, and bytes next to the end of its columns, go to a tail that has K to whole quads: vectors read
    beyond the end of a row, and kernels a whole quad.
    """

    def __init__(self, packer: Packer, b: Array) -> None:
        p = packer.packing
        self.by_rows = _reaches(b, -1, p.n)
        names, words = self._rows(p, b) if self.by_rows else self._lines(p, b)
        kind, unroll = ("pack_rows", 1) if self.by_rows else ("pack_columns", self.unroll(p))
        known = {"quads": p.quads, "main": self.main, "flip!": _FLIP if p.shift else 0, **words}
        moves = (offsets(b), offsets(self.tail), offsets(packer.packed.array[:, None]), offsets(packer.sums[:, None]))
        calls = []
        for part in p.panels:
            spec = KernelSpec(kind, p.engine.isa.name, 4, part.width // p.engine.isa.lanes, unroll, "pack", "i8", False)
            kernel = p.engine.kernels.get(spec)
            template = struct(names, {**dict.fromkeys(names, 0), **known, "panels": part.panels}, {})
            if not self.by_rows:
                for name in ("lines*", "tail_lines*"):
                    template[names.index(name)] += 8 * part.first
            first = part.first if self.by_rows else 0
            fixed = (0, address(self.tail), packer.packed.start, address(packer.sums))
            for start in np.stack(moves, axis=1) + fixed + (first, first, part.start, 4 * part.first):
                arguments = template.copy()
                arguments[: len(start)] = start
                calls.append(BatchCall(kernel, arguments, part.panels))
        self.batch = Batch(p.engine, calls)

    def run(self, b: Array) -> None:
        rest = b[..., 4 * self.main :, :]
        if rest.size:
            self.inside[...] = rest if self.by_rows else rest.swapaxes(-1, -2)
        self.batch.renew()
        self.batch.move(0, address(b))
        self.batch.execute(b, self.tail)

    @staticmethod
    def unroll(p: Packing) -> int:
        return 1 if p.quads % 4 else 4

    def _rows(self, p: Packing, b: Array) -> tuple[tuple[str, ...], dict[str, int]]:
        line, over = b.strides[-2] if p.k > 1 else p.n, p.columns - p.n
        self.main = max(p.k - -(-over // line), 0) // 4
        self.tail = self._tail(p, 4 * (p.quads - self.main), p.columns)
        self.inside = self.tail[..., : p.k - 4 * self.main, : p.n]
        return ROWS, {"line": line, "tail_line": p.columns}

    def _lines(self, p: Packing, b: Array) -> tuple[tuple[str, ...], dict[str, int]]:
        step = 4 * self.unroll(p)
        self.main = p.k // step * step // 4
        rest = 4 * (p.quads - self.main)
        self.tail = self._tail(p, p.n, rest)
        self.inside = self.tail[..., : p.k - 4 * self.main]
        column = np.minimum(np.arange(p.columns), p.n - 1)
        self.lines, self.tail_lines = column * b.strides[-1], column * rest
        return COLUMNS, {"lines*": address(self.lines), "tail_lines*": address(self.tail_lines)}

    def _tail(self, p: Packing, *shape: int) -> Array:
        return aligned((*p.lead, *shape), np.uint8, p.shift).view(p.dtype)


def _reaches(b: Array, axis: int, count: int) -> bool:
    """Whether elements along the axis are neighbours, and those of the other one lie a fixed, sufficient way further."""
    other = -3 - axis
    return (count == 1 or b.strides[axis] == 1) and (b.shape[other] == 1 or b.strides[other] >= count)


def offsets(array: Array) -> Ints:
    """Bytes from the array's start to each of its matrices, in order."""
    found = np.zeros((), np.int64)
    for count, step in zip(array.shape[:-2], array.strides, strict=False):
        found = found[..., None] + np.arange(count) * step
    return found.reshape(-1)


def as_int8(codes: Array, zero: Array | None) -> tuple[Array, bool]:
    """Constant codes [K, N] as int8: less their zero point, if that is known and fits; else uint8 ones 128 less."""
    if zero is not None:
        centred = codes.astype(np.int16) - zero.astype(np.int16)
        if centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127:
            return centred.astype(np.int8), True
    return (codes ^ np.uint8(128)).view(np.int8) if codes.dtype == np.uint8 else codes, False
