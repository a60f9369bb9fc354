"""Plans softmax of 8-bit codes and of float32, and log-softmax of float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.emit.softmax import WEIGHT
from qrun.native.kernels.point import table_forms
from qrun.native.kernels.rowwise import FloatRows
from qrun.native.machine.engine import (
    Array,
    Engine,
    KernelCall,
    KernelSpec,
    Operand,
    Operation,
    row_tiles,
    size,
)
from qrun.native.machine.memory import aligned_copy

_LONG = 128
"""The fewest codes of a row for which a table of all distances pays."""
_PLANES = 4096
"""The longest row for which the integer sum is near enough to the sum of weights, for most results."""
_EPS = float(np.finfo(np.float64).eps)
_REACH = 1024.0
"""Greater quotients give the greatest code, for any zero point."""


class Softmax(Operation):
    """y = saturate(RNE(exp(scale * x) / sum exp(scale * x) / y_scale) + zero_point), each sum over `length` codes.

    shape:  of x and y, uint8 or int8 as zero_point, in C order, rows of `length` one after another.
    scale, y_scale: positive and finite.
    memo:   keeps the tables of the scales, for other shapes.

    float64 decides a result if its quotient is surely on one side of a tie: the relative error is below
    (length + 32) * 2**-52, for a sum of `length` terms and a few roundings. Otherwise the run ends undecided.
    """

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        length: int,
        scale: float,
        y_scale: float,
        zero_point: Any,
        memo: Memo | None = None,
    ) -> None:
        operand = Operand(tuple(shape), zero_point.dtype)
        self.engine, self.operands, self.length = engine, (operand, operand), length
        self.zero_point, self.y_scale = int(zero_point), y_scale
        self.tables = (memo or Memo()).once("tables", lambda: _tables(scale, y_scale))

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        if not isinstance(other, Softmax) or other.result.dtype != self.result.dtype:
            return None
        return self.again(operands=other.operands, length=other.length, _sizes=(self, other))

    def _equal(self) -> int:
        """The result where all codes of a row are equal."""
        info, (scale, unit) = np.iinfo(self.result.dtype), self.y_scale.as_integer_ratio()
        quotient, rest = divmod(unit, scale * self.length)
        tie = 2 * rest - scale * self.length
        quotient += tie > 0 or (tie == 0 and quotient % 2)
        return min(max(quotient + self.zero_point, int(info.min)), int(info.max))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        operand, length = self.result, self.length
        rows = size(operand.shape) // length
        isa, signed = self.engine.isa, operand.dtype == np.int8
        block = 4 * isa.lanes
        form = "table" if length >= _LONG else "each"
        if block <= length <= _PLANES and "permute" in table_forms(isa):
            form = "planes"
        spec = KernelSpec(
            "softmax", isa.name, block if length >= block else 0, 1, 1, form, "s8" if signed else "u8", bool(signed)
        )
        words = row_tiles(rows, 16 * length, self.engine.threads) | {
            "length": length,
            "last": length - block,
            "equal": self._equal(),
            "zero": self.zero_point,
            "high": int(np.iinfo(operand.dtype).max) - self.zero_point,
            "reach!": int(np.float32(4 * 2.0**-24 + length / WEIGHT).view(np.int32)),
        }
        arrays = {**self.tables, "certain*": np.array([0.5 - (length + 32) * _REACH * _EPS])}
        return (
            self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole, arrays=arrays, channels=1, decides=False),
        )


def _tables(scale: float, y_scale: float) -> dict[str, Array]:
    """The tables of the kernel, for each distance from a row's greatest code: its weight, the weight over y_scale, and
    both in the form needed by the forms that begin in float32.

    A quotient there has three roundings, of level, inverse and product, and the error of the sum: each of `length`
    weights is off by at most 1 / (2 * WEIGHT), and the greatest weight is 1.
    """
    weights = np.exp(-scale * np.arange(255.0, -1, -1))
    levels, whole = weights / y_scale, np.rint(weights * WEIGHT).astype("<u4")
    with np.errstate(over="ignore"):
        singles = levels.astype(np.float32)
    planes = aligned_copy(whole.view(np.uint8).reshape(256, 4).T)
    return {"weights*": weights, "levels*": levels, "singles*": aligned_copy(singles), "planes*": planes}


class SoftmaxF32(FloatRows):
    """exp(x) / sum exp(x)."""

    kind, together = "shares", 4
    attends = True


class LogSoftmaxF32(FloatRows):
    """x - log(sum exp(x)), where the greatest element is subtracted from each x first."""

    kind, together = "log_shares", 4
