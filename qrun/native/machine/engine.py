"""The engine that operations share: instruction set, compiled kernels and threads; it runs the kernel calls."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from qrun.declare.frozen import changeable
from qrun.native.emit.isa import Isa, choose
from qrun.native.emit.spec import DOUBT, KernelSpec
from qrun.native.errors import Undecided
from qrun.native.machine.cache import ObjectCache
from qrun.native.machine.call import KernelCall
from qrun.native.machine.compile import Kernels, Runner
from qrun.native.machine.memory import Array, Ints, address, aligned, keep_freed_memory
from qrun.native.machine.operation import Operand, Operation, Order, row_tiles, share, size
from qrun.native.machine.threads import HelperCall, Helpers


@changeable
class Engine:
    """Settings of the native engine. Plans made from it may run in several threads at once.

    threads: how many threads one run may use; results do not depend on it.
    """

    isa: Isa
    kernels: Kernels
    threads: int = 1
    pool: Helpers | None = field(default=None, repr=False)

    @property
    def runner(self) -> Runner:
        """The code that runs programs."""
        return self.kernels.runner(self.isa)

    @classmethod
    def create(cls, isa: str = "", cache: str | os.PathLike[str] | None = None, threads: int = 1) -> Engine:
        """An engine. isa: a name, or '' for this CPU's best. cache: directory of compiled kernels, None for no cache.

        Raises Declined where native kernels cannot run.
        """
        if threads < 1:
            raise ValueError(f"threads must be 1 or more, got {threads}")
        keep_freed_memory()
        return cls(choose(isa), Kernels(ObjectCache(cache)), threads, Helpers(threads - 1) if threads > 1 else None)

    def end(self) -> None:
        """End all threads."""
        self.kernels.end()
        if self.pool is not None:
            self.pool.end()

    def run(self, operation: Operation, arrays: Sequence[Array]) -> Array:
        """Run an operation alone, on arrays of any strides. Raises ValueError for unplanned ones, and Undecided.

        The result is a view of the memory from `room`.
        """
        for array, operand in zip(arrays, operation.operands[:-1], strict=True):
            if array.shape != operand.shape or array.dtype != operand.dtype:
                got, want = f"{array.dtype}{list(array.shape)}", f"{operand.dtype}{list(operand.shape)}"
                raise ValueError(f"the operand is {got}, planned {want}")
        memory, result = self.room(operation)
        sections = operation.tight
        if sections:
            buffers = [stage(array, operation, sections, index) for index, array in enumerate(arrays)]
            self.execute(sections, [*buffers, memory])
        return result

    def room(self, operation: Operation) -> tuple[Array, Array]:
        """New memory for an operation's result, in the operation's order, and the result as a view of it."""
        result, order = operation.result, operation.result_order
        bordered = any(result.border)
        memory = aligned(result.memory_shape(order), result.dtype, result.fill if bordered else None)
        made = memory[result.interior(order)] if bordered else memory
        return memory, np.moveaxis(made, -1, 1) if order == "channels" and made.ndim > 2 else made

    def execute(self, sections: Sequence[KernelCall], operands: Sequence[Array]) -> None:
        """Run kernels on the contiguous buffers of an operation.

        Raises ValueError if one is too small for them, Undecided if a kernel could not decide a result.
        """
        for section in sections:
            if any(e > o.nbytes for e, o in zip(section.extents, operands, strict=True)):
                raise ValueError("a buffer is smaller than the plan needs")
        addresses = [address(operand) for operand in operands]
        for section in sections:
            arguments = section.bind(addresses)
            start = address(arguments)
            helpers = min(self.threads, section.tiles) - 1
            waiting = []
            if self.pool is not None and helpers > 0:
                keep = (arguments, operands)
                waiting = [self.pool.submit(_help, section, start, keep) for _ in range(helpers)]
            section.run(start)
            wait_for(waiting)
            if arguments[DOUBT // 8]:
                raise Undecided


def stage(array: Array, operation: Operation, sections: Sequence[KernelCall], index: int) -> Array:
    """The operand number `index` as kernels read it: the array's own memory if possible, else a copy."""
    operand, order = operation.operands[index], operation.source_order
    needed = max([s.extents[index] for s in sections], default=0)
    inner = np.moveaxis(array, 1, -1) if order == "channels" and array.ndim > 2 else array
    if not any(operand.border) and inner.flags.c_contiguous and inner.nbytes >= needed:
        return inner
    stored = operand.memory_shape(order)
    count = size(stored)
    buffer = aligned(max(count, -(-needed // operand.dtype.itemsize)), operand.dtype)
    buffer[count:] = 0
    if any(operand.border):
        buffer[:count] = operand.fill
    buffer[:count].reshape(stored)[operand.interior(order)] = inner
    return buffer


def _help(section: KernelCall, start: int, keep: object) -> None:
    """Run a kernel; `keep` keeps its memory alive, also if the caller is interrupted and leaves."""
    section.run(start)


def wait_for(helpers: Sequence[HelperCall]) -> None:
    """Wait for the calls that have begun; cancel the others, which would find nothing to do."""
    for helper in helpers:
        if not helper.cancel():
            helper.wait()


__all__ = [
    "Array",
    "Engine",
    "Ints",
    "KernelCall",
    "KernelSpec",
    "Operand",
    "Operation",
    "Order",
    "aligned",
    "row_tiles",
    "share",
    "size",
    "stage",
    "wait_for",
]
"""Also the names that every planner needs: operations import them from here."""
