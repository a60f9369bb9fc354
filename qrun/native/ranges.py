"""Planned dynamic quantization: ranges of tiles, what they say of the parameters, and codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.native._range import CODES, PARAMETERS, RANGE
from qrun.native.codes import tiles
from qrun.native.engine import Engine
from qrun.native.operation import Operand, Order, size
from qrun.native.planned import Planned
from qrun.native.section import Section, struct
from qrun.native.spec import KernelSpec

Array = np.ndarray[Any, Any]
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

    def _plan(self, strides: Sequence[int]) -> tuple[Section, ...]:
        words = {**dict.fromkeys(self.places, 0), **self.words}
        return (
            Section(
                self.spec, self.engine.kernels.get(self.spec), struct(self.names, words, {}),
                tuple((self.names.index(name), place) for place, name in enumerate(self.places)),
                tuple(size(o.shape) * o.dtype.itemsize for o in self.operands), words["tiles"], decides=self.decides,
            ),
        )  # fmt: skip


class Range(_Step):
    """float32 x, not empty, to float32 [tiles, 4]: what a tile's range is (_range.py)."""

    names, places = RANGE, ("x*", "found*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        words = tiles(engine, size(shape))
        spec = KernelSpec("range", engine.isa.name, 1, 4, 1, "range", "f32", False)
        super().__init__(engine, (Operand(tuple(shape), _FLOAT), Operand((words["tiles"], 4), _FLOAT)), spec, words)


class Parameters(_Step):
    """Such ranges to the scale, the zero point, or both for Quantized: RESULTS[form]. Undecided if one is not finite."""

    names, places = PARAMETERS, ("found*", "y*")
    decides = False

    def __init__(self, engine: Engine, ranges: Operand, form: str) -> None:
        spec = KernelSpec("parameters", engine.isa.name, 1, 1, 1, form, "f32", False)
        super().__init__(engine, (ranges, RESULTS[form]), spec, {"ranges": ranges.shape[0], "tiles": 1})


class Quantized(_Step):
    """float32 x, not empty, and its parameters to uint8 codes."""

    names, places = CODES, ("x*", "parameters*", "y*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        x = Operand(tuple(shape), _FLOAT)
        spec = KernelSpec("codes", engine.isa.name, 1, 4, 1, "codes", "u8", False)
        operands = x, RESULTS["parameters"], Operand(x.shape, np.dtype(np.uint8))
        super().__init__(engine, operands, spec, tiles(engine, size(shape)))
