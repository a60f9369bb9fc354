"""What the tests of elementwise native operations share:
tables by the reference kernels, operands on rows with gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from helpers.native import TYPES, Array, Guarded, engine
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operation
from qrun.native.proof.fits import CodeProduct, CodeSum
from qrun.ops._context import Context
from qrun.ops.qlinearbinary import qlinear_add, qlinear_mul

F = np.float32
FILL = 0xA5

SCALES = {
    "plain": (0.02, 0.03, 0.041), "equal": (0.05, 0.05, 0.05), "average": (1, 1, 2), "1/90": (1, 1, 90),
    "1/255": (1 / 255, 1 / 255, 1 / 255), "3/82": (3, 5, 82), "near": (1.00003, 1, 1.7), "negative": (-0.02, 0.03, 0.041),
    "far": (3e-3, 1, 0.9), "1/6": (1, 1, 6), "decimal": (0.01, 1, 0.9),
}  # fmt: skip
"""Scales of a, b and y of sums; products divide by 60 times the last."""
ZEROS = [(0, 0, 0), (3, 7, 9), (127, 5, 100)]


def bits(kind: str) -> Array:
    """All codes in the order of their bits."""
    return np.arange(256, dtype=np.uint8).view(TYPES[kind])


def pair_table(
    name: str, kind: str, scales: tuple[float, ...], zeros: tuple[int, ...], arith: Any = "exact"
) -> tuple[Array, CodeSum | CodeProduct]:
    """The reference's result for all pairs, [a, b] by bits, and an estimate of it."""
    sa, sb, sc = (np.array(F(scale)) for scale in scales)
    if name == "mul":
        sc = np.array(F(60 * sc))
    za, zb, zc = (np.array(zero).astype(TYPES[kind]) for zero in zeros)
    codes = bits(kind)
    function = qlinear_add if name == "add" else qlinear_mul
    table = function(codes[None], sa, za, codes[:, None], sb, zb, sc, zc, ctx=Context(arith, observing=False)).T
    a, b, c = (float(scale) for scale in (sa, sb, sc))
    shift = 128 if kind == "s8" else 0
    places = (int(za) + shift, int(zb) + shift, int(zc), arith == "ort")
    near = CodeSum(a / c, b / c, *places) if name == "add" else CodeProduct(a * b / c, *places)
    return np.ascontiguousarray(table), near


class Rows:
    """An operation's operands on rows with gaps, each in a buffer of exactly the bytes that may be touched."""

    def __init__(self, operation: Operation, strides: Sequence[int], take: Callable[[int], Array]) -> None:
        self.operation = operation
        self.sections = operation.sections(strides)
        self.buffers = []
        for place, stride in enumerate(strides):
            operand = operation.operands[place]
            columns = operand.row_bytes("channels" if operation.order == "any" else operation.order)
            rows = int(np.prod(operand.shape, dtype=np.int64)) * operand.dtype.itemsize // max(columns, 1)
            step = stride or columns
            buffer = take(max((rows - 1) * step + columns, 0) if rows else 0)
            buffer[:] = FILL
            view = np.lib.stride_tricks.as_strided(buffer, (rows, columns), (step, 1))
            self.buffers.append((buffer, view))
        reach = [max((s.extents[i] for s in self.sections), default=0) for i in range(len(strides))]
        assert all(n <= len(buffer) for n, (buffer, _) in zip(reach, self.buffers, strict=True)), reach

    def run(self, engine: Engine, arrays: Sequence[Array]) -> Array:
        """The result's rows; whatever lies between them must be as it was."""
        last = self.operation.order in ("channels", "any")
        for array, (_, view) in zip(arrays, self.buffers[:-1], strict=True):
            moved = np.moveaxis(array, 1, -1) if last and array.ndim > 2 else array
            view[...] = np.ascontiguousarray(moved).view(np.uint8).reshape(view.shape)
        engine.execute(self.sections, [buffer for buffer, _ in self.buffers])
        buffer, view = self.buffers[-1]
        made = view.copy()
        view[...] = FILL
        assert (buffer == FILL).all(), "written between the rows"
        return made


def rows_of(array: Array, order: str) -> Array:
    """An array as rows of bytes in this order."""
    moved = np.moveaxis(array, 1, -1) if order in ("channels", "any") and array.ndim > 2 else array
    flat = np.ascontiguousarray(moved).view(np.uint8)
    columns = array.shape[1] if order in ("channels", "any") and array.ndim > 1 else array.shape[-1]
    return flat.reshape(-1, columns) if flat.size else flat.reshape(0, columns)


def guarded(guard: Guarded, at_end: bool) -> Callable[[int], Array]:
    return lambda count: guard.take(count, at_end)


def width(isa: str) -> int:
    """Bytes that the vector kernels of an instruction set handle at once."""
    return 4 * engine(isa).isa.lanes


def sizes(isa: str) -> list[int]:
    """Columns around one and several vectors."""
    v = width(isa)
    return sorted({1, 2, 15, 16, 17, v - 1, v, v + 1, 2 * v - 1, 3 * v})
