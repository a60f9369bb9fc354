"""The generated function that runs a program many times: what a turn makes is copied to where the next one reads it.

It is a loop around `lead` (emit/runner.py), which ends when a byte is 0 after a turn, when so many turns are done or so much
time is over, or when a call could not decide a result: then what that turn made is copied nowhere, so that it can be made
again elsewhere. It returns how many turns were done. In how many of them a byte was 1, and how long each call took, on the
clock of the time stamps, is added up.
"""

from __future__ import annotations

from qrun.native.emit.flow import Flow
from qrun.native.emit.spec import (
    AFTER,
    BEFORE,
    DOUBTFUL,
    DOUBTS,
    GOING,
    MOST,
    MOVE,
    MOVES,
    PIECE,
    PLAN,
    SPANS,
    SPELL,
    TALLIES,
    TICKS,
    TIMES,
)
from qrun.native.emit.values import Value


def moved(w: Flow, first: Value, count: Value) -> None:
    """Make so many moves."""
    with w.loop(0, count, 1) as turn:
        move = first + turn.index * MOVE
        source, target = ((move + n).load("ptr", 8) for n in (0, 8))
        size, ahead, along = ((move + n).load("i64", 8) for n in (16, 24, 32))
        move.store(source + ahead, 8)
        (move + 8).store(target + along, 8)
        for at, n in w.runs(0, size, (PIECE, 1)):
            (target + at).store((source + at).load(f"<{n} x i8>"))


def tallied(w: Flow, first: Value, count: Value) -> None:
    """Add bytes to numbers, as so many moves say."""
    with w.loop(0, count, 1) as turn:
        source, total = ((first + turn.index * MOVE + n).load("ptr", 8) for n in (0, 8))
        total.store(total.load("i64", 8) + source.load("i8", 1).zext("i64"), 8)


def repeat(clock: str, w: Flow, state: Value, first: Value, end: Value, scratch: Value, turns: Value) -> Value:
    plan, times = ((state + place).load("ptr", 8) for place in (PLAN, TIMES))
    moves, doubtful, going, spans = ((turns + place).load("ptr", 8) for place in (MOVES, DOUBTFUL, GOING, SPANS))
    most, before, after, tallies, doubts, spell = (
        (turns + place).load("i64", 8) for place in (MOST, BEFORE, AFTER, TALLIES, DOUBTS, SPELL)
    )
    later = moves + before * MOVE
    tally = later + after * MOVE
    begin = w.call("i64", clock)
    head, (made,) = w.head("turn", [w.value("i64", 0)])
    w.do(f"call void @moved(ptr {moves}, i64 {before})")
    w.let("i64", f"call i64 @lead(ptr {state}, i64 {first}, i64 {end}, ptr {scratch})")
    with w.loop(first, end, 1, once=True) as call:
        came, left = ((times + call.index * 16 + n).load("i64", 8) for n in (0, 16))
        spent = spans + call.index * 8
        spent.store(spent.load("i64", 8) + (left - came), 8)
    undecided, doubt = w.let("i1", f"call i1 @undecided(ptr {plan}, ptr {doubtful}, i64 {doubts})"), w.here
    w.branch(undecided, "exit", "copy")
    w.label("copy")
    w.do(f"call void @tallied(ptr {tally}, i64 {tallies})")
    w.do(f"call void @moved(ptr {later}, i64 {after})")
    following = made + 1
    (stops,) = w.instead(
        [w.value("i1", "false")], going.test("ne", "null"), lambda: [going.load("i8", 1).test("eq", 0)]
    )
    long = ((times + end * 16).load("i64", 8) - begin).test("sge", spell)
    w.back(head, [following])
    copied = w.here
    w.branch(following.test("uge", most) | stops | long, "exit", "turn")
    w.label("exit")
    done = w.phi((made, doubt), (following, copied))
    (turns + TICKS).store(w.call("i64", clock) - begin, 8)
    return done
