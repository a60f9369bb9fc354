"""Dynamic quantization of float32 arrays: their range, and codes for a scale that it gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.native._range import CODES, LEAST, RANGE
from qrun.native.calls import Batch, Buffer, Call, Rooms
from qrun.native.engine import Engine, address
from qrun.native.fold import aligned
from qrun.native.planned import share
from qrun.native.section import struct
from qrun.native.spec import KernelSpec

Array = np.ndarray[Any, Any]
_FLOAT = np.dtype(np.float32)
_BLOCK = 64
_CODES = [CODES.index(name) for name in ("x*", "parameters*", "y*")]


class Codes:
    """Quantizes arrays of `count` float32 elements to uint8. May be used by several threads at once."""

    def __init__(self, engine: Engine, count: int) -> None:
        self.engine, self.count = engine, count
        self._words = tiles(engine, count)
        self.specs = tuple(KernelSpec(kind, engine.isa.name, 1, 4, 1, kind, out, False)
                           for kind, out in (("range", "f32"), ("codes", "u8")))  # fmt: skip
        self._kernels = tuple(engine.kernels.get(spec) for spec in self.specs)
        self._rooms = Rooms(self._room)

    def _room(self) -> tuple[Batch, Array, Batch]:
        count = self._words["tiles"]
        found = aligned((count, 4), np.float32, 0)
        ranges = struct(RANGE, {**self._words, "x*": 0}, {"found*": found})
        codes = struct(CODES, {**dict.fromkeys(CODES, 0), **self._words}, {})
        calls = (Call(kernel, words, count) for kernel, words in zip(self._kernels, (ranges, codes), strict=True))
        first, second = (Batch(self.engine, [call]) for call in calls)
        return first, found, second

    def _check(self, x: Array) -> None:
        if x.size != self.count or x.dtype != _FLOAT or not x.flags.c_contiguous:
            raise ValueError(f"not {self.count} contiguous float32 values")

    def range(self, x: Array) -> tuple[np.float32, np.float32] | None:
        """The least and the greatest of 0 and all elements; None if one is infinite or NaN. x: C order."""
        self._check(x)
        room = self._rooms.take()
        batch, found, _ = room
        batch.renew()
        batch.move(0, address(x))
        batch.execute(x)
        if len(found) == 1:
            least, most, nothing, _ = found[0]
        else:
            least, most, nothing = found[:, 0].min(initial=0), found[:, 1].max(initial=0), found[:, 2].sum()
        self._rooms.give(room)
        return None if nothing else (least, most)

    def codes(self, x: Array, scale: Array, zero_point: Array, y: Buffer) -> None:
        """y = saturate(RNE(fl32(x / scale)) + zero_point), uint8, NaN giving 0. x, y: C order; parameters of rank 0."""
        self._check(x)
        if y.array.nbytes < self.count or scale.dtype != _FLOAT:
            raise ValueError("not room for the codes, or not a float32 scale")
        room = self._rooms.take()
        batch = room[2]
        batch.renew()
        parameters = _with_inverse(scale, zero_point)
        for word, value in zip(_CODES, (address(x), address(parameters), y.start), strict=True):
            batch.move(word, value)
        batch.execute(x, y, parameters)
        self._rooms.give(room)


def tiles(engine: Engine, count: int) -> dict[str, int]:
    """How `count` elements, at least one, are shared: words of the kernels."""
    chunk = share(-(-count // _BLOCK), 4 * _BLOCK, engine.threads) * _BLOCK
    return {"count": count, "chunk": chunk, "tiles": -(-count // chunk)}


def _with_inverse(scale: Array, zero_point: Array) -> Array:
    """What kernels read: the scale, 1 / scale, NaN where one of them has not full precision, and int32 zero point."""
    size = abs(float(scale))
    made = np.array([scale, np.nan, 0], np.float32)
    if LEAST <= size <= 1 / LEAST:
        made[1] = np.float32(1) / scale
    made.view(np.int32)[2] = zero_point
    return made
