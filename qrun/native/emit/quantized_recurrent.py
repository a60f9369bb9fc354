"""Generated kernels of recurrent operators with int8 products (DynamicQuantizeLSTM): H is quantized before each step.

All sequences share the scale and zero point of H in a step. The sum of codes times both scales, plus the gate's
contribution from the inputs, is rounded once: where float64 does not decide it, it is rounded to odd first.

Without an instruction that adds products of four bytes, codes are multiplied in halves of four bits. Their products
with weights are at most 15 * 128 in size, so 16 of them are added in a 16-bit lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from qrun.native.emit.dot import Bytes4, activations, dot, int16s, int32s, neighbours, pairs, weights
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.numbers import round_once, scaled_sum
from qrun.native.emit.quantize import parameters_of
from qrun.native.emit.recurrent import GATES, WalkEmitter
from qrun.native.emit.spec import MAGIC_BITS
from qrun.native.emit.values import MAGIC32
from qrun.native.emit.widen import first_lanes, fold_lanes

NAMES = names("""
    weights* column_sums* scales* addend* y* initial_h* initial_c* lengths* walk*
    sums_at sum_units addend_row rows columns row_block depth vectors tiles
""")
"""As in `WalkEmitter`, and

weights  int8 [directions][gates][vectors][depth][lanes][4]: four k of each column, zeros beyond the last
column_sums  int32 [directions][gates][vectors * lanes]: the sum of each column's weights; scales: float32, likewise
sums_at  bytes from the start of the results to the sums of the gates [directions][gates][rows][sum_units]
depth    groups of four k, a multiple of UNROLL
"""
UNROLL = 8
"""Groups of four k per iteration; the sum of their products with halves of codes fits in 16 bits."""


@emitter("quantized_recurrent")
class QuantizedRecurrentEmitter(WalkEmitter):
    """rows: the most rows that are multiplied at a time. operands: as for WalkEmitter.
    The thread's memory has the codes of H, [rows][depth][four_bytes].

    shapes: by the number of rows: how many vectors of columns have their sums in registers at a time.
    """

    names = NAMES
    own_memory = True
    four_bytes = 4
    shapes: Mapping[int, tuple[int, ...]] = {1: (8, 4, 2, 1), 2: (4, 2, 1), 4: (2, 1)}

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.floats, self.gates = f"<{isa.lanes} x float>", GATES[self.cell]
        self.blocks = tuple(rows for rows in sorted(self.shapes, reverse=True) if rows <= spec.rows)

    def step(self, direction: Value, number: Value, walk: Value) -> None:
        """Write one step of the recurrence: quantize the state, multiply it, apply the gates."""
        w = self.w
        scale, zero = self._quantize_state(self.state_at(walk, 0, 0, w.value("i64", 0)))
        for row, rows in w.runs(self.first, self.first + self.count, self.blocks):
            with w.loop(0, self.gates, 1) as gate:
                self._products(direction * self.gates + gate.index, walk, row, rows, gate.index, scale, zero)
        with w.loop(self.first, self.first + self.count, 1) as each, self.own_vectors() as unit:
            sums = [self._sums_at(direction * self.gates + n, each.index) for n in range(self.gates)]
            self.make(walk, [(each.index, unit)], [[(start + unit * 4).load(self.units, 4) for start in sums]])

    def _quantize_state(self, h: Value) -> tuple[Value, Value]:
        """Quantize the tile's part of H into the thread's memory. Returns the scale (float64) and the zero point (i32,
        shifted as `Isa.shift` shifts activations)."""
        w, a, lanes = self.w, self.a, self.isa.lanes
        zeros = [w.zero(self.floats)] * 3
        with w.loop(0, a.rows * a.columns, lanes, zeros) as turn:
            x = (h + turn.index * 4).masked_load(self.floats, self._mask(a.rows * a.columns, turn.index), 4)
            least, most, odd = turn.carried
            turn.next(x.where("olt", least), x.where("ogt", most), odd + (x - x))
        least, most, odd = turn.carried
        bottom = fold_lanes(least, lambda a, b: a.where("olt", b))
        top = fold_lanes(most, lambda a, b: a.where("ogt", b))
        with w.when(odd.test("uno", odd).any()):
            w.mark_undecided()
        scale, zero = parameters_of(bottom, top)
        shift = self.isa.shift(False)
        low, high = ((end - zero).sitofp("float").splat(lanes) for end in (0, 255))
        with w.loop(self.first, self.first + self.count, 1) as row, w.loop(0, a.columns, lanes) as unit:
            mask = self._mask(a.columns, unit.index)
            x = (h + row.index * a.columns * 4 + unit.index * 4).masked_load(self.floats, mask, 4)
            raised = (x / scale.splat(lanes)).within(low, high) + MAGIC32
            code = raised.bitcast("i32") + (zero + (shift - MAGIC_BITS)).splat(lanes)
            self.keep_codes(row.index * a.depth * self.four_bytes, unit.index, code)
        return scale.double(), zero + shift

    def keep_codes(self, row: Value, unit: Value, codes: Value) -> None:
        """Store a vector of a row's codes, from this unit on. Codes beyond the last unit are multiplied by weights of
        0, or overwritten by the next row's."""
        (self.scratch + row + unit).store(codes.trunc("i8"), 1)

    def _mask(self, count: Value, first: Value) -> Value:
        """The lanes of a vector of units that exist."""
        return first_lanes(count - first, self.isa.lanes)

    def _products(
        self, matrix: Value, walk: Value, first_row: Value, rows: int, gate: Value, scale: Value, zero: Value
    ) -> None:
        """Store a gate's sums for some sequences as float32, with the inputs' contribution added."""
        w, a, lanes = self.w, self.a, self.isa.lanes
        codes, kind = self.scratch + first_row * a.depth * self.four_bytes, int32s(self.isa)
        starts = [
            (self.inputs_at(walk, first_row + row) + gate * a.columns * 4, self._sums_at(matrix, first_row + row))
            for row in range(rows)
        ]
        opening, closing = self.own_units[0] // lanes, (self.own_units[1] + (lanes - 1)) // lanes
        for first, count in w.runs(opening, closing, self.shapes[rows]):
            position = matrix * a.vectors + first
            made = self.sums(codes, a.weights + position * a.depth * (4 * lanes), rows, count)
            for number in range(count):
                column = (position + number) * (4 * lanes)
                less = (a.column_sums + column).load(kind, 4) * zero.splat(lanes)
                factor = (a.scales + column).load(self.floats, 4).double() * scale.splat(lanes)
                totals = made[number * rows : (number + 1) * rows]
                self._scale_sums((first + number) * lanes, starts, [total - less for total in totals], factor)

    def _sums_at(self, matrix: Value, row: Value) -> Value:
        """The address of a gate's sums for one sequence. matrix: the gate's number, counted over all directions."""
        return self.a.y + self.a.sums_at + (matrix * self.a.rows + row) * self.a.sum_units * 4

    def sums(self, codes: Value, source: Value, rows: int, count: int) -> Sequence[Value]:
        """The sums of products, [count][rows]. codes, source: the addresses of the first row's codes, and of the
        weights of the first vector of columns."""
        w, depth = self.w, self.a.depth
        with w.loop(0, depth, UNROLL, [w.zero(int32s(self.isa))] * (count * rows)) as k:
            made = list(k.carried)
            lefts, rights = self.places(codes, k.index, rows), self.vectors(source, k.index, count)
            for turn in range(UNROLL):
                left = [self.load_left(start, turn) for start in lefts]
                for number, start in enumerate(rights):
                    right = weights(self.isa, self.four_weights(start, turn))
                    for row, x in enumerate(left):
                        made[number * rows + row] = dot(self.isa, made[number * rows + row], x, right)
            k.next(*made)
        return k.carried

    def places(self, codes: Value, four: Value, rows: int) -> list[Value]:
        """The address of four codes of each row. four: the number of the group of four k."""
        return [codes + (self.a.depth * row + four) * self.four_bytes for row in range(rows)]

    def vectors(self, source: Value, four: Value, count: int) -> list[Value]:
        """The address of four weights of each column, for `count` vectors of columns."""
        return [source + (self.a.depth * number + four) * (4 * self.isa.lanes) for number in range(count)]

    def load_left(self, start: Value, turn: int) -> Bytes4:
        """A row's four codes in the form that `dot` takes. turn: the number of the four in the iteration."""
        return activations(self.isa, self.four_codes(start, turn, 0))

    def four_codes(self, start: Value, turn: int, part: int) -> Value:
        """Four codes in all lanes; where they are stored in several parts, one part."""
        return (start + (turn * self.four_bytes + 4 * part)).load("i32", 4).splat(self.isa.lanes)

    def four_weights(self, start: Value, turn: int) -> Value:
        """Load a vector of groups of four weights."""
        return (start + turn * (4 * self.isa.lanes)).load(int32s(self.isa), 4)

    def _scale_sums(
        self, unit: Value, starts: Sequence[tuple[Value, Value]], totals: Sequence[Value], factor: Value
    ) -> None:
        """Store a vector of units: sums times their factor, plus the inputs' contribution. starts: the addresses of
        that contribution and of the results, which have room for whole vectors."""
        mask, doubtful, terms = self._mask(self.a.columns, unit), [], []
        for total, (inputs, sums) in zip(totals, starts, strict=True):
            added = (inputs + unit * 4).masked_load(self.floats, mask, 4).double()
            number, target = total.sitofp("double"), sums + unit * 4
            made, unsure = scaled_sum(number, factor, added)
            target.store(made, 4)
            doubtful.append(unsure)
            terms.append((number, added, target))
        with self.w.when(reduce(or_, doubtful).any()):
            for number, added, target in terms:
                bits = round_once(number, factor, self.w.zero(factor.kind), added)
                target.store(bits.bitcast("float"), 4)


