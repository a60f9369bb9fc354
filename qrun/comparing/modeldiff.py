"""Lists the differences between two stored models: nodes, attributes, scales, zero points, weights."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from qrun.comparing.differences import difference_mask, wide
from qrun.declare import grouped
from qrun.declare.frozen import frozen, keys
from qrun.ir import Array, Model, Node
from qrun.ir.types import describe, shape_text
from qrun.ops import find, quantizers

KINDS = ("opset", "node", "input", "attribute", "scale", "zero point", "weight", "constant")
"""Kinds of differences, in the order in which they are listed."""
_NONE = "-"
_LONG = 40


@frozen
class StoredDifference:
    """One thing that two models store differently.

    kind: one of KINDS. name: the name of the tensor, attribute or domain. node: the label of the first node that has
          it; "" for the whole file.
    a, b: the values in both files, ``-`` for none; for arrays, the elements that are farthest apart.
    change: a description of the change. size: its magnitude, which sorts the differences of one kind.
    """

    KEYS = keys("kind name node a b change")

    kind: str
    name: str
    node: str
    a: str
    b: str
    change: str = ""
    size: float = 0.0


def stored_differences(a: Model, b: Model) -> list[StoredDifference]:
    """All differences between two models, kind by kind, the largest first."""
    found = [*_in_opsets(a, b), *_in_graphs(a, b, "")]
    return sorted(dict.fromkeys(found), key=lambda d: (KINDS.index(d.kind), -d.size))


def _in_opsets(a: Model, b: Model) -> Iterator[StoredDifference]:
    """The differences of the imported opsets."""
    for domain in dict.fromkeys([*a.opsets, *b.opsets]):
        one, other = (str(model.opsets.get(domain, _NONE)) for model in (a, b))
        if one != other:
            yield StoredDifference("opset", domain or "ai.onnx", "", one, other)


def _in_graphs(a: Model, b: Model, path: str) -> Iterator[StoredDifference]:
    """The differences of two graphs."""
    pairs = _pair_nodes(a, b)
    others = {node.index for _, node in pairs}
    known = {x: y for one, other in pairs for x, y in zip(one.outputs, other.outputs, strict=False) if x}
    known |= {x.name: y.name for x, y in zip(a.inputs, b.inputs, strict=False)}
    matched = {one.index for one, _ in pairs}
    for node in a.nodes:
        if node.index not in matched:
            yield StoredDifference("node", node.op, path + node.label, node.op, _NONE, "only in the first")
    for node in b.nodes:
        if node.index not in others:
            yield StoredDifference("node", node.op, path + node.label, _NONE, node.op, "only in the second")
    seen = set[tuple[str, str]]()
    for one, other in pairs:
        yield from _in_nodes(one, other, path)
        yield from _in_inputs((a, b), (one, other), known, seen, path)
    rest = [name for name in a.constants if name in b.constants and (name, name) not in seen]
    for name in rest:  # read by nodes without a counterpart, as in another form of the same model
        x, y, reader = a.constants[name], b.constants[name], next(iter(a.consumers.get(name, ())), None)
        if reader is not None and not _equal(x, y):
            yield _change(_kind(reader, reader.inputs.index(name), [x]), name, path + reader.label, x, y)


def _pair_nodes(a: Model, b: Model) -> list[tuple[Node, Node]]:
    """Pair the nodes by name or first output, first those with the same operator too. If no pair is found and both
    models have the same sequence of operators, pair by position."""
    found, left, right = list[tuple[Node, Node]](), list(a.nodes), list(b.nodes)
    for key in _KEYS:
        one, other = _unique(left, key), _unique(right, key)
        pairs = [(node, other[k]) for k, node in one.items() if k in other]
        taken, gone = ({pair[side].index for pair in pairs} for side in (0, 1))
        left, right = [n for n in left if n.index not in taken], [n for n in right if n.index not in gone]
        found += pairs
    if not found and [node.op for node in a.nodes] == [node.op for node in b.nodes]:
        return list(zip(a.nodes, b.nodes, strict=True))
    return sorted(found, key=lambda pair: pair[0].index)


_KEYS: Sequence[Callable[[Node], tuple[str, ...]]] = (
    lambda node: (node.name, node.op),
    lambda node: (*node.outputs[:1], node.op),
    lambda node: (node.name,),
    lambda node: node.outputs[:1],
)


def _unique(nodes: Sequence[Node], key: Callable[[Node], tuple[str, ...]]) -> dict[tuple[str, ...], Node]:
    """The nodes by key, without empty keys and keys that several nodes share."""
    groups = grouped((key(node), node) for node in nodes)
    return {k: found[0] for k, found in groups.items() if len(found) == 1 and all(k)}


def _in_nodes(one: Node, other: Node, path: str) -> Iterator[StoredDifference]:
    """The differences of two nodes."""
    label = path + one.label
    if one.op != other.op:
        yield StoredDifference("node", one.op, label, one.op, other.op, "different operator")
        return
    for name in dict.fromkeys([*one.attributes, *other.attributes]):
        x, y = (_attribute(node, name) for node in (one, other))
        if isinstance(x, Model) and isinstance(y, Model):
            yield from _in_graphs(x, y, f"{label}/{name}/")
        elif not _equal(x, y):
            yield StoredDifference("attribute", name, label, _text(x), _text(y))


def _attribute(node: Node, name: str) -> Any:
    """The node's attribute or its default; None if there is neither."""
    if name in node.attributes:
        return node.attributes[name]
    definition = find(node.domain, node.op_type, node.version)
    known = definition.signature.parameters.get(name) if definition is not None else None
    return None if known is None or known.default is inspect.Parameter.empty else known.default


