"""Kernel specifications: the parameters that generated code is specialised on. Everything else is a run-time argument.
Also the sizes and memory layouts that both emitters and planners need.

Nothing here writes IR: a planner that needs only this module and the instruction sets imports no emitter. The words of
an argument struct are defined in the emitter; a compiled kernel carries their names (machine/compile.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.isa import Isa


@frozen
class KernelSpec:
    """The specification of one kernel.

    kind:    the name with which the emitter is registered (`emit/kernel.py::emitter`). The emitter's docstring says
             what rows, vectors, unroll, form and operands mean; usually they are as below.
    isa:     name of the instruction set.
    rows, vectors: the register block; or the number of elements, and of rows of them, that are computed at once.
    unroll:  k-steps of 4 bytes, or taps, per iteration of the inner loop; for copies, bytes of an element.
    form:    how sums become results (see BYTES and TAIL), or the functions that are computed.
    out:     u8, s8, i32 or f32; f16 or bf16 (see NARROW); bytes (copies).
    signed:  activations are int8.
    prefetch: 64-byte lines that an iteration of the inner loop prefetches; 1 where operands of computed rows, codes, or
             panels are prefetched.
    operands: the kinds of operands, indices or elements (emit/expression.py), or their place and layout.
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
        """The form for people to read: the names of its functions, joined by ``+``."""
        return "+".join(step.partition(":")[0] for step in self.form.split())

    def key(self) -> str:
        """The kernel's name: equal specs have equal keys, in the cache too."""
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
"""The `out` of 8-bit results, by their type."""
OUT_OF = {**CODES, np.dtype(np.int32): "i32", np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
"""The `out` of all results except copies, by their type."""
DTYPE_OF = {out: dtype for dtype, out in OUT_OF.items()}
FACTOR_BYTES = {"ort": 8, "real": 32}
"""Bytes of constants per column of sums, in forms whose scales come with the run."""
NARROW = {"float16": "f16", "bfloat16": "bf16"}
"""Types whose numbers kernels keep as float32, by numpy's names. Kernels with such an `out` round results to them."""
WIDE = ("i32", "f32")
"""The `out` of results that have four bytes."""
TAIL = "tail-"
_FIELDS = {"m": 1, "a": 1, "r": 0, "c": 2}
"""Steps of a form that begins with TAIL, one letter each, with their number of float32 constants: m multiplies, a adds,
r is max(x, 0), c clips to two limits. Each step rounds to float32; the first one takes the sum as float32."""
ENTRY = 64
"""Bytes of a call in the plan: kernel, argument struct, tiles, barrier mark, first call since the last barrier, and
the bits SKIP and PASS."""
SKIP, PASS = 1, 2
"""Bits for helpers: skip the call itself, and skip the wait after it."""
DOUBT, NEXT, DONE, STRUCT = 248, 256, 320, 384
"""Offsets in an argument struct, in bytes: the word in which a kernel marks an undecided result, the counter of taken
tiles, the counter of finished tiles, the struct's end. Each counter has a cache line of 64 bytes of its own: all
threads write the counters while they read the arguments."""
OPEN, INSIDE, RANGE, YIELD, PLAN, TIMES, GENERATION, SLEEPERS, SYSCALL, GONE, DOZE, STATE = (
    0, 64, 128, 144, 152, 160, 168, 176, 184, 192, 200, 256,
)  # fmt: skip
"""Offsets in the state that leader and helpers share, in bytes.

OPEN        the generation of the run that is open, 0 for none: waiting helpers read it over and over
INSIDE      how many helpers are inside
RANGE       the first call, and the end of the calls
YIELD       the address of the function by which a thread yields its processor, 0 for none
PLAN, TIMES the addresses of the plan and of the leader's times
GENERATION  the generation of the last run
SLEEPERS    how many threads sleep, or are about to
SYSCALL     the address of the function by which a thread sleeps on Linux, 0 for none
GONE        how many helpers have left
DOZE        the longest sleep of a thread, seconds and nanoseconds
STATE       the end of the state

OPEN, INSIDE and GONE have a cache line each. YIELD to SYSCALL share RANGE's, since only the leader changes them,
and never while a run is open; SLEEPERS is an exception, but seldom changes.
"""
STATE_AT, FIRST_AT, END_AT, SCRATCH_AT, MEMORY_AT, PLACES_AT, COUNT_AT, DOUBTFUL_AT, DOUBTS_AT = range(0, 72, 8)
"""Offsets in the arguments of `direct`, which makes a whole run one call, in bytes.

STATE_AT              the address of the state
FIRST_AT, END_AT      the first call, and the end of the calls
SCRATCH_AT            memory of the thread
MEMORY_AT             the offset in an array object of the address of its elements, in bytes
PLACES_AT, COUNT_AT   places (PLACE), and how many
DOUBTFUL_AT, DOUBTS_AT  calls that may leave a result undecided, and how many

The addresses of the array objects follow.
"""
PLACE = 24
"""Bytes of a place, three words: where the address of an array object is stored; the address of the word that is set to
the address of the object's elements; an offset in bytes that is added."""
TURNS = (
    *("lead*", "state*", "calls", "plan*", "doubtful*", "doubts", "first*", "firsts", "before*", "befores"),
    *("after*", "afters", "last*", "lasts", "count", "count_at", "going", "going_at", "sense", "until*", "start"),
    *("number*", "most", "exact", "inner", "base*", "done", "goes", "failed", "ticks", "total", "kept", "spans*"),
)
"""Words of the memory of a loop of turns (emit/turns.py)."""
MOVE = 56
"""Bytes of a move, seven words. The source: the byte of the struct that has an address, and an offset; the target, in
the same way; the number of bytes, 0 to store the source's address itself; the steps of source and target per turn."""
UNDECIDED = 1
"""The mark in the word DOUBT of a call that left a result undecided: the reference kernel has to compute it."""
PIECE = 16
"""Bytes of a piece, of which vectors of bytes consist (emit/bytes.py). Shorter rows and blocks are stored in part."""
DOUBLES = 4096.0
"""The number that `Bytes.doubles` adds: at this size, 2**12, the lowest bit of a float64's byte 5 counts ones."""
OUTER = 3
"""The number of outer axes of a kernel that walks its operands with strides."""
EIGHT = 8
"""Neighbouring bytes of a row that the kernel ``clipped`` clips together."""
INTERLEAVED = 4
"""Vectors of channels in a panel of the depthwise kernel that interleaves taps."""
BOUND_VECTORS = 4
"""Vectors of channels that a proof bounds at once."""
SHUFFLED = 64
"""Bytes that each piece of a shuffle's table fills, by repetition."""
VBMI = "avx512vbmi"
"""The CPU feature that tables in registers need."""

SOURCES = ("source0*", "source1*", "source2*", "source3*")
"""The operands of steps m and a: arguments of the kernel that prepares the constants (emit/prepare.py)."""


def names(text: str) -> tuple[str, ...]:
    """The names of an argument struct's words, from a text that lists them separated by white space."""
    return tuple(text.split())


def constant_bytes(form: str) -> int:
    """Bytes of a form's constants per channel."""
    return 4 * sum(map(_FIELDS.__getitem__, form[len(TAIL) :])) if form.startswith(TAIL) else BYTES[form]


def lane_order(pieces: int) -> list[int]:
    """The number of the byte in each lane of the four vectors of emit/bytes.py, one vector after the other."""
    return [int(i) for i in np.arange(PIECE * pieces).reshape(pieces, 4, 4).transpose(1, 0, 2).reshape(-1)]


def vector_pieces(isa: Isa) -> int:
    """The number of 16-byte pieces in a vector of the instruction set."""
    return 4 * isa.lanes // PIECE


def masks(pieces: int) -> bool:
    """Whether rows may be shorter than a vector of this many pieces, since its loads and stores can be masked."""
    return pieces == 4


def taps_per_turn(isa: Isa) -> int:
    """The number of products that one instruction adds in depthwise kernels that interleave taps; 1 if none does."""
    return {"vnni512": 4, "vnni256": 4, "madd512": 2, "madd256": 2}.get(isa.dot, 1)
