"""Turns of a program of its own as one call of another program, by the functions of emit/turns.py."""

from __future__ import annotations

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter
from qrun.native.emit.spec import DOUBT, DOUBTFUL, DOUBTS, ENTRY, GOING, HELD, LATE, MOST, repeated_words


@emitter("repeated")
class RepeatedEmitter(KernelEmitter):
    """`rows` operands, the result last: what turns read from outside, and what they give, behind each other.

    The memory of the turns is a run's own (spec.HELD). Words of it that depend on where the operands lie are set first; then
    states are copied to where the first turn reads them, turns are made, and the last states copied to the result. Turns that
    do not come to an end in some time leave the result undecided, as a doubt in one of them does.

    form: ``count``: an operand says how many turns there are; ``going``: one whether there are any; ``until``: they end when
    the byte is 0 that ends turns; ``all``: there must be as many as there can be.
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
        """Say that a turn left something undecided, or else that there were too many; the calls' own marks are taken away."""
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
