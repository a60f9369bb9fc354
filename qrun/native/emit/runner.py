"""The generated functions that walk a program: every thread runs all calls, each taking the tiles that are left.

    segment  run calls first..last; where a call has the barrier mark, wait until the calls since the last one are done.
             Helpers leave out calls that are the leader's alone, and waits before such calls only. A call whose guard, a byte,
             is 0 is left out by all; the leader counts its tiles as finished
    lead     what the thread that started the run calls: reset counters, let helpers in, run, wait until they are out
    follow   what helpers call: run whatever opens, until the leader is gone or nothing has opened for `patience` turns
    repeat   lead, many times (emit/turns.py)
    direct   lead, on arrays that Python names only (emit/direct.py)

Each thread notes on the processor's clock, at `times`, when it came to each call and when it ended its own work on it,
which is the same if it found none; then when it came to the end.

Every kernel is given the scratch memory of its thread; few use it. A helper that comes late joins at the start and
finds the tiles taken; nobody waits for a sleeping thread.

Who waits long gives its processor to others, through the function whose address the state has at YIELD, 0 for none. A system
may wake a helper on the leader's processor: without that, each would wait there, for milliseconds, for what the other cannot
do meanwhile. At first a thread waits without, as giving way costs more than most waits take.

Which thread sees what, and why each memory ordering suffices (names of LLVM; C++ says relaxed for monotonic):

monotonic   The counter of taken tiles (in the kernels). It must give each number to one thread, no more: what a tile
            reads was made before a barrier, or before the run was opened.
release     Adding to the count of finished tiles, after the kernel has returned: what its tiles stored comes before.
acquire     Reading that count in a barrier. The additions of several threads are one release sequence, since each is a
            read-modify-write: who reads the full count sees the results of all of them.
seq_cst     Opening, entering, closing. A helper adds itself to those inside, then looks whether the run is still open;
            the leader closes it, then looks whether someone is inside. Each stores one word and then loads the other's:
            with release and acquire both could read what was there before (Dekker's problem), and the helper would run
            calls whose counters the next run resets. In one total order, one of the two sees the other: a helper that is
            too late leaves without touching anything.
            Opening is also the release that the plan, its range and its counters need, which are plain stores; leaving
            is the release after which the leader, who reads that nobody is inside, has all results. Both would do with
            less, but happen once a run and thread.

A helper that leaves out the wait before calls of the leader alone does wait after the last of them, if it goes on with
others. There it reads what the leader has added after it had waited itself: so all before is done, and seen.

A guard is made before a barrier that comes before the calls that it guards, and stays as it is until the run ends: so a
helper that comes late leaves out what the others did. It reads no guard of calls that are the leader's alone.

A plan is never changed while a helper is inside, so that all else may be plain loads and stores: a helper compares the
generation again after it has entered, and so does not take a later run for the one that it saw.
"""

from __future__ import annotations

from qrun.native.emit.direct import DIRECT
from qrun.native.emit.isa import PAUSE
from qrun.native.emit.spec import (
    DONE,
    ENTRY,
    GENERATION,
    GONE,
    GUARD,
    INSIDE,
    NEXT,
    OPEN,
    PASS,
    PLAN,
    RANGE,
    SKIP,
    TIMES,
    YIELD,
)
from qrun.native.emit.turns import TURNING

