"""Planned elementwise functions that give float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.elementwise import CLOSE, OPERANDS, OWN, SOURCES
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.strided import OUTER, outer_names
from qrun.native.errors import Declined
from qrun.native.kernels.copy import OperandStrides
from qrun.native.kernels.strided import Loop, merged, outer_words
from qrun.native.machine.call import KernelCall, Recheck, struct
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Order, Planned, size
from qrun.shapes import broadcast_shapes

Array = np.ndarray[Any, Any]
_FLOAT = np.dtype(np.float32)
_KINDS = {_FLOAT: "v", np.dtype(np.int32): "i", np.dtype(np.uint8): "u", np.dtype(np.int8): "b"}
_CHUNK = 1 << 12
"""Elements of a row that a thread does at once."""


class Elementwise(Planned):
    """y = function(x...), float32, for one or two operands that broadcast to y's shape.

    function:  one of emit/elementwise.py's; ``cast`` takes int32, uint8 or int8 as well.
    constants: its p and q, as float32.
    reference: makes float32 of float32, of two axes: what results are where float64 does not decide how they round.
               Functions that need it are within 2**-47 of it, relative to their size, before rounding.

    Raises Declined for operands that broadcast along too many axes.
    """

    def __init__(
        self,
        engine: Engine,
        function: str,
        operands: Sequence[Operand],
        constants: Sequence[float] = (),
        reference: Callable[[Array], Array] | None = None,
        order: Order | None = None,
    ) -> None:
        super().__init__()
        shape = broadcast_shapes(*(operand.shape for operand in operands))
        self.engine, self.function = engine, function
        self.operands = (*operands, Operand(shape, _FLOAT))
        if any(operand.dtype != _FLOAT and function != "cast" for operand in operands):
            raise Declined("operands that are not float32")
        self._bits = np.zeros(2, _FLOAT)
        self._bits[: len(constants)] = constants
        self._recheck = Recheck(reference) if reference and function in CLOSE else None
        if self._recheck is None and function in CLOSE:
            raise ValueError(f"{function} needs its reference")
        either = all(_lies_alike(operand.shape, shape) for operand in operands)
        self.order: Order = order or ("any" if either else "plain")
        for way in ("plain", "channels") if self.order == "any" else (self.order,):
            self._loops(way, (0,) * len(self.operands))

    def lying(self, order: Order) -> Elementwise:
        reference = self._recheck.function if self._recheck else None
        return Elementwise(self.engine, self.function, self.operands[:-1], self._bits.tolist(), reference, order)

    def _loops(self, order: Order, strides: Sequence[int]) -> list[Loop]:
        """Outermost first, at most four; the last one walks elements that are neighbours in the result."""
        shape = self.result.shape
        steps = []
        for operand, stride in zip(self.operands, strides, strict=True):
            own = OperandStrides.of(operand, order, stride).steps[: len(operand.shape)]
            wide = [0 if n == 1 else step for n, step in zip(operand.shape, own, strict=True)]
            steps.append([0] * (len(shape) - len(wide)) + wide)
        loops = merged(Loop(n, tuple(s[axis] for s in steps)) for axis, n in enumerate(shape))
        loops = loops or [Loop(1, tuple(operand.dtype.itemsize for operand in self.operands))]
        if len(loops) > OUTER + 1:
            raise Declined("operands that broadcast along too many axes")
        return loops

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        if not size(self.result.shape):
            return ()
        *outer, row = self._loops(self.order, strides)
        sources = "".join(
            _KINDS[operand.dtype] if step else "s" for operand, step in zip(self.operands[:-1], row.steps, strict=False)
        )
        kinds = [*(SOURCES[kind][1] for kind in sources), 4]
        assert all(step in (0, own) for step, own in zip(row.steps, kinds, strict=True))
        isa, threads = self.engine.isa, self.engine.threads
        rows = isa.lanes if row.count >= isa.lanes else 1
        spec = KernelSpec("elementwise", isa.name, rows, 1, 1, self.function, "f32", False, operands=sources)
        names = OPERANDS[len(sources)]
        chunk = min(_CHUNK, row.count) if threads > 1 else row.count
        words = {
            **outer_words(names, outer, (-(-row.count // chunk), chunk), 4 * chunk, threads),
            **{f"{name}*": 0 for name in names},
            "columns": row.count, "last": row.count - rows,
            **dict(zip(("p!", "q!"), self._bits.view(np.int32).tolist(), strict=True)),
            "recheck*": self._recheck.address if self._recheck else 0,
        }  # fmt: skip
        loops = (*outer, row)
        extents = tuple(
            kinds[n] + sum((loop.count - 1) * loop.steps[n] for loop in loops) for n in range(len(self.operands))
        )
        pointers = tuple((place, place) for place in range(len(names)))
        arguments = struct((*outer_names(names), *OWN), words, {})
        return (
            KernelCall(spec, self.engine.kernels.get(spec), arguments, pointers, extents, words["tiles"],
                    decides=self._recheck is None, recheck=self._recheck),
        )  # fmt: skip


def _lies_alike(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an operand's elements lie as its own shape says in either order of the result."""
    return len(shape) == len(whole) or sum(n != 1 for n in shape) <= 1
