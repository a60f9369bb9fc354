"""Runs of a body that follow each other, one by one or many at once; and what they make for scan outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.errors import TimeLimitError
from qrun.ir.compound import Compound
from qrun.ir.types import shape_text, type_name
from qrun.ops._context import Body, Round, Turns
from qrun.ops._float import axis_in
from qrun.ops._op import Array, Context, misfit, refuse
from qrun.ops._shape import checked

AT_ONCE = 1 << 16
"""Most runs that are asked for at once."""
_ROOM = 1 << 20
"""Bytes that scan outputs of many runs at once may take while it is not certain that all these runs follow;
or as many as the scan outputs hold by then, if that is more."""
_TRIES = 8


class ScanOutput:
    """Elements of a scan output, in the order in which they are made."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._parts, self.nbytes = ctx, list[Array](), 0

    def add(self, element: Array) -> None:
        """Add one element. Raises MemoryLimitError where all elements, and the array that joins them, are too large."""
        if isinstance(element, Compound):
            got = type_name(element.dtype)
            raise refuse("an element of a scan output is no tensor", "body", "a tensor", got, code="QR203")
        self.add_all(element[None])

    def add_all(self, elements: Array) -> None:
        """Add elements, at least one, that lie along a first axis. Raises as `add`."""
        if self._parts and (elements.shape[1:], elements.dtype) != (self._parts[0].shape[1:], self._parts[0].dtype):
            first = self._parts[0]
            raise misfit(
                f"element {sum(map(len, self._parts))} of a scan output has another shape or type",
                "body",
                f"{type_name(first.dtype)} {shape_text(first.shape[1:])}, as the first",
                f"{type_name(elements.dtype)} {shape_text(elements.shape[1:])}",
            )
        self.nbytes += elements.nbytes
        self._ctx.claim((2 * self.nbytes,), 1, "scan output")
        self._parts.append(elements)

    def whole(
        self, stated: Sequence[int | str | None] | None, dtype: np.dtype | None, axis: int, backward: bool = False
    ) -> Array:
        """All elements, along a new axis. stated, dtype: the shape and type of an element, used if there is none."""
        if self._parts:
            first = self._parts[0]
            axis = axis_in(axis, first.ndim, "scan_output_axes")
            checked(
                (*first.shape[1 : axis + 1], sum(map(len, self._parts)), *first.shape[axis + 1 :]),
                first.itemsize,
                "body",
            )
            one = first if len(self._parts) == 1 else np.concatenate(self._parts)
            return np.require(np.moveaxis(one[::-1] if backward else one, 0, axis), requirements="C")
        if dtype is None:
            raise refuse("a scan output without elements has no type", "body", "a type of the output", "none stated")
        shape = [size if isinstance(size, int) else 0 for size in stated or ()]
        axis = axis_in(axis, len(shape) + 1, "scan_output_axes")
        return np.zeros((*shape[:axis], 0, *shape[axis:]), dtype)


class Rounds:
    """Runs of a body, many at once where that is possible.

    stacks: one for each scan output. certain: whether all runs that are asked for will be made, if nothing fails.
    """

    def __init__(self, body: Body, stacks: Sequence[ScanOutput], ctx: Context, certain: bool) -> None:
        self._body, self._stacks, self._ctx, self._certain = body, stacks, ctx, certain
        self._worked = False

    def due(self, number: int, left: int) -> bool:
        """Whether to try many runs at once, run `number` first: yes if that worked last time, else ever more rarely."""
        return left > 1 and (self._worked or number < _TRIES or not number & (number - 1))

    def alone(self, number: int, args: Sequence[Array]) -> Turns:
        """Run `number`, counted from 0. What it makes for scan outputs is added.
        Raises TimeLimitError, which tells the number."""
        try:
            self._ctx.budget.in_time()
            made = self._body.run(args)
        except TimeLimitError as error:
            error.in_turn(number + 1)
            raise
        carried = len(self._body.outputs) - len(self._stacks)
        for stack, element in zip(self._stacks, made[carried:], strict=True):
            stack.add(element)
        return Turns(1, made[:carried], ())

    def run(self, args: Sequence[Array], scanned: tuple[int, ...], most: int, until: bool) -> Turns | None:
        """As the body's `repeat`; None where the next run has to be alone. What it makes for scan outputs is added."""
        taken = sum(stack.nbytes for stack in self._stacks)
        room = 1 << 62 if self._certain else max(taken, _ROOM)
        turns = self._body.repeat(args, Round(scanned, most, room, until))
        self._worked = turns is not None
        if turns is None or not turns.count:
            return None
        for stack, block in zip(self._stacks, turns.stacked, strict=True):
            stack.add_all(block if 2 * turns.count > most else block.copy())
        return turns
