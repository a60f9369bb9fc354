"""Merges QuantizeLinear nodes that quantize one tensor with equal parameters.

Some exporters write one for each reader, which would hide that the tensor is read only as integers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from qrun.ir import Model, Node
from qrun.ops import Arith
from qrun.passes._draft import Draft, Rewritten, unchanged_model
from qrun.passes._sides import is_quantize


def merge_quantize(model: Model, keep: Iterable[str], arith: Arith) -> Rewritten:
    """The model without the second of two equal QuantizeLinear nodes."""
    if "QuantizeLinear" not in model.op_types:
        return unchanged_model(model)
    draft = Draft(model, keep, arith)
    first: dict[Hashable, str] = {}
    for node in model.nodes:
        if is_quantize(node) and node.outputs:
            name = first.setdefault(_key(draft, node), node.outputs[0])
            if name != node.outputs[0]:
                draft.alias(node.outputs[0], name, node.index)
    return draft.finish()


def _key(draft: Draft, node: Node) -> Hashable:
    """A key that is equal for nodes with equal results."""
    parameters: list[Hashable] = []
    for name in node.inputs[1:]:
        value = draft.value(name)
        parameters.append(name if value is None else (value.dtype, value.shape, value.tobytes()))
    attributes = tuple(sorted((name, repr(value)) for name, value in node.attributes.items()))
    return (node.domain, node.version, node.inputs[:1], *parameters, attributes)