_CLOCK = {"x86_64": "llvm.readcyclecounter", "aarch64": "llvm.readsteadycounter"}
_BRIEF, _GIVEN = 256, 16
"""Turns of a wait (tens of nanoseconds each) after which a thread gives way; for how many turns that counts."""
_WAIT = f"""
define internal i64 @wait(ptr %yield, i64 %turn) {{
entry:
  <pause>
  %long = icmp uge i64 %turn, {_BRIEF}
  %can = icmp ne ptr %yield, null
  %gives = and i1 %long, %can
  br i1 %gives, label %give, label %stay
give:
  %done = call i32 %yield()
  %later = add i64 %turn, {_GIVEN}
  ret i64 %later
stay:
  %next = add i64 %turn, 1
  ret i64 %next
}}
"""
_SEGMENT = f"""
define internal void @segment(ptr %plan, i64 %first, i64 %end, ptr %times, ptr %scratch, i64 %heeded, ptr %yield) {{
entry:
  br label %call
call:
  %i = phi i64 [%first, %entry], [%i1, %next]
  %now = call i64 @<clock>()
  %stamp = getelementptr {{ i64, i64 }}, ptr %times, i64 %i
  store i64 %now, ptr %stamp, align 8
  %worked.p = getelementptr i8, ptr %stamp, i64 8
  store i64 %now, ptr %worked.p, align 8
  %offset = mul i64 %i, {ENTRY}
  %e = getelementptr i8, ptr %plan, i64 %offset
  %alone.p = getelementptr i8, ptr %e, i64 40
  %alone.all = load i64, ptr %alone.p, align 8
  %alone = and i64 %alone.all, %heeded
  %skips.bit = and i64 %alone, {SKIP}
  %skips = icmp ne i64 %skips.bit, 0
  br i1 %skips, label %told, label %run
run:
  %kernel = load ptr, ptr %e, align 8
  %args.p = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %args.p, align 8
  %counter = getelementptr i8, ptr %args, i64 {NEXT}
  %guard.p = getelementptr i8, ptr %args, i64 {GUARD}
  %guard = load ptr, ptr %guard.p, align 8
  %free = icmp eq ptr %guard, null
  br i1 %free, label %take, label %ask
ask:
  %byte = load i8, ptr %guard, align 1
  %goes = icmp ne i8 %byte, 0
  br i1 %goes, label %take, label %leave
leave:
  %leads = icmp eq i64 %heeded, 0
  br i1 %leads, label %count, label %told
count:
  %tiles.p = getelementptr i8, ptr %e, i64 16
  %tiles = load i64, ptr %tiles.p, align 8
  %left.p = getelementptr i8, ptr %args, i64 {DONE}
  %before = atomicrmw add ptr %left.p, i64 %tiles release
  br label %told
take:
  %did = call i64 %kernel(ptr %args, ptr %counter, ptr %scratch)
  %some = icmp ne i64 %did, 0
  br i1 %some, label %tell, label %told
tell:
  %worked = call i64 @<clock>()
  store i64 %worked, ptr %worked.p, align 8
  %done.p = getelementptr i8, ptr %args, i64 {DONE}
  %old = atomicrmw add ptr %done.p, i64 %did release
  br label %told
told:
  %i1 = add i64 %i, 1
  %mark.p = getelementptr i8, ptr %e, i64 24
  %mark = load i64, ptr %mark.p, align 8
  %passes = and i64 %alone, {PASS}
  %waits = icmp eq i64 %passes, 0
  %marked = icmp ne i64 %mark, 0
  %barrier = and i1 %marked, %waits
  br i1 %barrier, label %since, label %next
since:
  %since.p = getelementptr i8, ptr %e, i64 32
  %from = load i64, ptr %since.p, align 8
  br label %wait
wait:
  %j = phi i64 [%from, %since], [%j1, %waited]
  %j.offset = mul i64 %j, {ENTRY}
  %f = getelementptr i8, ptr %plan, i64 %j.offset
  %f.args.p = getelementptr i8, ptr %f, i64 8
  %f.args = load ptr, ptr %f.args.p, align 8
  %f.done = getelementptr i8, ptr %f.args, i64 {DONE}
  %f.tiles.p = getelementptr i8, ptr %f, i64 16
  %f.tiles = load i64, ptr %f.tiles.p, align 8
  br label %spin
spin:
  %turn = phi i64 [0, %wait], [%turn1, %again]
  %sum = load atomic i64, ptr %f.done acquire, align 8
  %all = icmp uge i64 %sum, %f.tiles
  br i1 %all, label %waited, label %again
again:
  %turn1 = call i64 @wait(ptr %yield, i64 %turn)
  br label %spin
waited:
  %j1 = add i64 %j, 1
  %more.j = icmp ult i64 %j1, %i1
  br i1 %more.j, label %wait, label %next
next:
  %more = icmp ult i64 %i1, %end
  br i1 %more, label %call, label %exit
exit:
  %last = call i64 @<clock>()
  %last.p = getelementptr {{ i64, i64 }}, ptr %times, i64 %end
  store i64 %last, ptr %last.p, align 8
  ret void
}}
"""
_LEAD = f"""
define i64 @lead(ptr %state, i64 %first, i64 %end, ptr %scratch) {{
entry:
  %plan.p = getelementptr i8, ptr %state, i64 {PLAN}
  %plan = load ptr, ptr %plan.p, align 8
  %times.p = getelementptr i8, ptr %state, i64 {TIMES}
  %times = load ptr, ptr %times.p, align 8
  %last.p = getelementptr i8, ptr %state, i64 {GENERATION}
  %last = load i64, ptr %last.p, align 8
  %generation = add i64 %last, 1
  store i64 %generation, ptr %last.p, align 8
  br label %reset
reset:
  %i = phi i64 [%first, %entry], [%i1, %reset]
  %offset = mul i64 %i, {ENTRY}
  %e = getelementptr i8, ptr %plan, i64 %offset
  %args.p = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %args.p, align 8
  %next.p = getelementptr i8, ptr %args, i64 {NEXT}
  store i64 0, ptr %next.p, align 8
  %done.p = getelementptr i8, ptr %args, i64 {DONE}
  store i64 0, ptr %done.p, align 8
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %end
  br i1 %more, label %reset, label %open
open:
  %open.p = getelementptr i8, ptr %state, i64 {OPEN}
  %inside.p = getelementptr i8, ptr %state, i64 {INSIDE}
  %range.p = getelementptr i8, ptr %state, i64 {RANGE}
  %range1.p = getelementptr i8, ptr %state, i64 {RANGE + 8}
  store i64 %first, ptr %range.p, align 8
  store i64 %end, ptr %range1.p, align 8
  store atomic i64 %generation, ptr %open.p seq_cst, align 8
  %yield.p = getelementptr i8, ptr %state, i64 {YIELD}
  %yield = load ptr, ptr %yield.p, align 8
  call void @segment(ptr %plan, i64 %first, i64 %end, ptr %times, ptr %scratch, i64 0, ptr %yield)
  store atomic i64 0, ptr %open.p seq_cst, align 8
  br label %leave
leave:
  %turn = phi i64 [0, %open], [%turn1, %again]
  %inside = load atomic i64, ptr %inside.p seq_cst, align 8
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %exit, label %again
again:
  %turn1 = call i64 @wait(ptr %yield, i64 %turn)
  br label %leave
exit:
  ret i64 0
}}
"""
_FOLLOW = f"""
define i64 @follow(ptr %plan, ptr %state, i64 %patience, ptr %times, ptr %scratch) {{
entry:
  %open.p = getelementptr i8, ptr %state, i64 {OPEN}
  %inside.p = getelementptr i8, ptr %state, i64 {INSIDE}
  %range.p = getelementptr i8, ptr %state, i64 {RANGE}
  %range1.p = getelementptr i8, ptr %state, i64 {RANGE + 8}
  %gone.p = getelementptr i8, ptr %state, i64 {GONE}
  %yield.p = getelementptr i8, ptr %state, i64 {YIELD}
  %yield = load ptr, ptr %yield.p, align 8
  br label %look
look:
  %turn = phi i64 [0, %entry], [%turn1, %idle], [0, %out]
  %last = phi i64 [0, %entry], [%last, %idle], [%seen, %out]
  %g = load atomic i64, ptr %open.p seq_cst, align 8
  %closed = icmp eq i64 %g, 0
  %known = icmp eq i64 %g, %last
  %nothing = or i1 %closed, %known
  br i1 %nothing, label %wait, label %enter
wait:
  %turn1 = call i64 @wait(ptr %yield, i64 %turn)
  %tired = icmp uge i64 %turn1, %patience
  br i1 %tired, label %exit, label %idle
idle:
  br label %look
enter:
  %was = atomicrmw add ptr %inside.p, i64 1 seq_cst
  %still = load atomic i64, ptr %open.p seq_cst, align 8
  %same = icmp eq i64 %still, %g
  br i1 %same, label %work, label %out
work:
  %first = load i64, ptr %range.p, align 8
  %end = load i64, ptr %range1.p, align 8
  call void @segment(ptr %plan, i64 %first, i64 %end, ptr %times, ptr %scratch, i64 {SKIP | PASS}, ptr %yield)
  br label %out
out:
  %seen = phi i64 [%last, %enter], [%g, %work]
  %left = atomicrmw sub ptr %inside.p, i64 1 seq_cst
  br label %look
exit:
  %count = atomicrmw add ptr %gone.p, i64 1 seq_cst
  ret i64 0
}}
"""


def runner_text(architecture: str) -> str:
    """LLVM IR of `lead`, `follow`, `repeat` and `direct`. The unit of the time stamps is the processor's; whoever reads them finds it."""
    clock, (wait, operands) = _CLOCK[architecture], PAUSE[architecture]
    kinds = ", ".join(kind for kind, _ in operands)
    pause = f"call void @{wait}({', '.join(' '.join(operand) for operand in operands)})"
    functions = (
        (_WAIT + _SEGMENT + _LEAD + _FOLLOW + DIRECT + TURNING).replace("<clock>", clock).replace("<pause>", pause)
    )
    return f"\ndeclare i64 @{clock}()\ndeclare void @{wait}({kinds})\n{functions}"
