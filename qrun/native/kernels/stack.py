"""Stacks of matrices: which ones meet in a product, and the products of all of them as kernel calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.errors import Declined
from qrun.native.kernels.packing import Panels
from qrun.native.machine.batch import Batch, BatchCall, Buffer
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Ints, address
from qrun.native.machine.operation import size
from qrun.shapes import broadcast_shapes

Array = np.ndarray[Any, Any]
WEIGHTS, BIAS = 2, 3
"""Operands of a product's kernels, besides what they read and write."""


@frozen
class Shape:
    """A stack of products [M, K] x [K, N]: `lead` is the stack's shape, lefts and rights say which matrices meet.

    One product of more rows, if there is but one right matrix.
    """

    lead: tuple[int, ...]
    m: int
    k: int
    n: int
    rows: int
    lefts: Ints
    rights: Ints

    @classmethod
    def of(cls, a: Sequence[int], b: Sequence[int]) -> Shape:
        lead = broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
        m, k, n = a[-2], a[-1], b[-1]
        if size(b[:-2]) == 1 or not m * n:
            one = np.zeros(1, np.int64)
            return cls(lead, m, k, n, size(lead) * m, one, one)
        lefts, rights = (np.broadcast_to(np.arange(size(s[:-2])).reshape(s[:-2]), lead).reshape(-1) for s in (a, b))
        return cls(lead, m, k, n, m, lefts, rights)


@frozen
class StackPart:
    """A product kernel that reads its start values, and perhaps its packed weights, as operands.

    start: the values it would start from itself, int32 for all columns of its vectors.
    columns: the column of each, -1 beyond the last. lane: where its start values begin among those of all parts.
    """

    section: KernelCall
    panels: Panels
    start: Array
    columns: Ints
    lane: int

    @classmethod
    def of(cls, section: KernelCall, first: tuple[int, int], packs: bool) -> StackPart:
        """first: the byte of all packed weights where its own begin, if it `packs`, and its first lane.

        Raises Declined if packed weights lie otherwise.
        """
        arguments, pointers = section.arguments.copy(), section.pointers
        if packs and section.spec.kind != "dense":
            raise Declined(f"no {section.spec.kind} kernels for weights that are not constant")
        weights, bias = (section.kernel.word(name) for name in ("weights*", "bias*"))
        packed, start = (_held(section, arguments[word]) for word in (weights, bias))
        panels = Panels(section.first, 0, 0, 0, first[0])
        if packs:
            panels = Panels(section.first, packed.shape[0], packed.shape[2], packed.shape[3], first[0])
        panelled = "last_channel" in section.kernel.names
        last = int(arguments[section.kernel.word("last_channel")]) if panelled else start.size
        lanes = np.minimum(np.arange(len(start)) * start.shape[1], last)[:, None] + np.arange(start.shape[1])
        columns = np.where(lanes < section.channels, section.first + lanes, -1).reshape(-1)
        for word, operand in ((bias, BIAS), (weights, WEIGHTS))[: 1 + packs]:
            arguments[word] = 0
            pointers = (*pointers, (word, operand))
        return cls(
            replace(section, arguments=arguments, pointers=pointers), panels, start.reshape(-1), columns, first[1]
        )


def _held(section: KernelCall, start: int) -> Array:
    """The section's own array that is there."""
    return next(array for array in section.keep if address(array) == start)


def order(parts: Sequence[StackPart]) -> Ints | None:
    """The column of each lane of their start values; None if that is its own place."""
    columns = np.concatenate([part.columns for part in parts]) if parts else np.zeros(0, np.int64)
    same = np.arange(columns.size)
    return None if np.array_equal(np.where(columns < 0, same, columns), same) else np.maximum(columns, 0)


def first_values(parts: Sequence[StackPart]) -> Array | None:
    """What the parts would start from: int32 [1, lanes], None for zeros."""
    values = np.concatenate([part.start for part in parts])[None] if parts else np.zeros((1, 0), np.int32)
    return values if values.any() else None


class Products:
    """The products of all left matrices, prepared for one run at a time: sums `step` bytes apart."""

    def __init__(
        self, engine: Engine, parts: Sequence[StackPart], rights: Ints, step: int, strides: tuple[int, int]
    ) -> None:
        self.parts = parts
        calls = []
        for number, right in enumerate(rights.tolist()):
            for part in parts:
                section, panels = part.section, part.panels
                moves = (0, number * step, right * strides[0] + panels.start, right * strides[1] + 4 * part.lane)
                calls.append(BatchCall(section.kernel, section.bound(moves), section.tiles, section.scratch))
        self.batch = Batch(engine, calls)

    def run(self, starts: Any, acc: Buffer, weights: Buffer | None, bias: Buffer, *keep: object) -> None:
        """starts: address of the left matrix, or of each."""
        batch, count = self.batch, len(self.parts)
        batch.renew()
        bases = (starts, acc.start, 0 if weights is None else weights.start, bias.start)
        for place, part in enumerate(self.parts):
            for word, operand in part.section.pointers:
                if len(batch.starts) == 1:
                    batch.move(word, bases[operand])
                else:
                    batch.words[place::count, word] += bases[operand]
        batch.execute(acc, weights, bias, keep)
