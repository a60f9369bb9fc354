"""What a kernel is specialised on; everything else is an argument at run time. And sizes that planners need to know.

Nothing here writes IR: a planner that needs no more of `emit` than this, and the instruction sets, imports no emitter.
The words of an argument struct are the emitter's alone;
a compiled kernel brings their names along (machine/compile.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.isa import Isa


@frozen
class KernelSpec:
    """One kernel.

    kind:    which emitter writes it, by the name that `emit/kernel.py::emitter` declares it with. Its docstring says
             what rows, vectors, unroll, form and operands mean; most often as below.
    isa:     name of the instruction set.
    rows, vectors: the register block; or how many elements, and rows of them, are made at once.
    unroll:  k-steps of 4 bytes, or taps, per turn of the inner loop; of copies bytes of an element.
    form:    how results are made of sums (see BYTES and TAIL), or the functions that are made.
    out:     u8, s8, i32 or f32; f16 or bf16 (see NARROW); bytes (copies).
    signed:  activations are int8.
    prefetch: 64-byte lines of what is read next that are fetched per turn of the inner loop; 1 where rows that are made
             of operands, codes, or panels are fetched before they are needed.
    operands: the kinds of operands, indices or elements (emit/expression.py), or where they are and how they lie.
    """

    kind: str
    isa: str
    rows: int
    vectors: int
    unroll: int
    form: str
    out: str
    signed: bool
    prefetch: int = 0
    operands: str = ""

    @property
    def shown_form(self) -> str:
        """The form as people read it: of several functions their names, joined by ``+``."""
        return "+".join(step.partition(":")[0] for step in self.form.split())

    def key(self) -> str:
        sign = "s" if self.signed else "u"
        block, more = f"{self.rows}x{self.vectors}x{self.unroll}", f"-{self.operands}" if self.operands else ""
        return f"{self.kind}-{self.isa}-{block}-{sign}-{self.form}-{self.out}-p{self.prefetch}{more}"


MAGIC = 12582912.0
MAGIC_BITS = 0x4B400000
TABLE = 256
LIMITS = {"u8": (0, 255), "s8": (-128, 127)}
BYTES = {"y32": 12, "x32": 8, "f64": 8, "ort": 4, "table": 4 * TABLE + 8, "i32": 0}
"""Bytes of constants per channel, by form."""
CODES: dict[np.dtype[Any], str] = {np.dtype(np.uint8): "u8", np.dtype(np.int8): "s8"}
"""How specifications call the types of codes."""
OUT_OF = {**CODES, np.dtype(np.int32): "i32", np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
"""And those of all results that are no copies."""
DTYPE_OF = {out: dtype for dtype, out in OUT_OF.items()}
FACTOR_BYTES = {"ort": 8, "real": 32}
"""Bytes that a column of sums needs to become float32, in forms whose scales come with the run."""
NARROW = {"float16": "f16", "bfloat16": "bf16"}
"""Types whose numbers kernels keep as float32, by numpy's names:
results of kernels with such an `out` are rounded to them."""
WIDE = ("i32", "f32")
"""Types of results that have four bytes."""
TAIL = "tail-"
_FIELDS = {"m": 1, "a": 1, "r": 0, "c": 2}
"""Steps of a form that begins with TAIL, a letter each, with their number of float32 constants: m multiplies, a adds, r
takes the greater one of x and 0, c clips to two limits. Each step rounds to float32;
the first takes the sum as float32."""
ENTRY = 64
"""Bytes of a call in the plan: kernel, argument struct, tiles, barrier mark, first call since the last barrier, and
what helpers leave out."""
SKIP, PASS = 1, 2
"""Bits of what helpers leave out: the call itself, and the wait after it."""
DOUBT, NEXT, DONE, STRUCT = 248, 256, 320, 384
"""In bytes from an argument struct's start: the word where a kernel says that it could not decide a result, the counter
of taken tiles, the counter of finished tiles, the struct's end. The counters have cache lines of 64 bytes to
themselves: all threads write them, while they read the arguments."""
OPEN, INSIDE, RANGE, YIELD, PLAN, TIMES, GENERATION, SLEEPERS, SYSCALL, GONE, DOZE, STATE = (
    0, 64, 128, 144, 152, 160, 168, 176, 184, 192, 200, 256,
)  # fmt: skip
"""The state that leader and helpers share, in bytes from its start.

