"""Generated running sums and products along an axis."""

from __future__ import annotations

from qrun.native.emit.expression import KINDS
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names

NAMES = names("x* y* outer blocks last first step steps units chunk tiles")
"""One 8-byte word each.

outer         bytes from one place along the axes before to the next
blocks, last  blocks of neighbours along the axes behind, and the place of the last one's first element: it overlaps
first, step   bytes to the first element that is added, and from one to the next
steps         how many are added
units, chunk  blocks of all places before, and those of a tile
"""


@emitter("running")
class RunningEmitter(KernelEmitter):
    """`rows` neighbours at once. operands: the kind of the elements; float32 is added in float64, and each result rounded.

    form: ``sum`` or ``product``, with ``_before`` where an element is not part of its own result.
    """

    names = NAMES
    frozen = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        self.what, _, self.before = spec.form.partition("_")
        self.wide = "double" if spec.operands == "f" else self.element

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        kind = f"<{self.spec.rows} x {self.wide}>"
        with w.part(tile, a.chunk, a.units) as unit:
            outer, block = divmod(unit, a.blocks)
            place = outer * a.outer + (block * self.spec.rows).least(a.last) * self.size + a.first
            y = a.y + place
            if self.before:
                self._store(w.value(kind, int(self.what == "product")), y)
                y = y + a.step
            # What is joined with the first element leaves it as it is: -0 keeps a -0.
            start = w.value(kind, 1 if self.what == "product" else -0.0 if self.wide == "double" else 0)
            with w.loop(0, a.steps, 1, [a.x + place, y, start]) as turn:
                x, y, total = turn.carried
                total = self._joined(total, x.load(f"<{self.spec.rows} x {self.element}>", self.size))
                self._store(total, y)
                turn.next(x + a.step, y + a.step, total)

    def _joined(self, total: Value, x: Value) -> Value:
        x = x.double() if x.element == "float" else x
        return total * x if self.what == "product" else total + x

    def _store(self, made: Value, y: Value) -> None:
        y.store(made.single() if self.element == "float" else made, self.size)
