"""Maps each node of onnxruntime's optimized graph to the nodes of the model that it replaces.

onnxruntime fuses nodes, renames them (``_token_3``, ``_nchwc``) and inserts others. So qrun passes it a model whose
names contain the index of each node, in the node's own name and in the names of its outputs: whatever name onnxruntime
derives from these shows its origin. The optimized model, which onnxruntime writes, then shows which nodes are between
the marked ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
import onnx.inliner

from qrun.declare.frozen import frozen
from qrun.ir import Model, Node

_MARK = re.compile(r"qrun\.(\d+);(?:\d+;)?")
_BODY = "_inlfunc_"
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
LAYOUT = ("Transpose", "ReorderInput", "ReorderOutput")
"""Operators that onnxruntime inserts to change the layout of tensors."""


@frozen
class OptimizedNode:
    """A node of the optimized model. members: indices of the model's nodes that it replaces; () if it was inserted.

    named: the member that it is named after, or -1.
    """

    proto: onnx.NodeProto
    members: tuple[int, ...]
    named: int


def with_marks(model: Model, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Mark the model: rename each node, and each tensor that a node makes, to a name with the node's index.

    In a model with subgraphs, which may read any tensor, tensors keep their names. Functions of the model are replaced
    by their bodies, as in the loaded model.
    """
    proto = onnx.inliner.inline_local_functions(proto) if proto.functions else proto
    graph, names = proto.graph, dict[str, str]()
    nested = any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute)
    for node in graph.node:
        made = [model.producers[name] for name in node.output if name in model.producers]
        if not made:
            continue
        node.name = f"qrun.{made[0].index};"
        for name in node.output if not nested else ():
            producer = model.producers.get(name)
            if producer is not None:
                names[name] = f"qrun.{producer.index};{producer.outputs.index(name)};"
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    del graph.quantization_annotation[:]
    return proto


def covers(model: Model, optimized: Sequence[onnx.NodeProto]) -> tuple[OptimizedNode, ...]:
    """Map each node of the optimized, marked model to the model's nodes; `optimized` is in an order of execution.

    An optimized node claims the nodes that its name contains, then those that only its outputs contain (`_claims`).
    Unclaimed nodes have vanished in a fusion. An optimized node that claims no operator like its own also gets the
    nodes on the way back to the first such operator. Any other unclaimed node joins the optimized node that makes its
    input, if that makes no tensor of the model (and so also does the work of later nodes), else its readers. A
    DequantizeLinear joins each reader, a QuantizeLinear the node that it quantizes. Nodes that depend only on constants
    are folded and may be in none.
    """
    claims = _claims(model, optimized)
    members = [set(claim) for claim in claims]
    owner = {index: number for number, group in reversed(list(enumerate(members))) for index in group}
    made = [{tensor for name in node.output for tensor in tensors_of(model, name)} for node in optimized]
    kept = set[str]().union(*made, *(tensors_of(model, name) for node in optimized for name in node.input))
    for number, node in enumerate(optimized):
        if not any(_may_replace(model.nodes[i], node) for i in claims[number]):
            path = _back(model, members[number], owner, kept, node)
            members[number] |= path
            owner |= dict.fromkeys(path, number)
    _join(
        model,
        members,
        owner,
        lambda node, name, number: not made[number] and name not in kept and node.op_type != "DequantizeLinear",
    )
    before = [_back(model, group, owner, kept) for group in members]
    for number, group in enumerate(before):
        members[number] |= group
        owner |= dict.fromkeys(group - owner.keys(), number)
    _join(model, members, owner, lambda node, name, number: True)
    return tuple(
        OptimizedNode(node, tuple(sorted(group)), _find_member(model, node, claim, group))
        for node, claim, group in zip(optimized, claims, members, strict=True)
    )


def _claims(model: Model, optimized: Sequence[onnx.NodeProto]) -> list[set[int]]:
    """For each optimized node, the model's nodes that its name contains, and those of its outputs that no name has.

    A nameless node that only changes the layout of another operator's result claims nothing. If several optimized
    nodes are named after one node, and some have its operator, only these claim it. A node from the body of an operator
    that onnxruntime takes apart claims what its readers claim.
    """
    claims = [{int(mark) for mark in _MARK.findall(node.name)} for node in optimized]
    named = set[int]().union(*claims)
    for claim, node in zip(claims, optimized, strict=True):
        made = {model.producers[t].index for name in node.output for t in tensors_of(model, name)} - named
        if claim or node.op_type not in LAYOUT or any(_may_replace(model.nodes[i], node) for i in made):
            claim |= made
    for index in set[int]().union(*claims):
        mine = [n for n, claim in enumerate(claims) if index in claim]
        like = [n for n in mine if _may_replace(model.nodes[index], optimized[n])]
        for number in set(mine) - set(like) if like else ():
            claims[number].discard(index)
    readers: dict[str, set[int]] = {}
    for claim, node in zip(reversed(claims), reversed(optimized), strict=True):
        if not claim and any(_BODY in name for name in node.output):
            claim |= set[int]().union(*(readers.get(name, ()) for name in node.output))
        for name in node.input:
            readers.setdefault(name, set()).update(claim)
    return claims


