"""What a recurrent operator is: its cell, its sizes, and the order in which it goes along sequences."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.walking import AT, GATES, INPUTS, NEW, OLD, STATES, WORDS, Y
from qrun.native.kernels.copy import Copy, Move
from qrun.native.machine.engine import Array, Engine, Ints, Operand, Operation, size
from qrun.native.machine.memory import aligned_copy

_FLOAT, _INT32 = np.dtype(np.float32), np.dtype(np.int32)


@frozen
class CellForm:
    """kind: of emit/walking.py. functions: activations, of each direction.
    clip: their operands are clipped to -clip..clip; None for no limits."""

    kind: str
    functions: tuple[str, ...]
    clip: float | None = None


@frozen
class Walk:
    """Sizes of a recurrent operator. backward: of each direction; batch_first: whether the sequences are the first axis
    of inputs, Y and states."""

    steps: int
    batch: int
    units: int
    backward: tuple[bool, ...]
    batch_first: bool = False

    @property
    def directions(self) -> int:
        return len(self.backward)

    @property
    def state_shape(self) -> tuple[int, int, int]:
        first = self.directions, self.batch
        return (*(first[::-1] if self.batch_first else first), self.units)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        if self.batch_first:
            return self.batch, self.steps, self.directions, self.units
        return self.steps, self.directions, self.batch, self.units

    def positions(self, direction: int) -> Ints:
        """Which element of the sequences each step takes."""
        steps = np.arange(self.steps)
        return steps[::-1] if self.backward[direction] else steps


@frozen
class Share:
    """rows, units: how many sequences and units of a direction a tile makes. rounds: a tile is one step of them, since
    other tiles need its results for their next step; else a tile is all steps."""

    rows: int
    units: int
    rounds: bool = False


class Walked(Operation):
    """What inputs give to the gates, float32 [steps, batch, directions * gates * units] (or batch first), initial
    states and lengths to one array: Y and then states, of which `outputs` are the parts that an operator gives.

    given: which of initial_h, initial_c and lengths come with the run;
    the others are 0, 0, and those of whole sequences.
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
        """The number of the operand that each word points to, for the words that all walks have."""
        return {**{name: place for place, name in enumerate(self.names)}, "y*": len(self.names)}

    @property
    def at_once(self) -> int:
        """Units of a vector."""
        return min(self.engine.isa.lanes, 1 << (self.walk.units.bit_length() - 1))

    @property
    def how(self) -> str:
        """What a specification says of the cell."""
        told = [self.cell.kind, str(self.at_once), ",".join(self.cell.functions)]
        return "-".join(told + ["clip"] * (self.cell.clip is not None))

    @cached_property
    def share(self) -> Share:
        """Which part of a direction a tile makes."""
        raise NotImplementedError

    @property
    def beside(self) -> int:
        """Elements of the result behind the states."""
        return 0

    def units_of(self, parts: int, step: int) -> int:
        """Units of a part, if all units are cut into so many parts: a multiple of `step`, so that the last part has at
        least that many too. All units if this is impossible."""
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
        """What the kernel reads of each direction and step (emit/walking.py), as int64 words."""
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
        """Elements from one step's inputs to the next one's, and from one sequence's."""
        wide = self.walk.directions * self.gates * self.walk.units
        return (wide, self.walk.steps * wide) if self.walk.batch_first else (self.walk.batch * wide, wide)

    def absent(self) -> dict[str, Array]:
        """What kernels read besides weights and operands."""
        zeros = np.zeros(self.walk.state_shape, _FLOAT)
        lengths = np.full(self.walk.batch, self.walk.steps, np.int32)
        held = {"walk*": self.table, "initial_h*": zeros, "initial_c*": zeros, "lengths*": lengths}
        return {name: array for name, array in held.items() if name not in self.names}
