"""Planned recurrent operators: all steps of the walk along sequences in one kernel call. Weights are float32, or codes;
then the state is quantized before each step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.isa import Isa
from qrun.native.emit.quantized_recurrent import UNROLL as FOURS
from qrun.native.emit.walking import MOST_ROWS, half_strip
from qrun.native.errors import Declined
from qrun.native.kernels.fma_product import ALONE, MANY, UNROLL, height_of
from qrun.native.kernels.walks import CellForm, Share, Walk, Walked
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec
from qrun.native.machine.memory import aligned_copy

_LONG, _CODES_LONG = 1 << 15, 1 << 16
"""Products of a step, of floats and of codes, that take longer than threads need to wait for each other."""
_MOST = 1 << 15
"""Units: int32 holds the sum of so many products of codes."""


class Recurrent(Walked):
    """A walk whose cells take products of float32.

    recurrent: float32 [directions, gates * units, units]. added: float32 [directions, units], what the product of the
    gate h begins with in the cell ``linear``. memo: the weights as the kernel reads them, for other shapes.
    """

    def __init__(
        self,
        engine: Engine,
        walk: Walk,
        cell: CellForm,
        recurrent: Array,
        given: tuple[bool, bool, bool],
        *,
        added: Array | None = None,
        memo: Memo | None = None,
    ) -> None:
        super().__init__(engine, walk, cell, given)
        self.recurrent, self.added, self.memo = recurrent, added, memo or Memo()

    def _panels(self, width: int) -> Array:
        """The word `weights` of emit/recurrent.py."""
        units, together = self.walk.units, (2, 1) if self.cell.kind == "gru" else (self.gates,)
        firsts = [min(first, units - width) for first in range(0, units, width)]
        columns = np.add.outer(firsts, range(width))
        made = []
        for direction in self.recurrent.reshape(-1, self.gates, units, units):
            for gates in np.split(direction, np.cumsum(together)[:-1]):
                made.append(gates[:, columns].transpose(1, 3, 0, 2).reshape(-1))
        return aligned_copy(np.concatenate(made))

    @cached_property
    def share(self) -> Share:
        """Sequences do not depend on each other. In each step, every unit depends on all units of the step before; in a
        GRU that resets its state also on what all units make earlier in the same step."""
        walk, (rows, parts) = self.walk, self._parts
        units = self.units_of(parts, self._strip[1] * self.at_once)
        return Share(rows, units, units < walk.units)

    @property
    def _parts(self) -> tuple[int, int]:
        """Sequences of a tile, and of how many parts the units are."""
        walk, threads = self.walk, self.engine.threads
        most = max(1, -(-threads // walk.directions))
        blocks = max(count for count in range(1, min(most, walk.batch) + 1) if walk.batch % count == 0)
        rows = walk.batch // blocks
        short = rows * self.gates * walk.units**2 < _LONG
        return rows, 1 if short or self.cell.kind == "gru" else max(1, threads // (walk.directions * blocks))

    @cached_property
    def _strip(self) -> tuple[int, int]:
        """Rows by vectors of a strip, for each gate: few rows have several vectors, so that a multiply-add need not
        wait for the one before it; but few units are made twice."""
        rows, parts = self._parts
        vectors, high = max(self.engine.isa.real_rows.items())
        gru, units = self.cell.kind == "gru", -(-self.walk.units // parts)
        tall = height_of(rows, max(1, vectors * high // (1 if gru else self.gates)))
        chains = 2 * half_strip(tall) if gru else tall * self.gates
        most = max(1, min(units // self.at_once, vectors * high // chains))

        def cost(wide: int) -> float:
            return -(-units // (wide * self.at_once)) * wide / min(chains * wide, ALONE)

        return tall, min(range(1, most + 1), key=cost)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        walk, engine, share = self.walk, self.engine, self.share
        rows, vectors = self._strip
        width = vectors * self.at_once
        unroll = 1 if rows * vectors * self.gates >= MANY else UNROLL
        spec = KernelSpec("recurrent", engine.isa.name, rows, vectors, unroll, "cells", "f32", False, operands=self.how)
        words = {
            "addend_row": 4 * self.input_steps[1],
            "rows": walk.batch,
            "columns": walk.units,
            "row_block": share.rows,
            "tiles": self.tiles,
        }
        weights = self.memo.once(("panels", width), lambda: self._panels(width))
        bias = np.zeros(1, np.float32) if self.added is None else self.added
        held = {"weights*": weights, "bias*": bias, **self.absent()}
        scratch = 8 * share.rows * walk.units
        given = spec, self.pointers, words, self.whole, held
        return (engine.kernels.call(*given, sparse=True, scratch=scratch, decides=False),)


@frozen
class CodedState:
    """What H is multiplied with: codes int8 or uint8 [directions, units, gates * units], scales float32 and zero points
    that broadcast to [directions, gates * units]."""

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
        memo: Memo | None = None,
    ) -> None:
        super().__init__(engine, walk, cell, (*given, False))
        memo = memo or Memo()
        if walk.units > _MOST:
            raise Declined("sums that may leave int32")
        if not ((coded.scales > 0) & np.isfinite(coded.scales)).all():
            raise Declined("a scale is no positive number")
        self.held: dict[str, Array] = memo.once("packed", lambda: self._packed(coded))

    @cached_property
    def share(self) -> Share:
        """H is quantized over all sequences: so each step needs all of the step before."""
        walk, parts = self.walk, self.engine.threads // self.walk.directions
        rows, units = walk.batch, walk.units
        if parts > 1 and rows * self.gates * units * units >= _CODES_LONG:
            if rows >= MOST_ROWS * parts:
                rows = -(-rows // parts)
            else:
                units = self.units_of(parts, self.engine.isa.lanes)
        return Share(rows, units, rows < walk.batch or units < walk.units)

    @property
    def beside(self) -> int:
        """Sums of the gates."""
        return self.walk.directions * self.gates * self.walk.batch * self.sum_units

    @property
    def sum_units(self) -> int:
        """Units of a sequence's sums: whole vectors, which cost less to store than parts of them."""
        return -(-self.walk.units // self.engine.isa.lanes) * self.engine.isa.lanes

    def _packed(self, coded: CodedState) -> dict[str, Array]:
        lanes, units, wide = self.engine.isa.lanes, self.walk.units, self.sum_units
        matrices = self.walk.directions * self.gates
        whole = coded.codes.astype(np.int32) - np.broadcast_to(coded.zeros.astype(np.int32)[:, None], coded.codes.shape)
        if whole.min() < -128 or whole.max() > 127:
            raise Declined("weights that leave int8 without their zero points")
        columns = whole.transpose(0, 2, 1).reshape(matrices, units, units)
        padded = np.pad(columns, [(0, 0), (0, wide - units), (0, -units % (4 * FOURS))])
        groups = padded.reshape(matrices, wide // lanes, lanes, padded.shape[2] // 4, 4).transpose(0, 1, 3, 2, 4)
        scales = np.broadcast_to(coded.scales, (self.walk.directions, self.gates * units)).reshape(matrices, units)
        return {
            "weights*": aligned_copy(np.ascontiguousarray(groups.astype(np.int8))),
            "column_sums*": aligned_copy(padded.sum(axis=2, dtype=np.int32)),
            "scales*": aligned_copy(np.pad(scales, [(0, 0), (0, wide - units)]).astype(np.float32)),
        }

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        walk, engine = self.walk, self.engine
        _, vectors, depth, _, _ = self.held["weights*"].shape
        rows = min(self.share.rows, MOST_ROWS)
        kind, four = _coded_kind(engine.isa, rows)
        spec = KernelSpec(kind, engine.isa.name, rows, 1, 1, "real", "f32", False, operands=self.how)
        words = {
            "sums_at": 4 * self.states_end,
            "sum_units": self.sum_units,
            "addend_row": 4 * self.input_steps[1],
            "rows": walk.batch,
            "columns": walk.units,
            "row_block": self.share.rows,
            "depth": depth,
            "vectors": vectors,
            "tiles": self.tiles,
        }
        held = {**self.held, **self.absent()}
        scratch = four * depth * walk.batch + 64
        given = spec, self.pointers, words, self.whole, held
        return (engine.kernels.call(*given, sparse=True, scratch=scratch, decides=False),)


def _coded_kind(isa: Isa, rows: int) -> tuple[str, int]:
    """The kind of kernel for up to so many rows at a time, and bytes of four codes of H. Where products are those of 16
    bits, weights that are widened once serve all of several rows; of one row, to widen them takes most of the time."""
    if not isa.widens:
        return "quantized_recurrent", 4
    return "nibble_recurrent" if rows == 1 and isa.dots_of_nibbles else "wide_recurrent", 8