@emitter("wide_recurrent")
class WideRecurrentEmitter(QuantizedRecurrentEmitter):
    """The variant for products of 16 bits: four codes of H are stored as int16, the even k, then the odd k."""

    four_bytes = 8

    def keep_codes(self, row: Value, unit: Value, codes: Value) -> None:
        """Store the codes of the state as int16, in the order in which products read them."""
        order = [first + n for first in range(0, codes.lanes, 4) for n in (0, 2, 1, 3)]
        (self.scratch + row + unit * 2).store(codes.trunc("i16").shuffle(order), 1)

    def load_left(self, start: Value, turn: int) -> Bytes4:
        """Load four codes of the state as two vectors of int16 pairs."""
        return tuple(self.four_codes(start, turn, part).bitcast(int16s(self.isa)) for part in range(2))


@emitter("nibble_recurrent")
class NibbleRecurrentEmitter(QuantizedRecurrentEmitter):
    """The variant for halves of codes: four codes of H are stored as four bytes with their lower halves, then four with
    the upper ones."""

    four_bytes = 8
    shapes: Mapping[int, tuple[int, ...]] = {1: (4, 2, 1)}

    def keep_codes(self, row: Value, unit: Value, codes: Value) -> None:
        """Store the codes of the state as two halves of 4 bits, in the order in which products read them."""
        low, high = ((part & 15).trunc("i8") for part in (codes, codes.lshr(4)))
        fours = [range(first, first + 4) for first in range(0, codes.lanes, 4)]
        order = [n + half for four in fours for half in (0, codes.lanes) for n in four]
        (self.scratch + row + unit * 2).store(low.shuffle(order, high), 1)

    def sums(self, codes: Value, source: Value, rows: int, count: int) -> Sequence[Value]:
        """The int32 sums of products of state and weights: low and high halves apart, then joined."""
        with self.w.loop(0, self.a.depth, UNROLL, [self.w.zero(int32s(self.isa))] * (count * rows)) as k:
            lefts, rights = self.places(codes, k.index, rows), self.vectors(source, k.index, count)
            made = [*self._multiply(lefts, rights, 0)]
            for turn in range(1, UNROLL):
                made = [total + more for total, more in zip(made, self._multiply(lefts, rights, turn), strict=True)]
            k.next(
                *(
                    total + pairs(low, low.like(1)) + pairs(high, high.like(16))
                    for total, low, high in zip(k.carried, made[::2], made[1::2], strict=True)
                )
            )
        return k.carried

    def _multiply(self, lefts: Sequence[Value], rights: Sequence[Value], turn: int) -> Iterator[Value]:
        """Yield the products of one group of four k, added in 16 bits: [count][rows][halves]."""
        halves = [self.four_codes(start, turn, half) for start in lefts for half in range(2)]
        for start in rights:
            right = self.four_weights(start, turn)
            yield from (neighbours(left, right) for left in halves)
