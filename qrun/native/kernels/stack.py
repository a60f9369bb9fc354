"""Stacks of matrices that are multiplied: which of them meet, and where packed ones lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import CODES, DTYPE_OF
from qrun.native.errors import Declined
from qrun.native.kernels.layout import unroll_for
from qrun.native.kernels.results import Results
from qrun.native.machine.engine import Engine, Operand, size
from qrun.native.machine.memory import aligned_up
from qrun.shapes import broadcast_shapes

_CALLS = 1 << 10
"""Pairings of matrices, each a group of the call."""
Requantized = Callable[[int, int], Results | None]
"""(K, N) to what becomes of the sums; None where that is to be found out anew."""


@frozen
class PanelRun:
    """Columns that share a kernel: the first one, vectors of a panel, panels, form; and in the bytes of what is packed,
    where their weights and their start values begin, each matrix after the other."""

    first: int
    vectors: int
    panels: int
    form: str
    weights: int
    starts: int


@frozen
class Meeting:
    """`count` products in a row: the left, the right and the resulting matrix of the first,
    and steps of the first two."""

    count: int
    left: int
    right: int
    result: int
    left_step: int
    right_step: int


class Stack:
    """The products a [..., M, K] x b [..., K, N] of 8-bit codes, whose leading axes broadcast, K at least 1.

    results: what becomes of the sums: of one channel per column, or one per column of every right matrix.
    requantized: the results of other sizes, where these are known.

    Raises Declined for more than a thousand different pairings.
    """

    def __init__(
        self,
        engine: Engine,
        a: Operand,
        b: Operand,
        results: Results,
        matrices: int = 1,
        requantized: Requantized | None = None,
    ) -> None:
        if a.dtype not in CODES or b.dtype not in CODES:
            raise Declined("not 8-bit operands")
        self.engine, self.a, self.b, self.results, self.requantized = engine, a, b, results, requantized
        left = a.shape if len(a.shape) > 1 else (1, *a.shape)
        right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
        self.lead = broadcast_shapes(left[:-2], right[:-2])
        (self.m, self.k), self.n = left[-2:], right[-1]
        self.y_shape = (*self.lead, self.m, self.n)
        if not self.k or not size(self.y_shape):
            raise Declined("an empty product")
        self.rows = size(left[:-1])
        self.count, self.matrices = size(right[:-2]), matrices
        self.unroll, self.quads = unroll_for(self.k)
        self.meetings = tuple(self._meet(left[:-2], right[:-2]))
        if len(self.meetings) > _CALLS:
            raise Declined(f"more than {_CALLS} pairings of matrices")
        self.panels, self.packed = self._panels()
        self.shift = 128 if b.dtype == np.uint8 else 0

    def sized_as(self, other: Stack) -> Stack | None:
        """The products of another one's sizes, with results of its own;
        None if these are not known, or made otherwise."""
        own = (self.a.dtype, self.b.dtype, self.results.out, self.matrices)
        if own != (other.a.dtype, other.b.dtype, other.results.out, 1) or self.requantized is None:
            return None
        results = self.requantized(other.k, other.n)
        if results is None:
            return None
        made = copy(other)
        made.results, made.requantized = results, self.requantized
        made.panels, made.packed = made._panels()
        return made if (made.panels, made.packed) == (other.panels, other.packed) else None

    def _meet(self, left: Sequence[int], right: Sequence[int]) -> Iterator[Meeting]:
        """Which matrices meet; products with one right matrix for all are one product of more rows."""
        if self.count == 1:
            self.m *= size(self.lead)
            yield Meeting(1, 0, 0, 0, 0, 0)
            return
        lefts, rights = (np.broadcast_to(np.arange(size(s)).reshape(s), self.lead).reshape(-1) for s in (left, right))
        steps = np.stack([np.diff(lefts), np.diff(rights)], axis=1).tolist()
        first = 0
        while first < len(lefts):
            end = first + 1
            while end < len(lefts) and steps[end - 1] == steps[first]:
                end += 1
            step = steps[first] if end - first > 1 else (0, 0)
            yield Meeting(end - first, int(lefts[first]), int(rights[first]), first, *step)
            first = end

    def _panels(self) -> tuple[tuple[PanelRun, ...], int]:
        """The panels, and how many bytes all packed matrices take."""
        lanes, at = self.engine.isa.lanes, 0
        shared = self.results.alike and self.matrices == 1
        columns = -(-self.n // lanes) * lanes if shared else self.n
        runs = self.results.panels(lanes, self.engine.isa.vectors, columns, self.matrices)
        weights: list[int] = []
        starts: list[int] = []
        for places, each in ((weights, 4 * self.quads), (starts, 4)):
            for _, vectors, panels, _ in runs:
                places.append(at)
                at += aligned_up(self.count * panels * vectors * lanes * each)
        return tuple(PanelRun(*run, w, s) for run, w, s in zip(runs, weights, starts, strict=True)), at

    @property
    def result(self) -> Operand:
        return Operand(self.y_shape, DTYPE_OF[self.results.out])
