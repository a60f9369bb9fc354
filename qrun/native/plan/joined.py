"""Which operation does the work of an item that was joined to another one."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.kernels.copy import Copy
from qrun.native.plan.fusing import made_by
from qrun.native.plan.placement import Item, PythonStep, Task


def joined(given: Sequence[Item], items: Sequence[Item]) -> dict[int, int]:
    """For each item whose work another one's operation does, the number of that one; not for copies, through which that one
    reads or writes: they are no work any more.

    given: the items of the steps; items: as many, of which those that were joined to others have become steps that do nothing.
    """
    makers = {key: number for number, item in enumerate(items) for key in made_by(item)}
    readers = {key: number for number, item in enumerate(given) for key in item.inputs}

    def doer(number: int) -> int | None:
        """The item that makes its result now, or reads what it would have read."""
        for key in made_by(given[number]):
            if key in makers:
                return makers[key]
            reader = readers.get(key)
            if reader is not None and reader != number:
                return doer(reader) if _is_idle(items[reader]) else reader
        return None

    idle = (n for n, item in enumerate(items) if _is_idle(item) and _has_work(given[n]))
    found = ((number, doer(number)) for number in idle)
    return {number: other for number, other in found if other is not None}


def _has_work(item: Item) -> bool:
    return not isinstance(item, PythonStep) and not (isinstance(item, Task) and isinstance(item.operation, Copy))


def _is_idle(item: Item) -> bool:
    return isinstance(item, PythonStep) and not item.outputs
