"""Planned softmax of 8-bit codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.emit.softmax import NAMES
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.call import KernelCall, struct
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Order, Planned, share, size

_LONG = 128
_EPS = float(np.finfo(np.float64).eps)
_REACH = 1024.0
"""Greater quotients give the greatest code, whatever the zero point."""


class Softmax(Planned):
    """y = saturate(RNE(exp(scale * x) / sum exp(scale * x) / y_scale) + zero_point), each sum over `length` codes.

    shape:  of x and y, uint8 or int8 as zero_point, in C order, rows of `length` one after another.
    scale, y_scale: positive and finite. equal: the result where all codes of a row are equal.

    float64 decides where its quotient is surely on one side of a tie: its relative error is below
    (length + 32) * 2**-52, a sum of `length` terms and a few roundings. Otherwise a run ends with Undecided.
    """

    order: Order = "plain"

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        length: int,
        scale: float,
        y_scale: float,
        zero_point: Any,
        equal: int,
    ) -> None:
        super().__init__()
        operand = Operand(tuple(shape), zero_point.dtype)
        self.engine, self.operands, self.length = engine, (operand, operand), length
        self.zero_point, self.equal = int(zero_point), equal
        weights = np.exp(-scale * np.arange(255.0, -1, -1))
        certain = 0.5 - (length + 32) * _REACH * _EPS
        self.constants = weights, weights / y_scale, np.array([certain])

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        operand, length = self.result, self.length
        rows = size(operand.shape) // length if length else 0
        if not rows:
            return ()
        isa, signed = self.engine.isa, operand.dtype == np.int8
        block, form = 4 * isa.lanes, "table" if length >= _LONG else "each"
        spec = KernelSpec(
            "softmax", isa.name, block if length >= block else 0, 1, 1, form, "s8" if signed else "u8", bool(signed)
        )
        chunk = share(rows, 16 * length, self.engine.threads)
        words = {
            "x*": 0, "y*": 0, "rows": rows, "chunk": chunk, "length": length, "last": length - block,
            "tiles": -(-rows // chunk), "equal": self.equal, "zero": self.zero_point,
            "high": int(np.iinfo(operand.dtype).max) - self.zero_point,
        }  # fmt: skip
        arrays = dict(zip(("weights*", "levels*", "certain*"), self.constants, strict=True))
        pointers = tuple((NAMES.index(name), place) for place, name in enumerate(("x*", "y*")))
        return (
            KernelCall(
                spec, self.engine.kernels.get(spec), struct(NAMES, words, arrays), pointers, (rows * length,) * 2,
                words["tiles"], channels=1, keep=self.constants, decides=False,
            ),
        )  # fmt: skip
