"""Generated walks through trees: as many trees of one row at a time as a vector has lanes, then what their leaves say;
and the classes that win, of linear models too.

Every node goes on where the row's feature is at most its threshold, and else to the node behind that one: planners
write other comparisons so (kernels/forest.py). Leaves lead to themselves, so that all trees of a vector take as many
steps. Votes are added tree by tree.
"""

from __future__ import annotations

from qrun.native.emit.kernel import KernelEmitter, Value, emitter, names
from qrun.native.emit.types import every

NAMES = names("x* y* nodes* roots* depths* first* targets* weights* numbers* x_row y_row groups rows chunk tiles")
"""One 8-byte word each.

nodes    int32 [nodes][NODE]: the bits of the threshold; twice the feature, and 1 more if NaN is at most the threshold;
         the next node
roots    int32 [groups][lanes], of as many trees; depths: int64 [groups], the steps to their leaves
weights  float64: of each node (one), or of votes (votes),
of which a node has those from first (int32 [nodes + 1]) on, for
         these targets (int32)
numbers  float64: what the sum is divided by, and what is then added (one)
x_row, y_row  bytes from row to row; chunk: rows of a tile
"""
NODE = 3


@emitter("forest")
class ForestEmitter(KernelEmitter):
    """`rows` trees at once. form: ``one`` (the result, float32), or ``votes`` (float64 sums of each target)."""

    names = NAMES

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            x, y, zero = a.x + row * a.x_row, a.y + row * a.y_row, w.value("double", 0.0)
            if self.spec.form == "votes":
                with w.loop(0, a.y_row, 8) as target:
                    (y + target.index).store(zero, 8)
            with w.loop(0, a.groups, 1, [zero]) as group:
                total = group.carried[0]
                leaves = self._leaves(x, group.index)
                for lane in range(self.spec.rows):
                    total = self._told(leaves.extract(lane).zext("i64"), y, total)
                group.next(total)
            if self.spec.form == "one":
                divisor, added = (self.a.numbers.load("double", 8), (self.a.numbers + 8).load("double", 8))
                y.store((group.carried[0] / divisor + added).single(), 4)

    def _leaves(self, x: Value, group: Value) -> Value:
        """The leaf of each tree of a group."""
        w, a, lanes = self.w, self.a, self.spec.rows
        kind = f"<{lanes} x i32>"
        on = w.value(f"<{lanes} x i1>", every("i1", "true", lanes))
        start = (a.roots + group * (4 * lanes)).load(kind, 4)
        with w.loop(0, (a.depths + group * 8).load("i64", 8), 1, [start]) as step:
            place = step.carried[0] * NODE
            threshold, feature, following = (a.nodes.gather("i32", place + n, on, 4) for n in range(NODE))
            value = x.gather("i32", feature.lshr(1), on, 4).bitcast("float")
            none = value.test("uno", value) & (feature & 1).test("ne", 0)
            holds = value.test("ole", threshold.bitcast("float")) | none
            step.next(holds.select(following, following + 1))
        return step.carried[0]

    def _told(self, leaf: Value, y: Value, total: Value) -> Value:
        """The total with a leaf's weight; or add its votes to y."""
        w, a = self.w, self.a
        if self.spec.form == "one":
            return total + (a.weights + leaf * 8).load("double", 8)
        first, end = ((a.first + leaf * 4 + n).load("i32", 4).sext("i64") for n in (0, 4))
        with w.loop(first, end, 1) as vote:
            place = y + (a.targets + vote.index * 4).load("i32", 4).sext("i64") * 8
            place.store(place.load("double", 8) + (a.weights + vote.index * 8).load("double", 8), 8)
        return total


WINNERS = names("x* y* base* labels* classes rows chunk tiles")
"""One 8-byte word each.

x        float64 (singles: float32) [rows][classes]: sums of votes, to which those of base, float64 [classes], are added
labels   int64 [classes]
chunk    rows of a tile
"""


@emitter("winners")
class WinnersEmitter(KernelEmitter):
    """form: ``scores`` (float32 [rows][classes]: the sums), or ``labels`` and ``singles`` (int64 [rows]: that of the
    greatest of a row, of equals the first, of which NaN is greater than all numbers)."""

    names = WINNERS

    @property
    def _kind(self) -> tuple[str, int]:
        return ("float", 4) if self.spec.form == "singles" else ("double", 8)

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            x = a.x + row * (a.classes * self._kind[1])
            if self.spec.form == "scores":
                with w.loop(0, a.classes, 1) as turn:
                    (a.y + (row * a.classes + turn.index) * 4).store(self._sum(x, turn.index).single(), 4)
                return
            zero = w.value("i64", 0)
            with w.loop(1, a.classes, 1, [self._sum(x, zero), zero]) as turn:
                best, place = turn.carried
                value = self._sum(x, turn.index)
                better = value.test("ogt", best) | (value.test("uno", value) & best.test("ord", best))
                turn.next(better.select(value, best), better.select(turn.index, place))
            (a.y + row * 8).store((a.labels + turn.carried[1] * 8).load("i64", 8), 8)

    def _sum(self, x: Value, at: Value) -> Value:
        kind, size = self._kind
        value = (x + at * size).load(kind, size)
        return (value.double() if size == 4 else value) + (self.a.base + at * 8).load("double", 8)
