"""What kernels share that walk operands with strides: tiles of units, each an index of three outer axes and a chunk."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native._flow import Kernel
from qrun.native._values import Value
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

OUTER = 3


def outer_names(operands: Sequence[str]) -> tuple[str, ...]:
    """One 8-byte word each.

    NAME*, NAME_0 to NAME_2  of each operand: where it starts, and its strides in bytes along the outer axes
    n1, n2                   lengths of the second and third outer axis
    chunks, chunk            parts of the kernel's first own axis, and its elements in each
    units                    outer indices times chunks; a tile is `share` of them
    """
    strides = (f"{name}_{axis}" for name in operands for axis in range(OUTER))
    return (*(f"{name}*" for name in operands), "n1", "n2", *strides, "chunks", "chunk", "units", "share", "tiles")


class Strided(Kernel):
    """operands: their names in the struct. starts: where each begins, for the unit at work."""

    operands: tuple[str, ...] = ("x", "y")

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.starts: dict[str, Value] = {}

    def tile(self, tile: Value) -> None:
        """Let operands start at the outer index of each unit, and do its chunk."""
        w, a = self.w, self.a
        start, end = tile.part(a.share, a.units)
        rest, chunk = divmod(start, a.chunks)
        rest, i2 = divmod(rest, a.n2)
        i0, i1 = divmod(rest, a.n1)
        with w.loop(start, end, 1, [chunk, i2, i1, i0]) as unit:
            chunk, i2, i1, i0 = unit.carried
            for name in self.operands:
                pointer = a[name]
                for axis, index in enumerate((i0, i1, i2)):
                    pointer = pointer + index * a[f"{name}_{axis}"]
                self.starts[name] = pointer
            first = chunk * a.chunk
            self._chunk(first, first + a.chunk)
            unit.next(*self._following(unit.carried))
        self.end()

    def _chunk(self, first: Value, end: Value) -> None:
        """Do this part of the first own axis; `end` may lie beyond it."""
        raise NotImplementedError

    def end(self) -> None:
        """What is left to do when a tile's units are done."""

    def _following(self, counters: list[Value]) -> list[Value]:
        """Chunk and outer indices of the next unit: one more, with carry from one to the next."""
        carry, following = self.w.value("i64", 1), []
        for counter, length in zip(counters, (self.a.chunks, self.a.n2, self.a.n1), strict=False):
            more = counter + carry
            full = more.test("eq", length)
            following.append(full.select(0, more))
            carry = full.zext("i64")
        return [*following, counters[3] + carry]