def _may_replace(node: Node, optimized: onnx.NodeProto) -> bool:
    """May the optimized node do the work of this node, as QLinearConv does that of Conv, and QGemm that of MatMul?"""
    kind = optimized.op_type
    if node.op_type == "Mul" and "MatMul" in kind:
        return False
    return node.op_type in kind or (node.op_type == "MatMul" and "Gemm" in kind)


def _join(model: Model, members: list[set[int]], owner: dict[int, int], may: Callable[[Node, str, int], bool]) -> None:
    """Let nodes without an owner join the last owner of their inputs, if `may` allows it."""
    for node in model.nodes:
        makers = [(name, model.producers[name].index) for name in node.inputs if name in model.producers]
        found = [(owner[maker], name) for name, maker in makers if maker in owner]
        if node.index not in owner and found and may(node, max(found)[1], max(found)[0]):
            owner[node.index] = max(found)[0]
            members[max(found)[0]].add(node.index)


def tensors_of(model: Model, name: str) -> Iterator[str]:
    """Yield the model's name of a tensor of the optimized model, if the model has it."""
    mark = re.fullmatch(r"qrun\.(\d+);(\d+);", name)
    if mark:
        yield model.nodes[int(mark[1])].outputs[int(mark[2])]
    elif name in model.producers:
        yield name


def _back(
    model: Model, group: set[int], owner: Mapping[int, int], kept: set[str], like: onnx.NodeProto | None = None
) -> set[int]:
    """The nodes without an owner before a group: back to tensors that the optimized model still has (`kept`), but not
    from a DequantizeLinear to its QuantizeLinear.

    like: if given, only the nodes on the way to the first one whose operator is like this one's; else none.
    """
    ways = {index: [index] for index in sorted(group)}
    for index in (pending := list(ways)):
        node = model.nodes[index]
        for name in node.inputs:
            maker = model.producers.get(name)
            if maker is None or maker.index in owner or maker.index in ways or name in kept:
                continue
            if node.op_type == "DequantizeLinear" and maker.op_type == "QuantizeLinear":
                continue
            ways[maker.index] = [*ways[index], maker.index] if like is not None else []
            if like is not None and _may_replace(maker, like):
                return set(ways[maker.index]) - group
            pending.append(maker.index)
    return set(ways) - group if like is None else set()


def _find_member(model: Model, node: onnx.NodeProto, claim: set[int], group: set[int]) -> int:
    """The member whose operator is like the optimized node's, else the first claimed one that is no conversion, else
    the first claimed one; -1 if there is none."""
    alike = [i for i in sorted(group) if _may_replace(model.nodes[i], node)]
    works = [i for i in sorted(claim) if model.nodes[i].op_type not in _CONVERSIONS]
    return next(iter([*(i for i in alike if i in claim), *alike, *works, *sorted(claim)]), -1)


def on_codes(model: Model, graph: onnx.GraphProto, optimized: Sequence[OptimizedNode]) -> Mapping[int, bool]:
    """For each node of the model by index: does onnxruntime compute it on quantized values? Leaves out nodes that
    vanished in others. graph: the optimized graph."""
    narrow = {value.name for value in graph.input if value.type.tensor_type.elem_type in _CODES}
    narrow |= {tensor.name for tensor in graph.initializer if tensor.data_type in _CODES}
    found: dict[int, bool] = {}
    for ran in optimized:
        node = ran.proto
        codes = computes_on_codes(node.op_type, [name in narrow for name in node.input])
        if _makes_codes(node, codes):
            narrow.update(node.output)
        for index in ran.members if node.op_type not in _CONVERSIONS else ():
            if _may_replace(model.nodes[index], node):
                found[index] = codes
    return found


def computes_on_codes(op_type: str, reads: Iterable[bool]) -> bool:
    """Does an operator of onnxruntime compute on quantized values? reads: for each input, does it hold such values?"""
    return op_type not in (*_CONVERSIONS, "MatMulNBits") and any(reads)


_CODES = frozenset(
    (onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT16, onnx.TensorProto.UINT16)
    + (onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.INT2, onnx.TensorProto.UINT2)
)
"""Element types of quantized values."""
_REAL_RESULT = ("DequantizeLinear", "MatMulIntegerToFloat", "Cast", "MatMulInteger", "ConvInteger", "ArgMax")


def _makes_codes(node: onnx.NodeProto, reads_codes: bool) -> bool:
    """Whether a node's result is quantized; `reads_codes`: whether its input is."""
    if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
        return True
    if node.op_type == "QGemm":
        return len(node.input) > 7 and bool(node.input[7])
    return reads_codes and node.op_type not in _REAL_RESULT


def unmark(model: Model, name: str) -> str:
    """A tensor's name in the model, if the model has it; else onnxruntime's name, with labels in place of marks."""
    for kept in tensors_of(model, name):
        return kept
    return _MARK.sub(lambda found: model.nodes[int(found[1])].label, name)
