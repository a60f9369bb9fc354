"""Between which numbers the inverses of multipliers may lie: the long part of a proof, compiled."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from qrun.native._bounds import BOUNDS, VECTORS
from qrun.native.compile import Kernels
from qrun.native.isa import Isa, host_architecture
from qrun.native.section import COUNTER, struct
from qrun.native.spec import KernelSpec
from qrun.native.thresholds import Floats


@dataclass(frozen=True, slots=True)
class Bounds:
    """What Search takes to find bounds. Calls give float64 [2, n] for inverse [n], halves and weights [steps]."""

    kernels: Kernels
    isa: Isa

    @classmethod
    def of(cls, kernels: Kernels, isa: Isa) -> Bounds | None:
        """None for an instruction set that this machine does not have."""
        return cls(kernels, isa) if isa.architecture == host_architecture() else None

    def __call__(self, inverse: Floats, halves: Floats, weights: Floats) -> Floats:
        rows = VECTORS * max(self.isa.lanes // 2, 2)
        tiles = -(-len(inverse) // rows)
        room = np.empty((3, tiles * rows))
        room[0, : len(inverse)] = inverse
        room[0, len(inverse) :] = 1
        arrays = {"inverse*": room[0], "low*": room[1], "high*": room[2], "halves*": halves, "weights*": weights}
        words = {"split": int(np.count_nonzero(halves < 0)), "steps": len(halves), "tiles": tiles}
        kernel = self.kernels.get(KernelSpec("bounds", self.isa.name, rows, VECTORS, 1, "i32", "i32", False))
        arguments = struct(BOUNDS, words, arrays)
        start = ctypes.c_void_p(arguments.ctypes.data)
        kernel(start, ctypes.c_void_p((start.value or 0) + COUNTER))
        return room[1:, : len(inverse)]
