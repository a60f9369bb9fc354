"""Sizes on which those who write kernels and those who plan and call them agree.

Nothing here writes IR: a planner that needs no more of `emit` than this, and the specification, imports no emitter. The
words of an argument struct are the emitter's alone; a compiled kernel brings their names along (machine/compile.py).
"""

from __future__ import annotations

import numpy as np

from qrun.native.emit.isa import Isa

ENTRY = 64
"""Bytes of a call in the plan: kernel, argument struct, tiles, barrier mark, first call since the last barrier."""
DOUBT, NEXT, DONE, STRUCT = 248, 256, 320, 384
"""In bytes from an argument struct's start: the word where a kernel says that it could not decide a result, the counter
of taken tiles, that of finished ones, the struct's end. The counters have cache lines of 64 bytes to themselves: all
threads write them, while they read the arguments."""
OPEN, INSIDE, RANGE, GONE, STATE = 0, 64, 128, 192, 256
"""The state that leader and helpers share: generation that is open (0 for none), helpers inside, first call and end, how
many helpers have left. Each has its own cache line: helpers that wait read the first one over and over."""

PIECE = 16
"""Bytes: vectors of bytes are pieces of so many (emit/bytes.py). Rows and blocks of fewer bytes are stored in part."""
DOUBLES = 4096.0
"""What `Bytes.doubles` adds: at this size, 2**12, the lowest bit of a float64's sixth byte stands for 1."""
OUTER = 3
"""Outer axes of a kernel that walks operands with strides."""
INTERLEAVED = 4
"""Vectors of channels in a panel of the depthwise kernel that interleaves taps."""
BOUND_VECTORS = 4
"""Vectors of channels that a proof bounds at once."""
SHUFFLED = 64
"""Bytes in which the table of a shuffle repeats each piece."""
VBMI = "avx512vbmi"
"""What the CPU must have for tables in registers."""


def lane_order(pieces: int) -> list[int]:
    """The byte that each lane of the four vectors holds, one vector after the other."""
    return [int(i) for i in np.arange(PIECE * pieces).reshape(pieces, 4, 4).transpose(1, 0, 2).reshape(-1)]


def widest(isa: Isa) -> int:
    """Pieces in the vectors of an instruction set."""
    return 4 * isa.lanes // PIECE


def masks(pieces: int) -> bool:
    """Whether rows may be shorter than a vector of so many pieces."""
    return pieces == 4


def taps_per_turn(isa: Isa) -> int:
    """How many products the instruction set adds at once, in depthwise kernels that interleave taps; 1 for none."""
    return {"vnni512": 4, "vnni256": 4, "madd512": 2, "madd256": 2}.get(isa.dot, 1)
