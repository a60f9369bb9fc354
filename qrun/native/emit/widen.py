"""Generated conversion of float32 rows to float64, with sums of squares: as a kernel, or as part of a product.

The kernel's result has, behind the channels of each pixel, the sum of squares of each group of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from qrun.native.emit.flow import Flow, Turn
from qrun.native.emit.kernel import KernelEmitter, Value, emitter
from qrun.native.emit.values import constants

NAMES = ("x*", "y*", "x_row", "y_row", "rows", "depth", "groups", "squares_at", "chunk", "tiles")
"""The argument words, 8 bytes each.

x_row, y_row  bytes from pixel to pixel; squares_at: from a pixel of y to the sums of its groups of `depth` channels
chunk         pixels of a tile
"""


@emitter("widen")
class WidenEmitter(KernelEmitter):
    names = NAMES

    def write_tile(self, tile: Value) -> None:
        w, a, lanes = self.w, self.a, self.isa.lanes // 2
        zeros = [w.zero(f"<{lanes} x double>")] * 4
        with w.part(tile, a.chunk, a.rows) as row:
            source, target = a.x + row * a.x_row, a.y + row * a.y_row
            with w.loop(0, a.groups, 1) as group:
                first = group.index * a.depth
                squares = widen_numbers(w, lanes, source + first * 4, target + first * 8, a.depth, zeros)
                (target + a.squares_at + group.index * 8).store(fold_lanes(reduce(add, squares)), 8)
            with w.loop(a.squares_at + a.groups * 8, a.y_row, 8) as rest:
                (target + rest.index).store(w.value("double", 0.0), 8)


def widen_numbers(
    w: Flow, lanes: int, source: Value, target: Value, size: Value, squares: Sequence[Value], ahead: Value | None = None
) -> list[Value]:
    """Convert `size` numbers. Returns the four sums of squares, updated. ahead: distance of a prefetch, in bytes."""
    made, done = list(squares), w.value("i64", 0)
    kind = f"<{lanes} x float>"

    def step(turn: Turn, mask: Value | None) -> None:
        sums = []
        for n, square in enumerate(turn.carried):
            position = turn.index + n * lanes
            single = source + position * 4
            if ahead is not None and mask is None and n % (64 // (4 * lanes)) == 0:
                w.prefetch(single + ahead, near=True)
            x = (single.load(kind, 4) if mask is None else single.masked_load(kind, mask, 4)).double()
            if mask is None:
                (target + position * 8).store(x, 8)
            else:
                (target + position * 8).masked_store(x, mask)
            sums.append(x.fma(x, square))
        turn.next(*sums)

    for count in (4, 1):
        with w.loop(done, size - (count * lanes - 1), count * lanes, made[:count]) as turn:
            step(turn, None)
        done, made[:count] = turn.index, turn.carried
    with w.loop(done, size, lanes, made[:1]) as turn:
        step(turn, first_lanes(size - turn.index, lanes))
    return [*turn.carried, *made[1:]]


def first_lanes(count: Value, lanes: int) -> Value:
    """A mask of the first `count` lanes of a vector, or of all if count is greater."""
    count = count.least(lanes).trunc("i32").splat(lanes)
    return count.like(constants("i32", range(lanes))).test("slt", count)


def fold_lanes(vector: Value, joined: Callable[[Value, Value], Value] = add) -> Value:
    """Reduce all lanes to one value: join the halves, then the halves of the result, and so on."""
    lanes = vector.lanes
    while lanes > 1:
        lanes //= 2
        vector = joined(vector.shuffle(range(lanes)), vector.shuffle(range(lanes, 2 * lanes)))
    return vector.extract(0)
