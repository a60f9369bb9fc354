"""Generated kernels over float32 rows. The base class reads or computes the rows, and sums over them. Normalizations in
float64 follow: of rows and of channels by mean and deviation (layer, group), by the root mean square (RMS), by the
squares of neighbouring channels (LRN), and by constants (batch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import add

from qrun.native.emit.expression import KINDS, operand_names
from qrun.native.emit.functions import StepsEmitter
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.spec import OUTER
from qrun.native.emit.widen import first_lanes, fold_lanes

_SOURCE = ("n1", "n2", "strides*", "constants*")
ROWS = ("y*", "rows", "chunk", "tiles", "length")
"""The argument words, 8 bytes each.

n1, n2     for rows that a form computes: lengths of the second and third of the outer axes
strides    int64 [operands][OUTER]: the operands' strides in bytes along the outer axes
constants  of the form, as in emit/functions.py
chunk      rows of a tile; length: elements of a row
"""

Term = Callable[[Value, "Value | None"], Value]
"""Maps (index, on) to PARTS numbers of a row, from this index on. on: mask of the lanes that count, None for all."""
Part = tuple[Value, Value]
"""The first index of a part of a row, and its end."""
PARTS = 16
"""Partial sums of a row: element i belongs to sum number i modulo PARTS (numerics.md, F40)."""

STANDARDIZE = (*ROWS, "numbers*", "scale*", "bias*")
"""The argument words, 8 bytes each.

numbers      float64: epsilon, and the length
scale, bias  float64 [length]
"""
EPSILON, LENGTH = 0, 8

LRN = names("x* y* x_row y_row rows chunk channels last before after taps tiles factor* bias*")
"""The argument words, 8 bytes each.

chunk             rows of a tile
channels, last    channels of a row, and where its last block starts: it overlaps
before, after     channels summed on either side; taps: before + 1 + after
factor, bias      float64: multiplies the sum of squares, and is added to it
"""


class RowwiseEmitter(KernelEmitter):
    """Base of kernels that work on one row after another, PARTS elements at once.

    Without operands, rows are read in place. With operands, each row is first computed from them into the thread's
    memory, by the steps in the form. `vectors` rows are processed together.
    """

    own: tuple[str, ...] = ROWS
    own_memory = True
    frozen = True
    reduces = False
    """Whether a row has a single result."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.operands = operand_names(len(spec.operands))[:-1] or ("x",)
        self.names = (*(f"{name}*" for name in self.operands), *(_SOURCE if spec.operands else ()), *self.own)
        super().__init__(spec, isa)
        self.made = self.w.value("i64", 1) if self.reduces else self.a.length
        self.steps = (
            [StepsEmitter(spec.form, spec.operands, n, self.a.constants) for n in (isa.lanes, 1)]
            if spec.operands
            else []
        )

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        most = self.spec.vectors
        for row, count in w.runs(*tile.part(a.chunk, a.rows), (most, 1) if most > 1 else (1,)):
            numbers = [row + number for number in range(count)]
            xs = [
                self._source(number, position) if self.steps else a.x + number * a.length * 4
                for position, number in enumerate(numbers)
            ]
            self.make_rows(xs, [a.y + number * self.made * 4 for number in numbers])

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        """Write the code for several rows. xs, ys: the addresses of their inputs and results."""
        for x, y in zip(xs, ys, strict=True):
            self.make_row(x, y)

    def make_row(self, x: Value, y: Value) -> None:
        """Write the code for the row at x; its result goes to y."""
        raise NotImplementedError

    def _source(self, row: Value, slot: int) -> Value:
        """Compute a row from its operands. Returns its address. slot: its index among rows processed together."""
        w, a, lanes = self.w, self.a, self.isa.lanes
        made, (rest, i2) = self.scratch + a.length * (4 * slot), divmod(row, a.n2)
        starts = [a[name] for name in self.operands]
        for axis, index in enumerate((*divmod(rest, a.n1), i2)):
            for number, start in enumerate(starts):
                starts[number] = start + index * (a.strides + 8 * (number * OUTER + axis)).load("i64", 8)
        kinds = list(enumerate(self.spec.operands))
        same = [{n: steps.same(n, starts[n]) for n, kind in kinds if kind.isupper()} for steps in self.steps]
        for at, count in w.runs(0, a.length, (lanes, 1)):
            steps = self.steps[count != lanes]
            for n, kind in (
                kinds if count > 1 and self.spec.prefetch else ()
            ):  # the addresses belong to later rows, or prefetching them is harmless
                if not kind.isupper():
                    w.prefetch(starts[n] + (at + a.length * self.spec.vectors) * KINDS[kind][1])
            values = [
                same[count != lanes][n] if kind.isupper() else steps.load_operand(n, starts[n], at) for n, kind in kinds
            ]
            for number in range(steps.read, steps.last + 1):
                values.append(steps.emit_step(number, [values[value] for value in steps.step(number).values]))
            (made + at * 4).store(values[-1], 4)
        return made

    def single(self, start: Value, index: Value, on: Value | None, lanes: int = PARTS) -> Value:
        """Load numbers of a float32 row, from this index on; 0 in the lanes that are off."""
        address, kind = start + index * 4, f"<{lanes} x float>"
        return address.load(kind, 4) if on is None else address.masked_load(kind, on, 4)

    def load_double(self, start: Value, index: Value, on: Value | None) -> Value:
        """Load a vector of elements as float64."""
        return self.single(start, index, on).double()

    def wide(self, start: Value, index: Value, on: Value | None) -> Value:
        """Load numbers of a float64 row."""
        address, kind = start + index * 8, f"<{PARTS} x double>"
        return address.load(kind, 8) if on is None else address.masked_load(kind, on, 8)

    def sum(self, term: Term) -> Value:
        """The sum of all terms in the order of F1."""
        return self._join_terms(term, self.w.zero(f"<{PARTS} x double>"), add)

    def extreme(self, x: Value, worst: float, better: Callable[[Value, Value], Value]) -> Value:
        """The best element of the row at x, float; `better` chooses between the best so far and a later one."""
        first = self.w.value(f"<{2 * PARTS} x float>", worst)
        return self._join_terms(lambda at, on: self.single(x, at, on, first.lanes), first, better)

    def _join_terms(self, term: Term, first: Value, join: Callable[[Value, Value], Value]) -> Value:
        """Join `first` with all terms: within each lane, then the halves of the lanes, and the halves of those."""
        w, end, lanes = self.w, self.a.length, first.lanes
        with w.loop(0, end - (lanes - 1), lanes, [first]) as turn:
            turn.next(join(turn.carried[0], term(turn.index, None)))
        with w.loop(turn.index, end, lanes, turn.carried) as rest:
            on = first_lanes(end - rest.index, lanes)
            rest.next(join(rest.carried[0], on.select(term(rest.index, on), first)))
        return fold_lanes(rest.carried[0], join)

    def store_row(self, y: Value, result: Term, part: Part | None = None) -> None:
        """Store the results of a row, or of a part of it. result: computes them as float32 or float64."""
        for index, on in self.vectors(part):
            made = result(index, on)
            narrows = made.element == "double" or self.w.narrowing
            self.store(made.single() if narrows else made, y, index, on)

    def store(self, made: Value, start: Value, index: Value, on: Value | None) -> None:
        """Store a vector of float32; only the lanes of `on` if given."""
        address = start + index * 4
        if on is None:
            address.store(made, 4)
        else:
            address.masked_store(made, on)

    def vectors(self, part: Part | None = None) -> Iterator[tuple[Value, Value | None]]:
        """Write the body for each PARTS elements of a row, or of a part. Yields the first index and the mask."""
        w, (first, end) = self.w, part or (self.w.value("i64", 0), self.a.length)
        with w.loop(first, end - (PARTS - 1), PARTS) as turn:
            yield turn.index, None
        with w.loop(turn.index, end, PARTS) as rest:
            yield rest.index, first_lanes(end - rest.index, PARTS)


