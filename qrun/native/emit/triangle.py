"""Generated triangles of matrices: zeros on one side of a diagonal."""

from __future__ import annotations

from qrun.native.emit.kernel import KernelEmitter, Value, emitter, names

NAMES = names("x* y* rows chunk tiles lines columns diagonal")
"""One 8-byte word each.

rows, chunk     rows of all matrices, and those of a tile
lines, columns  rows of a matrix, and elements of a row
diagonal        where in a matrix' first row the elements behind the diagonal begin; in each row one later
"""


@emitter("triangle")
class TriangleEmitter(KernelEmitter):
    """Elements of `unroll` bytes, `rows` of them at once. form: ``upper`` keeps what is behind the diagonal, ``lower`` what is
    before it."""

    names = NAMES
    frozen = True

    def tile(self, tile: Value) -> None:
        w, a, size = self.w, self.a, self.spec.unroll
        upper = self.spec.form == "upper"
        with w.part(tile, a.chunk, a.rows) as row:
            x, y = (start + row * a.columns * size for start in (a.x, a.y))
            split = (row % a.lines + a.diagonal).intrinsic("smax", 0).least(a.columns)
            for first, end, kept in ((w.value("i64", 0), split, not upper), (split, a.columns, upper)):
                for at, n in w.runs(first, end, (self.spec.rows, 1)):
                    kind = f"<{n} x i{8 * size}>"
                    (y + at * size).store((x + at * size).load(kind, size) if kept else w.zero(kind), size)