OPEN        the generation that is open, 0 for none: helpers that wait read it over and over
INSIDE      how many helpers are inside
RANGE       the first call, and the end of the calls
YIELD       the address of the function by which a thread gives way, 0 for none
PLAN, TIMES the addresses of the plan and of the leader's times
GENERATION  the generation that was open last
SLEEPERS    how many threads sleep, or are about to
SYSCALL     the address of the function by which a thread asks Linux to let it sleep, 0 for none
GONE        how many helpers have left
DOZE        how long a thread sleeps at most, seconds and nanoseconds
STATE       the end of it all

OPEN, INSIDE and GONE have a cache line each. YIELD to SYSCALL share RANGE's, since only the leader changes them,
and never while a run is open; SLEEPERS is an exception, but seldom changes.
"""
STATE_AT, FIRST_AT, END_AT, SCRATCH_AT, MEMORY_AT, PLACES_AT, COUNT_AT, DOUBTFUL_AT, DOUBTS_AT = range(0, 72, 8)
"""What a run that is one call is told, in bytes from its start.

STATE_AT              the address of the state
FIRST_AT, END_AT      the first call, and the end of the calls
SCRATCH_AT            memory of the thread
MEMORY_AT             where an array object has the address of its elements, in bytes from the object's start
PLACES_AT, COUNT_AT   places (PLACE), and how many
DOUBTFUL_AT, DOUBTS_AT  calls that may leave a result undecided, and how many

Behind these stand the addresses of the array objects.
"""
PLACE = 24
"""Bytes of a place, three words: where the address of an array object is; the word that is to hold where its elements
begin; how many bytes are added to that."""
TURNS = (
    *("lead*", "state*", "calls", "plan*", "doubtful*", "doubts", "first*", "firsts", "before*", "befores"),
    *("after*", "afters", "last*", "lasts", "count", "count_at", "going", "going_at", "sense", "until*", "start"),
    *("number*", "most", "exact", "inner", "base*", "done", "goes", "failed", "ticks", "total", "kept", "spans*"),
)
"""Words of the memory of turns (emit/turns.py)."""
MOVE = 56
"""Bytes of a move, seven words. From where: the byte of the struct that has an address, and what is added to it; to
where, in the same way; how many bytes, 0 to store the address itself; how much further on both are in the next turn."""
UNDECIDED = 1
"""The mark in the word DOUBT of a call that did not decide all results: the reference has to decide."""
PIECE = 16
"""Bytes: vectors of bytes are pieces of so many (emit/bytes.py). Rows and blocks of fewer bytes are stored in part."""
DOUBLES = 4096.0
"""What `Bytes.doubles` adds: at this size, 2**12, the lowest bit of a float64's sixth byte stands for 1."""
DOT_BLOCK = 1024
"""Elements of k after which the kernel float_dot adds the lanes of its sums."""
OUTER = 3
"""How many outer axes a kernel has that walks its operands with strides."""
EIGHT = 8
"""Neighbouring bytes of a row that the kernel clipped clips together."""
INTERLEAVED = 4
"""Vectors of channels in a panel of the depthwise kernel that interleaves taps."""
BOUND_VECTORS = 4
"""Vectors of channels that a proof bounds at once."""
SHUFFLED = 64
"""Bytes in which the table of a shuffle repeats each piece."""
VBMI = "avx512vbmi"
"""The CPU feature that tables in registers need."""

SOURCES = ("source0*", "source1*", "source2*", "source3*")
"""Where the operands of m and a come from: arguments of the kernel that prepares the constants."""


def names(text: str) -> tuple[str, ...]:
    """The words of an argument struct, by name, from text in which they stand side by side."""
    return tuple(text.split())


def constant_bytes(form: str) -> int:
    """Bytes of a form's constants per channel."""
    return 4 * sum(map(_FIELDS.__getitem__, form[len(TAIL) :])) if form.startswith(TAIL) else BYTES[form]


def lane_order(pieces: int) -> list[int]:
    """The byte that each lane of the four vectors holds, one vector after the other."""
    return [int(i) for i in np.arange(PIECE * pieces).reshape(pieces, 4, 4).transpose(1, 0, 2).reshape(-1)]


def widest(isa: Isa) -> int:
    """How many pieces of 16 bytes a vector of the instruction set has."""
    return 4 * isa.lanes // PIECE


def masks(pieces: int) -> bool:
    """Whether rows may be shorter than a vector of so many pieces."""
    return pieces == 4


def taps_per_turn(isa: Isa) -> int:
    """How many products the instruction set adds at once, in depthwise kernels that interleave taps; 1 for none."""
    return {"vnni512": 4, "vnni256": 4, "madd512": 2, "madd256": 2}.get(isa.dot, 1)
