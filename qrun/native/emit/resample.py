"""Generated resampling along two neighbouring axes: sums of elements times weights in float64, rounded once."""

from __future__ import annotations

from qrun.native.emit.expression import KINDS
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter
from qrun.native.emit.spec import LIMITS, names
from qrun.native.emit.strided import StridedEmitter, outer_names
from qrun.native.emit.values import MAGIC64

NAMES = (
    *outer_names(("x", "y")),
    *names("line_at* line_weights* lines at* weights* pitch length count columns x_row y_row"),
)
"""The argument words, 8 bytes each. The third outer axis is the first resampled axis.

line_at, line_weights  int64 and float64 [taps][lines]: for each index of that axis, the offsets in x that it reads, in
                       bytes, and the weights
at, weights            int64 and float64 [taps][count]: the same for the second axis, in bytes of the thread's memory
pitch                  elements from one index of the second axis to the next, in the thread's memory
length, count          lengths of the second axis in x and in y; for ``neighbours`` length is 1
columns                elements that stay side by side
x_row, y_row           bytes from one index of the second axis to the next
"""
_MADE = {"f64": 8, "u8": 1, "s8": 1}


@emitter("resample")
class ResampleEmitter(StridedEmitter):
    """Computes `rows` elements at once, with `vectors` taps of the first axis and `unroll` of the second. operands: the
    kind of x. form: ``columns``: elements behind the second axis stay side by side; ``neighbours``: the second axis is
    the innermost one, and a row of it is read as columns; ``+cut``: integers are truncated, not rounded.
    The sums along the first axis are stored in the thread's memory; the sums along the second axis read them there.
    """

    names = NAMES
    frozen = True
    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        self.made = _MADE.get(spec.out, 4)
        self.row = self.w.value("i64", 0)

    def offset(self, name: str, axis: int, index: Value) -> Value:
        """The byte offset of an operand for an index of an outer axis; axis 2 picks the output row."""
        if axis < 2:
            return super().offset(name, axis, index)
        self.row = index
        return self.w.value("i64", 0) if name == "x" else super().offset(name, axis, index)

    def _chunk(self, first: Value, end: Value) -> None:
        """Write the columns `first` to `end` of an output row: the lines' weighted sums, then the columns'."""
        w, a = self.w, self.a
        end = end.least(a.columns)
        steps = [(a.lines * position + self.row) * 8 for position in range(self.spec.vectors)]
        lines = [self.starts["x"] + (a.line_at + step).load("i64", 8) for step in steps]
        weights = [(a.line_weights + step).load("double", 8) for step in steps]
        with w.loop(0, a.length, 1) as turn:
            own = self.scratch + turn.index * (a.pitch * 8)
            sources = [line + turn.index * a.x_row + first * self.size for line in lines]
            for at, n in w.runs(0, end - first, (self.spec.rows, 1)):
                terms = [
                    self._load(n, source + at * self.size) * weight.splat(n)
                    for source, weight in zip(sources, weights, strict=True)
                ]
                (own + at * 8).store(_sum(terms), 8)
        if self.spec.form.startswith("neighbours"):
            self._neighbours()
        else:
            self._columns(first, end)

    def _columns(self, first: Value, end: Value) -> None:
        """Write the weighted sums of columns, with all channels side by side."""
        w, a = self.w, self.a
        with w.loop(0, a.count, 1) as turn:
            steps = [(a.count * position + turn.index) * 8 for position in range(self.spec.unroll)]
            sources = [self.scratch + (a.at + step).load("i64", 8) for step in steps]
            weights = [(a.weights + step).load("double", 8) for step in steps]
            y = self.starts["y"] + turn.index * a.y_row + first * self.made
            for at, n in w.runs(0, end - first, (self.spec.rows, 1)):
                terms = [
                    (source + at * 8).load(f"<{n} x double>", 8) * weight.splat(n)
                    for source, weight in zip(sources, weights, strict=True)
                ]
                self._store(_sum(terms), y + at * self.made)

    def _neighbours(self) -> None:
        """Write the weighted sums of columns, gathered element by element."""
        w, a = self.w, self.a
        for at, n in w.runs(0, a.count, (self.spec.rows, 1)):
            terms = []
            for position in range(self.spec.unroll):
                step = (a.count * position + at) * 8
                sums = self._gather((a.at + step).load(f"<{n} x i64>", 8))
                terms.append(sums * (a.weights + step).load(f"<{n} x double>", 8))
            self._store(_sum(terms), self.starts["y"] + at * self.made)

    def _gather(self, places: Value) -> Value:
        """Load a float64 into each lane from the thread's memory. places: the byte offset of each lane."""
        n, w = places.lanes, self.w
        if n == 1:
            return (self.scratch + places.extract(0)).load("<1 x double>", 8)
        kind = f"<{n} x double>"
        where = w.let(f"<{n} x ptr>", f"getelementptr i8, ptr {self.scratch}, {places.kind} {places}")
        on = w.value("i1", "true").splat(n)
        return w.call(kind, f"llvm.masked.gather.v{n}f64.v{n}p0", where, ("i32", "8"), on, (kind, "poison"))

    def _load(self, n: int, x: Value) -> Value:
        """Load `n` elements as float64."""
        value = x.load(f"<{n} x {self.element}>", self.size)
        if self.element == "i8":
            return value.extend("i32", self.spec.operands == "b").sitofp("double")
        return value.double() if self.element == "float" else value

    def _store(self, value: Value, y: Value) -> None:
        """Store float64 values in the output's type: rounded or truncated, and saturated, for integers."""
        out = self.spec.out
        if out == "f64":
            y.store(value, 8)
        elif out in LIMITS:
            low, high = LIMITS[out]
            value = value.within(float(low), float(high))
            whole = value.fptosi("i32") if self.spec.form.endswith("+cut") else (value + MAGIC64).bitcast("i64")
            y.store(whole.trunc("i8"), 1)
        else:
            y.store(value.single(), 4)


def _sum(terms: list[Value]) -> Value:
    """The sum of the terms in order, plus 0, which turns -0 into 0 just as a sum that begins with 0 would."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total + 0.0
