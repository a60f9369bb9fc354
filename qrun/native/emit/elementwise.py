"""Generated elementwise kernels: functions of functions of operands, element by element, in one pass over memory."""

from __future__ import annotations

from qrun.native.emit.expression import operand_names
from qrun.native.emit.functions import UNDECIDED, StepsEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter
from qrun.native.emit.spec import OUTER
from qrun.native.emit.strided import StridedEmitter

_OWN = ("n1", "n2", "chunks", "chunk", "units", "share", "tiles", "columns", "last", "strides*", "constants*")
"""One 8-byte word each. n1 to tiles: as in emit/strided.py.

columns, last  elements of a row, and where its last block starts: it overlaps
strides        int64 [operands][OUTER]: bytes along the outer axes
constants      float32: those of all steps
"""


@emitter("elementwise")
class ElementwiseEmitter(StridedEmitter):
    """`rows` elements at once; the last block of a row overlaps the one before.
    form: the steps; operands: the kinds of what is read."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.operands = operand_names(len(spec.operands))
        self.names = (*(f"{name}*" for name in self.operands), *_OWN)
        super().__init__(spec, isa)
        self.steps = StepsEmitter(spec.form, spec.operands, spec.rows, self.a.constants)

    def stride(self, name: str, axis: int) -> Value:
        word = self.operands.index(name) * OUTER + axis
        return (self.a.strides + 8 * word).load("i64", 8)

    def _chunk(self, first: Value, end: Value) -> None:
        w, a, steps = self.w, self.a, self.steps
        kinds = list(enumerate(self.spec.operands))
        same = {number: steps.same(number, self.starts[f"x{number}"]) for number, kind in kinds if kind.isupper()}
        with w.loop(first, end.least(a.columns), self.spec.rows) as turn:
            place = turn.index.least(a.last)
            values = [
                same[number] if kind.isupper() else steps.loaded(number, self.starts[f"x{number}"], place)
                for number, kind in kinds
            ]
            for number in range(steps.read, steps.last + 1):
                given = [values[value] for value in steps.step(number).values]
                if unclear := UNDECIDED.get(steps.step(number).function):
                    with w.when(unclear(given).any()):
                        w.undecided()
                values.append(steps.made(number, given))
            made = values[-1].zext("i8") if values[-1].element == "i1" else values[-1]
            size = {"float": 4, "double": 8}.get(made.element) or int(made.element[1:]) // 8
            (self.starts["y"] + place * size).store(made, size)
