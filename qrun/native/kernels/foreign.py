"""Functions of arrays as operations: Python's part of a program whose calls otherwise follow each other without it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from qrun.native.emit.spec import DOUBT, FOREIGN, KernelSpec
from qrun.native.errors import Declined, Unplanned
from qrun.native.kernels.strided import SIZES, Loop, copies
from qrun.native.machine.call import mark_of
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Operation, size
from qrun.native.machine.memory import aligned_up, array_at

Function = Callable[[list[Array]], Sequence[Array]]
_MOST = DOUBT // 8 - len(FOREIGN)
_KEPT = 16
"""Sets of operand addresses whose arrays are kept. Runs at the same time have different addresses."""


class Foreign(Operation):
    """What a function makes of arrays: its only result, or all of them behind each other as bytes, of which `outputs`
    are the parts. Raises Declined where arrays are none that lie in memory as they are.

    The function may run in any thread; where it raises, or makes other types or shapes, the result is not decided.
    """

    def __init__(
        self, engine: Engine, operands: Sequence[Operand], made: Sequence[Operand], function: Function
    ) -> None:
        if len(operands) >= _MOST:
            raise Declined("too many operands")
        dtypes = [operand.dtype for operand in (*operands, *made)]
        if any(dtype.hasobject or dtype.names or dtype.itemsize not in SIZES for dtype in dtypes):
            raise Declined("elements that are no numbers")
        if not all(operand.nbytes for operand in made):
            raise Declined("results without elements")
        self.engine, self.made, self.function = engine, tuple(made), function
        self.starts = [0]
        for operand in made:
            self.starts.append(self.starts[-1] + aligned_up(operand.nbytes))
        whole = made[0] if len(made) == 1 else Operand((self.starts[-1],), np.dtype(np.uint8))
        self.operands = (*operands, whole)

    @property
    def outputs(self) -> list[Part]:
        """What takes each result out of all of them, where there are several."""
        whole, pairs = self.result, zip(self.made, self.starts, strict=False)
        return [Part(self.engine, whole, operand, start) for operand, start in pairs] if len(self.made) > 1 else []

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        count = len(self.operands)
        spec = KernelSpec("foreign", self.engine.isa.name, count, 0, 0, "", "bytes", False)
        caller, names = _Caller(self), [f"operand{n}*" for n in range(count)]
        words = dict(zip(FOREIGN, (*_functions(), id(caller.called), id(True), 1), strict=True))
        return (self.engine.kernels.call(spec, names, words, self.whole, decides=False, callback=caller),)


class _Caller:
    """Calls the function with arrays where a struct says that the operands lie."""

    def __init__(self, operation: Foreign) -> None:
        self._operation, self._known = operation, dict[bytes, tuple[list[Array], list[Array]]]()
        self.called = self._called  # the one object of that name whose address machine code has

    def _called(self, entries: int) -> bool:
        try:
            places = ctypes.string_at(entries, 8 * len(self._operation.operands))
            found = self._known.get(places) or self._arrays(places)
            made = self._operation.function(found[0].copy())
            for room, array in zip(found[1], made, strict=True):
                if array.shape != room.shape or array.dtype != room.dtype:
                    raise Unplanned(f"{array.dtype}{list(array.shape)} instead of {room.dtype}{list(room.shape)}")
                room[...] = array
            return True
        except BaseException as error:
            ctypes.c_int64.from_address(entries + DOUBT).value = mark_of(error)
            return False

    def _arrays(self, places: bytes) -> tuple[list[Array], list[Array]]:
        """The operands and the results, as arrays at these addresses."""
        operation = self._operation
        *read, whole = np.frombuffer(places, np.int64).tolist()
        pairs = zip(operation.operands, read, strict=False)
        found = (
            [array_at(start, operand.dtype, operand.shape) for operand, start in pairs],
            [
                array_at(whole + start, operand.dtype, operand.shape)
                for operand, start in zip(operation.made, operation.starts, strict=False)
            ],
        )
        for array in found[0]:
            array.flags.writeable = False
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[places] = found
        return found


class Part(Operation):
    """An array, of which bytes hold all elements from `start` on."""

    def __init__(self, engine: Engine, whole: Operand, part: Operand, start: int) -> None:
        self.engine, self.start, self.operands = engine, start, (whole, part)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        itemsize = self.result.dtype.itemsize
        axes = [Loop(size(self.result.shape), (itemsize, itemsize))]
        return tuple(copies(self.engine, axes, (self.start, 0), itemsize))


@cache
def _functions() -> tuple[int, ...]:
    """The addresses of the functions of Python's C API that the kernel calls."""
    names = ("PyGILState_Ensure", "PyGILState_Release", "PyLong_FromLongLong", "PyObject_CallOneArg")
    functions = [getattr(ctypes.pythonapi, name) for name in (*names, "Py_DecRef", "PyErr_Clear")]
    return tuple([int(ctypes.cast(function, ctypes.c_void_p).value or 0) for function in functions])
