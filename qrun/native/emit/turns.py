"""The generated function that runs a program many times: what a turn makes is copied to where the next one reads it.

It is a loop around `lead` (emit/runner.py), which ends when a byte is 0 after a turn, when so many turns are done or so much
time is over, or when a call could not decide a result: then what that turn made is copied nowhere, so that it can be made
again elsewhere. It returns how many turns were done. In how many of them a byte was 1, and how long each call took, on the
clock of the time stamps, is added up.
"""

from __future__ import annotations

from qrun.native.emit.spec import (
    AFTER,
    BEFORE,
    DOUBTFUL,
    DOUBTS,
    GOING,
    MOST,
    MOVE,
    MOVES,
    PLAN,
    SPANS,
    SPELL,
    TALLIES,
    TICKS,
    TIMES,
)

_MOVE = f"""
define void @moved(ptr %first, i64 %count) {{
entry:
  br label %look
look:
  %i = phi i64 [0, %entry], [%i1, %done]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %move, label %exit
move:
  %offset = mul i64 %i, {MOVE}
  %from.p = getelementptr i8, ptr %first, i64 %offset
  %to.p = getelementptr i8, ptr %from.p, i64 8
  %bytes.p = getelementptr i8, ptr %from.p, i64 16
  %ahead.p = getelementptr i8, ptr %from.p, i64 24
  %along.p = getelementptr i8, ptr %from.p, i64 32
  %from = load i64, ptr %from.p, align 8
  %to = load i64, ptr %to.p, align 8
  %bytes = load i64, ptr %bytes.p, align 8
  %ahead = load i64, ptr %ahead.p, align 8
  %along = load i64, ptr %along.p, align 8
  %from1 = add i64 %from, %ahead
  %to1 = add i64 %to, %along
  store i64 %from1, ptr %from.p, align 8
  store i64 %to1, ptr %to.p, align 8
  %source = inttoptr i64 %from to ptr
  %target = inttoptr i64 %to to ptr
  br label %pieces
pieces:
  %at = phi i64 [0, %move], [%at1, %piece]
  %at1 = add i64 %at, 16
  %fits = icmp ule i64 %at1, %bytes
  br i1 %fits, label %piece, label %rest
piece:
  %piece.from = getelementptr i8, ptr %source, i64 %at
  %piece.to = getelementptr i8, ptr %target, i64 %at
  %sixteen = load <16 x i8>, ptr %piece.from, align 1
  store <16 x i8> %sixteen, ptr %piece.to, align 1
  br label %pieces
rest:
  %b = phi i64 [%at, %pieces], [%b1, %byte]
  %some = icmp ult i64 %b, %bytes
  br i1 %some, label %byte, label %done
byte:
  %byte.from = getelementptr i8, ptr %source, i64 %b
  %byte.to = getelementptr i8, ptr %target, i64 %b
  %one = load i8, ptr %byte.from, align 1
  store i8 %one, ptr %byte.to, align 1
  %b1 = add i64 %b, 1
  br label %rest
done:
  %i1 = add i64 %i, 1
  br label %look
exit:
  ret void
}}
"""
_TALLY = f"""
define internal void @tallied(ptr %first, i64 %count) {{
entry:
  br label %look
look:
  %i = phi i64 [0, %entry], [%i1, %add]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %add, label %exit
add:
  %offset = mul i64 %i, {MOVE}
  %from.p = getelementptr i8, ptr %first, i64 %offset
  %to.p = getelementptr i8, ptr %from.p, i64 8
  %from = load ptr, ptr %from.p, align 8
  %to = load ptr, ptr %to.p, align 8
  %byte = load i8, ptr %from, align 1
  %one = zext i8 %byte to i64
  %before = load i64, ptr %to, align 8
  %sum = add i64 %before, %one
  store i64 %sum, ptr %to, align 8
  %i1 = add i64 %i, 1
  br label %look
exit:
  ret void
}}
"""
_REPEAT = f"""
define i64 @repeat(ptr %state, i64 %first, i64 %end, ptr %scratch, ptr %turns) {{
entry:
  %plan.p = getelementptr i8, ptr %state, i64 {PLAN}
  %plan = load ptr, ptr %plan.p, align 8
  %times.p = getelementptr i8, ptr %state, i64 {TIMES}
  %times = load ptr, ptr %times.p, align 8
  %most.p = getelementptr i8, ptr %turns, i64 {MOST}
  %most = load i64, ptr %most.p, align 8
  %moves.p = getelementptr i8, ptr %turns, i64 {MOVES}
  %moves = load ptr, ptr %moves.p, align 8
  %before.p = getelementptr i8, ptr %turns, i64 {BEFORE}
  %before = load i64, ptr %before.p, align 8
  %after.p = getelementptr i8, ptr %turns, i64 {AFTER}
  %after = load i64, ptr %after.p, align 8
  %later = getelementptr {{ i64, i64, i64, i64, i64 }}, ptr %moves, i64 %before
  %tally = getelementptr {{ i64, i64, i64, i64, i64 }}, ptr %later, i64 %after
  %tallies.p = getelementptr i8, ptr %turns, i64 {TALLIES}
  %tallies = load i64, ptr %tallies.p, align 8
  %doubtful.p = getelementptr i8, ptr %turns, i64 {DOUBTFUL}
  %doubtful = load ptr, ptr %doubtful.p, align 8
  %doubts.p = getelementptr i8, ptr %turns, i64 {DOUBTS}
  %doubts = load i64, ptr %doubts.p, align 8
  %going.p = getelementptr i8, ptr %turns, i64 {GOING}
  %going.at = load i64, ptr %going.p, align 8
  %going = inttoptr i64 %going.at to ptr
  %asks = icmp ne i64 %going.at, 0
  %spans.p = getelementptr i8, ptr %turns, i64 {SPANS}
  %spans = load ptr, ptr %spans.p, align 8
  %ticks.p = getelementptr i8, ptr %turns, i64 {TICKS}
  %spell.p = getelementptr i8, ptr %turns, i64 {SPELL}
  %spell = load i64, ptr %spell.p, align 8
  %end.p = getelementptr {{ i64, i64 }}, ptr %times, i64 %end
  %begin = call i64 @<clock>()
  br label %turn
turn:
  %t = phi i64 [0, %entry], [%t1, %goes]
  call void @moved(ptr %moves, i64 %before)
  %led = call i64 @lead(ptr %state, i64 %first, i64 %end, ptr %scratch)
  br label %span
span:
  %i = phi i64 [%first, %turn], [%i1, %span]
  %i1 = add i64 %i, 1
  %came.p = getelementptr {{ i64, i64 }}, ptr %times, i64 %i
  %left.p = getelementptr {{ i64, i64 }}, ptr %times, i64 %i1
  %came = load i64, ptr %came.p, align 8
  %left = load i64, ptr %left.p, align 8
  %took = sub i64 %left, %came
  %span.p = getelementptr i64, ptr %spans, i64 %i
  %spent = load i64, ptr %span.p, align 8
  %sum = add i64 %spent, %took
  store i64 %sum, ptr %span.p, align 8
  %spans.left = icmp ult i64 %i1, %end
  br i1 %spans.left, label %span, label %doubt
doubt:
  %undecided = call i1 @undecided(ptr %plan, ptr %doubtful, i64 %doubts)
  br i1 %undecided, label %exit, label %copy
copy:
  call void @tallied(ptr %tally, i64 %tallies)
  call void @moved(ptr %later, i64 %after)
  %t1 = add i64 %t, 1
  %all = icmp uge i64 %t1, %most
  br i1 %all, label %exit, label %stops
stops:
  br i1 %asks, label %ask.going, label %goes
ask.going:
  %byte = load i8, ptr %going, align 1
  %ended = icmp eq i8 %byte, 0
  br i1 %ended, label %exit, label %goes
goes:
  %come = load i64, ptr %end.p, align 8
  %so.far = sub i64 %come, %begin
  %long = icmp sge i64 %so.far, %spell
  br i1 %long, label %exit, label %turn
exit:
  %done = phi i64 [%t, %doubt], [%t1, %copy], [%t1, %ask.going], [%t1, %goes]
  %now = call i64 @<clock>()
  %all.ticks = sub i64 %now, %begin
  store i64 %all.ticks, ptr %ticks.p, align 8
  ret i64 %done
}}
"""
TURNING = _MOVE + _TALLY + _REPEAT
"""LLVM IR; the clock is to be put in."""