def _equal(x: Any, y: Any) -> bool:
    """Whether two attributes are equal."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.dtype == y.dtype and x.shape == y.shape and not difference_mask(x, y).any()
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return False
    return bool(x == y)


def _text(value: Any) -> str:
    """An attribute in words."""
    if value is None or value == ():
        return _NONE
    if isinstance(value, np.ndarray):
        return describe(value)
    shown = shape_text(value) if isinstance(value, tuple) and all(isinstance(v, int) for v in value) else str(value)
    return shown if len(shown) <= _LONG else shown[: _LONG - 3] + "..."


def _in_inputs(
    models: tuple[Model, Model], nodes: tuple[Node, Node], known: dict[str, str], seen: set[tuple[str, str]], path: str
) -> Iterator[StoredDifference]:
    """Compare the inputs of two nodes: constants by value, other tensors by the nodes that make them."""
    one, other = nodes
    if one.op != other.op:
        return
    for index in range(max(len(one.inputs), len(other.inputs))):
        x, y = (node.inputs[index] if index < len(node.inputs) else "" for node in nodes)
        stored = [model.constant(name) if name else None for model, name in zip(models, (x, y), strict=True)]
        kind, label = _kind(one if x else other, index, stored), path + one.label
        if stored[0] is not None and stored[1] is not None:
            if (x, y) not in seen and not _equal(*stored):
                yield _change(kind, x if x == y else f"{x} / {y}", label, stored[0], stored[1])
            seen.add((x, y))
        elif bool(x) != bool(y) or stored[0] is not None or stored[1] is not None:
            texts = [name if array is None else _brief(array) for name, array in zip((x, y), stored, strict=True)]
            yield StoredDifference(kind, x or y, label, texts[0] or _NONE, texts[1] or _NONE, "", math.inf)
        elif x and known.get(x, x) != y:
            texts = [name if x != y else _from(model, name) for model, name in zip(models, (x, y), strict=True)]
            yield StoredDifference(
                "input", _parameter(one, index), label, texts[0], texts[1], "reads a different tensor"
            )


def _from(model: Model, name: str) -> str:
    """The name of a tensor with the label of the node that makes it."""
    node = model.producers.get(name)
    return f"{name} of {node.label}" if node is not None else name


def _parameter(node: Node, index: int) -> str:
    """The name of a node's input at a position."""
    definition = find(node.domain, node.op_type, node.version)
    return definition.param(index) if definition is not None else f"input {index}"


def _kind(node: Node, index: int, stored: Sequence[Array | None]) -> str:
    """The kind of a node's input: scale, zero point, weight or constant; "input" for tensors that nodes make."""
    for q in quantizers(node):
        for kind, slot in (("scale", q.scale), ("zero point", q.zero_point)):
            if slot is not None and slot.place == index:
                return kind
    name = _parameter(node, index).lower()
    if "zero_point" in name or "scale" in name:
        return "zero point" if "zero_point" in name else "scale"
    arrays = [array for array in stored if array is not None]
    if not arrays:
        return "input"
    return "weight" if any(array.size > 1 and array.dtype != np.int64 for array in arrays) else "constant"


def _brief(array: Array) -> str:
    """An array in words: its number if it has one, else type and shape."""
    return _number(array.reshape(-1)[0]) if array.size == 1 else describe(array)


def _number(value: Any) -> str:
    """A number in words."""
    return f"{float(value):.4g}" if np.asarray(value).dtype.kind in "fV" else str(value)


def _change(kind: str, name: str, node: str, a: Array, b: Array) -> StoredDifference:
    """The difference between two unequal constants: the elements farthest apart, and how many differ."""
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype.kind in "OUSb":
        one, other = (f"{describe(x)} {_brief(x)}" if x.size == 1 else describe(x) for x in (a, b))
        return StoredDifference(kind, name, node, one, other, "different type or shape", math.inf)
    bad, x, y = difference_mask(a, b), wide(a), wide(b)
    with np.errstate(all="ignore"):
        apart = np.abs(np.log2(np.abs(y / x))) if kind == "scale" else np.abs(y - x)
    apart = np.nan_to_num(np.where(bad, apart, -1), nan=np.inf)
    at = np.unravel_index(int(np.argmax(apart)), a.shape)
    most = float(apart[at])
    counted = (
        f"{np.count_nonzero(bad)} of {a.size} differ, most at {shape_text(tuple(map(int, at)))}" if a.size > 1 else ""
    )
    if kind == "scale":
        change = _factor(x, y, counted)
    else:
        change = counted or f"{float(y[at] - x[at]):+.4g}"
    return StoredDifference(kind, name, node, _number(a[at]), _number(b[at]), change, most)


def _factor(x: Array, y: Array, counted: str) -> str:
    """Describe changed scales: one common factor if there is one, else `counted`."""
    with np.errstate(all="ignore"):
        factors = y / x
    first = float(factors.reshape(-1)[0])
    if not counted:
        return f"x {first:.4g}"
    same = math.isfinite(first) and np.allclose(factors, first, rtol=1e-5)
    return f"all {factors.size}: x {first:.4g}" if same else counted
