"""Planned dynamic quantization: ranges of tiles, what they say of the parameters, and codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.ranges import CODES, LEAST, PARAMETERS, RANGE
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.batch import Batch, BatchCall, Buffer, BufferPool
from qrun.native.machine.call import KernelCall, struct
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import address, aligned
from qrun.native.machine.operation import Operand, Order, Planned, share, size

Array = np.ndarray[Any, Any]
_FLOAT = np.dtype(np.float32)
_BLOCK = 64
_CODES = [CODES.index(name) for name in ("x*", "parameters*", "y*")]


class DynamicQuantizer:
    """Quantizes arrays of `count` float32 elements to uint8. May be used by several threads at once."""

    def __init__(self, engine: Engine, count: int) -> None:
        self.engine, self.count = engine, count
        self._words = tiles(engine, count)
        self.specs = tuple(KernelSpec(kind, engine.isa.name, 1, 4, 1, kind, out, False)
                           for kind, out in (("range", "f32"), ("codes", "u8")))  # fmt: skip
        self._kernels = tuple(engine.kernels.get(spec) for spec in self.specs)
        self._rooms = BufferPool(self._room)

    def _room(self) -> tuple[Batch, Array, Batch]:
        count = self._words["tiles"]
        found = aligned((count, 4), np.float32, 0)
        ranges = struct(RANGE, {**self._words, "x*": 0}, {"found*": found})
        codes = struct(CODES, {**dict.fromkeys(CODES, 0), **self._words}, {})
        calls = (BatchCall(kernel, words, count) for kernel, words in zip(self._kernels, (ranges, codes), strict=True))
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


_FLOAT = np.dtype(np.float32)
RESULTS = {
    "scale": Operand((), _FLOAT), "zero": Operand((), np.dtype(np.uint8)), "parameters": Operand((3,), np.dtype(np.int32)),
}  # fmt: skip
"""What Parameters makes, by its form."""


class _Step(Planned):
    """One kernel over whole operands, whose words that point to them are `places`."""

    order: Order = "plain"
    names: tuple[str, ...]
    places: tuple[str, ...]
    decides = True

    def __init__(self, engine: Engine, operands: Sequence[Operand], spec: KernelSpec, words: Mapping[str, int]) -> None:
        super().__init__()
        self.engine, self.operands, self.spec, self.words = engine, tuple(operands), spec, dict(words)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        words = {**dict.fromkeys(self.places, 0), **self.words}
        return (
            KernelCall(
                self.spec, self.engine.kernels.get(self.spec), struct(self.names, words, {}),
                tuple((self.names.index(name), place) for place, name in enumerate(self.places)),
                tuple(size(o.shape) * o.dtype.itemsize for o in self.operands), words["tiles"], decides=self.decides,
            ),
        )  # fmt: skip


class _Elements(_Step):
    """One that goes over all elements, in whatever order they lie."""

    order: Order = "any"
    gaps = False

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        if any(strides):
            raise ValueError("elements without gaps")
        return super()._plan(strides)


class Range(_Elements):
    """float32 x, not empty, to float32 [tiles, 4]: what a tile's range is (emit/ranges.py)."""

    names, places = RANGE, ("x*", "found*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        words = tiles(engine, size(shape))
        spec = KernelSpec("range", engine.isa.name, 1, 4, 1, "range", "f32", False)
        super().__init__(
            engine, (Operand(tuple(shape), _FLOAT, tight=True), Operand((words["tiles"], 4), _FLOAT)), spec, words
        )


class Parameters(_Step):
    """Such ranges to the scale, the zero point, or both for Quantized: RESULTS[form]. Undecided if one is not finite."""

    names, places = PARAMETERS, ("found*", "y*")
    decides = False

    def __init__(self, engine: Engine, ranges: Operand, form: str) -> None:
        spec = KernelSpec("parameters", engine.isa.name, 1, 1, 1, form, "f32", False)
        super().__init__(engine, (ranges, RESULTS[form]), spec, {"ranges": ranges.shape[0], "tiles": 1})


class Quantized(_Elements):
    """float32 x, not empty, and its parameters to uint8 codes."""

    names, places = CODES, ("x*", "parameters*", "y*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        x = Operand(tuple(shape), _FLOAT, tight=True)
        spec = KernelSpec("codes", engine.isa.name, 1, 4, 1, "codes", "u8", False)
        operands = x, RESULTS["parameters"], Operand(x.shape, np.dtype(np.uint8))
        super().__init__(engine, operands, spec, tiles(engine, size(shape)))
