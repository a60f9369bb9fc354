"""Generated cells of recurrent operators: what the states after a step are, of the gates' sums and the states before it.

Every function is an operation of its own, rounded to float32 as the operator of that name rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.flow import Flow
from qrun.native.emit.functions import CLOSE, SINGLE, FunctionCall, reach, rounded_close
from qrun.native.emit.requantize import clipped
from qrun.native.emit.values import Value

GATES = {"lstm": 4, "gru": 3, "linear": 3, "rnn": 1}
"""Products of a step, by cell; ``linear`` is a GRU that resets the product, not the state."""
STATES = {"lstm": 2, "gru": 1, "linear": 1, "rnn": 1}
FUNCTIONS = ("sigmoid", "tanh", "relu")
"""Activations that cells know."""


class RecurrentCell:
    """Some units of one row: vectors of float32.

    functions: the activations, as the operator orders them. bound: what they are given is clipped to, or None.
    doubtful: i1, lanes whose states float64 does not decide.
    """

    def __init__(self, w: Flow, lanes: int, functions: Sequence[str], bound: Value | None) -> None:
        self.w, self.lanes, self.functions, self.bound = w, lanes, functions, bound
        self.doubtful = w.zero(f"<{lanes} x i1>")

    def activated(self, place: int, x: Value) -> Value:
        """What the activation of this number makes of x."""
        if self.bound is not None:
            x = clipped(x, -self.bound, self.bound)
        name = self.functions[place]
        call = FunctionCall(self.lanes, "f", [])
        if name in SINGLE:
            return SINGLE[name](call, [x])
        wide = x.double()
        made, unsure = rounded_close(CLOSE[name](call, [wide]), reach(name, wide))
        self.doubtful = self.doubtful | unsure
        return made

    def lstm(self, gates: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        """H and C; gates: i, o, f, c."""
        i, o, f, g = gates
        i, f, g = self.activated(0, i), self.activated(0, f), self.activated(1, g)
        c = f * states[1] + i * g
        return [self.activated(0, o) * self.activated(2, c), c]

    def reset(self, gate: Value, state: Value) -> Value:
        """What a GRU multiplies with R of the gate h."""
        return self.activated(0, gate) * state

    def gru(self, gates: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        """H; gates: z, r, h, the last one of what was reset."""
        return self._mixed(gates[0], self.activated(1, gates[2]), states[0])

    def linear(self, gates: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        """H; gates: z, r, h, and what the inputs give to h."""
        z, r, h, x = gates
        return self._mixed(z, self.activated(1, self.activated(0, r) * h + x), states[0])

    def rnn(self, gates: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        return [self.activated(0, gates[0])]

    def _mixed(self, gate: Value, new: Value, old: Value) -> list[Value]:
        z = self.activated(0, gate)
        return [(1.0 - z) * new + z * old]
