"""A kernel whose tiles each call a list of other kernels, one after the other."""

from __future__ import annotations

from functools import reduce

from qrun.native.emit.kernel import KernelEmitter, Value, emitter, names
from qrun.native.emit.spec import DOUBT, ENTRY, NEXT, STRUCT

SLICES = names("parts* words* moves* width own_at tiles")
"""The argument words, 8 bytes each.

parts    entries of the plan (spec.ENTRY): kernels, and structs in which only the words that differ per slice are wrong
words    int64 [parts][width][2]: bytes from a struct's start to a word that differs, and -1 if that word is an address
         in the thread's memory, else 0
moves    int64 [slices][parts][width]: the number that is added to each of these words
own_at   offset in the thread's memory at which the memory of the called kernels begins
tiles    slices
"""
_COPIED = range(0, NEXT, 64)


@emitter("slices")
class SlicesEmitter(KernelEmitter):
    """Writes a kernel of `rows` parts. One thread makes a whole slice: for each part it copies the struct into its own
    memory, adds the slice's moves, and calls the part's kernel with a counter of tiles that no other thread shares."""

    names = SLICES
    own_memory = True

    def write_tile(self, tile: Value) -> None:
        parts = self.spec.rows
        moves = self.a.moves + tile * (8 * parts) * self.a.width
        marks = [self._part(number, moves + self.a.width * (8 * number)) for number in range(parts)]
        mark = reduce(lambda one, other: one.intrinsic("umax", other), marks)
        with self.w.when(mark.test("ne", 0)):
            self.w.mark_undecided()

    def _part(self, number: int, moves: Value) -> Value:
        """Run a part. Returns its DOUBT word, in which its kernel reports that a result is undecided."""
        w, a = self.w, self.a
        entry, struct = a.parts + ENTRY * number, self.scratch + STRUCT * number
        kernel, source = (address.load("ptr", 8) for address in (entry, entry + 8))
        for start in _COPIED:
            (struct + start).store((source + start).load("<8 x i64>", 8), 8)
        for counter in (DOUBT, NEXT):
            (struct + counter).store(w.value("i64", 0), 8)
        here = self.scratch.address()
        words = a.words + a.width * (16 * number)
        with w.loop(0, a.width, 1) as turn:
            address, near = ((words + turn.index * 16 + byte).load("i64", 8) for byte in (0, 8))
            moves_by = (moves + turn.index * 8).load("i64", 8) + (here & near)
            (struct + address).store((struct + address).load("i64", 8) + moves_by, 8)
        w.let("i64", f"call i64 {kernel}(ptr {struct}, ptr {struct + NEXT}, ptr {self.scratch + a.own_at})")
        return (struct + DOUBT).load("i64", 8)
