"""The copy of activations that the clipped product reads, and the list of what that leaves out.

vpmaddubsw adds two products of a uint8 and an int8 in 16 bits, and saturates. The product adds the results of two, so a
lane holds four products. For each lane the plan bounds what any channel's weights can make of four activations; where
that could leave int16, the copy keeps the lower bits of eight activations (two quads), and their upper bits are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qrun.native._flow import Flow, shuffled
from qrun.native._ir import constants
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

EIGHT = 8
"""Bytes of a row that are clipped together."""
VECTOR = 32
LOW = 6
"""Bits that clipped activations keep: four of these are never too much."""
ENTRY = BLOCK = 16
"""Bytes of an entry of the list, and of the table of blocks."""
BYTES, WORDS = "<32 x i8>", "<16 x i16>"
_EIGHTS = "<4 x i64>"
_FLIP = -0x7F7F7F7F7F7F7F80
_MOST = 127 * 256
"""Weights of -128 count as -127 in the bounds: a sum of this size may be 128 * 256 below 0."""


def multiplied(w: Flow, x: str, weights: str) -> str:
    """Sums in int16 of neighbouring products of uint8 and int8; they saturate."""
    return w.call(WORDS, "llvm.x86.avx2.pmadd.ub.sw", (BYTES, x), (BYTES, weights))


class Clipping:
    """Writes the copying of some blocks of `rows` rows.

    a:     the kernel's arguments. row, block: bytes of one in the copy.
    copy, table, entries: where they start. The table has, for each block, where its part of the list starts and how many
           entries that has, -1 where they were too many: then the copy is whole. An entry is an int32 distance in a
           block's sums, an int32 distance in a panel's weights, and eight activations less their LOW lowest bits.
    width: bytes of a row's sums, and of a quad's weights. source: writes where the row is that an offset tells.
    """

    def __init__(
        self, w: Flow, spec: KernelSpec, isa: Isa, a: Mapping[str, str], width: int, source: Callable[[str, str], str]
    ) -> None:
        self.w, self.spec, self.a, self.width, self.source = w, spec, a, width, source
        self.flips = isa.shift(spec.signed) != 0
        self.row = w.mul(a["taps"], a["depth"])
        self.block = w.mul(self.row, spec.rows)
        self.eights = w.div(self.row, EIGHT)
        self.copy = w.at("%scratch", spec.rows * width)
        self.table = w.at(self.copy, w.mul(self.block, a["chunk"]))
        self.entries = w.at(self.table, w.mul(a["chunk"], BLOCK))

    def copy_blocks(self, x: str, first: str, end: str) -> None:
        """The rows of every block, tap by tap, and the list of what does not fit."""
        w = self.w
        start = [("ptr", self.copy), ("ptr", self.table), ("ptr", self.entries)]
        with w.loop(first, end, 1, start) as turn:
            copy, table, entry = turn.carried
            found = self._copy_block(x, turn.index, copy)
            w.store("ptr", entry, table, 8)
            many = w.let(f"icmp ugt i64 {found}, {self.a['limit']}")
            w.store("i64", w.let(f"select i1 {many}, i64 -1, i64 {found}"), w.at(table, 8), 8)
            listed = w.let(f"select i1 {many}, i64 0, i64 {found}")
            with w.when(w.let(f"icmp ne i64 {listed}, 0")):
                self._list(copy, entry)
            following = w.at(entry, w.mul(listed, ENTRY))
            turn.next([w.at(copy, self.block), w.at(table, BLOCK), following])

    def _copy_block(self, x: str, block: str, copy: str) -> str:
        """Copy a block's rows; how many eights do not fit."""
        w, a, rows = self.w, self.a, self.spec.rows
        offsets = w.at(a["offsets"], w.mul(block, w.mul(a["taps"], 4 * rows)))
        whole = w.let(f"and i64 {a['depth']}, {-VECTOR}")
        start = [("ptr", offsets), (_EIGHTS, "zeroinitializer")]
        with w.loop("0", a["taps"], 1, start) as tap:
            place, found = tap.carried
            before = w.mul(tap.index, a["depth"])
            along, bounds = w.at(copy, before), [w.at(a[name], before) for name in ("each", "first")]
            with w.loop("0", str(rows), 1, [("ptr", place), ("ptr", along), (_EIGHTS, found)]) as row:
                place, to, found = row.carried
                source = self.source(x, place)
                with w.loop("0", whole, VECTOR, [(_EIGHTS, found)]) as k:
                    codes = self._codes(_EIGHTS, w.at(source, k.index), constants("i64", [_FLIP] * 4))
                    w.store(_EIGHTS, codes, w.at(to, k.index), 8)
                    k.next([self._count(codes, bounds, k.index, k.carried[0])])
                with w.loop(whole, a["depth"], EIGHT, [(_EIGHTS, k.carried[0])]) as rest:
                    eight = self._codes("i64", w.at(source, rest.index), str(_FLIP))
                    w.store("i64", eight, w.at(to, rest.index), 8)
                    codes = w.let(f"insertelement {_EIGHTS} zeroinitializer, i64 {eight}, i32 0")
                    rest.next([self._count(codes, bounds, rest.index, rest.carried[0])])
                row.next([w.at(place, 4), w.at(to, self.row), rest.carried[0]])
            tap.next([row.carried[0], row.carried[2]])
        return w.call("i64", "llvm.vector.reduce.add.v4i64", (_EIGHTS, tap.carried[1]))

    def _codes(self, kind: str, source: str, flip: str) -> str:
        """Activations as uint8."""
        codes = self.w.load(kind, source)
        return self.w.let(f"xor {kind} {codes}, {flip}") if self.flips else codes

    def _over(self, eights: str, bounds: list[str], place: str) -> str:
        """Which eights have four activations that might give more than a lane can hold: <4 x i1>."""
        w = self.w
        codes = w.let(f"bitcast {_EIGHTS} {eights} to {BYTES}")
        most = codes
        for distance in (1, 4):
            most = w.call(BYTES, "llvm.umax.v32i8", (BYTES, most), (BYTES, self._exchanged(most, distance)))
        each, first = (w.load(BYTES, w.at(bound, place)) for bound in bounds)
        pairs = w.let(f"bitcast {WORDS} {multiplied(w, codes, each)} to {BYTES}")
        other = self._exchanged(pairs, 4)
        total = multiplied(w, most, first)
        for part in (pairs, other):
            words = w.let(f"bitcast {BYTES} {part} to {WORDS}")
            total = w.call(WORDS, "llvm.sadd.sat.v16i16", (WORDS, total), (WORDS, words))
        more = w.let(f"icmp sgt {WORDS} {total}, {constants('i16', [_MOST] * 16)}")
        wide = w.let(f"sext <16 x i1> {more} to {WORDS}")
        return w.let(f"icmp ne {_EIGHTS} {w.let(f'bitcast {WORDS} {wide} to {_EIGHTS}')}, zeroinitializer")

    def _exchanged(self, codes: str, distance: int) -> str:
        """Each byte's neighbour at a distance that is a power of two."""
        return shuffled(self.w, "i8", VECTOR, codes, "poison", [i ^ distance for i in range(VECTOR)])

    def _count(self, eights: str, bounds: list[str], place: str, found: str) -> str:
        w = self.w
        over = w.let(f"sext <4 x i1> {self._over(eights, bounds, place)} to {_EIGHTS}")
        return w.let(f"sub {_EIGHTS} {found}, {over}")

    def _list(self, copy: str, entry: str) -> None:
        """Clip a block's copy, and list what that takes away."""
        w = self.w
        with (
            w.loop("0", self.a["stride"], VECTOR, [("ptr", entry)]) as column,
            w.loop(column.index, self.block, self.a["stride"], [("ptr", column.carried[0])]) as turn,
        ):
            here = w.at(copy, turn.index)
            eights = w.load(_EIGHTS, here, 32)
            over = self._over(eights, [self.a["each"], self.a["first"]], turn.index)
            w.store("ptr", turn.carried[0], "%scratch", 8)
            with w.when(w.let(f"icmp ne i4 {w.let(f'bitcast <4 x i1> {over} to i4')}, 0")):
                upper = self._clip(eights, over, here)
                self._enter(upper, over, w.let(f"lshr i64 {turn.index}, 3"), turn.carried[0])
            turn.next([w.load("ptr", "%scratch", 8)])
            column.next(turn.carried)

    def _clip(self, eights: str, over: str, here: str) -> str:
        """Keep the lower bits of some of a vector's eights; the upper bits of all."""
        w = self.w
        low, high = (constants("i8", [n] * 32) for n in ((1 << LOW) - 1, (1 << 8 - LOW) - 1))
        codes = w.let(f"bitcast {_EIGHTS} {eights} to {BYTES}")
        clipped = w.let(f"bitcast {BYTES} {w.let(f'and {BYTES} {codes}, {low}')} to {_EIGHTS}")
        w.store(_EIGHTS, w.let(f"select <4 x i1> {over}, {_EIGHTS} {clipped}, {_EIGHTS} {eights}"), here, 32)
        shifted = w.let(f"lshr {_EIGHTS} {eights}, {constants('i64', [LOW] * 4)}")
        upper = w.let(f"and {BYTES} {w.let(f'bitcast {_EIGHTS} {shifted} to {BYTES}')}, {high}")
        return w.let(f"bitcast {BYTES} {upper} to {_EIGHTS}")

    def _enter(self, upper: str, over: str, number: str, entry: str) -> None:
        """Write an entry for each eight that is over; number: of a vector's first one in the block."""
        w = self.w
        for lane in range(4):
            row, place = w.split(w.add(number, lane), self.eights)
            w.store("i32", w.let(f"trunc i64 {w.mul(row, self.width)} to i32"), entry, 4)
            w.store("i32", w.let(f"trunc i64 {w.mul(place, 2 * self.width)} to i32"), w.at(entry, 4), 4)
            w.store("i64", w.let(f"extractelement {_EIGHTS} {upper}, i32 {lane}"), w.at(entry, 8), 8)
            one = w.let(f"zext i1 {w.let(f'extractelement <4 x i1> {over}, i32 {lane}')} to i64")
            entry = w.at(entry, w.mul(one, ENTRY))
        w.store("ptr", entry, "%scratch", 8)
