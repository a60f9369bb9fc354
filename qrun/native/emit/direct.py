"""The generated function of a run that is one call from Python: it finds the arrays' memory itself.

It is told where each array is as an object. A word of an argument struct that is to be an address in one gets where the
array's elements begin, plus so many bytes; then it is `lead` (emit/runner.py). It returns 1 if a call could not decide a result,
else 0.
"""

from __future__ import annotations

from qrun.native.emit.spec import (
    COUNT_AT,
    DOUBT,
    DOUBTFUL_AT,
    DOUBTS_AT,
    END_AT,
    ENTRY,
    FIRST_AT,
    MEMORY_AT,
    PLACE,
    PLACES_AT,
    PLAN,
    SCRATCH_AT,
    STATE_AT,
)

_UNDECIDED = f"""
define internal i1 @undecided(ptr %plan, ptr %doubtful, i64 %doubts) {{
entry:
  br label %look
look:
  %d = phi i64 [0, %entry], [%d1, %decided]
  %left = icmp ult i64 %d, %doubts
  br i1 %left, label %ask, label %exit
ask:
  %d.p = getelementptr i64, ptr %doubtful, i64 %d
  %row = load i64, ptr %d.p, align 8
  %offset = mul i64 %row, {ENTRY}
  %e = getelementptr i8, ptr %plan, i64 %offset
  %args.p = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %args.p, align 8
  %mark.p = getelementptr i8, ptr %args, i64 {DOUBT}
  %mark = load i64, ptr %mark.p, align 8
  %undecided = icmp ne i64 %mark, 0
  br i1 %undecided, label %exit, label %decided
decided:
  %d1 = add i64 %d, 1
  br label %look
exit:
  %found = phi i1 [0, %look], [1, %ask]
  ret i1 %found
}}
"""
_DIRECT = f"""
define i64 @direct(ptr %told) {{
entry:
  %state.p = getelementptr i8, ptr %told, i64 {STATE_AT}
  %state = load ptr, ptr %state.p, align 8
  %first.p = getelementptr i8, ptr %told, i64 {FIRST_AT}
  %first = load i64, ptr %first.p, align 8
  %end.p = getelementptr i8, ptr %told, i64 {END_AT}
  %end = load i64, ptr %end.p, align 8
  %scratch.p = getelementptr i8, ptr %told, i64 {SCRATCH_AT}
  %scratch = load ptr, ptr %scratch.p, align 8
  %places.p = getelementptr i8, ptr %told, i64 {PLACES_AT}
  %places = load ptr, ptr %places.p, align 8
  %inside.p = getelementptr i8, ptr %told, i64 {MEMORY_AT}
  %inside = load i64, ptr %inside.p, align 8
  %count.p = getelementptr i8, ptr %told, i64 {COUNT_AT}
  %count = load i64, ptr %count.p, align 8
  br label %look
look:
  %i = phi i64 [0, %entry], [%i1, %set]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %set, label %run
set:
  %place = mul i64 %i, {PLACE}
  %from.p = getelementptr i8, ptr %places, i64 %place
  %to.p = getelementptr i8, ptr %from.p, i64 8
  %offset.p = getelementptr i8, ptr %from.p, i64 16
  %from = load ptr, ptr %from.p, align 8
  %to = load ptr, ptr %to.p, align 8
  %offset = load i64, ptr %offset.p, align 8
  %array = load ptr, ptr %from, align 8
  %memory.p = getelementptr i8, ptr %array, i64 %inside
  %memory = load i64, ptr %memory.p, align 8
  %address = add i64 %memory, %offset
  store i64 %address, ptr %to, align 8
  %i1 = add i64 %i, 1
  br label %look
run:
  %led = call i64 @lead(ptr %state, i64 %first, i64 %end, ptr %scratch)
  %plan.p = getelementptr i8, ptr %state, i64 {PLAN}
  %plan = load ptr, ptr %plan.p, align 8
  %doubtful.p = getelementptr i8, ptr %told, i64 {DOUBTFUL_AT}
  %doubtful = load ptr, ptr %doubtful.p, align 8
  %doubts.p = getelementptr i8, ptr %told, i64 {DOUBTS_AT}
  %doubts = load i64, ptr %doubts.p, align 8
  %undecided = call i1 @undecided(ptr %plan, ptr %doubtful, i64 %doubts)
  %told.of = zext i1 %undecided to i64
  ret i64 %told.of
}}
"""
DIRECT = _UNDECIDED + _DIRECT
"""LLVM IR."""
