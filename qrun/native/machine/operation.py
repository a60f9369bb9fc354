"""Operation, a planned step of the native engine: operands in memory, and the kernel calls that work on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.machine.call import KernelCall

if TYPE_CHECKING:
    from qrun.declare.memo import Memo
    from qrun.native.emit.expression import FunctionStep

Order = Literal["channels", "rows", "any", "plain"]


@frozen
class Operand:
    """An array that kernels read or write.

    shape:  as its user sees it.
    border: elements of storage around the image (top, left, bottom, right), all `fill`: such an operand is read only,
            and lies in a buffer of its own.
    tight:  whether its rows must lie without gaps.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    border: tuple[int, int, int, int] = (0, 0, 0, 0)
    fill: int = 0
    tight: bool = False

    def same_border(self, other: Operand) -> bool:
        """Whether both have the same border with the same fill."""
        return self.border == other.border and (self.fill == other.fill or not any(self.border))

    def columns(self, order: Order) -> int:
        """Elements of a row, which are contiguous for every stride; order ``any`` has the rows of ``channels``."""
        if order == "plain" or not self.shape:
            return size(self.shape)
        return self.shape[-1 if order == "rows" or len(self.shape) == 1 else 1]

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return size(self.shape) * self.dtype.itemsize

    def row_bytes(self, order: Order) -> int:
        """The bytes of one row in an order."""
        return self.columns(order) * self.dtype.itemsize

    def memory_shape(self, order: Order) -> tuple[int, ...]:
        """The shape in memory, including the border."""
        shape = self.shape
        if order == "channels" and len(shape) > 2:
            shape = (shape[0], *shape[2:], shape[1])
        if any(self.border):
            top, left, bottom, right = self.border
            lines = (shape[1] + top + bottom,) if len(shape) == 4 else ()
            shape = (shape[0], *lines, shape[-2] + left + right, shape[-1])
        return shape

    def interior(self, order: Order) -> tuple[slice, ...]:
        """The slices of the stored array that hold the image; () without a border."""
        if not any(self.border):
            return ()
        starts, sizes = self.border[2 - (len(self.shape) - 2) : 2], self.memory_shape(order)[1:-1]
        ends = self.border[4 - len(starts) :]
        return (slice(None), *(slice(a, n - b) for a, n, b in zip(starts, sizes, ends, strict=True)))


@frozen
class OperandStrides:
    """The memory layout of an operand: bytes from the start to the first element, byte strides along the axes."""

    start: int
    steps: tuple[int, ...]

    @classmethod
    def of(cls, operand: Operand, order: Order, stride: int) -> OperandStrides:
        """The first element's offset and each axis's stride, in bytes, of an operand in memory."""
        stored = operand.memory_shape(order)
        steps = [operand.dtype.itemsize]
        for axis in range(len(stored) - 1, 0, -1):
            packed = steps[0] * stored[axis]
            steps.insert(0, stride if stride and axis == len(stored) - 1 else packed)
        steps = steps[: len(stored)]
        interior = operand.interior(order) or (slice(0, None),) * len(stored)
        start = sum((cut.start or 0) * step for cut, step in zip(interior, steps, strict=False))
        if order == "channels" and len(stored) > 2:
            steps = [steps[0], steps[-1], *steps[1:-1]]
        return cls(start, tuple(steps))


