"""Products, softmax, and products of its shares as one task, so that scores never leave the cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from qrun.declare.memo import Memo
from qrun.native.kernels.attention import Attention
from qrun.native.kernels.float_matmul import FloatMatmul
from qrun.native.kernels.softmax import SoftmaxF32
from qrun.native.machine.engine import Engine
from qrun.native.plan.items import IDLE, Item, Key, Links, Task


def attended(engine: Engine, items: Sequence[Item], wanted: Sequence[Key], memo: Memo | None = None) -> list[Item]:
    """The items with attentions joined: the last one of each does all of its work, the others become steps that do nothing.
    The list keeps its length. memo: operations that were made of the same operations."""
    memo = memo or Memo()
    made, maker = list(items), Links(items, wanted).maker
    for number, item in enumerate(items):
        middle = maker(item.inputs[0]) if isinstance(item, Task) and isinstance(item.operation, FloatMatmul) else -1
        softmax = items[middle] if middle >= 0 else None
        if not isinstance(softmax, Task) or not isinstance(softmax.operation, SoftmaxF32):
            continue
        for place, first in enumerate(map(maker, softmax.inputs)):
            joined = _joined(engine, items[first], softmax, item, place, memo) if first >= 0 else None
            if joined:
                made[number] = joined
                made[first] = made[middle] = IDLE
                break
    return made


def _joined(engine: Engine, scores: Item, softmax: Task, values: Item, place: int, memo: Memo) -> Task | None:
    if not isinstance(scores, Task) or not isinstance(values, Task):
        return None
    first, middle, last = scores.operation, softmax.operation, values.operation
    if not isinstance(first, FloatMatmul) or not isinstance(middle, SoftmaxF32) or not isinstance(last, FloatMatmul):
        return None
    operation = memo.once((first, middle, last, place), partial(Attention.of, engine, first, middle, last, place))
    others = [key for number, key in enumerate(softmax.inputs) if number != place]
    if operation is None:
        return None
    return Task(operation, (*scores.inputs, *others, *values.inputs[1:]), values.output)
