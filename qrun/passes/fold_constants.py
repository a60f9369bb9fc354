"""Nodes that only read constants become constants.

The reference kernels compute them, in the session's arithmetic, so the values are those of a run. Nodes with
subgraphs stay, those that refuse their inputs (they will fail when run, with their own message), those that have
something to report about their values (a run will), and those whose results would need too much memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from qrun.ir import Array, Model
from qrun.ops import Arith
from qrun.passes._draft import Draft, Rewritten
from qrun.passes._evaluate import evaluate

LIMIT = 64 << 20
"""Bytes that a result, or all results together, may have beyond those of the inputs, or of the model's constants."""


def fold_constants(model: Model, keep: Iterable[str], arith: Arith, *, dequantize: bool = True) -> Rewritten:
    """The model without nodes of constants.

    dequantize: also fold DequantizeLinear, which makes four bytes of one.
    """
    draft = Draft(model, keep, arith)
    room = LIMIT
    left = LIMIT + sum(array.nbytes for array in model.constants.values())
    known = {"", *model.constants}.difference(v.name for v in model.defaults)
    for node in model.nodes:
        if not known.issuperset(node.inputs):
            continue
        if (node.op_type == "DequantizeLinear" and not dequantize) or any(node.subgraphs):
            continue
        args = [draft.value(name) if name else None for name in node.inputs]
        given = sum({id(a): a.nbytes for a in args if a is not None}.values())
        made = evaluate(node, args, arith, min(room + given, left))
        if made is None:
            continue
        named = {name: array for name, array in zip(node.outputs, made, strict=False) if name}
        growth = sum(a.nbytes for a in named.values() if node.inputs) - given
        fresh = sum(a.nbytes for a in named.values() if not any(_share(a, b) for b in args))
        if growth > room or (node.inputs and fresh > left):
            continue
        room -= max(0, growth)
        left -= fresh if node.inputs else -fresh
        draft.constants.update((name, _frozen(array)) for name, array in named.items())
        known.update(named)
        draft.put(node.index)
    return draft.finish()


def _share(made: Array, given: Array | None) -> bool:
    return given is not None and np.may_share_memory(made, given)


def _frozen(array: Array) -> Array:
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view
