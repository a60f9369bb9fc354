"""The generated product of float32 rows with weights that stay codes of 2, 4 or 8 bits in memory.

It is that of floats.py, but for where the right matrix comes from: words of neighbouring k, a word for each column of a
panel, from which codes are shifted out. (code - zero point) * scale is made in float32 steps, as DequantizeLinear does:
2**23 with a code in its low bits is a float32 number, from which 2**23 + zero point is subtracted without error.

A panel's codes of a block of k, and the scales of a block of weights:

    group 0   column 0: k 0..7 | column 1: k 0..7 | ...   4 bits in 32, 2 bits in 16; 8 bits: 4 of them in 32
    group 1   column 0: k 8..15 | ...
    scales    column 0 | column 1 | ...                   zero points likewise, in bytes or float32
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qrun.native.emit.floats import DEPTH, FloatProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.types import real

NAMES = names("""
    a* b* addend* y* numbers* batches* a_row b_row addend_row y_row rows columns taps depth
    tap_step depth_step row_block panels panel_block slot right_at squares_at lengths_at sums_at
    known* known_odd tiles recheck* scales* zeros* block
""")
"""As in floats.py, with one tap.

b        codes [blocks of DEPTH k][panels][groups][columns of a panel]
scales   float32 [runs of blocks][panels][blocks of a run][columns of a panel], in the order in which a panel's part of
         DEPTH k reads them: a run has the blocks of DEPTH k, or one; zeros: as many, bytes or float32
