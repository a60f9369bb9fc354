"""What a recurrent operator is: its cell, its sizes, and the order in which it goes along sequences."""

from __future__ import annotations

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.machine.memory import Ints


@frozen
class CellForm:
    """kind: of emit/cells.py. functions: activations, of each direction. clip: what bounds what they are given, or None."""

    kind: str
    functions: tuple[str, ...]
    clip: float | None = None


@frozen
class Walk:
    """Sizes of a recurrent operator. backward: of each direction; batch_first: whether the sequences are the first axis of inputs,
    Y and states."""

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
