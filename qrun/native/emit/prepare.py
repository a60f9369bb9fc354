"""Generated preparation of a product whose weights are constant, but whose zero point comes with the run.

sum (x - zero) * w = sum x * w - zero * sum w: what the sums start from, the row that stands for padding, and the constants
of the float32 operations that follow.
"""

from __future__ import annotations

from qrun.native.emit.kernel import KernelEmitter, emitter
from qrun.native.emit.spec import SOURCES, TAIL, constant_bytes
from qrun.native.emit.values import Value, every

PREPARE = (
    "zero*", "first*", "sums*", "places*", "starts*", "padding*", "constants*", "fill", "tiles", "low!", "high!", *SOURCES,
)  # fmt: skip
"""One 8-byte word each. A tile is a panel of `vectors` vectors of channels, whose order is the product's own.

zero         the 8-bit zero point
first, sums, places  int32 [tiles][width]: what the sums start from for a zero point of 0, the sum of the weights, the
             channel, by lane
starts       int32 [tiles][width]: first - zero * sums
padding      `fill` bytes, a multiple of 64, of the zero point
constants    float32 [tiles][fields][width], as the form's steps want them
low, high    the limits of a step c; the operands of m and a are the sources: one number (operands ``s``) or one for each
             channel (``v``)
"""
_PIECE = 64


@emitter("prepare")
class PrepareEmitter(KernelEmitter):
    names = PREPARE

    def tile(self, tile: Value) -> None:
        w, a, n, form = self.w, self.a, self.isa.lanes, self.spec.form
        code, width = a.zero.load("i8"), self.spec.vectors * n
        zero = code.extended("i32", self.spec.signed).splat(n)
        constants = a.constants + tile * (constant_bytes(form) * width)
        for vector in range(self.spec.vectors):
            place = tile * (4 * width) + 4 * n * vector
            first, sums = ((start + place).load(zero.kind, 4) for start in (a.first, a.sums))
            (a.starts + place).store(first - zero * sums, 4)
            if constant_bytes(form):
                channels = (a.places + place).load(zero.kind, 4)
                for field, value in enumerate(self._fields(channels)):
                    (constants + (field * width + vector * n) * 4).store(value, 4)
        with w.when(tile.test("eq", 0)), w.loop(0, a.fill, _PIECE) as piece:
            (a.padding + piece.index).store(code.splat(_PIECE))

    def _fields(self, channels: Value) -> list[Value]:
        """The bits of the constants of a vector of channels: one vector for each field of the form."""
        on = self.w.value(channels.typed("i1"), every("i1", "true", self.isa.lanes))
        found, sources = [], iter(zip(SOURCES, self.spec.operands, strict=False))
        for step in self.spec.form[len(TAIL) :]:
            if step in "ma":
                name, kind = next(sources)
                source = self.a[name.rstrip("*")]
                one = kind == "s"
                found.append(source.load("i32").splat(self.isa.lanes) if one else source.gather("i32", channels, on, 4))
            elif step == "c":
                found += [self.a[name].splat(self.isa.lanes) for name in ("low", "high")]
        return found
