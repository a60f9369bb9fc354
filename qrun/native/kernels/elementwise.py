"""Planned elementwise functions of float32, integers and bool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.elementwise import CLOSE, KINDS, LOGICAL, OPERANDS, OWN, TYPES
from qrun.native.emit.sizes import OUTER
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.strided import outer_names
from qrun.native.errors import Declined
from qrun.native.kernels.copy import OperandStrides
from qrun.native.kernels.strided import Loop, merged, outer_words
from qrun.native.machine.call import KernelCall, Recheck, struct
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Order, Planned, size
from qrun.shapes import broadcast_shapes

Array = np.ndarray[Any, Any]
_FLOAT = np.dtype(np.float32)
_KINDS = {
    np.dtype(dtype): kind
    for dtype, kind in {
        np.float32: "f", np.int8: "b", np.int32: "i", np.int64: "l", np.uint8: "u", np.bool_: "t",
    }.items()
}  # fmt: skip
_BITS = {1: "b", 2: "h", 4: "i", 8: "l"}
"""The kinds of elements that are only moved, by their bytes."""
_CHUNK = 1 << 12
"""Elements of a row that a thread does at once."""


class Elementwise(Planned):
    """y = function(x...) for one to three operands that broadcast to y's shape.

    function:  one of emit/elementwise.py's, whose TYPES says what it takes besides float32. The result is bool for those
               of LOGICAL, float32 for ``cast``, else of the last operand's type.
    constants: its p and q, as float32.
    reference: makes float32 of float32, of two axes: what results are where float64 does not decide how they round.
               Functions that need it are within 2**-47 of it, relative to their size, before rounding.

    Raises Declined for operands that broadcast along too many axes, and for types that the function does not take.
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
        self.kinds = _kinds(function, [operand.dtype for operand in operands])
        made = np.dtype(np.bool_) if function in LOGICAL else _FLOAT if function == "cast" else operands[-1].dtype
        self.operands = (*operands, Operand(shape, made))
        self._bits = np.zeros(2, _FLOAT)
        self._bits[: len(constants)] = constants
        self._recheck = Recheck(reference) if reference and function in CLOSE else None
        if self._recheck is None and function in CLOSE:
            raise ValueError(f"{function} needs its reference")
        either = all(_lies_alike(operand.shape, shape) for operand in operands)
        self.order: Order = order or ("any" if either else "plain")
        for way in ("plain", "channels") if self.order == "any" else (self.order,):
            self._loops(way, (0,) * len(self.operands))

    @property
    def limits(self) -> tuple[int, int]:
        """The bits of its constants."""
        p, q = self._bits.view(np.int32).tolist()
        return p, q

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
        sources = "".join(kind if step else kind.upper() for kind, step in zip(self.kinds, row.steps[:-1], strict=True))
        sizes = [*(KINDS[kind][1] for kind in self.kinds), self.result.dtype.itemsize]
        assert all(step in (0, own) for step, own in zip(row.steps, sizes, strict=True))
        isa, threads = self.engine.isa, self.engine.threads
        rows = isa.lanes if row.count >= isa.lanes else 1
        spec = KernelSpec(
            "elementwise", isa.name, rows, 1, 1, self.function, self.result.dtype.name, False, operands=sources
        )
        names = OPERANDS[len(sources)]
        chunk = min(_CHUNK, row.count) if threads > 1 else row.count
        words = {
            **outer_words(names, outer, (-(-row.count // chunk), chunk), max(sizes) * chunk, threads),
            **{f"{name}*": 0 for name in names},
            "columns": row.count, "last": row.count - rows,
            **dict(zip(("p!", "q!"), self.limits, strict=True)),
            "recheck*": self._recheck.address if self._recheck else 0,
        }  # fmt: skip
        loops = (*outer, row)
        extents = tuple(
            sizes[n] + sum((loop.count - 1) * loop.steps[n] for loop in loops) for n in range(len(self.operands))
        )
        pointers = tuple((place, place) for place in range(len(names)))
        arguments = struct((*outer_names(names), *OWN), words, {})
        return (
            KernelCall(spec, self.engine.kernels.get(spec), arguments, pointers, extents, words["tiles"],
                    decides=self._recheck is None, recheck=self._recheck),
        )  # fmt: skip


def _kinds(function: str, types: Sequence[np.dtype[Any]]) -> str:
    """The operands' kinds. Raises Declined for types that the function does not take."""
    if function == "where":
        if types[0] != np.bool_ or types[1] != types[2] or types[1].hasobject or types[1].itemsize not in _BITS:
            raise Declined(f"no native choice of {types[1].name}")
        return "t" + 2 * _BITS[types[1].itemsize]
    kinds = "".join(_KINDS.get(dtype, "?") for dtype in types)
    if len(set(kinds)) > 1 or kinds[0] not in TYPES.get(function, "f"):
        raise Declined(f"no native kernel for {types[0].name}")
    return kinds


def _lies_alike(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an operand's elements lie as its own shape says in either order of the result."""
    return len(shape) == len(whole) or sum(n != 1 for n in shape) <= 1