class Operation(ABC):
    """A step whose parameters and shapes are known: arrays in, one array out. Immutable, for any number of threads,
    except that it keeps its kernel calls for each set of strides.

    operands: the inputs in order, and last the output.
    order:    how operands lie in memory. ``channels``: axis 1 innermost; ``rows``: as numpy's C order; in both, rows of
              that axis may lie further apart than they are long. ``any``: the same for all operands, one or the other.
              ``plain``: C order without gaps.
    """

    operands: tuple[Operand, ...]
    order: Order = "plain"
    view = False
    """Whether the result is the operand's own bytes, in C order, under another shape; from the byte `start` on."""
    start = 0
    gaps = True
    """Whether the rows of its result may lie further apart than they are long."""
    steps: tuple[FunctionStep, ...] = ()
    """The functions of an elementwise operation."""
    between: tuple[float, float, float] | None = None
    """For Relu and Clip of float32: the arguments with which `with_limits` does the same."""
    narrows = False
    """Whether it serves narrower floats as it is, since it only moves elements or finds their places."""
    attends = False
    """Whether it may be the middle of an attention (plan/fusing.py)."""
    parts: tuple[int, ...] = ()
    """For a concatenation: the byte in a row of the result where each operand's columns start."""
    copied: tuple[bool, ...] = ()
    """For a concatenation: which operands it copies unchanged, so that their producers may write to their place."""
    own_words: tuple[str, ...] = ()
    """Words of its calls that follow from constants alone, while all others follow from sizes alone."""
    _sizes: tuple[Operation, Operation] | None = None
    """For a copy made by `with_operands_of`: the copied operation, and the one whose operands the copy has."""

    @abstractmethod
    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        """The kernel calls for rows `strides` bytes apart, 0 for rows without gaps; the result has elements."""

    @cached_property
    def _made(self) -> dict[tuple[int, ...], tuple[KernelCall, ...]]:
        """The calls that were planned, by strides."""
        return {}

    def sections(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        """The kernel calls, to run in any order or at once, for operands whose rows lie `strides` bytes apart; none
        where the result has no elements.

        0 means rows without gaps. In order ``any`` rows with gaps are those of ``channels``. Raises ValueError where
        rows would overlap, and for gaps in an operand that cannot have any: in C order, with a border, or tight.
        """
        key = tuple(strides)
        if len(key) != len(self.operands):
            raise ValueError(f"{len(key)} strides for {len(self.operands)} operands")
        for index, stride in enumerate(key):
            if stride and not self._may_lie(index, stride):
                raise ValueError(f"rows of {list(self.operands[index].shape)} cannot lie {stride} bytes apart")
        found = self._made.get(key)
        if found is None:
            plan = self._resized_calls if self._sizes else self._plan_calls
            found = self._made[key] = plan(key) if size(self.result.shape) else ()
        return found

    def _resized_calls(self, strides: tuple[int, ...]) -> tuple[KernelCall, ...]:
        """The kernel calls after `with_operands_of`: those of the other operation with the constants of this one's
        calls, if `serve` allows it; else newly planned calls."""
        assert self._sizes is not None
        before, other = self._sizes
        own, calls = (before.tight, other.sections(strides)) if self.own_words else ((), ())
        if calls and self.serve(own, calls):
            return tuple([call.with_constants(mine, self.own_words) for mine, call in zip(own, calls, strict=True)])
        made = self._plan_calls(strides)
        if not any(strides):
            must_reach(made, self.result.nbytes)
        return made

    def serve(self, own: Sequence[KernelCall], calls: Sequence[KernelCall]) -> bool:
        """Whether constants of `own` can replace those of `calls`, of other sizes: if specifications are equal."""
        return [call.spec for call in own] == [call.spec for call in calls]

    def _may_lie(self, index: int, stride: int) -> bool:
        """Whether an operand may lie in memory with this stride, as a part of a larger tensor."""
        operand, order = self.operands[index], self._orders[index]
        last = index == len(self.operands) - 1
        if order == "plain" or any(operand.border) or operand.tight or (last and not self.gaps):
            return False
        return stride >= operand.row_bytes(order)

    @property
    def _orders(self) -> list[Order]:
        """The order of each operand."""
        return [self.source_order] * (len(self.operands) - 1) + [self.result_order]

    def _operand_strides(self, strides: Sequence[int]) -> list[OperandStrides]:
        """The memory layout of each operand."""
        return [OperandStrides.of(*each) for each in zip(self.operands, self._orders, strides, strict=True)]

    @property
    def source_order(self) -> Order:
        """The order in memory of the inputs; `order` is that of the result, and of the inputs unless they differ."""
        return self.order

    @property
    def result_order(self) -> Order:
        """The order of the result's elements in memory."""
        return self.order

    def with_layout(self, order: Order) -> Operation:
        """For an operation of order ``any``: the same operation on operands that all lie in this order."""
        return self

    def writing_to(self, operand: Operand, order: Order) -> Operation | None:
        """The operation that writes its result as this operand in this order, without a copy; None if there is none."""
        return None

    def fuse_source(self, source: Operation) -> Operation | None:
        """The operation that takes the inputs of `source` and computes its own operand from them, or None."""
        return None

    def with_limits(self, low: float, high: float, zero: float) -> Operation | None:
        """The operation with its results clipped to low..high (to high where the limits cross; NaN stays) and `zero`
        added; None if there is none. Clip adds -0.0, which changes nothing; Relu adds 0.0: -0.0 becomes 0.0."""
        return None

    def then(self, function: str, operand: Operand) -> Operation | None:
        """The operation with float32 results that are multiplied by another operand, which broadcasts to them
        (``mul``), or have it added (``add``); this becomes the last operand. None if there is none."""
        return None

    def with_narrow_results(self, dtype: np.dtype[Any]) -> Operation | None:
        """The operation on numbers of this narrower type that are kept as float32: each result is rounded to the type,
        once. None if there is none."""
        return self if self.narrows else None

    def with_element_type(self, dtype: np.dtype[Any]) -> Operation | None:
        """The same operation on elements of this type, if it only moves elements; else None."""
        return None

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        """This operation with the sizes of `other`, if the two differ in sizes and constants only; None if it must be
        planned anew. memo: shared by the operations of one kernel."""
        return None

    def move_operand(self, index: int, operand: Operand, steps: Sequence[int]) -> Operation | None:
        """The same operation with one operand (index -1: the result) where a transpose would read or write it:
        `operand` describes the memory there, `steps` are the bytes from one element to the next along each axis. None
        if it cannot."""
        return None

    @property
    def result(self) -> Operand:
        """The result's operand."""
        return self.operands[-1]

    @cached_property
    def tight(self) -> tuple[KernelCall, ...]:
        """The kernel calls for operands without gaps."""
        return self.sections((0,) * len(self.operands))

    def again(self, **changes: Any) -> Self:
        """A copy with these attributes changed, and kernel calls of its own."""
        made = object.__new__(type(self))
        own = made.__dict__
        own.update(self.__dict__)
        for name in ("_made", "tight", "_sizes"):
            own.pop(name, None)
        own.update(changes)
        return made

    def with_operands_of(self, other: Operation) -> Self | None:
        """A copy with the operands of another operation of the same kind and order; None if types differ or operands
        have borders, or if rows differ in length, except in order ``any``: each column may have constants."""
        if type(other) is not type(self) or other.order != self.order or len(other.operands) != len(self.operands):
            return None
        for own, operand in zip(self.operands, other.operands, strict=True):
            if own.dtype != operand.dtype or any(own.border) or any(operand.border):
                return None
            if self.order != "any" and own.columns(self.order) != operand.columns(self.order):
                return None
        return self.again(operands=other.operands, _sizes=(self, other))

    @property
    def whole(self) -> list[int]:
        """The extents of a call on whole operands: their bytes."""
        return [operand.nbytes for operand in self.operands]


def must_reach(sections: Sequence[KernelCall], nbytes: int) -> None:
    """Raise ValueError unless a call reaches the last byte of a result, which would stay unwritten otherwise."""
    reach = max((section.extents[-1] for section in sections), default=0)
    if reach < nbytes:
        raise ValueError(f"kernels write {reach} of a result's {nbytes} bytes")


def size(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return int(prod(shape))


TILE_BYTES = 1 << 14
_TILES_PER_THREAD = 8


def row_tiles(rows: int, row_bytes: int, threads: int) -> dict[str, int]:
    """The words of a kernel whose tiles are rows: the number of rows, rows of a tile, and tiles."""
    chunk = share(rows, row_bytes, threads)
    return {"rows": rows, "chunk": chunk, "tiles": -(-rows // chunk)}


def share(units: int, unit_bytes: int, threads: int) -> int:
    """Units of work per tile: all for one thread, else about eight tiles per thread of 16 KB or more."""
    if threads == 1:
        return max(units, 1)
    return max(-(-units // (threads * _TILES_PER_THREAD)), -(-TILE_BYTES // max(unit_bytes, 1)), 1)