block    how many k share a scale, a power of two
b_row    0
"""
GROUP = {2: 8, 4: 8, 8: 4}
"""Codes of a word, by their bits."""
_INTEGERS = 2.0**23
"""float32 numbers from here on have no fraction; their low bits count."""
_INTEGER_BITS = 0x4B000000
"""Those of 2**23: joined with the bits of a code they are 2**23 plus the code."""
_LOOKED_UP = 4
"""Bits of a code that a vector of sixteen numbers is looked up with."""
_FEW = 8
"""Up to so many sums wait for each other: then even and odd k have sums of their own."""


@emitter("coded_product")
class CodedProductEmitter(FloatProductEmitter):
    """operands: ``rows``, how as in floats.py, the bits of a code, and where zero points are: ``half`` (none: the
    middle of the codes), ``bytes`` or ``floats``."""

    names = NAMES
    turn = max(GROUP.values())
    _last: list[Value]

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        _, how, bits, self.zeros = spec.operands.split("-")
        self.packed, self.known, self.bits = how == "packed", how == "known", int(bits)
        self.group = GROUP[self.bits]
        self.word = self.bits * self.group // 8
        self.block_bits = self.w.call("i64", "llvm.cttz.i64", self.a.block, ("i1", "true"))
        self.run = self.w.value("i64", DEPTH).lshr(self.block_bits.least(DEPTH.bit_length() - 1))
        self.blocks = (self.a.depth + self.a.block - 1).lshr(self.block_bits)

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        a, at = self.a, k % DEPTH
        place = self._codes(k - at, (a.depth - k + at).least(DEPTH)) + at // self.group * (self.width * self.word)
        word = self._word(place + vector * (self.lanes * self.word), self.lanes)
        shift = (k % self.group * self.bits).trunc("i32").splat(self.lanes)
        parameters = self._parameters(k // a.block, vector * self.lanes, self.lanes)
        left = (part + k * 4).load("float", 4).double().splat(self.lanes)
        return left, self._weights(word.lshr(shift), *parameters).double()

    def _codes(self, start: Value, size: Value) -> Value:
        """Where the panel's codes lie, for the block of k that starts at `start` and has `size` elements."""
        line = self.width * self.word
        groups = (size + (self.group - 1)) // self.group
        return self.a.b + start // self.group * (self.a.panels * line) + self.panel * groups * line

    def _word(self, place: Value, lanes: int) -> Value:
        """The words of codes of `lanes` columns, one i32 per column."""
        kind = f"i{8 * self.word}"
        word = place.load(f"<{lanes} x {kind}>", self.word)
        return word if kind == "i32" else word.zext("i32")

    def _parameters(self, block: Value, column: Value | int, lanes: int) -> tuple[Value, Value]:
        """The zero points of `lanes` columns, as what is subtracted from their codes, and their scales."""
        w, a = self.w, self.a
        place = self._scaled(block) + column
        kind = f"<{lanes} x float>"
        if self.zeros == "half":
            minus = w.value(kind, _INTEGERS + 2 ** (self.bits - 1))
        elif self.zeros == "bytes":
            minus = (a.zeros + place).load(f"<{lanes} x i8>").zext("i32").sitofp("float")
            minus = minus if self._looks_up(lanes) else minus + _INTEGERS
        else:
            minus = (a.zeros + place * 4).load(kind, 4)
        return minus, (a.scales + place * 4).load(kind, 4)

    def _scaled(self, block: Value) -> Value:
        """How many scales come before the panel's first one of a block."""
        inside = block & self.run - 1
        first = block - inside
        run = self.run.least(self.blocks - first)
        return (first * self.a.panels + self.panel * run + inside) * self.width

    def _weights(self, words: Value, minus: Value, scale: Value) -> Value:
        """The weights of the lowest code of each word, float32."""
        if self._looks_up(words.lanes):
            number = self._numbers(words)
            number = number if self.zeros == "half" else number - minus
        else:
            code = (words & (2**self.bits - 1) | _INTEGER_BITS).bitcast("float")
            number = code - _INTEGERS - minus if self.zeros == "floats" else code - minus
        return number * scale

    def _looks_up(self, lanes: int) -> bool:
        """Whether one instruction makes numbers of the lowest four bits of so many words."""
        return self.w.permutes and self.bits == _LOOKED_UP and lanes == 1 << _LOOKED_UP

    def _numbers(self, words: Value) -> Value:
        """The lowest code of each word as float32; less its zero point, if that is the middle of the codes."""
        less = 2 ** (self.bits - 1) if self.zeros == "half" else 0
        table = ", ".join(f"float {real(code - less)}" for code in range(1 << _LOOKED_UP))
        numbers = self.w.value(f"<{1 << _LOOKED_UP} x float>", f"<{table}>")
        return self.w.call(numbers.kind, "llvm.x86.avx512.permvar.sf.512", numbers, words)

    def _turns(self, carried: Sequence[Value]) -> Iterator[tuple[Value, Iterator[list[Value]], list[Value]]]:
        """The body for each group of the panel's block of k: its first k, its weights as float64 [k][vectors], and
        the carried values, of which it writes the next ones in their place. `carried` has the last ones at the end."""
        w, wide = self.w, 2 * self.lanes
        halves = range(self.spec.vectors // 2)
        piece = self.a.block.least(DEPTH)
        with w.loop(0, self.size, piece, [*carried, self._codes(self.start, self.size)]) as part:
            block = (self.start + part.index) // self.a.block
            parameters = [self._parameters(block, half * wide, wide) for half in halves]
            end = (part.index + piece).least(self.size)
            with w.loop(part.index, end, self.group, part.carried) as group:
                *values, place = group.carried
                words = [self._word(place + half * (wide * self.word), wide) for half in halves]
                weights = (self._step(words, step, parameters) for step in range(self.group))
                yield group.index, weights, values
                group.next(*values, place + self.width * self.word)
            part.next(*group.carried)
        self._last = part.carried[:-1]

    def _step(self, words: Sequence[Value], step: int, parameters: Sequence[tuple[Value, Value]]) -> list[Value]:
        """The weights of one k: a vector of float64 for each vector of columns."""
        made = []
        for word, (minus, scale) in zip(words, parameters, strict=True):
            both = self._weights(word.lshr(step * self.bits) if step else word, minus, scale)
            made += [both.shuffled(range(first, first + self.lanes)).double() for first in (0, self.lanes)]
        return made

    def pack(self) -> None:
        """The panel's block of k to float64, as many as whole groups have: those beyond K meet zeros."""
        for first, weights, squares in self._turns(self.earlier_squares()):
            for step, vectors in enumerate(weights):
                target = self.right + (first + step) * (8 * self.width)
                for j, b in enumerate(vectors):
                    (target + 8 * self.lanes * j).store(b, 8)
                    squares[j] = b.fma(b, squares[j])
        self.keep_squares(self._last)

    def _sums_direct(self) -> list[Value]:
        count = self.spec.rows * self.spec.vectors
        sets = 2 if count <= _FEW else 1
        for first, weights, held in self._turns([self.w.zero(self.kind)] * (count * sets)):
            left, sums = self.converted + first * 8, [held[n : n + count] for n in range(0, count * sets, count)]
            for step, b in enumerate(weights):
                self._multiply(left + 8 * step, b, sums[step % sets])
            held[:] = [total for one in sums for total in one]
        if sets == 1:
            return self._last
        return [one + other for one, other in zip(self._last[:count], self._last[count:], strict=True)]