def inverse_deviation(rows: RowwiseEmitter, x: Value, mean: Value | None = None) -> Value:
    """1 / sqrt(mean of the squares + epsilon) of the row at x. mean: subtracted from the elements first, if given."""

    def squared(index: Value, on: Value | None) -> Value:
        value = rows.load_double(x, index, on) if mean is None else rows.load_double(x, index, on) - mean
        return value * value

    length, epsilon = ((rows.a.numbers + position).load("double", 8) for position in (LENGTH, EPSILON))
    return "1.0" / (rows.sum(squared) / length + epsilon).sqrt()


@emitter("standardize")
class LayerNormEmitter(RowwiseEmitter):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""

    own: tuple[str, ...] = STANDARDIZE

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        """Interleave several rows: while one waits for its mean or its deviation, the others go on."""
        length = (self.a.numbers + LENGTH).load("double", 8)
        means = [(self._total(x) / length).splat(PARTS) for x in xs]
        inverses = [inverse_deviation(self, x, mean).splat(PARTS) for x, mean in zip(xs, means, strict=True)]
        for row in zip(xs, means, inverses, ys, strict=True):
            self._scale(*row)

    def _total(self, x: Value) -> Value:
        """The sum of a row in float64."""
        return self.sum(lambda index, on: self.load_double(x, index, on))

    def _scale(self, x: Value, mean: Value, inverse: Value, y: Value) -> None:
        """Store (x - mean) * inverse * scale + bias of a row, with a scale for each element."""

        def result(index: Value, on: Value | None) -> Value:
            scale, bias = (self.wide(start, index, on) for start in (self.a.scale, self.a.bias))
            return (self.load_double(x, index, on) - mean) * inverse * scale + bias

        self.store_row(y, result)


CHANNELS = (*STANDARDIZE, "groups", "channels", "piece")
"""The words of layer normalization, where scale and bias are float64 [groups][channels], and

groups    rows after which scale and bias repeat
channels  channels of a row; each has `piece` elements
"""


