"""Planned steps on parameters that come with the run: ranges of tiles and what they say of a tensor's scale and zero
point, its codes; and the scales that integer sums are multiplied with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import FACTOR_BYTES
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, Order, share, size
from qrun.native.machine.memory import aligned_copy
from qrun.native.machine.operation import row_tiles

_FLOAT, _INT32 = np.dtype(np.float32), np.dtype(np.int32)
_BLOCK = 64


RESULTS = {
    "scale": Operand((), _FLOAT),
    "zero": Operand((), np.dtype(np.uint8)),
    "parameters": Operand((3,), np.dtype(np.int32)),
}
"""What Parameters makes, by its form."""


class _Step(Operation):
    """One kernel call over whole operands. places: the words that point to the operands, in order."""

    places: tuple[str, ...]
    decides = True

    def __init__(self, engine: Engine, operands: Sequence[Operand], spec: KernelSpec, words: Mapping[str, int]) -> None:
        self.engine, self.operands, self.spec, self.words = engine, tuple(operands), spec, dict(words)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return (self.engine.kernels.call(self.spec, self.places, self.words, self.whole, decides=self.decides),)


def _tiles(engine: Engine, count: int) -> dict[str, int]:
    """How `count` elements, at least one, are shared: words of the kernels."""
    chunk = share(-(-count // _BLOCK), 4 * _BLOCK, engine.threads) * _BLOCK
    return {"count": count, "chunk": chunk, "tiles": -(-count // chunk)}


class _Elements(_Step):
    """A step over all elements of its operands, in any order in memory."""

    order: Order = "any"
    gaps = False


class Range(_Elements):
    """float32 x, not empty, to float32 [tiles, 4]: what a tile's range is (emit/dynamic.py)."""

    places = ("x*", "found*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        words = _tiles(engine, size(shape))
        spec = KernelSpec("range", engine.isa.name, 1, 4, 1, "range", "f32", False)
        super().__init__(
            engine, (Operand(tuple(shape), _FLOAT, tight=True), Operand((words["tiles"], 4), _FLOAT)), spec, words
        )


class Parameters(_Step):
    """Such ranges to the scale, the zero point, or both for Quantized: RESULTS[form].
    Undecided if one is not finite."""

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


@frozen
class Scaling:
    """sums * left * right * slope + bias for sums of `columns` columns, at most `most` large.

    left, right, bias: float32 arrays that are constant, or operands that come with the run. left has one element, right
    one or one for each column, as bias, which may be missing.
    form: ``real`` rounds the real value once; ``ort`` rounds each float32 step.
    """

    columns: int
    form: str
    left: Array | Operand
    right: Array | Operand
    bias: Array | Operand | None = None
    most: int = 1 << 31
    slope: float | None = None

    def given(self) -> list[tuple[str, Operand]]:
        """The operands that come with the run, each with the word of the kernel that points to it."""
        return [(word, value) for word, value in self._sources() if isinstance(value, Operand)]

    def constants(self) -> dict[str, Array]:
        """The constant arrays, by the word that points to them."""
        made = {}
        for word, value in self._sources():
            if isinstance(value, np.ndarray):
                made[word] = aligned_copy(value.reshape(-1), _FLOAT)
        return made

    def _sources(self) -> tuple[tuple[str, Array | Operand | None], ...]:
        return ("left*", self.left), ("right*", self.right), ("bias*", self.bias)

    @property
    def operands(self) -> str:
        """The field `operands` of the kernel's specification (emit/dynamic.py)."""
        each = "s" if size(self.right.shape) == 1 else "v"
        return each + "b" * (self.bias is not None) + "m" * (self.slope is not None)


class Factors(Operation):
    """The operands of a Scaling that come with the run, to the multipliers and the bias that Scaled reads."""

    def __init__(self, engine: Engine, scaling: Scaling) -> None:
        self.engine, self.scaling = engine, scaling
        self.panels = -(-scaling.columns // engine.isa.lanes)
        nbytes = self.panels * engine.isa.lanes * FACTOR_BYTES[scaling.form]
        operands = [operand for _, operand in scaling.given()]
        self.operands = (*operands, Operand((nbytes,), np.dtype(np.uint8)))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        scaling, arrays = self.scaling, self.scaling.constants()
        spec = KernelSpec(
            "factors", self.engine.isa.name, 1, 1, 1, scaling.form, "f32", False, operands=scaling.operands
        )
        slope = np.array(1 if scaling.slope is None else scaling.slope, np.float32)
        words = {"columns": scaling.columns, "panels": self.panels, "tiles": 1}
        words |= {"most!": scaling.most, "slope!": int(slope.view(np.int32))}
        names = [*(name for name, _ in scaling.given()), "y*"]
        return (self.engine.kernels.call(spec, names, words, self.whole, arrays=arrays, sparse=True),)


class Scaled(Operation):
    """int32 sums [..., columns] and what Factors made to float32 of the shape `y_shape`, of as many elements."""

    def __init__(self, factors: Factors, sums: Sequence[int], y_shape: Sequence[int]) -> None:
        self.factors = factors
        self.operands = (Operand(tuple(sums), _INT32), factors.result, Operand(tuple(y_shape), _FLOAT))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        engine, columns, panels = self.factors.engine, self.factors.scaling.columns, self.factors.panels
        count, lanes = size(self.operands[0].shape), engine.isa.lanes
        scaling = self.factors.scaling
        sloped = "m" if scaling.slope is not None else ""
        spec = KernelSpec("scale", engine.isa.name, 1, 1, 1, scaling.form, "f32", False, operands=sloped)
        words = row_tiles(count // columns, 8 * columns, engine.threads)
        words |= {"panels": panels, "acc_row": 4 * columns, "y_row": 4 * columns}
        words["mask"] = (1 << (columns - 1) % lanes + 1) - 1
        read = 4 * (count + panels * lanes - columns)
        extents = read, self.factors.result.shape[0], 4 * count
        return (engine.kernels.call(spec, ("acc*", "factors*", "y*"), words, extents, sparse=True),)
