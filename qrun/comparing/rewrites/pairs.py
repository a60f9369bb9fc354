"""Two pairs of QuantizeLinear and DequantizeLinear in a row become one, with the range that both have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qrun.comparing.rewrites._rewrite import Rewrite, StoredParameters, only_reader, parameters, readers
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node
from qrun.ops._quantize import limits


def requantized(model: Model) -> Iterator[tuple[Node, Node]]:
    """Each DequantizeLinear that only a QuantizeLinear reads, and this QuantizeLinear."""
    for node in model.nodes:
        reader = only_reader(model, node) if node.op_type == "DequantizeLinear" else None
        if reader is not None and reader.op_type == "QuantizeLinear" and reader.inputs[0] == node.outputs[0]:
            yield node, reader


@frozen
class TwoPairs:
    """Two pairs of QuantizeLinear and DequantizeLinear in a row, which become one.

    between: the first DequantizeLinear. last: each DequantizeLinear behind the second QuantizeLinear.
    """

    first: StoredParameters
    second: StoredParameters
    between: Node
    last: tuple[Node, ...]

    def merged(self) -> tuple[Array, Array]:
        """The scale and zero point of the range that both have."""
        assert self.first.zero is not None
        assert self.second.zero is not None
        kind = self.first.zero.dtype
        low, high = (np.float32(limit) for limit in limits(kind))
        pairs = [
            (np.float32(p.scale.item()), np.float32(p.zero.item()))
            for p in (self.first, self.second)
            if p.zero is not None
        ]
        least = max((low - zero) * scale for scale, zero in pairs)
        most = min((high - zero) * scale for scale, zero in pairs)
        scale = np.float32((most - least) / (high - low))
        zero = np.clip(np.rint(low - least / scale), low, high) if scale > 0 else low
        return np.asarray(scale), np.asarray(zero).astype(kind)


def _merged_pairs(model: Model) -> Iterator[TwoPairs]:
    for inner, outer in requantized(model):
        first = parameters(model, model.producers.get(inner.inputs[0]), "QuantizeLinear")
        before, second = parameters(model, inner), parameters(model, outer, "QuantizeLinear")
        if first is None or before is None or second is None or only_reader(model, first.node) is not inner:
            continue
        last = tuple(readers(model, outer))
        ends = [parameters(model, reader) for reader in last]
        named = any(value.name in outer.outputs for value in model.outputs)
        if not ends or named or not all(end is not None and end.same(second) for end in ends):
            continue
        plain = all(p.is_scalar and p.zero is not None for p in (first, second))
        if plain and first.same(before) and not first.same(second) and _one_type(first, second):
            yield TwoPairs(first, second, inner, last)


def _one_type(first: StoredParameters, second: StoredParameters) -> bool:
    return first.zero is not None and second.zero is not None and first.zero.dtype == second.zero.dtype


def pair_rewrites(model: Model) -> Iterator[Rewrite]:
    """Two pairs of QuantizeLinear and DequantizeLinear in a row become one, with the range that both have."""
    for pairs in _merged_pairs(model):
        scale, zero = pairs.merged()
        head, second = pairs.first.node, pairs.second.node
        names = f"{head.label}/merged scale", f"{head.label}/merged zero point"
        nodes: dict[str, tuple[Node, ...]] = {n.outputs[0]: () for n in (pairs.between, second)}
        nodes[head.outputs[0]] = (replace(head, inputs=(head.inputs[0], *names)),)
        for end in pairs.last:
            nodes[end.outputs[0]] = (replace(end, inputs=(head.outputs[0], *names)),)
        text = (
            f"merges {head.label} and {second.label} into one pair, with scale {scale.item():.6g} and "
            f"zero point {zero.item()}, which rounds only once"
        )
        yield Rewrite(second, second.inputs[0], text, nodes, dict(zip(names, (scale, zero), strict=True)))
