"""Kernels whose tiles call something else: kernels one after the other, turns of a program, or a function of Python."""

from __future__ import annotations

from functools import reduce

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.spec import (
    DOUBT,
    DOUBTFUL,
    DOUBTS,
    ENTRY,
    FOREIGN,
    GOING,
    HELD,
    INTERRUPTED,
    LATE,
    MOST,
    NEXT,
    STRUCT,
    UNDECIDED,
    repeated_words,
)

SLICES = names("parts* words* moves* width own_at tiles")
"""One 8-byte word each.

parts    entries of the plan (spec.ENTRY): kernels, and structs that are right but for the words that move
words    int64 [parts][width][2]: bytes from a struct's start to a word that moves, and -1 if the word is an address in
         the thread's memory, else 0
moves    int64 [slices][parts][width]: what is added to each of these words
own_at   where in the thread's memory that of the parts begins
tiles    slices
"""
_COPIED = range(0, NEXT, 64)


@emitter("slices")
class SlicesEmitter(KernelEmitter):
    """`rows` parts. A thread makes a slice alone: each part's struct is copied into its memory, moved, and its kernel
    called with a counter of tiles that nobody shares."""

    names = SLICES
    own_memory = True

    def tile(self, tile: Value) -> None:
        parts = self.spec.rows
        moves = self.a.moves + tile * (8 * parts) * self.a.width
        doubts = [self._part(number, moves + self.a.width * (8 * number)) for number in range(parts)]
        mark = reduce(lambda one, other: one.intrinsic("umax", other), doubts)
        with self.w.when(mark.test("ne", 0)):
            self.w.undecided(mark)

    def _part(self, number: int, moves: Value) -> Value:
        """Run a part. Returns the word in which its kernel says that it could not decide a result."""
        w, a = self.w, self.a
        entry, struct = a.parts + ENTRY * number, self.scratch + STRUCT * number
        kernel, source = (place.load("ptr", 8) for place in (entry, entry + 8))
        for start in _COPIED:
            (struct + start).store((source + start).load("<8 x i64>", 8), 8)
        for counter in (DOUBT, NEXT):
            (struct + counter).store(w.value("i64", 0), 8)
        here = self.scratch.address()
        words = a.words + a.width * (16 * number)
        with w.loop(0, a.width, 1) as turn:
            place, near = ((words + turn.index * 16 + byte).load("i64", 8) for byte in (0, 8))
            moves_by = (moves + turn.index * 8).load("i64", 8) + (here & near)
            (struct + place).store((struct + place).load("i64", 8) + moves_by, 8)
        w.let("i64", f"call i64 {kernel}(ptr {struct}, ptr {struct + NEXT}, ptr {self.scratch + a.own_at})")
        return (struct + DOUBT).load("i64", 8)


@emitter("repeated")
class RepeatedEmitter(KernelEmitter):
    """`rows` operands: what turns read from outside, and last the result: what they make, one after the other.

    Each run has memory of its own for the turns (spec.HELD). The kernel first writes the operands' addresses into it,
    copies the states to where the first turn reads them, makes the turns, and copies the last states to the result.
    The result is undecided if the turns do not end in time, or if a call in one of them is undecided.

    form: ``count``: an operand has the number of turns; ``going``: an operand says whether there are any; ``until``:
    turns end when the byte to which spec.GOING points is 0; ``all``: as many turns as possible must be made.
    """

    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.names = repeated_words(spec)
        super().__init__(spec, isa)

    def tile(self, tile: Value) -> None:
        w, form = self.w, self.spec.form.split()
        held = self.a["held"]
        places = {name: held + 8 * place for place, name in enumerate(HELD)}
        words = {name: at.load("ptr" if name.endswith("*") else "i64", 8) for name, at in places.items()}
        turns = words["turns*"]
        with w.loop(w.value("i64", 0), words["points"], 1) as turn:
            row = words["point*"] + turn.index * 24
            base = (self.struct + row.load("i64", 8)).load("i64", 8)
            (row + 8).load("ptr", 8).store(base + (row + 16).load("i64", 8), 8)
        w.do(f"call void {words['moved*']}(ptr {words['first*']}, i64 {words['firsts']})")
        asked = self.a["count"].load("i64", 8) if "count" in form else words["most"]
        most = asked.least(words["most"])
        goes = most.test("sgt", 0)
        if "going" in form:
            goes = goes & self.a["going"].load("i8", 1).test("ne", 0)
        places["stopped"].store(w.value("i64", int("all" not in form)), 8)
        with w.when(goes):
            (turns + MOST).store(most, 8)
            given = f"ptr {words['state*']}, i64 0, i64 {words['calls']}, ptr {self.scratch}, ptr {turns}"
            done = w.let("i64", f"call i64 {words['repeat*']}({given})")
            stopped = done.test("sge", asked)
            if "until" in form:
                stopped = stopped | (turns + GOING).load("ptr", 8).load("i8", 1).test("eq", 0)
            if "all" in form:
                stopped = stopped & done.test("eq", words["most"])
            places["stopped"].store(w.let("i64", f"zext i1 {stopped} to i64"), 8)
            words["count*"].store(words["count*"].load("i64", 8) + done, 8)
        w.do(f"call void {words['moved*']}(ptr {words['last*']}, i64 {words['lasts']})")
        with w.when(places["stopped"].load("i64", 8).test("eq", 0)):
            self._tell(turns, words["plan*"])

    def _tell(self, turns: Value, plan: Value) -> None:
        """Say that a turn left something undecided, or else that there were too many;
        the calls' own marks are taken away."""
        w = self.w
        doubtful, doubts = (turns + DOUBTFUL).load("ptr", 8), (turns + DOUBTS).load("i64", 8)
        zero, late = w.value("i64", 0), w.value("i64", LATE)
        with w.loop(zero, doubts, 1, [zero]) as turn:
            entry = plan + (doubtful + turn.index * 8).load("i64", 8) * ENTRY
            mark = (entry + 8).load("ptr", 8) + DOUBT
            value = mark.load("i64", 8)
            mark.store(zero, 8)
            turn.next(turn.carried[0].intrinsic("smax", value))
        (found,) = turn.carried
        w.undecided(found.test("eq", 0).select(late, found))


@emitter("foreign")
class ForeignEmitter(KernelEmitter):
    """`rows` operands, the result last. The Python object `callable` is called with the address of this struct, which
    begins with the operands' addresses. If it does not return the object `true`, the result is undecided, and the mark
    that it left tells why. If the call gives no object at all, an interrupt came before its first line: PyErr_Clear
    removes the error, and the mark says INTERRUPTED.

    The other words are PyGILState_Ensure, PyGILState_Release, PyLong_FromLongLong, PyObject_CallOneArg,
    Py_DecRef, PyErr_Clear.
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.names = (*(f"operand{n}*" for n in range(spec.rows)), *FOREIGN)
        super().__init__(spec, isa)

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        state = w.let("i32", f"call i32 {a['ensure']}()")
        place = self.struct.address()
        number = w.let("ptr", f"call ptr {a['number']}(i64 {place})")
        made = w.let("ptr", f"call ptr {a['call']}(ptr {a['callable']}, ptr {number})")
        w.do(f"call void {a['drop']}(ptr {number})")
        with w.when(made.test("eq", "null")):
            w.do(f"call void {a['clear']}()")
        w.do(f"call void {a['drop']}(ptr {made})")
        w.do(f"call void {a['release']}(i32 {state})")
        with w.when(made.test("ne", a["true"])):
            w.undecided(made.test("eq", "null").select(w.value("i64", INTERRUPTED), w.value("i64", UNDECIDED)))