@emitter("standardize_channels")
class ChannelNormEmitter(LayerNormEmitter):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with one scale and bias per channel."""

    own = CHANNELS

    def _scale(self, x: Value, mean: Value, inverse: Value, y: Value) -> None:
        """Store (x - mean) * inverse * scale + bias of a row, with a scale for each channel."""
        w, a = self.w, self.a
        first = (y.address() - a.y.address()) // (a.length * 4) % a.groups * a.channels
        with w.loop(0, a.channels, 1) as channel:
            position, begin = (first + channel.index) * 8, channel.index * a.piece
            scale, bias = ((values + position).load("double", 8).splat(PARTS) for values in (a.scale, a.bias))

            def result(index: Value, on: Value | None) -> Value:
                return (self.load_double(x, index, on) - mean) * inverse * scale + bias

            self.store_row(y, result, (begin, begin + a.piece))


RMS = (*ROWS, "numbers*", "scale*")
"""As for layer normalization."""


@emitter("rms")
class RmsNormEmitter(RowwiseEmitter):
    """x / sqrt(mean of the squares + epsilon) * scale."""

    own = RMS

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        """Interleave several rows: while one waits for its inverse, the others go on."""
        inverses = [inverse_deviation(self, x).splat(PARTS) for x in xs]
        for x, inverse, y in zip(xs, inverses, ys, strict=True):

            def result(index: Value, on: Value | None, x: Value = x, inverse: Value = inverse) -> Value:
                return self.load_double(x, index, on) * inverse * self.wide(self.a.scale, index, on)

            self.store_row(y, result)


@emitter("inverse_rms")
class InverseRmsEmitter(RowwiseEmitter):
    """1 / sqrt(mean of the squares + epsilon)."""

    own = (*ROWS, "numbers*")
    reduces = True

    def make_row(self, x: Value, y: Value) -> None:
        """Store one over the root mean square of a row."""
        y.store(inverse_deviation(self, x).splat(1).single(), 4)


@emitter("lrn")
class LrnEmitter(KernelEmitter):
    """Local response normalization, `rows` channels at once. The thread's memory has a row's squares between zeros."""

    names = LRN
    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.n, self.kind = spec.rows, f"<{spec.rows} x double>"
        self.factor, self.bias = (start.load("double", 8).splat(self.n) for start in (self.a.factor, self.a.bias))
        self.squares = self.scratch + self.a.before * 8

    def write_tile(self, tile: Value) -> None:
        w, a, squares = self.w, self.a, self.squares
        for start, count in ((self.scratch, a.before), (squares + a.channels * 8, a.after)):
            with w.loop(0, count, 1) as at:
                (start + at.index * 8).store(w.value("double", "0.0"), 8)
        with w.part(tile, a.chunk, a.rows) as row:
            x, y = a.x + row * a.x_row, a.y + row * a.y_row
            with w.loop(0, a.channels, self.n) as at:
                channel = at.index.least(a.last)
                value = self._numbers(x, channel)
                square = value * value
                (squares + channel * 8).store(square, 8)
            with w.loop(0, a.channels, self.n) as at:
                self._divide(x, y, at.index.least(a.last))

    def _numbers(self, x: Value, channel: Value) -> Value:
        """Load a vector of pixels of a channel as float64."""
        return (x + channel * 4).load(f"<{self.n} x float>", 4).double()

    def _divide(self, x: Value, y: Value, channel: Value) -> None:
        """x / (bias + factor * sum)**0.75. The power is computed as the square root times its own square root."""
        start = self.scratch + channel * 8
        with self.w.loop(1, self.a.taps, 1, [start.load(self.kind, 8)]) as tap:
            square = (start + tap.index * 8).load(self.kind, 8)
            tap.next(tap.carried[0] + square)
        root = (self.bias + self.factor * tap.carried[0]).sqrt()
        power = root * root.sqrt()
        result = (self._numbers(x, channel) / power).single()
        (y + channel * 4).store(result, 4)


BATCH_NORM = names("x* y* x_row y_row rows chunk channels last tiles mean* factor* bias*")
"""The argument words, 8 bytes each.

chunk             rows of a tile
channels, last    channels of a row, and where its last block starts: it overlaps the one before
mean, factor, bias  float64 [channels]
"""


@emitter("batch_norm")
class BatchNormEmitter(KernelEmitter):
    """(x - mean) * factor + bias, each step rounded to float64, the last to float32; `rows` channels at once."""

    names = BATCH_NORM

    def write_tile(self, tile: Value) -> None:
        w, a, n = self.w, self.a, self.spec.rows
        with w.part(tile, a.chunk, a.rows) as row, w.loop(0, a.channels, n) as at:
            channel = at.index.least(a.last)
            mean, factor, bias = (
                (start + channel * 8).load(f"<{n} x double>", 8) for start in (a.mean, a.factor, a.bias)
            )
            x = (a.x + row * a.x_row + channel * 4).load(f"<{n} x float>", 4).double()
            made = (x - mean) * factor + bias
            (a.y + row * a.y_row + channel * 4).store(made.single(), 4)
