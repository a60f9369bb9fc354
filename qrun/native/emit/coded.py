"""The generated product of float32 rows with quantized weights that stay codes of 2, 4 or 8 bits in memory.

It differs from fma_product.py only in the right matrix: its words hold the codes of neighbouring k, one word for each
column of a panel. (code - zero point) * scale is computed in float32 steps, as DequantizeLinear does. Codes are not
shifted: the word is read again from the byte where a code lies. The bits of a power of two are set above the code, so
large that the code counts ones: a float32 number, from which the power and the zero point are subtracted without error.

A panel's codes of a block of k, and the scales of a block of weights:

    group 0   column 0: k 0..7 | column 1: k 0..7 | ...   4 bits in 32, 2 bits in 16; 8 bits: 4 of them in 32
    group 1   column 0: k 8..15 | ...
    scales    column 0 | column 1 | ...                   zero points likewise, in bytes or float32
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qrun.native.emit.fma_product import BLOCK, NAMES, FmaProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.values import real

GROUP = {2: 8, 4: 8, 8: 4}
"""Codes per word, by the bits of a code."""
BEYOND = 3
"""Bytes beyond the last word that the kernel may read."""
_WIDE = 4
"""Bytes of a word that fills its lane."""
_LOOKED_UP = 4
"""Bits of a code that can index a vector of sixteen numbers."""
_FRACTION, _BIAS = 23, 127
"""Fraction bits of a float32, and the bias of its exponent."""
Parameters = tuple[dict[int, Value], Value | None, Value]
"""For a vector of columns: the number to subtract from a code, by the code's first bit in the word; zero points that
are subtracted separately, if any; scales."""
Weights = Iterator[Value]
"""One row of the right matrix, vector by vector."""


def code_positions(bits: int) -> list[tuple[int, int]]:
    """For each code of a word: the byte offset at which the word is read, and the bit at which the code then begins.
    Words of 16 bits are read once, since all their bits are below the exponent of a float32."""
    wide = GROUP[bits] * bits > _FRACTION
    return [divmod(n * bits, 8) if wide else (0, n * bits) for n in range(GROUP[bits])]


@emitter("coded_product")
class CodedProductEmitter(FmaProductEmitter):
    """operands: as for FmaProductEmitter, but the right matrix is ``codes``, each decoded when it is multiplied, or
    ``decoded``, a panel's block of k at a time. Then the bits of a code, and the zero points: ``half`` (none given:
    the middle of the codes), ``bytes`` or ``floats``.

    scales   float32 [runs of blocks][panels][blocks of a run][columns of a panel]: a run has the blocks of BLOCK k, or
             one; zeros: the same shape, bytes or float32
    block    how many k share a scale, a power of two
    """

    names = (*NAMES, *names("scales* zeros* block"))

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        bits, self.zeros = self.coding
        self.bits = int(bits)
        self.group = GROUP[self.bits]
        self.word, self.placed = self.bits * self.group // 8, code_positions(self.bits)
        # Only codes in the lowest bits are looked up, so that units that permute and units that add share the work.
        self.looks_up = self.w.permutes and self.bits == _LOOKED_UP and self.zeros == "half"
        self.line = self.panel_width * self.word
        a = self.a
        self.block_bits = self.w.call("i64", "llvm.cttz.i64", a.block, ("i1", "true"))
        self.run = self.w.value("i64", BLOCK).lshr(self.block_bits.least(BLOCK.bit_length() - 1))
        self.blocks = (a.depth + a.block - 1).lshr(self.block_bits)

    def _pack(self) -> None:
        """Decode the weights of a block into the scratch memory as float32, if the form decodes them once."""
        target = self.scratch + self.a.right_at

        def store(k: Value, rows: Sequence[Weights], carried: list[Value]) -> None:
            for more, row in enumerate(rows):
                for j, b in enumerate(row):
                    (target + (k + more) * (4 * self.width) + 4 * self.lanes * j).store(b, 4)

        if self.right_is == "decoded":
            self._decode_block([], store)

    def _chain_loop(
        self, lefts: Sequence[Value], rights: Sequence[Value], masks: Sequence[Value | None], sums: list[Value]
    ) -> list[Value]:
        """Continue the chains of sums over a block of depth; decodes the weights on the way if needed."""
        if self.right_is == "decoded":
            return super()._chain_loop(lefts, rights, masks, sums)

        def add(k: Value, rows: Sequence[Weights], carried: list[Value]) -> None:
            for more, row in enumerate(rows):
                self._multiply(lefts, self._left_step(k, more), row, carried)

        return self._decode_block(sums, add)

    def _decode_block(
        self, carried: list[Value], body: Callable[[Value, Sequence[Weights], list[Value]], None]
    ) -> list[Value]:
        """Decode the block of k, a group at a time, then one by one. Calls body(k, the rows of weights from k on, the
        carried values), which updates the carried values in place. Returns their last values."""
        w, piece = self.w, self.a.block.least(BLOCK)
        codes = self._codes()
        with w.loop(0, self.size, piece, carried) as part:
            parameters = self._parameters((self.k + part.index).lshr(self.block_bits))
            end, done, held = (part.index + piece).least(self.size), part.index, part.carried
            for count in (self.group, 1):
                with w.loop(done, end - (count - 1), count, held) as turn:
                    values, k = list(turn.carried), turn.index
                    places = self._places(codes, k // self.group)
                    shift = (k % self.group * self.bits).trunc("i32").splat(self.lanes) if count == 1 else 0
                    rows = [self._weights(places, n, shift, parameters) for n in range(count)]
                    body(k, rows, values)
                    turn.next(*values)
                done, held = turn.index, turn.carried
            part.next(*held)
        return part.carried

    def _codes(self) -> list[Value]:
        """The address of each panel's codes in this block of k."""
        each = (self.size + (self.group - 1)) // self.group * self.line
        start = self.a.b + self.k // self.group * (self.a.panels * self.line) + self.panel * each
        return [start, *(start + each * n for n in range(1, self.beside))]

    def _places(self, codes: Sequence[Value], group: Value) -> list[Value]:
        """The address of a group's words, for each vector of columns."""
        step, wide = group * self.line, self.panel_vectors
        return [codes[j // wide] + step + j % wide * self.lanes * self.word for j in range(self.spec.vectors)]

    def _words(self, column: Value, shift: Value | int) -> Value:
        """The words of a vector of columns as i32, shifted right by `shift` bits."""
        words = column.load(f"<{self.lanes} x i{8 * self.word}>")
        words = words if self.word == _WIDE else words.zext("i32")
        return words.lshr(shift) if shift else words

    def _weights(
        self, places: Sequence[Value], code: int, shift: Value | int, parameters: Sequence[Parameters]
    ) -> Weights:
        """Decode one row of weights. code: its number in the words, which are first shifted right by `shift` bits."""
        more, bit = self.placed[code]
        mask, power = (2**self.bits - 1) << bit, (_BIAS + _FRACTION - bit) << _FRACTION
        for column, (minus, apart, scale) in zip(places, parameters, strict=True):
            words = self._words(column + more, shift)
            if self.looks_up and not bit:
                yield self._look_up_codes(words) * scale
                continue
            number = (words & mask | power).bitcast("float") - minus[bit]
            yield (number if apart is None else number - apart) * scale

    def _look_up_codes(self, words: Value) -> Value:
        """The lowest code of each word minus the middle code, looked up by one instruction in a table of sixteen."""
        middle = 2 ** (self.bits - 1)
        table = ", ".join(f"float {real(code - middle)}" for code in range(self.lanes))
        return self.w.call(self.kind, "llvm.x86.avx512.permvar.sf.512", self.w.value(self.kind, f"<{table}>"), words)

    def _parameters(self, block: Value) -> list[Parameters]:
        """The zero points and scales of each vector of columns, for a block of weights."""
        made = []
        inside = block & self.run - 1
        first = block - inside
        run = self.run.least(self.blocks - first)
        start = (first * self.a.panels + self.panel * run + inside) * self.panel_width
        for j in range(self.spec.vectors):
            panel, vector = divmod(j, self.panel_vectors)
            made.append(self._parameter(start + run * (panel * self.panel_width) + vector * self.lanes))
        return made

    def _parameter(self, column: Value) -> Parameters:
        """Zero points and scales of a vector of columns: what to subtract per bit offset, float zero, scale."""
        a, kind = self.a, self.kind
        zero, apart = self.w.value(kind, float(2 ** (self.bits - 1))), None
        if self.zeros == "bytes":
            zero = (a.zeros + column).load(f"<{self.lanes} x i8>").zext("i32").sitofp("float")
        elif self.zeros == "floats":
            zero, apart = self.w.zero(kind), (a.zeros + column * 4).load(kind, 4)
        minus = {at: zero + 2.0 ** (_FRACTION - at) for at in {at for _, at in self.placed}}
        return minus, apart, (a.scales + column * 4).load(kind, 4)
