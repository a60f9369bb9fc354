"""The generated function of a run that is one call from Python: it finds the arrays' memory itself.

It is told where each array is as an object. A word of an argument struct that is to be an address in one gets where the
array's elements begin, plus so many bytes; then it is `lead` (emit/runner.py). It returns 1 if a call could not decide a result,
else 0.
"""

from __future__ import annotations

from qrun.native.emit.flow import Flow
from qrun.native.emit.spec import DOUBT, ENTRY, PLACE, PLAN
from qrun.native.emit.values import Value

_TOLD = ("ptr", "i64", "i64", "ptr", "i64", "ptr", "i64", "ptr", "i64")
"""The types of the words from spec.STATE_AT to spec.DOUBTS_AT."""


def undecided(w: Flow, plan: Value, doubtful: Value, doubts: Value) -> Value:
    """Whether one of the calls with these numbers left a result undecided."""
    with w.loop(0, doubts, 1, [w.value("i1", "false")]) as turn:
        call = (doubtful + turn.index * 8).load("i64", 8)
        args = (plan + call * ENTRY + 8).load("ptr", 8)
        turn.next(turn.carried[0] | (args + DOUBT).load("i64", 8).test("ne", 0))
    return turn.carried[0]


def direct(w: Flow, told: Value) -> Value:
    words = [(told + 8 * place).load(kind, 8) for place, kind in enumerate(_TOLD)]
    state, first, end, scratch, inside, places, count, doubtful, doubts = words
    with w.loop(0, count, 1) as turn:
        place = places + turn.index * PLACE
        array, word = ((place + n).load("ptr", 8) for n in (0, 8))
        memory = (array.load("ptr", 8) + inside).load("i64", 8)
        word.store(memory + (place + 16).load("i64", 8), 8)
    w.let("i64", f"call i64 @lead(ptr {state}, i64 {first}, i64 {end}, ptr {scratch})")
    plan = (state + PLAN).load("ptr", 8)
    return w.let("i1", f"call i1 @undecided(ptr {plan}, ptr {doubtful}, i64 {doubts})").zext("i64")
