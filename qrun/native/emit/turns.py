"""The kernel that runs a program turn after turn, alone or as a call of another program: loops, scans and branches."""

from __future__ import annotations

from qrun.native.emit.isa import CLOCK
from qrun.native.emit.kernel import KernelEmitter, Value, emitter
from qrun.native.emit.spec import DOUBT, ENTRY, MOVE, PIECE, TIMES, TURNS

_LONG = {"x86_64": 1 << 27, "aarch64": 1 << 21}
"""Ticks after which no further turn begins, by architecture: 30 milliseconds or more of a clock of 1 to 5 GHz; two
milliseconds or more of one of 1 GHz or less."""


@emitter("turns")
class TurnsEmitter(KernelEmitter):
    """Operands are what turns read from outside, and where their results go. The other words are in memory that each
    run has for itself, to which `held` points (spec.TURNS):

    lead, state, calls, plan    the function `lead` of emit/runner.py, and what it is given
    doubtful, doubts            calls that may leave a result undecided, and how many
    first, before, after, last  moves before all turns, before each one, after each one, and after all; and how many
    count, count_at             where the number of turns is, as in a move
    going, going_at, sense      and where the byte is that is `sense` if there are any
    until                       where the byte is that is 0 after the last turn
    start, number               the number of the first turn, and where the number of each is put
    most                        the most turns that are made
    inner, exact                a result is undecided (inner) unless all turns were made, and `most` of them (exact)
    base                        a table of addresses in place of the struct, or 0
    done, goes, failed, ticks   set at the end: how many turns were made, whether others would follow, whether the next
                                one was undecided, and how long all took
    total, spans                turns, and the ticks of each call, are added to these
    kept                        where moves keep `total`, as it counts turns inside of turns that may be undecided

    Turns end early if they take long, and where a call could not decide a result: of that turn nothing is moved.
    """

    own_memory = True
    names = ("none", *(f"operand{n}*" for n in range(DOUBT // 8 - 3)), "held*", "tiles")

    def tile(self, tile: Value) -> None:
        w, held, nothing = self.w, self.a["held"], self.w.value("i64", 0)
        self.at = {name: held + 8 * place for place, name in enumerate(TURNS)}
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
        undecided, doubt = self._undecided(), w.here
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
            w.undecided()

    def _ticks(self) -> Value:
        return self.w.call("i64", CLOCK[self.isa.architecture])

    def _pointer(self, byte: Value, ahead: Value) -> Value:
        """So many bytes from the address that is in this byte of the struct, or of the table."""
        return (self.base + byte).load("ptr", 8) + ahead

    def _move(self, name: str, done: Value) -> None:
        """Make the moves of this name after so many turns."""
        with self.w.loop(0, self.h[f"{name}s"], 1) as turn:
            row = self.h[f"{name}*"] + turn.index * MOVE
            byte, start, to_byte, to, size, ahead, along = ((row + 8 * n).load("i64", 8) for n in range(MOVE // 8))
            source, target = self._pointer(byte, start + ahead * done), self._pointer(to_byte, to + along * done)
            with self.w.when(size.test("eq", 0)):
                target.store(source, 8)
            for at, n in self.w.runs(0, size, (PIECE, 8, 1)):
                (target + at).store((source + at).load(f"<{n} x i8>"))

    def _note(self) -> None:
        """Add the ticks that each call took."""
        times = (self.h["state*"] + TIMES).load("ptr", 8)
        with self.w.loop(0, self.h["calls"], 1) as turn:
            came, left = ((times + turn.index * 16 + n).load("i64", 8) for n in (0, 16))
            spent = self.h["spans*"] + turn.index * 8
            spent.store(spent.load("i64", 8) + (left - came), 8)

    def _undecided(self) -> Value:
        """Whether a call left a result undecided. Its mark is taken away."""
        with self.w.loop(0, self.h["doubts"], 1, [self.w.value("i64", 0)]) as turn:
            call = (self.h["doubtful*"] + turn.index * 8).load("i64", 8)
            mark = (self.h["plan*"] + call * ENTRY + 8).load("ptr", 8) + DOUBT
            found = mark.load("i64", 8)
            mark.store(self.w.value("i64", 0), 8)
            turn.next(turn.carried[0] | found)
        return turn.carried[0].test("ne", 0)
