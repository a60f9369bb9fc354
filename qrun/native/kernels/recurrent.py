"""Planned recurrent operators: all steps of the walk along sequences in one kernel call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.emit.cells import GATES, STATES
from qrun.native.emit.float_panels import UNROLL
from qrun.native.emit.recurrent import AT, HEADER, INPUTS, LENGTH, NEW, OLD, SUMS, WORDS, Y
from qrun.native.errors import Declined
from qrun.native.kernels.copy import Copy, Move
from qrun.native.kernels.float_tiles import Cut, LeftRows, block, scratch_places
from qrun.native.kernels.floats import ElementRecheck, Exact, FloatPanels, FloatStack, FloatTerms, stack_call
from qrun.native.kernels.walks import CellForm, Walk
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec, Operand, Order, Planned, size
from qrun.native.machine.memory import aligned_copy

Stepped = Callable[[bool, Sequence[Array], Sequence[Array]], Sequence[Array]]
"""Whether a GRU's state is to be reset, else the states after a step are made; the gates' sums, each [1, units], and for
``linear`` what the inputs give to the gate h; the states before."""
_FLOAT, _INT32 = np.dtype(np.float32), np.dtype(np.int32)


class Recurrent(Planned):
    """What inputs give to the gates, float32 [steps, batch, directions * gates * units] (or batch first), initial states
    and lengths to one array: Y, then states and sums, of which `outputs` are the parts that an operator gives.

    recurrent: float32 [directions, gates * units, units]. added: float32 [directions, units], of the cell ``linear``. given: which of
    initial_h, initial_c and lengths come with the run; the others are 0, 0, and those of whole sequences.
    exact: makes elements of products that the kernel does not decide; stepped: makes cells. memo: the weights as the kernel
    reads them, for other shapes.
    """

    order: Order = "plain"

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
        super().__init__()
        if not np.isfinite(recurrent).all():
            raise Declined("a weight is not finite")
        self.engine, self.walk, self.cell, self.exact, self.stepped = engine, walk, cell, exact, stepped
        self.gates, self.added = GATES[cell.kind], added
        memo = memo or Memo()
        self.weights: FloatPanels = memo.once("weights", lambda: FloatPanels(self._matrices(recurrent), memo))
        lead = (walk.batch, walk.steps) if walk.batch_first else (walk.steps, walk.batch)
        inputs = Operand((*lead, walk.directions * self.gates * walk.units), _FLOAT)
        states = [Operand(walk.state_shape, _FLOAT)] * 2
        known = zip((*states, Operand((walk.batch,), _INT32)), given, strict=True)
        self.names = [
            "addend*",
            *(n for n, own in zip(("initial_h*", "initial_c*", "lengths*"), given, strict=True) if own),
        ]
        result = Operand((self.sums_at + self._regions * walk.directions * self.each,), _FLOAT)
        self.operands = (inputs, *(operand for operand, own in known if own), result)

    def _matrices(self, recurrent: Array) -> Array:
        """A matrix for each direction and gate, as a product takes it."""
        units = self.walk.units
        gates = recurrent.reshape(-1, units, units)
        return np.ascontiguousarray(gates.transpose(0, 2, 1))[:, None]

    @property
    def each(self) -> int:
        """Elements of a state of one direction."""
        return self.walk.batch * self.walk.units

    @property
    def y_size(self) -> int:
        return size(self.walk.y_shape)

    @property
    def sums_at(self) -> int:
        """The element where sums begin, after Y and the states."""
        return self.y_size + 2 * STATES[self.cell.kind] * self.walk.directions * self.each

    @property
    def _regions(self) -> int:
        """Sums of each direction: what a GRU resets lies behind them."""
        return self.gates + 1

    def _state(self, step: int, state: int, direction: int) -> int:
        """The element where a state before this step begins."""
        number = (step % 2 * STATES[self.cell.kind] + state) * self.walk.directions + direction
        return self.y_size + number * self.each

    def outputs(self) -> list[Copy]:
        """What takes Y, Y_h and Y_c out of the result."""
        walk, made = self.walk, []
        whole = Move(self.y_size, 0, 1, -1, 1)
        made.append(Copy(self.engine, (self.result, Operand(walk.y_shape, _FLOAT)), ("plain", "plain"), [whole]))
        for state in range(STATES[self.cell.kind]):
            first, axes = self._state(walk.steps, state, 0), (0, 1) if not walk.batch_first else (1, 0)
            moves = [
                Move(walk.directions, 0, self.each, axes[0], 1),
                Move(walk.batch, 0, walk.units, axes[1], 1),
                Move(walk.units, 0, 1, 2, 1),
            ]
            operands = self.result, Operand(walk.state_shape, _FLOAT)
            made.append(Copy(self.engine, operands, ("plain", "plain"), moves, x_first=[first]))
        return made

    @cached_property
    def table(self) -> Array:
        """What the kernel reads of each direction and step (emit/recurrent.py), as int64 words."""
        walk, units = self.walk, self.walk.units
        y_row, y_direction, y_step = units, walk.batch * units, walk.directions * walk.batch * units
        first, row = walk.batch * units, units
        if walk.batch_first:
            y_row, y_direction, y_step = walk.steps * walk.directions * units, units, walk.directions * units
            first, row = units, walk.directions * units
        bound = np.array([self.cell.clip or 0, 0], _FLOAT).view(np.int64)
        header = [walk.steps, 4 * self.each, 4 * y_row, 4 * first, 4 * row, int(bound[0])]
        words = np.zeros((walk.directions, walk.steps, WORDS), np.int64)
        for d in range(walk.directions):
            at = walk.positions(d)
            for state in range(STATES[self.cell.kind]):
                for which, later in ((OLD, 0), (NEW, 1)):
                    words[d, :, which // 8 + state] = [4 * self._state(t + later, state, d) for t in range(walk.steps)]
            words[d, :, Y // 8] = 4 * (at * y_step + d * y_direction)
            words[d, :, AT // 8] = at
            words[d, :, SUMS // 8] = 4 * (self.sums_at + d * self._regions * self.each)
            words[d, :, INPUTS // 8] = 4 * (at * self._input_steps[0] + d * self.gates * units)
        added = np.zeros((0,), _FLOAT) if self.added is None else self.added.reshape(-1)
        tail = np.pad(added, (0, added.size % 2)).astype(_FLOAT).view(np.int64)
        return aligned_copy(np.concatenate([np.array(header, np.int64), words.reshape(-1), tail]))

    @property
    def _input_steps(self) -> tuple[int, int]:
        """Elements from one step's inputs to the next one's, and from one sequence's."""
        wide = self.walk.directions * self.gates * self.walk.units
        return (wide, self.walk.steps * wide) if self.walk.batch_first else (self.walk.batch * wide, wide)

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
                made[d, :, gate, 3] = words[d, :, SUMS // 8] + 4 * gate * self.each
                made[d, :, gate, 4] = (d * gates + gate) * matrix * 2
                if last and self.cell.kind == "gru":
                    made[d, :, gate, 0] = words[d, :, SUMS // 8] + 4 * gates * self.each
                elif last and self.cell.kind == "linear":
                    made[d, :, gate, 2] = 8 * (HEADER + words.size) + 4 * d * units
        return made.reshape(-1, 6)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        walk, engine = self.walk, self.engine
        tall = walk.batch // _blocks(walk.batch, walk.directions, engine.threads)
        rows, vectors = block(engine.isa, tall, walk.units, True)
        lanes = engine.isa.lanes // 2
        width = vectors * lanes
        panels = -(-walk.units // width)
        left = LeftRows(walk.batch, walk.units, 4 * walk.units)
        starts = self._starts(4 * width * panels)
        stack = FloatStack(starts[:, :4], left, walk.units, 4 * width, 4 * self._input_steps[1], 4 * walk.units, width)
        places, scratch = scratch_places(left, Cut(tall, panels), (rows, vectors), lanes, True)
        at_once = engine.isa.lanes if walk.units >= engine.isa.lanes else 1
        how = ["rows", self.cell.kind, str(at_once), ",".join(self.cell.functions)]
        how += ["clip"] if self.cell.clip is not None else []
        terms = FloatTerms("scaled")
        spec = KernelSpec(
            "recurrent", engine.isa.name, rows, vectors, UNROLL, terms.form, "f32", False, operands="-".join(how)
        )
        words = {"tap_step": 1, "depth_step": left.steps[1], "row_block": tall, "panels": panels, **places}
        words["tiles"] = walk.directions * (walk.batch // tall)
        found = np.pad(self.weights.lengths(), [(0, 0), (0, width * panels - walk.units)])
        held = {"batches*": starts, "known*": found, "b*": self.weights.panels(width), "walk*": self.table}
        held |= {name: array for name, array in self._absent().items() if name not in self.names}
        pointers = {
            **{name: place for place, name in enumerate(self.names)},
            "a*": len(self.names),
            "y*": len(self.names),
        }
        extents = [size(operand.shape) * operand.dtype.itemsize for operand in self.operands]
        recheck = _CellRecheck(self, stack)
        return (stack_call(engine, spec, stack, terms, recheck, words, held, pointers, extents, scratch),)

    def _absent(self) -> dict[str, Array]:
        """What is read where nothing is given."""
        zeros = np.zeros(self.walk.state_shape, _FLOAT)
        return {
            "initial_h*": zeros,
            "initial_c*": zeros,
            "lengths*": np.full(self.walk.batch, self.walk.steps, np.int32),
        }


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
        """entries: rows of all products and columns, or states (emit/recurrent.py LENGTH) and units."""
        if (entries[:, 0] == LENGTH).any():
            raise ValueError("a sequence is longer than its inputs, or its length is negative")
        cells = entries[:, 0] < 0
        if not cells.all():
            super().make(entries[~cells], x, y)
        for number, place in entries[cells].tolist():
            self._step(x, LENGTH - 1 - number, place)

    def addends(self, addend: int, starts: Ints, row: Ints, column: Ints, number: Ints) -> Array:
        own = self.operation
        if own.added is None:
            return super().addends(addend, starts, row, column, number)
        last = number % own.gates == own.gates - 1
        direction = number // (own.gates * own.walk.steps)
        made = super().addends(addend, np.where(last, 0, starts), row, column, number)
        return np.where(last, own.added[direction, column], made)

    def _step(self, struct: int, number: int, place: int) -> None:
        """Make the states of the units from this one on; struct: address of the arguments."""
        own, table = self.operation, self.operation.table
        count = own.engine.isa.lanes if own.walk.units >= own.engine.isa.lanes else 1
        _, _, addend, result, *_ = (ctypes.c_int64 * 5).from_address(struct)
        (step, row), resets = divmod(number // 2, own.walk.batch), bool(number % 2)
        words = table[HEADER + step * WORDS :][:WORDS].tolist()
        unit = 4 * (row * own.walk.units + place)

        def at(start: int, base: int = result) -> Array:
            kind = ctypes.c_float * count
            return np.ctypeslib.as_array(kind.from_address(base + start))

        sums = [at(words[SUMS // 8] + 4 * n * own.each + unit)[None] for n in range(own.gates)]
        if own.cell.kind == "linear":
            inputs = words[INPUTS // 8] + 4 * (row * own._input_steps[1] + (own.gates - 1) * own.walk.units + place)
            sums.append(at(inputs, addend)[None])
        kinds = range(STATES[own.cell.kind])
        made = own.stepped(resets, sums, [at(words[OLD // 8 + n] + unit)[None] for n in kinds])
        if resets:
            at(words[SUMS // 8] + 4 * own.gates * own.each + unit)[...] = made[0][0]
            return
        for n in kinds:
            at(words[NEW // 8 + n] + unit)[...] = made[n][0]
        at(words[Y // 8] + int(table[2]) * row + 4 * place)[...] = made[0][0]
