"""Planned recurrent operators: all steps of the walk along sequences in one kernel call. Weights are float32, or codes;
then the state is quantized before each step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.float_panels import UNROLL
from qrun.native.emit.isa import Isa, halves
from qrun.native.emit.quantized_recurrent import UNROLL as FOURS
from qrun.native.emit.walking import HEADER, INPUTS, LENGTH, MOST_ROWS, OLD, SUMS, WORDS
from qrun.native.errors import Declined
from qrun.native.kernels.float_product import Cut, block, block_of_one_width, even, scratch_places
from qrun.native.kernels.floats import ElementRecheck, Exact, FloatPanels, FloatStack, FloatTerms, LeftRows, stack_call
from qrun.native.kernels.walks import UNFIT, CellForm, Share, Stepped, Walk, Walked
from qrun.native.machine.call import Rechecker
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec
from qrun.native.machine.memory import aligned_copy

_LONG, _CODES_LONG = 1 << 15, 1 << 16
"""Products of a step, of floats and of codes, that take longer than threads need to wait for each other."""
_SIDE_BY_SIDE = 6
"""With fewer vectors of sums, each addition waits for the one before it to the same vector."""
_FEW, _ONE, _ALONE = 2, 4, 12
"""Rows up to which vectors are added in halves; rows up to which a strip may have one of several vectors; rows of a
strip that has one vector by design."""
_MOST = 1 << 15
"""Units: int32 holds the sum of so many products of codes."""


class Recurrent(Walked):
    """A walk whose cells take products of float32.

    recurrent: float32 [directions, gates * units, units].
    exact: makes elements of products that the kernel does not decide.
    memo: the weights as the kernel reads them, for other shapes.
    """

    def __init__(
        self,
        engine: Engine,
        walk: Walk,
        cell: CellForm,
        recurrent: Array,
        given: tuple[bool, bool, bool],
        exact: Exact,
        stepped: Stepped,
        *,
        added: Array | None = None,
        memo: Memo | None = None,
    ) -> None:
        super().__init__(engine, walk, cell, given, stepped, added)
        if not np.isfinite(recurrent).all():
            raise Declined("a weight is not finite")
        self.exact, memo = exact, memo or Memo()
        self.weights: FloatPanels = memo.once("weights", lambda: FloatPanels(self._matrices(recurrent), memo))

    def _matrices(self, recurrent: Array) -> Array:
        """A matrix for each direction and gate, as a product takes it."""
        units = self.walk.units
        gates = recurrent.reshape(-1, units, units)
        return np.ascontiguousarray(gates.transpose(0, 2, 1))[:, None]

    def _starts(self, matrix: int) -> Ints:
        """Of each product where a, b, addend, y and its columns' lengths start, in bytes. matrix: bytes of a gate's."""
        walk, gates, units = self.walk, self.gates, self.walk.units
        words = self.table[HEADER : HEADER + walk.directions * walk.steps * WORDS].reshape(-1, walk.steps, WORDS)
        made = np.zeros((walk.directions, walk.steps, gates, 6), np.int64)
        for d in range(walk.directions):
            for gate in range(gates):
                last = gate == gates - 1
                made[d, :, gate, 0] = words[d, :, OLD // 8]
                made[d, :, gate, 1] = (d * gates + gate) * matrix * units
                made[d, :, gate, 2] = words[d, :, INPUTS // 8] + 4 * gate * units
                made[d, :, gate, 3] = words[d, :, SUMS // 8] + 4 * gate * self.sums_each
                made[d, :, gate, 4] = (d * gates + gate) * matrix * 2
                if last and self.cell.kind == "gru":
                    made[d, :, gate, 0] = words[d, :, SUMS // 8] + 4 * gates * self.sums_each
                elif last and self.cell.kind == "linear":
                    made[d, :, gate, 2] = 8 * (HEADER + words.size) + 4 * d * units
        return made.reshape(-1, 6)

    @cached_property
    def share(self) -> Share:
        """Sequences do not depend on each other. In each step, every unit depends on all units of the step before; in a
        GRU that resets its state also on what all units make earlier in the same step. Shares of units are even, as
        padding columns take as long as others."""
        walk, engine = self.walk, self.engine
        blocks = _blocks(walk.batch, walk.directions, engine.threads)
        rows, parts = walk.batch // blocks, engine.threads // (walk.directions * blocks)
        if self.cell.kind == "gru" or rows * self.gates * walk.units**2 < _LONG:
            parts = 1
        for count in range(parts, 1, -1):
            units = self.units_of(count)
            _, vectors = self._block(rows, units)
            even = walk.units % units == 0 and units % (vectors * (engine.isa.lanes // 2)) == 0
            if units < walk.units and even and rows * vectors >= _SIDE_BY_SIDE:
                return Share(rows, units, True)
        return Share(rows, walk.units)

    @property
    def _strip(self) -> tuple[int, int]:
        """Rows by vectors of a strip of this walk."""
        return self._block(self.share.rows, self.share.units)

    def _block(self, rows: int, units: int) -> tuple[int, int]:
        """Rows by vectors of a strip. Where the CPU works on a vector in two halves, a row's number is best multiplied
        as it is loaded: then a strip has one vector, if its rows are enough to hide the latency of an addition."""
        if rows >= _SIDE_BY_SIDE and halves(self.engine.isa):
            return even(rows, _ALONE, 1), 1
        isa, size = self.engine.isa, block(self.engine.isa, rows, units, True, self._split(rows))
        # Loading the elements of many rows for one vector of weights takes longer than converting the weights twice.
        narrow = size[1] == 1 and rows > _ONE and units > isa.lanes // 2
        return block_of_one_width(isa, rows) if narrow else size

    def _split(self, rows: int) -> bool:
        """Whether vectors of sums are added in halves: of several rows,
        each number that is converted is multiplied often."""
        return rows <= _FEW and halves(self.engine.isa)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        walk, engine = self.walk, self.engine
        tall, lanes = self.share.rows, engine.isa.lanes // 2
        rows, vectors = self._strip
        width = vectors * lanes
        panels = -(-walk.units // width)
        left = LeftRows(walk.batch, walk.units, 4 * walk.units)
        starts = self._starts(4 * width * panels)
        stack = FloatStack(starts[:, :4], left, walk.units, 4 * width, 4 * self.input_steps[1], 4 * walk.units, width)
        places, scratch = scratch_places(left, Cut(tall, self.gates * panels), (rows, vectors), lanes, True)
        terms = FloatTerms("scaled")
        sizes, split = (rows, vectors, UNROLL), self._split(tall)
        lines = -(-4 * width // 64)
        spec = KernelSpec(
            "recurrent", engine.isa.name, *sizes, terms.form, "f32", False, lines, operands=self.how, halves=split
        )
        words = {"tap_step": 1, "depth_step": left.steps[1], "row_block": tall, "panels": panels, **places}
        words["tiles"] = self.tiles
        found = np.pad(self.weights.lengths(), [(0, 0), (0, width * panels - walk.units)])
        held = {"batches*": starts, "known*": found, "b*": self.weights.panels(width), **self.absent()}
        pointers = {**self.pointers, "a*": len(self.names)}
        recheck = _CellRecheck(self, stack)
        return (stack_call(engine, spec, stack, terms, recheck, words, held, pointers, self.whole, scratch),)


def _blocks(batch: int, directions: int, threads: int) -> int:
    """How many tiles the sequences of a direction make: as many of each, no more than there are threads."""
    most = max(1, -(-threads // directions))
    return max(count for count in range(1, min(most, batch) + 1) if batch % count == 0)


class _CellRecheck(ElementRecheck):
    """Elements of products, and states, exactly."""

    def __init__(self, operation: Recurrent, stack: FloatStack) -> None:
        super().__init__(stack, operation.exact)
        self.operation = operation

    def make(self, entries: Ints, x: int, y: int) -> None:
        """entries: rows of all products and columns, or states (emit/walking.py LENGTH) and units."""
        if (entries[:, 0] == LENGTH).any():
            raise ValueError(UNFIT)
        cells = entries[:, 0] < 0
        if not cells.all():
            super().make(entries[~cells], x, y)
        _, _, addend, result = (ctypes.c_int64 * 4).from_address(x)
        for number, place in entries[cells].tolist():
            self.operation.remade(LENGTH - 1 - number, place, addend, result)

    def addends(self, addend: int, starts: Ints, row: Ints, column: Ints, number: Ints) -> Array:
        own = self.operation
        if own.added is None:
            return super().addends(addend, starts, row, column, number)
        last = number % own.gates == own.gates - 1
        direction = number // (own.gates * own.walk.steps)
        made = super().addends(addend, np.where(last, 0, starts), row, column, number)
        return np.where(last, own.added[direction, column], made)


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

    @cached_property
    def share(self) -> Share:
        """H is quantized over all sequences: so each step needs all of the step before."""
        walk, parts = self.walk, self.engine.threads // self.walk.directions
        rows, units = walk.batch, walk.units
        if parts > 1 and rows * self.gates * units * units >= _CODES_LONG:
            if rows >= MOST_ROWS * parts:
                rows = -(-rows // parts)
            else:
                units = self.units_of(parts)
        return Share(rows, units, rows < walk.batch or units < walk.units)

    @property
    def sum_units(self) -> int:
        """Whole vectors, which cost less to store than parts of them."""
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
            "sums*": aligned_copy(padded.sum(axis=2, dtype=np.int32)),
            "scales*": aligned_copy(np.pad(scales, [(0, 0), (0, wide - units)]).astype(np.float32)),
        }

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        walk, engine = self.walk, self.engine
        _, vectors, depth, _, _ = self.held["weights*"].shape
        rows = min(self.share.rows, MOST_ROWS)
        kind, four = _coded_kind(engine.isa, rows)
        spec = KernelSpec(kind, engine.isa.name, rows, 1, 1, "real", "f32", False, operands=self.how)
        recheck = _QuantizedCellRecheck(self)
        words = {
            "a_row": 4 * walk.units,
            "y_row": 4 * self.sum_units,
            "addend_row": 4 * self.input_steps[1],
            "rows": walk.batch,
            "columns": walk.units,
            "row_block": self.share.rows,
            "depth": depth,
            "vectors": vectors,
            "tiles": self.tiles,
            "recheck*": recheck.address,
        }
        held = {**self.held, **self.absent()}
        fields: dict[str, Any] = {"decides": False, "rechecks": (recheck,), "scratch": four * depth * walk.batch + 64}
        given = spec, self.pointers, words, self.whole, held
        return (engine.kernels.call(*given, sparse=True, **fields),)


def _coded_kind(isa: Isa, rows: int) -> tuple[str, int]:
    """The kind of kernel for up to so many rows at a time, and bytes of four codes of H. Where products are those of 16
    bits, weights that are widened once serve all of several rows; of one row, to widen them takes most of the time."""
    if not isa.widens:
        return "quantized_recurrent", 4
    return "nibble_recurrent" if rows == 1 and isa.dots_of_nibbles else "wide_recurrent", 8


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
