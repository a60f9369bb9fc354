"""The generated epilogue of integer products: it turns int32 sums into results, for every form of emit/spec.py, and
stores them. Also the generated part of its proofs: the bounds of a multiplier's inverse (see proof/search.py).

The float32 operations that follow a sum in a graph (TAIL) are applied one by one, as in the graph.

Saturation is exact because every form computes the rounded value itself, far from the ends of int32.
"""

from __future__ import annotations

import math

from qrun.native.emit.bytes import in_order, packed_bytes, packed_words
from qrun.native.emit.flow import Flow
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, emitter
from qrun.native.emit.spec import BOUND_VECTORS, LIMITS, MAGIC_BITS, TABLE, TAIL, WIDE, constant_bytes
from qrun.native.emit.values import MAGIC32, MAGIC64, ZERO, Value, constants, splat_constant


class Requantizer:
    """Writes the epilogue of one kernel.

    form, out: the form (emit/spec.py), and "u8", "s8", "i32" or "f32".
    vectors:   vectors per row; the last one may be cut by `mask` (lane bits).
    by_lanes:  vector j of 4 holds channels 4j..4j+3 of every 16; no vector is cut.
    full, lanes_on: whether the panel's last vector is whole, as i1; the mask of its lanes that exist.
    """

    def __init__(self, w: Flow, isa: Isa, form: str, out: str, vectors: int, zero_point: Value, mask: Value) -> None:
        self.w, self.isa, self.form, self.out, self.vectors = w, isa, form, out, vectors
        self.zero_point, self.mask, self.by_lanes = zero_point, mask, False
        if form in ("y32", "x32", "ort"):
            self.magic = w.value("float", MAGIC32).splat(isa.lanes)
            self.shift = (zero_point - MAGIC_BITS).splat(isa.lanes)
        elif form == "f64":
            self.magic = w.value("double", MAGIC64).splat(isa.lanes)
            self.shift = zero_point.splat(isa.lanes)

    def set_panel(self, last: Value) -> None:
        """Choose the mask of a panel. last: an i1, true for the last panel."""
        n = self.isa.lanes
        bits = last.select(self.mask, (1 << n) - 1).trunc(f"i{n}")
        self.lanes_on = bits.bitcast(f"<{n} x i1>")
        self.full = bits.test("eq", -1)

    def panel_bytes(self) -> int:
        """The bytes of the constants of one panel of columns."""
        return constant_bytes(self.form) * self.vectors * self.isa.lanes

    def row(self, acc: list[Value], held: Value) -> list[Value]:
        """Requantize a row of sums to int32, before saturation (a table saturates). held: the constants' address."""
        if self.form == "i32":
            return acc
        if self.form.startswith(TAIL):
            held = held.hide()
            return [self._tail(value.sitofp("float"), vector, held) for vector, value in enumerate(acc)]
        step = {"y32": self._y32, "x32": self._x32, "f64": self._f64, "ort": self._ort, "table": self._table}[self.form]
        held = held.hide() if self.form in ("y32", "x32", "ort") else held
        return [step(value, vector, held) for vector, value in enumerate(acc)]

    def _constant(self, held: Value, field: int, vector: int, element: str = "float") -> Value:
        """A constant of one vector of columns."""
        n, size = self.isa.lanes, 8 if element == "double" else 4
        return (held + (field * self.vectors + vector) * n * size).load(f"<{n} x {element}>", min(64, n * 4))

    def _tail(self, value: Value, vector: int, held: Value) -> Value:
        """Apply the steps of a form that begins with TAIL to a value."""
        field = 0
        for step in self.form[len(TAIL) :]:
            if step == "m":
                value = value * self._constant(held, field, vector)
            elif step == "a":
                value = value + self._constant(held, field, vector)
            elif step == "r":
                value = rectify(value)
            else:
                value = clip(value, *(self._constant(held, field + end, vector) for end in (0, 1)))
            field += constant_bytes(TAIL + step) // 4
        return value

    def _from_magic(self, value: Value) -> Value:
        """The codes as int32, from numbers to which the rounding constant was added."""
        return value.bitcast("i32") + self.shift

    def _y32(self, acc: Value, vector: int, held: Value) -> Value:
        """Form y32: the int32 sum read as a float32's bits, two fused multiply-adds."""
        a, b, offset = (self._constant(held, number, vector) for number in range(3))
        return self._from_magic(acc.bitcast("float").fma(a, offset).fma(b, self.magic))

    def _x32(self, acc: Value, vector: int, held: Value) -> Value:
        """Form x32: the sum converted to float32, a product and a fused multiply-add."""
        a, b = (self._constant(held, number, vector) for number in range(2))
        return self._from_magic((acc.sitofp("float") * a).fma(b, self.magic))

    def _f64(self, acc: Value, vector: int, held: Value) -> Value:
        """Form f64: the sum times a multiplier in float64."""
        multiplier = self._constant(held, 0, vector, "double")
        raised = acc.sitofp("double") * multiplier + self.magic
        return raised.bitcast("i64").trunc("i32") + self.shift

    def _ort(self, acc: Value, vector: int, held: Value) -> Value:
        """onnxruntime's form: float32 multiplier, limited before rounding."""
        value = acc.sitofp("float") * self._constant(held, 0, vector)
        for compare, bound in zip(("ogt", "olt"), LIMITS[self.out], strict=True):
            limit = (bound - self.zero_point).sitofp("float")
            value = value.where(compare, limit.splat(self.isa.lanes))
        return self._from_magic(value + self.magic)

    def _table(self, acc: Value, vector: int, held: Value) -> Value:
        """The number of a channel's sorted thresholds that the sum reaches: a binary search of eight steps per lane."""
        w, n = self.w, self.isa.lanes
        lanes = self.vectors * n
        tables = held + vector * n * TABLE * 4
        flip, cap = (
            (held + (lanes * TABLE * 4 + (number * lanes + vector * n) * 4)).load(acc.kind, 4) for number in (0, 1)
        )
        value = acc ^ flip
        on, found = w.value(f"<{n} x i1>", splat_constant("i1", "true", n)), w.zero(acc.kind)
        for bit in range(7, -1, -1):
            probe = found + constants("i32", (lane * TABLE + (1 << bit) - 1 for lane in range(n)))
            reached = value.test("sge", tables.gather("i32", probe, on, 4))
            found = reached.select(found + (1 << bit), found)
        return found.least(cap) + LIMITS[self.out][0]

    def finish(self, row: list[Value]) -> list[Value]:
        """Convert int32 results to the values that are stored: one per vector, or a single one for the whole row."""
        if self.out in WIDE:
            return self._unmix(row) if self.by_lanes else row
        if self.by_lanes:
            return [self._pack(row)]
        if self.form != "table" and self.isa.lanes == 16:
            return [in_order(self._pack([row[i % len(row)] for i in range(4)]))]
        if self.form != "table" and self.isa.architecture == "aarch64" and self.vectors == 4:
            return [self._pack(row)]
        return [self._narrow(value) for value in row]

    def store_block(self, block: list[list[Value]], held: Value, first: Value, step: Value) -> None:
        """Requantize and store all rows of sums: the first row at `first`, each further one `step` bytes on. The last
        panel's cut vector is stored through the mask.
        """
        if self.isa.dot == "madd256" and self.vectors <= 2 and self.out not in WIDE and self.form != "table":
            done = self._packed32([self.row(acc, held) for acc in block])
        else:
            done = [self.finish(self.row(acc, held)) for acc in block]
        for whole in self.w.either(self.full):
            target = first
            for i, row in enumerate(done):
                target = target + step if i else target
                self.store(row, target, whole)

    def _unmix(self, four: list[Value]) -> list[Value]:
        """Put the channels of four vectors in order. Each given vector has four channels of every sixteen."""
        n = self.isa.lanes
        low, high = (a.shuffle(range(2 * n), b) for a, b in (four[:2], four[2:]))
        places = [channel % 16 // 4 * n + channel // 16 * 4 + channel % 4 for channel in range(4 * n)]
        return [low.shuffle(places[first : first + n], high) for first in range(0, 4 * n, n)]

    def _narrow(self, value: Value) -> Value:
        """Codes as int8 or uint8, saturated (a table's are within range)."""
        if self.form != "table":
            low, high = LIMITS[self.out]
            value = value.intrinsic("smax", low).least(high)
        return value.trunc("i8")

    def _pack(self, four: list[Value]) -> Value:
        """Four vectors as one of bytes, saturated: in every 16 bytes, four come from each vector in turn.

        For vectors a, b, c, d of 16 lanes:   a0-3 b0-3 c0-3 d0-3 | a4-7 b4-7 c4-7 d4-7 | a8-11 ... | a12-15 ...
        """
        words = [packed_words(self.isa, *pair) for pair in (four[:2], four[2:])]
        return packed_bytes(self.isa, self.out, *words)

    def _packed32(self, rows: list[list[Value]]) -> list[list[Value]]:
        """The bytes of rows of one or two vectors of eight lanes each; four vectors are narrowed at a time."""
        values = [value for row in rows for value in row]
        width, done = 8 * self.vectors, []
        for first in range(0, len(values), 4):
            whole = in_order(self._pack([values[min(first + i, len(values) - 1)] for i in range(4)]))
            for start in range(0, min(32, 8 * (len(values) - first)), width):
                done.append([whole.shuffle(range(start, start + width))])
        return done

    def _store64(self, packed: Value, pointer: Value, whole: bool) -> None:
        """Store the bytes of a row's vectors; the mask cuts the last one unless `whole`."""
        before = 16 * (self.vectors - 1)
        if whole and self.vectors == 4:
            pointer.store(packed)
            return
        bits = self.w.value("i64", (1 << (before + 16)) - 1)
        if not whole:
            bits = (self.mask << before) | (1 << before) - 1
        pointer.masked_store(packed, bits.bitcast("<64 x i1>"))

    def store(self, row: list[Value], pointer: Value, whole: bool) -> None:
        """Store one finished row. The mask cuts its last vector unless `whole`."""
        n = self.isa.lanes
        if self.by_lanes and self.out not in WIDE:
            pointer.store(row[0])
            return
        if n == 16 and self.out not in WIDE and self.form != "table":
            self._store64(row[0], pointer, whole)
            return
        if len(row) < self.vectors:
            if whole:
                pointer.store(row[0])
                return
            row = [row[0].shuffle(range(i, i + n)) for i in range(0, 16, n)]
        for vector, value in enumerate(row):
            target = pointer + vector * n * (4 if self.out in WIDE else 1)
            if whole or vector < self.vectors - 1 or self.by_lanes:
                target.store(value)
            else:
                target.masked_store(value, self.lanes_on)


def rectify(x: Value) -> Value:
    """max(x, 0). NaN stays NaN, and -0 becomes 0."""
    return x.where("ugt", ZERO)


def clip(x: Value, low: Value, high: Value) -> Value:
    """x clipped to two limits; the upper one wins where they cross. NaN stays NaN."""
    raised = x.test("olt", low).select(low, x)
    return raised.test("ogt", high).select(high, raised)


BOUNDS = ("inverse*", "low*", "high*", "halves*", "weights*", "split", "steps", "tiles")
"""The argument words, 8 bytes each. A tile is spec.rows channels; inverse, low and high are float64 [tiles * rows].

halves, weights  float64 [steps]: want - 1/2, ascending, and its inverse; split: the number of negative ones
"""


@emitter("bounds")
class BoundsEmitter(KernelEmitter):
    """Computes two bounds for each channel, with steps t = ceil(inverse * halves), in float64 throughout:

    low  = greatest of 0, t * weights where that is negative, and t * weights - weights elsewhere
    high = least of infinity, t * weights where that is positive, and t * weights - weights elsewhere
    """

    names = BOUNDS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.lanes = spec.rows // BOUND_VECTORS
        self.kind = f"<{self.lanes} x double>"
        self.magic, self.one, self.infinity = (
            self.w.value("double", value).splat(self.lanes) for value in (MAGIC64, "1.0", math.inf)
        )

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        first = tile * (8 * BOUND_VECTORS * self.lanes)
        places = [8 * self.lanes * v for v in range(BOUND_VECTORS)]
        inverses = [(a.inverse + first + address).load(self.kind, 8) for address in places]
        with w.loop(0, a.split, 1, [w.zero(self.kind)] * BOUND_VECTORS + [self.infinity] * BOUND_VECTORS) as turn:
            turn.next(*self._step(turn.index, inverses, turn.carried, True))
        with w.loop(a.split, a.steps, 1, turn.carried) as rest:
            rest.next(*self._step(rest.index, inverses, rest.carried, False))
        for start, values in ((a.low, rest.carried[:BOUND_VECTORS]), (a.high, rest.carried[BOUND_VECTORS:])):
            for address, value in zip(places, values, strict=True):
                (start + first + address).store(value, 8)

    def _step(self, index: Value, inverses: list[Value], state: list[Value], negative: bool) -> list[Value]:
        """The bounds after one more step. negative: whether the step's `halves` are negative."""
        half, weight = (
            (start + index * 8).load("double", 8).splat(self.lanes) for start in (self.a.halves, self.a.weights)
        )
        lows, highs = [], []
        for vector, inverse in enumerate(inverses):
            at = self._ceil(inverse * half) * weight
            below = at - weight
            low, high = (at, below) if negative else (below, at)
            lows.append(low.where("ogt", state[vector]))
            highs.append(high.where("olt", state[BOUND_VECTORS + vector]))
        return lows + highs

    def _ceil(self, value: Value) -> Value:
        """The ceiling of the value if that is less than 2**51; else some integer near it."""
        nearest = value + self.magic - self.magic
        return nearest + nearest.test("olt", value).select(self.one, ZERO)
