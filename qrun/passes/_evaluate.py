"""Runs one node with its reference kernel while a model is rewritten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qrun.errors import QrunError
from qrun.ir import Array, Node
from qrun.ir.schema import OPSETS, schema
from qrun.memory import Budget
from qrun.ops import CUSTOM, Arith, Context, Observation, OpDef, find
from qrun.ops._complete import ENDS_SHARE


def evaluate(
    node: Node, args: Sequence[Array | None], arith: Arith, limit: int, *, saturating: bool = False
) -> tuple[Array, ...] | None:
    """The outputs of a node; None where it refuses its inputs, or needs more than `limit` bytes of memory.

    Also None where the kernel observes something that a run should report. Saturation of more than a few elements
    counts, unless `saturating`; saturated infinity never counts. And None for custom operators: only a run calls them.
    """
    definition = find(node.domain, node.op_type, node.version)
    if (
        definition is None
        or definition.runner == CUSTOM
        or definition.compounds == "makes"
        or not _takes(definition, node.version, args)
    ):
        return None
    wanted = tuple(bool(name) for name in node.outputs)
    ctx = Context(arith, node.version, len(node.outputs), wanted, True, Budget(limit), fixed=(True,) * len(args))
    try:
        made = definition.compute(args, definition.bind(node), ctx)
    except (QrunError, ValueError, IndexError, OverflowError, ZeroDivisionError, MemoryError):
        return None
    made = made if isinstance(made, tuple) else (made,)
    told = any(not _is_usual(seen, saturating) for seen in ctx.observations)
    return None if told or len(made) < sum(wanted) else made


def _is_usual(seen: Observation, saturating: bool) -> bool:
    """Whether an observation is no reason to refuse: infinities, and few saturated elements."""
    if seen.kind == "infinite-quantized":
        return True
    return seen.kind == "saturated" and (saturating or seen.count * ENDS_SHARE <= seen.total)


def _takes(definition: OpDef, version: int, args: Sequence[Array | None]) -> bool:
    """Whether the operator allows these element types."""
    formals = definition.formals(version)
    shared: dict[str, np.dtype] = {}
    for index, array in enumerate(args):
        if array is None or not formals:
            continue
        formal = formals[min(index, len(formals) - 1)]
        if formal.types is None:
            continue
        if array.dtype not in formal.types:
            return False
        if formal.homogeneous and shared.setdefault(formal.variable, array.dtype) != array.dtype:
            return False
    return True


def accepting_version(node: Node, dtype: np.dtype) -> int | None:
    """The first version from the node's on, of the same declaration, whose first input may have this type."""
    definition = find(node.domain, node.op_type, node.version)
    for version in _versions(node):
        if definition is None or find(node.domain, node.op_type, version) is not definition:
            break
        formals = definition.formals(version)
        if formals and (formals[0].types is None or dtype in formals[0].types):
            return version
    return None


def _versions(node: Node) -> Iterator[int]:
    """The node's version and the later ones of its operator."""
    last = node.version
    yield last
    for opset in OPSETS:
        known = schema(node.domain, node.op_type, opset) if opset > node.version else None
        if known is not None and known.version > last:
            last = known.version
            yield last
