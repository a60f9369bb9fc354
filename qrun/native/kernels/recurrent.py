"""Plans recurrent operators (LSTM, GRU, RNN): one kernel call makes all steps along the sequences. Weights are float32,
or codes; with codes, the state is quantized before each step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.isa import Isa
from qrun.native.emit.quantized_recurrent import UNROLL as FOURS
from qrun.native.emit.recurrent import AT, GATES, INPUTS, MOST_ROWS, NEW, OLD, STATES, WORDS, Y, half_strip
from qrun.native.errors import Declined
from qrun.native.kernels.copy import Copy, Move
from qrun.native.kernels.fma_product import ALONE, MANY, UNROLL, height_of
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec, Operand, Operation, size
from qrun.native.machine.memory import aligned_copy

_FLOAT, _INT32 = np.dtype(np.float32), np.dtype(np.int32)
_LONG, _CODES_LONG = 1 << 15, 1 << 16
"""With this many products in a step, of floats and of codes, several threads per step pay."""
_MOST = 1 << 15
"""The most units: int32 holds the sum of this many products of codes."""


@frozen
class CellForm:
    """A recurrent cell. kind: one of emit/recurrent.py. functions: the activations, the same in each direction.
    clip: their arguments are clipped to -clip..clip; None for no limits."""

    kind: str
    functions: tuple[str, ...]
    clip: float | None = None


@frozen
class Walk:
    """The sizes of a recurrent operator. backward: for each direction, whether it goes backward; batch_first: whether
    the sequences are the first axis of inputs, Y and states."""

    steps: int
    batch: int
    units: int
    backward: tuple[bool, ...]
    batch_first: bool = False

    @property
    def directions(self) -> int:
        """The number of directions."""
        return len(self.backward)

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """The shape of the last states."""
        first = self.directions, self.batch
        return (*(first[::-1] if self.batch_first else first), self.units)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """The shape of Y: [steps,directions,batch,units], or batch first."""
        if self.batch_first:
            return self.batch, self.steps, self.directions, self.units
        return self.steps, self.directions, self.batch, self.units

    def positions(self, direction: int) -> Ints:
        """The place in the sequences that each step takes."""
        steps = np.arange(self.steps)
        return steps[::-1] if self.backward[direction] else steps


@frozen
class Share:
    """A tile's part of the work. rows, units: its sequences and units of a direction. rounds: a tile is one step of
    them, since other tiles need its results for their next step; else a tile is all steps."""

    rows: int
    units: int
    rounds: bool = False


class Walked(Operation):
    """Base of recurrent operations. Operands: the inputs' contributions to the gates, float32 [steps, batch,
    directions * gates * units] (or batch first), initial states, lengths. The result is one array, Y followed by the
    states; `outputs` takes Y, Y_h and Y_c out of it.

    given: which of initial_h, initial_c and lengths come with the run. By default states are 0, and sequences whole.
    """

    def __init__(self, engine: Engine, walk: Walk, cell: CellForm, given: tuple[bool, bool, bool]) -> None:
        super().__init__()
        self.engine, self.walk, self.cell, self.gates = engine, walk, cell, GATES[cell.kind]
        lead = (walk.batch, walk.steps) if walk.batch_first else (walk.steps, walk.batch)
        inputs = Operand((*lead, walk.directions * self.gates * walk.units), _FLOAT)
        states = [Operand(walk.state_shape, _FLOAT)] * 2
        known = [
            (name, operand)
            for name, operand, own in zip(
                ("initial_h*", "initial_c*", "lengths*"), (*states, Operand((walk.batch,), _INT32)), given, strict=True
            )
            if own
        ]
        self.names = ["addend*", *(name for name, _ in known)]
        result = Operand((self.states_end + self.beside,), _FLOAT)
        self.operands = (inputs, *(operand for _, operand in known), result)

    @property
    def pointers(self) -> dict[str, int]:
        """By word, the number of the operand it points to, for the words that all recurrent kernels have."""
        return {**{name: index for index, name in enumerate(self.names)}, "y*": len(self.names)}

    @property
    def at_once(self) -> int:
        """Units of a vector."""
        return min(self.engine.isa.lanes, 1 << (self.walk.units.bit_length() - 1))

    @property
    def how(self) -> str:
        """The text that describes the cell in a specification's operands."""
        told = [self.cell.kind, str(self.at_once), ",".join(self.cell.functions)]
        return "-".join(told + ["clip"] * (self.cell.clip is not None))

    @cached_property
    def share(self) -> Share:
        """The part of a direction that a tile makes."""
        raise NotImplementedError

    @property
    def beside(self) -> int:
        """The number of elements that the result has behind the states."""
        return 0

    def units_of(self, parts: int, step: int) -> int:
        """Units of a part if all units are cut into `parts` parts: a multiple of `step`, and the last part has at least
        `step` too. All units if this is impossible."""
        units = self.walk.units
        each = -(-units // (parts * step)) * step
        last = (units - 1) % each + 1
        return min(each, units) if last >= step else units

    @property
    def shares(self) -> int:
        """The number of shares of all directions together."""
        walk, share = self.walk, self.share
        return walk.directions * -(-walk.batch // share.rows) * -(-walk.units // share.units)

    @property
    def tiles(self) -> int:
        """One tile for each share; with rounds, one for each share and step, and one round before the first step."""
        return self.shares * (self.walk.steps + 1 if self.share.rounds else 1)

    @property
    def each(self) -> int:
        """Elements of a state of one direction."""
        return self.walk.batch * self.walk.units

    @property
    def y_size(self) -> int:
        """The number of elements of Y."""
        return size(self.walk.y_shape)

    @property
    def states_end(self) -> int:
        """The element behind Y and the states."""
        return self.y_size + 2 * STATES[self.cell.kind] * self.walk.directions * self.each

    def _state(self, step: int, state: int, direction: int) -> int:
        """The element where a state before this step begins."""
        number = (step % 2 * STATES[self.cell.kind] + state) * self.walk.directions + direction
        return self.y_size + number * self.each

    def outputs(self) -> list[Copy]:
        """The copies that take Y, Y_h and Y_c out of the result."""
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
        """The array `walk` of the kernel (emit/recurrent.py), as int64 words."""
        walk, units = self.walk, self.walk.units
        y_row, y_direction, y_step = units, walk.batch * units, walk.directions * walk.batch * units
        first, row = walk.batch * units, units
        if walk.batch_first:
            y_row, y_direction, y_step = walk.steps * walk.directions * units, units, walk.directions * units
            first, row = units, walk.directions * units
        bound = np.array([self.cell.clip or 0, 0], _FLOAT).view(np.int64)
        header = [walk.steps, 4 * y_row, 4 * first, 4 * row, int(bound[0])]
        header += [self.share.units, self.shares, int(self.share.rounds)]
        words = np.zeros((walk.directions, walk.steps, WORDS), np.int64)
        for d in range(walk.directions):
            at = walk.positions(d)
            for state in range(STATES[self.cell.kind]):
                for which, later in ((OLD, 0), (NEW, 1)):
                    words[d, :, which // 8 + state] = [4 * self._state(t + later, state, d) for t in range(walk.steps)]
            words[d, :, Y // 8] = 4 * (at * y_step + d * y_direction)
            words[d, :, AT // 8] = at
            words[d, :, INPUTS // 8] = 4 * (at * self.input_steps[0] + d * self.gates * units)
        return aligned_copy(np.concatenate([np.array(header, np.int64), words.reshape(-1)]))

    @property
    def input_steps(self) -> tuple[int, int]:
        """Elements of the inputs' contributions from one step to the next, and from one sequence to the next."""
        wide = self.walk.directions * self.gates * self.walk.units
        return (wide, self.walk.steps * wide) if self.walk.batch_first else (self.walk.batch * wide, wide)

    def absent(self) -> dict[str, Array]:
        """The arrays that kernels read in place of operands that do not come with the run, and the walk."""
        zeros = np.zeros(self.walk.state_shape, _FLOAT)
        lengths = np.full(self.walk.batch, self.walk.steps, np.int32)
        held = {"walk*": self.table, "initial_h*": zeros, "initial_c*": zeros, "lengths*": lengths}
        return {name: array for name, array in held.items() if name not in self.names}


class Recurrent(Walked):
    """A recurrent operation with products of float32.

    recurrent: float32 [directions, gates * units, units]. added: float32 [directions, units], the start value of the
    product of gate h in the cell ``linear``. memo: keeps the packed weights, for other shapes.
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
        """The array `weights` of emit/recurrent.py, in panels of this width."""
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
        GRU that resets its state, also on results of all units from earlier in the same step."""
        walk, (rows, parts) = self.walk, self._parts
        units = self.units_of(parts, self._strip[1] * self.at_once)
        return Share(rows, units, units < walk.units)

    @property
    def _parts(self) -> tuple[int, int]:
        """Sequences of a tile, and the number of parts into which the units are cut."""
        walk, threads = self.walk, self.engine.threads
        most = max(1, -(-threads // walk.directions))
        blocks = max(count for count in range(1, min(most, walk.batch) + 1) if walk.batch % count == 0)
        rows = walk.batch // blocks
        short = rows * self.gates * walk.units**2 < _LONG
        return rows, 1 if short or self.cell.kind == "gru" else max(1, threads // (walk.directions * blocks))

    @cached_property
    def _strip(self) -> tuple[int, int]:
        """Rows and vectors of a strip, for each gate. Few rows get several vectors, so that a multiply-add need not
        wait for the one before it, as long as few units are computed twice."""
        rows, parts = self._parts
        vectors, high = max(self.engine.isa.real_rows.items())
        gru, units = self.cell.kind == "gru", -(-self.walk.units // parts)
        tall = height_of(rows, max(1, vectors * high // (1 if gru else self.gates)))
        chains = 2 * half_strip(tall) if gru else tall * self.gates
        most = max(1, min(units // self.at_once, vectors * high // chains))

        def cost(wide: int) -> float:
            return -(-units // (wide * self.at_once)) * wide / min(chains * wide, ALONE)

        return tall, min(range(1, most + 1), key=cost)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
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
    """The quantized matrix that H is multiplied with: codes int8 or uint8 [directions, units, gates * units], scales
    float32 and zero points that broadcast to [directions, gates * units]."""

    codes: Array
    scales: Array
    zeros: Array


class QuantizedRecurrent(Walked):
    """A recurrent operation with products of codes. All sequences have full length, since they are quantized together.

    Raises Declined if weights minus zero points leave int8, if a scale is not a positive number, and if sums may leave
    int32."""

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
            raise Declined("a scale is not a positive number")
        self.held: dict[str, Array] = memo.once("packed", lambda: self._pack(coded))

    @cached_property
    def share(self) -> Share:
        """H is quantized over all sequences, so each step needs all results of the step before."""
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
        """The elements of the gates' sums."""
        return self.walk.directions * self.gates * self.walk.batch * self.sum_units

    @property
    def sum_units(self) -> int:
        """Units of a sequence's sums, rounded up to whole vectors, which are cheaper to store than parts."""
        return -(-self.walk.units // self.engine.isa.lanes) * self.engine.isa.lanes

    def _pack(self, coded: CodedState) -> dict[str, Array]:
        """The recurrent weights in groups of four per lane, their column sums and scales."""
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

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
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
    """The kind of kernel for up to `rows` rows at a time, and the bytes of four codes of H. With products of 16 bits,
    several rows share weights that are widened once; for a single row, widening would take most of the time."""
    if not isa.widens:
        return "quantized_recurrent", 4
    return "nibble_recurrent" if rows == 1 and isa.dots_of_nibbles else "wide_recurrent", 8
