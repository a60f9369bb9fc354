"""Planned recurrent operators whose state is quantized before each step, and multiplied as codes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.quantized_recurrent import MOST_ROWS
from qrun.native.emit.walking import LENGTH
from qrun.native.errors import Declined
from qrun.native.kernels.walks import UNFIT, CellForm, Stepped, Walk, Walked
from qrun.native.machine.call import Rechecker
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec
from qrun.native.machine.memory import aligned_copy

_MOST = 1 << 15
"""Units: int32 holds the sum of so many products of codes."""


@frozen
class CodedState:
    """What H is multiplied with: codes int8 or uint8 [directions, units, gates * units], scales float32 and zero points that
    broadcast to [directions, gates * units]."""

    codes: Array
    scales: Array
    zeros: Array


class QuantizedRecurrent(Walked):
    """A walk whose cells take products of codes. All sequences are of full length, as they are quantized together.

    Raises Declined for weights that leave int8 without their zero points, and scales that are no positive numbers.
    """

    def __init__(
        self,
        engine: Engine,
        walk: Walk,
        cell: CellForm,
        coded: CodedState,
        given: tuple[bool, bool],
        stepped: Stepped,
        memo: Memo | None = None,
    ) -> None:
        super().__init__(engine, walk, cell, (*given, False), stepped)
        memo = memo or Memo()
        if walk.units > _MOST:
            raise Declined("sums that may leave int32")
        if not ((coded.scales > 0) & np.isfinite(coded.scales)).all():
            raise Declined("a scale is no positive number")
        self.held: dict[str, Array] = memo.once("packed", lambda: self._packed(coded))

    @property
    def _size(self) -> tuple[int, int]:
        """Vectors of a gate's columns, and fours of k."""
        return -(-self.walk.units // self.engine.isa.lanes), -(-self.walk.units // 4)

    def _packed(self, coded: CodedState) -> dict[str, Array]:
        lanes, units, (vectors, depth) = self.engine.isa.lanes, self.walk.units, self._size
        matrices = self.walk.directions * self.gates
        whole = coded.codes.astype(np.int32) - np.broadcast_to(coded.zeros.astype(np.int32)[:, None], coded.codes.shape)
        if whole.min() < -128 or whole.max() > 127:
            raise Declined("weights that leave int8 without their zero points")
        columns = whole.transpose(0, 2, 1).reshape(matrices, units, units)
        padded = np.pad(columns, [(0, 0), (0, vectors * lanes - units), (0, 4 * depth - units)])
        groups = padded.reshape(matrices, vectors, lanes, depth, 4).transpose(0, 1, 3, 2, 4)
        scales = np.broadcast_to(coded.scales, (self.walk.directions, self.gates * units)).reshape(matrices, units)
        return {
            "weights*": aligned_copy(np.ascontiguousarray(groups.astype(np.int8))),
            "sums*": aligned_copy(padded.sum(axis=2, dtype=np.int32)),
            "scales*": aligned_copy(np.pad(scales, [(0, 0), (0, vectors * lanes - units)]).astype(np.float32)),
        }

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        walk, engine, (vectors, depth) = self.walk, self.engine, self._size
        rows = min(walk.batch, MOST_ROWS)
        spec = KernelSpec("quantized_recurrent", engine.isa.name, rows, 1, 1, "real", "f32", False, operands=self.how)
        recheck = _QuantizedCellRecheck(self)
        words = {
            "a_row": 4 * walk.units, "y_row": 4 * walk.units, "addend_row": 4 * self.input_steps[1],
            "rows": walk.batch, "columns": walk.units, "row_block": walk.batch, "depth": depth, "vectors": vectors,
            "tiles": walk.directions, "recheck*": recheck.address,
        }  # fmt: skip
        held = {**self.held, **self.absent()}
        fields: dict[str, Any] = {"decides": False, "rechecks": (recheck,), "scratch": 4 * depth * walk.batch + 64}
        given = spec, self.pointers, words, self.extents, held
        return (engine.kernels.call(*given, sparse=True, **fields),)


class _QuantizedCellRecheck(Rechecker):
    """States, exactly."""

    def __init__(self, operation: QuantizedRecurrent) -> None:
        super().__init__()
        self.operation = operation

    def make(self, entries: Ints, x: int, y: int) -> None:
        """entries: states (emit/walking.py LENGTH) and units; x: address of the argument struct."""
        if (entries[:, 0] == LENGTH).any():
            raise ValueError(UNFIT)
        _, _, addend, result = (ctypes.c_int64 * 4).from_address(x)
        for number, place in entries.tolist():
            self.operation.remade(LENGTH - 1 - number, place, addend, result)
