"""The kernel that runs a loop, scan or branch: it executes a body's program once per iteration, here called a turn."""

from __future__ import annotations

from qrun.native.emit.isa import CLOCK
from qrun.native.emit.kernel import KernelEmitter, Value, emitter
from qrun.native.emit.spec import DOUBT, ENTRY, MOVE, PIECE, TIMES, TURNS

_LONG = {"x86_64": 1 << 27, "aarch64": 1 << 21}
"""Ticks after which no further turn begins, by architecture. That is at least 26 ms with a clock of 1 to 5 GHz, and at
least 2 ms with a clock of 1 GHz or less."""


@emitter("turns")
class LoopEmitter(KernelEmitter):
    """Writes the loop. Its operands are the values that turns read from outside, and where their results go. Each run
    has the other words in memory of its own, at `held` (spec.TURNS):

    lead, state, calls, plan    the function `lead` of emit/runner.py, and its arguments
    doubtful, doubts            the numbers of the calls that may leave a result undecided, and their count
    first, before, after, last  moves before all turns, before each one, after each one, and after all; and their counts
    count, count_at             the place of the requested number of turns, given as in a move
    going, going_at, sense      the place of a byte; turns begin only if it equals `sense`
    until                       the address of a byte that is 0 after the last turn
    start, number               the number of the first turn, and the address where each turn's number is stored
    most                        the most turns that one call runs
    inner, exact                inner: the result is undecided unless all turns ran, and with `exact` exactly `most`
    base                        a table of addresses that is used instead of the struct, or 0
    done, goes, failed, ticks   results: how many turns ran, whether more would follow, whether the next one was
                                undecided, and how long all of them took
    total, spans                running sums: of turns, and of the ticks of each call
    kept                        where moves save `total`, which counts turns inside of turns that may be undecided

    The loop ends early if it takes long, or if a call leaves a result undecided: that turn's results are not moved.
    """

    own_memory = True
    names = ("none", *(f"operand{n}*" for n in range(DOUBT // 8 - 3)), "held*", "tiles")

    def write_tile(self, tile: Value) -> None:
        w, held, nothing = self.w, self.a["held"], self.w.value("i64", 0)
        self.at = {name: held + 8 * position for position, name in enumerate(TURNS)}
        h = self.h = {name: at.load("ptr" if name[-1] == "*" else "i64", 8) for name, at in self.at.items()}
        self.base = h["base*"].test("ne", "null").select(h["base*"], self.struct)
        self._move("first", nothing)
        asked = self._pointer(h["count"], h["count_at"]).load("i64", 8)
        going = self._pointer(h["going"], h["going_at"]).load("i8", 1).zext("i64").test("eq", h["sense"])
        begin = self._ticks()
        turn, run, copy, out = w.labels("turn", "run", "copy", "out")
        head, (done, goes) = w.head(turn, [nothing, going])
        w.branch(goes & done.test("slt", asked) & done.test("slt", h["most"]), run, out)
        w.label(run)
        h["number*"].store(h["start"] + done, 8)
        self._move("before", done)
        with w.when(h["calls"].test("ne", 0)):
            w.let("i64", f"call i64 {h['lead*']}(ptr {h['state*']}, i64 0, i64 {h['calls']}, ptr {self.scratch})")
        self._note()
        undecided, doubt = self._has_undecided(), w.here
        w.branch(undecided, out, copy)
        w.label(copy)
        made, still = done + 1, h["until*"].load("i8", 1).test("ne", 0)
        self._move("after", done)
        long = (self._ticks() - begin).test("sge", _LONG[self.isa.architecture])
        w.back(head, [made, still])
        copied = w.here
        w.branch(long, out, turn)
        w.label(out)
        no, yes = w.value("i1", "false"), w.value("i1", "true")
        cases = (done, done, made), (goes, goes, still), (no, yes, no)
        done, goes, failed = (w.phi(*zip(case, (turn, doubt, copied), strict=True)) for case in cases)
        self._move("last", nothing)
        told = {"done": done, "goes": goes.zext("i64"), "failed": failed.zext("i64"), "ticks": self._ticks() - begin}
        for word, value in {**told, "total": h["total"] + done}.items():
            self.at[word].store(value, 8)
        all_made = ~goes | done.test("sge", asked)
        exactly = h["exact"].test("eq", 0) | done.test("eq", h["most"])
        with w.when(h["inner"].test("ne", 0) & ~(all_made & exactly)):
            w.mark_undecided()

    def _ticks(self) -> Value:
        """Read the CPU's clock."""
        return self.w.call("i64", CLOCK[self.isa.architecture])

    def _pointer(self, byte: Value, ahead: Value) -> Value:
        """An address: `ahead` bytes after the one that is stored at `byte` of the struct, or of the table `base`."""
        return (self.base + byte).load("ptr", 8) + ahead

    def _move(self, name: str, done: Value) -> None:
        """Execute the list of moves of this name. done: how many turns have run."""
        with self.w.loop(0, self.h[f"{name}s"], 1) as turn:
            row = self.h[f"{name}*"] + turn.index * MOVE
            byte, start, to_byte, to, size, ahead, along = ((row + 8 * n).load("i64", 8) for n in range(MOVE // 8))
            source, target = self._pointer(byte, start + ahead * done), self._pointer(to_byte, to + along * done)
            with self.w.when(size.test("eq", 0)):
                target.store(source, 8)
            for at, n in self.w.runs(0, size, (PIECE, 8, 1)):
                (target + at).store((source + at).load(f"<{n} x i8>"))

    def _note(self) -> None:
        """Add the ticks of each call of this turn to `spans`."""
        times = (self.h["state*"] + TIMES).load("ptr", 8)
        with self.w.loop(0, self.h["calls"], 1) as turn:
            came, left = ((times + turn.index * 16 + n).load("i64", 8) for n in (0, 16))
            spent = self.h["spans*"] + turn.index * 8
            spent.store(spent.load("i64", 8) + (left - came), 8)

    def _has_undecided(self) -> Value:
        """Whether a call left a result undecided. Clears the marks of those calls."""
        with self.w.loop(0, self.h["doubts"], 1, [self.w.value("i64", 0)]) as turn:
            call = (self.h["doubtful*"] + turn.index * 8).load("i64", 8)
            mark = (self.h["plan*"] + call * ENTRY + 8).load("ptr", 8) + DOUBT
            found = mark.load("i64", 8)
            mark.store(self.w.value("i64", 0), 8)
            turn.next(turn.carried[0] | found)
        return turn.carried[0].test("ne", 0)
