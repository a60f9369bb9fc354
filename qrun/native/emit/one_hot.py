"""Generated OneHot: rows of one value, with another one where an index says."""

from __future__ import annotations

from qrun.native.emit.expression import KINDS
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names

NAMES = names("x* y* rows chunk tiles inner depth least on off")
"""One 8-byte word each.

rows, chunk  rows of the result, each of `depth` times `inner` elements, and those of a tile
inner        indices of a row
least        the least index that exists; those below 0 count from the end
on, off      the two values' bits
"""


@emitter("one_hot")
class OneHotEmitter(KernelEmitter):
    """Elements of `unroll` bytes, `rows` of them at once; operands: the kind of the indices."""

    names = NAMES
    frozen = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        kind = f"i{8 * spec.unroll}"
        self.on, self.off = (value if kind == "i64" else value.trunc(kind) for value in (self.a.on, self.a.off))

    def tile(self, tile: Value) -> None:
        w, a, spec = self.w, self.a, self.spec
        total = a.depth * a.inner
        with w.part(tile, a.chunk, a.rows) as row:
            y = a.y + row * total * spec.unroll
            for at, n in w.runs(0, total, (spec.rows, 1)):
                (y + at * spec.unroll).store(self.off.splat(n), spec.unroll)
            with w.loop(0, a.inner, 1) as turn:
                index = self._index((row * a.inner + turn.index) * self.size)
                place = index + index.test("slt", 0).select(a.depth, 0)
                with w.when(index.test("sge", a.least) & index.test("slt", a.depth)):
                    (y + (place * a.inner + turn.index) * spec.unroll).store(self.on, spec.unroll)

    def _index(self, offset: Value) -> Value:
        value = (self.a.x + offset).load(self.element, self.size)
        return value if self.element == "i64" else value.extended("i64", self.spec.operands != "u")
