"""Planned dynamic quantization: ranges of tiles, what they say of the parameters, and codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Order, Planned, share, size

Array = np.ndarray[Any, Any]
_FLOAT = np.dtype(np.float32)
_BLOCK = 64


RESULTS = {
    "scale": Operand((), _FLOAT),
    "zero": Operand((), np.dtype(np.uint8)),
    "parameters": Operand((3,), np.dtype(np.int32)),
}
"""What Parameters makes, by its form."""


class _Step(Planned):
    """One kernel over whole operands, whose words that point to them are `places`."""

    order: Order = "plain"
    places: tuple[str, ...]
    decides = True

    def __init__(self, engine: Engine, operands: Sequence[Operand], spec: KernelSpec, words: Mapping[str, int]) -> None:
        super().__init__()
        self.engine, self.operands, self.spec, self.words = engine, tuple(operands), spec, dict(words)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        extents = [size(o.shape) * o.dtype.itemsize for o in self.operands]
        return (self.engine.kernels.call(self.spec, self.places, self.words, extents, decides=self.decides),)


def _tiles(engine: Engine, count: int) -> dict[str, int]:
    """How `count` elements, at least one, are shared: words of the kernels."""
    chunk = share(-(-count // _BLOCK), 4 * _BLOCK, engine.threads) * _BLOCK
    return {"count": count, "chunk": chunk, "tiles": -(-count // chunk)}


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

    places = ("x*", "found*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        words = _tiles(engine, size(shape))
        spec = KernelSpec("range", engine.isa.name, 1, 4, 1, "range", "f32", False)
        super().__init__(
            engine, (Operand(tuple(shape), _FLOAT, tight=True), Operand((words["tiles"], 4), _FLOAT)), spec, words
        )


class Parameters(_Step):
    """Such ranges to the scale, the zero point, or both for Quantized: RESULTS[form]. Undecided if one is not finite."""

    places = ("found*", "y*")
    decides = False

    def __init__(self, engine: Engine, ranges: Operand, form: str) -> None:
        spec = KernelSpec("parameters", engine.isa.name, 1, 1, 1, form, "f32", False)
        super().__init__(engine, (ranges, RESULTS[form]), spec, {"ranges": ranges.shape[0], "tiles": 1})


class Quantized(_Elements):
    """float32 x, not empty, and its parameters to uint8 codes."""

    places = ("x*", "parameters*", "y*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        x = Operand(tuple(shape), _FLOAT, tight=True)
        spec = KernelSpec("codes", engine.isa.name, 1, 4, 1, "codes", "u8", False)
        operands = x, RESULTS["parameters"], Operand(x.shape, np.dtype(np.uint8))
        super().__init__(engine, operands, spec, _tiles(engine, size(shape)))
