"""Float32 attention: product, softmax and product, computed for one block of rows after the other while the block is in
the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.native.emit.spec import STRUCT
from qrun.native.kernels.fma_product import FloatMatmul, part_size, product_call
from qrun.native.kernels.softmax import SoftmaxF32
from qrun.native.machine.engine import Engine, Ints, KernelCall, KernelSpec, Operand, Operation, size
from qrun.native.machine.memory import align_up

_BLOCK, _LEAST = 1 << 18, 48
"""The most bytes of a block of scores, which stays in a second-level cache, and its fewest rows, so that converting the
right matrices pays."""
NEAR = 1 << 19
"""Bytes of scores that stay in the cache anyway: slices would only add calls."""
_ROWS = 6
"""Rows of a block are a multiple of this, the rows of AVX-512's strips, if there are more rows."""
_PLAIN = ["a*", "b*", "y*"]


class Attention(Operation):
    """softmax(a @ b) @ c, shapes as numpy.matmul. The softmax may first apply elementwise functions to the scores a @ b
    and to other operands.

    scores, softmax, values: the three operations. scores_index: the index of the softmax's operand that is the scores.
    operands: a, b, the softmax's other operands, c, and the result. Intermediate results stay in the threads' memory.
    """

    def __init__(
        self, engine: Engine, scores: FloatMatmul, softmax: SoftmaxF32, values: FloatMatmul, index: int
    ) -> None:
        self.engine, self.scores, self.softmax, self.values, self.scores_index = engine, scores, softmax, values, index
        others = [operand for number, operand in enumerate(softmax.operands[:-1]) if number != index]
        self.operands: tuple[Operand, ...] = (*scores.operands[:2], *others, *values.operands[1:])
        rows = scores.stack.left.rows
        self.rows = min(rows, part_size(rows, max(_BLOCK // (4 * softmax.length), _LEAST), _ROWS))
        self.blocks = -(-rows // self.rows)

    @classmethod
    def of(
        cls, engine: Engine, scores: Operation, softmax: Operation, values: Operation, index: int
    ) -> Attention | None:
        """The attention in place of three operations; None if they are not a product, its softmax and a product of
        that, row by row, or have too little work."""
        if (
            not isinstance(scores, FloatMatmul)
            or not isinstance(softmax, SoftmaxF32)
            or not isinstance(values, FloatMatmul)
        ):
            return None
        left, right = scores.stack, values.stack
        shape = scores.result.shape
        if any(product.names != _PLAIN or product.arrays for product in (scores, values)) or 4 * size(shape) <= NEAR:
            return None
        whole = (len(left.starts), left.left.rows, left.columns)
        if shape[-2:] != whole[1:] or whole != (len(right.starts), right.left.rows, right.k):
            return None
        if softmax.length != left.columns or not softmax.keeps(index, shape):
            return None
        if not (
            _lies_plain(left.starts[:, 3], left.y_row, whole) and _lies_plain(right.starts[:, 0], right.left.row, whole)
        ):
            return None
        made = cls(engine, scores, softmax, values, index)
        return made if len(left.starts) * made.blocks >= engine.threads else None

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        engine = copy(self.engine)
        engine.threads = 1
        left, right, others = self.scores.stack, self.values.stack, len(self.operands) - 4
        head, block = divmod(np.arange(len(left.starts) * self.blocks), self.blocks)
        row = np.minimum(block * self.rows, left.left.rows - self.rows)
        first = 3 * STRUCT
        second = first if self.softmax.source else align_up(first + 4 * self.rows * left.columns)
        own = align_up(second + 4 * self.rows * left.columns)
        parts = (
            self._product(engine, self.scores, {"a*": 0, "b*": 1}),
            self.softmax.block(engine, self.rows, self.scores_index),
            self._product(engine, self.values, {"b*": others + 2, "y*": others + 3}),
        )
        sources = self.softmax.sources
        read = {name: self._operand_offsets(n, head, row) for n, name in enumerate(sources) if n != self.scores_index}
        moves = (
            {"a*": left.starts[head, 0] + row * left.left.row, "b*": left.starts[head, 1], "y*": first},
            {**read, sources[self.scores_index]: first, "y*": second},
            {"a*": second, "b*": right.starts[head, 1], "y*": right.starts[head, 3] + row * right.y_row},
        )
        return (_slice_call(engine, parts, moves, own, [size(o.shape) * o.dtype.itemsize for o in self.operands]),)

    def _product(self, engine: Engine, product: FloatMatmul, pointers: Mapping[str, int]) -> KernelCall:
        """The call for one block of a product. Each slice adds its own addresses to it (see `_slice_call`)."""
        stack = product.stack
        block = replace(stack, starts=np.zeros((1, 4), np.int64), left=replace(stack.left, rows=self.rows))
        return product_call(product.again(engine=engine), block, pointers, ())

    def _operand_offsets(self, number: int, head: Ints, row: Ints) -> Ints:
        """For each slice: bytes from the start of the softmax's operand number `number` to the slice's rows."""
        shape = self.scores.result.shape
        places = (*np.unravel_index(head, shape[:-2]), row) if len(shape) > 2 else (row,)
        steps = self.softmax.row_steps(number)
        return np.asarray(sum(index * step for index, step in zip(places, steps, strict=True)), np.int64)


def _lies_plain(starts: Ints, row: int, whole: tuple[int, int, int]) -> bool:
    """Whether matrices [number, rows, columns] of float32 are in C order."""
    number, rows, columns = whole
    return row == 4 * columns and np.array_equal(starts, np.arange(number) * (4 * rows * columns))


def _slice_call(
    engine: Engine, parts: Sequence[KernelCall], moves: Sequence[Mapping[str, Any]], own: int, extents: Sequence[int]
) -> KernelCall:
    """A call whose tiles are slices; each runs all parts. moves: for each part, by word, the numbers that the slices
    add to it, or one number, an offset in the thread's memory. own: the offset of the parts' own memory."""
    width = max(map(len, moves))
    slices = next(len(move) for part in moves for move in part.values() if np.ndim(move))
    words = np.zeros((len(parts), width, 2), np.int64)
    words[:, :, 0] = STRUCT - 8
    added = np.zeros((slices, len(parts), width), np.int64)
    for number, (part, changes) in enumerate(zip(parts, moves, strict=True)):
        for index, (name, move) in enumerate(changes.items()):
            words[number, index] = 8 * part.kernel.word(name), -(not np.ndim(move))
            added[:, number, index] = move
    spec = KernelSpec("slices", engine.isa.name, len(parts), 1, 1, "parts", "f32", False)
    filled = {"parts*": 0, "width": width, "own_at": own, "tiles": slices}
    return engine.kernels.call(
        spec,
        {},
        filled,
        extents,
        {"words*": words, "moves*": added},
        scratch=own + max(part.scratch for part in parts),
        decides=all(part.decides for part in parts),
        parts=tuple(parts),
    )
