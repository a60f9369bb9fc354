"""Rewrites of a Model that keep its results, and `optimize`, which applies them all.

Node indices: a node of an optimized model is named after a node of the original model and has its index. May be
imported by `running` and everything above it. Knows operators by their declarations in `ops`, and no backend.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from typing import Any, Literal

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.declare.stored import parts
from qrun.ir import Model, Node, once_per_model
from qrun.ir.schema import OWN
from qrun.ir.types import PACKED_INTEGERS
from qrun.ops import Arith, find
from qrun.passes._draft import Rewritten, unchanged_model
from qrun.passes._sides import has_quantized, is_dequantize, is_quantize

__all__ = ["Functions", "Fused", "Optimized", "Refusal", "fuse", "has_tables", "makes_tables", "optimize"]


@frozen
class _Pass:
    """A rewrite: a function in a module of the same name.

    wanted:  whether it may find anything in a model; if not, the module is not even imported.
    options: further arguments of the function.
    """

    name: str
    wanted: Callable[[Model], bool]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, model: Model, keep: Iterable[str], arith: Arith) -> Rewritten:
        if not self.wanted(model):
            return unchanged_model(model)
        rewrite = getattr(import_module(f"qrun.passes.{self.name}"), self.name)
        made: Rewritten = rewrite(model, keep, arith, **self.options)
        return made


def _has_constant_nodes(model: Model) -> bool:
    """Whether a node has only constant inputs."""
    known = {"", *model.constants}.difference(value.name for value in model.defaults)
    return any(known.issuperset(node.inputs) for node in model.nodes)


def _folds(model: Model) -> bool:
    """Whether there may be something to fold."""
    may_have_bodies = not model.op_types.isdisjoint(("If", "Loop", "Scan"))
    return _has_constant_nodes(model) or (may_have_bodies and any(True for n in model.nodes for _ in n.subgraphs))


def _quantizes_twice(model: Model) -> bool:
    """Whether a tensor is quantized by more than one node."""
    read = [node.inputs[:1] for node in model.nodes if node.op_type == "QuantizeLinear"]
    return len(set(read)) < len(read)


def _moves_dequantized(model: Model) -> bool:
    """Whether a node reads a dequantized tensor, or is an Identity or Dropout."""
    if "DequantizeLinear" not in model.op_types:
        return "Identity" in model.op_types
    made = {name for node in model.nodes if node.op_type == "DequantizeLinear" for name in node.outputs}
    return any(node.op_type in ("Identity", "Dropout") or not made.isdisjoint(node.inputs) for node in model.nodes)


def _has_narrow_weights(model: Model) -> bool:
    """Whether the model has a MatMul or Gemm, and a DequantizeLinear of stored codes of 2 or 4 bits."""
    if model.op_types.isdisjoint(("MatMul", "Gemm")):
        return False
    narrow = {name for name, part in parts(model.constants).items() if part.dtype in PACKED_INTEGERS}
    return any(is_dequantize(node) and node.inputs[0] in narrow for node in model.nodes) if narrow else False


def _has_float_nodes(model: Model) -> bool:
    """Whether a quantized model has nodes that compute in float, or that quantize a dequantized tensor."""
    return has_quantized(model) and any(
        _is_float(model, node) or (is_quantize(node) and _reads_dequantized(model, node)) for node in model.nodes
    )


def _has_chains(model: Model) -> bool:
    """Whether an elementwise node reads another's result or a constant of rank 1 or more, or may after folding."""
    nodes = [node for node in model.nodes if node.domain == OWN or node.op_type == "Identity" or _is_elementwise(node)]
    made = {name for node in nodes for name in node.outputs}
    constants = {name for name, part in parts(model.constants).items() if part.ndim}
    return any(not made.isdisjoint(n.inputs) or not constants.isdisjoint(n.inputs) for n in nodes) or (
        bool(nodes) and _has_constant_nodes(model)
    )


def _is_elementwise(node: Node) -> bool:
    """Whether each output element depends on one element of each input."""
    definition = find(node.domain, node.op_type, node.version)
    return definition is not None and definition.form in ("pointwise", "broadcast")


_INTEGERS = _Pass("fold_constants", _folds, {"dequantize": False})
_FLOATS = _Pass("fold_constants", _folds)
_MERGE, _SINK = _Pass("merge_quantize", _quantizes_twice), _Pass("sink_dequantize", _moves_dequantized)
_TABULATE, _FUSE = _Pass("tabulate", _has_chains), _Pass("fuse_qdq", _has_float_nodes)
_FUSE_ALL = _Pass("fuse_qdq", _has_float_nodes, {"functions": True})
_CODES = _Pass("multiply_codes", _has_narrow_weights)
_FIRST = (_INTEGERS, _MERGE, _SINK, _INTEGERS)
Functions = Literal["tables", "literal", "fused"]
"""The form of the elementwise functions of one 8-bit tensor: tables; the same results, as written; or integer operators
where there are any, as in onnxruntime, with other results."""
_THEN: Mapping[Functions, tuple[_Pass, ...]] = {
    "tables": (_TABULATE, _TABULATE, _CODES, _FLOATS),
    "literal": (_CODES, _FLOATS),
    "fused": (_CODES, _FLOATS),
}
"""Weights of 2 or 4 bits stay quantized where a product reads them; other weights are folded to float last, when it is
known who still reads them so. The second run of tables joins the first tables."""


@frozen
class Refusal:
    """A node of the original model that reads or makes quantized tensors, and why it stays as it is."""

    index: int
    name: str
    reason: str


@frozen
class Optimized:
    """A model to run in place of the original one.

    model:   each node has the index and label of the node of the original after which it is named: the one whose work
             it does.
    groups:  for each node, by index, the nodes of the original that it replaces. A node of the original may be in
             several groups (a DequantizeLinear with many readers), or in none (it became a constant, or vanished).
    refused: the nodes that might have become integer operators, but did not.
    """

    model: Model
    groups: Mapping[int, tuple[int, ...]]
    refused: tuple[Refusal, ...]


Keeper = Callable[[frozenset[str], Functions, Callable[[], Optimized]], Optimized]
"""(keep, functions, make) to the result of `make`, computed now or in an earlier process."""


@frozen
class _Stage:
    """A partly optimized model.

    groups:  for each of its nodes, the places in the original model of the nodes that it replaces.
    reasons: why nodes of the original stay, by place, from the last pass that tried them.
    """

    model: Model
    groups: tuple[tuple[int, ...], ...]
    reasons: Mapping[int, str]

    def then(self, passes: Iterable[_Pass], keep: frozenset[str], arith: Arith) -> _Stage:
        """The stage after these passes."""
        current, groups, reasons = self.model, self.groups, dict(self.reasons)
        for rewrite in passes:
            done = rewrite(current, keep, arith)
            for index, reason in done.refused.items():
                if len(groups[index]) == 1:
                    reasons[groups[index][0]] = reason
            if done.model is not current:
                groups = tuple(tuple(sorted({i for old in origins for i in groups[old]})) for origins in done.origins)
            current = done.model
        return _Stage(current, groups, reasons)


def optimize(
    model: Model, keep: frozenset[str], arith: Arith, functions: Functions = "tables", cache: Keeper | None = None
) -> Optimized:
    """The model with integer operators and tables instead of groups of nodes; the passes say which results stay equal.

    If only the graph's outputs must remain, the result is cached with the model.

    keep: names of tensors that must remain, in addition to the graph's outputs. A group that would remove one of them
    is not fused; an integer tensor behind fused operators may differ by 1, as `fuse_qdq` says.
    functions: "tables" and "literal" have the same results; but a table cannot report saturation.
    cache: keeps the result, and returns a result kept before.
    """
    keep = keep.difference(value.name for value in model.outputs)
    memo = Memo() if keep else _memo(model)

    def make() -> Optimized:
        return _optimize(model, keep, arith, functions, memo)

    return memo.once(("optimized", arith, functions), make if cache is None else lambda: cache(keep, functions, make))


@once_per_model
def _memo(model: Model) -> Memo:
    """The memo of a model's passes."""
    return Memo()


def _optimize(model: Model, keep: frozenset[str], arith: Arith, functions: Functions, memo: Memo) -> Optimized:
    """Apply the passes and name the nodes; without the cache."""
    begin = memo.once("placed", lambda: _number_nodes(model))
    done = _fuse(begin, keep, arith, functions == "fused", memo).then(_THEN[functions], keep, arith)
    current, groups = done.model, done.groups
    old = model.nodes
    refused = tuple(_refusals(done, old))
    if current is begin:
        return Optimized(model, {node.index: (node.index,) for node in old}, refused)
    nodes = tuple(_name_nodes(model, current.nodes, groups))
    led = {node.index: tuple(old[i].index for i in group) for node, group in zip(nodes, groups, strict=True)}
    return Optimized(replace(current, nodes=nodes), led, refused)


def _refusals(stage: _Stage, old: Sequence[Node]) -> Iterator[Refusal]:
    """The nodes of the original that read or make quantized tensors, and have no integer form. old: its nodes."""
    for node, group in zip(stage.model.nodes, stage.groups, strict=True) if has_quantized(stage.model) else ():
        if len(group) == 1 and _is_float(stage.model, node):
            reason = stage.reasons.get(group[0]) or _reason(stage.model, node)
            yield Refusal(old[group[0]].index, old[group[0]].label, reason)


def _fuse(begin: Model, keep: frozenset[str], arith: Arith, functions: bool, memo: Memo) -> _Stage:
    """The model, its nodes numbered by their places, with integer operators. functions: also for functions of one
    tensor."""
    first = memo.once(("first", arith), lambda: _start(begin).then(_FIRST, keep, arith))
    fuse = _FUSE_ALL if functions else _FUSE
    return memo.once(("fused", arith, functions), lambda: first.then((fuse,), keep, arith))


@frozen
class Fused:
    """A model in two forms.

    literal: as written, but for moves that change no bit: nodes of constants are folded, but for DequantizeLinear, and
             those that only move data work on integers.
    model:   `literal` with integer operators. groups: for each of its nodes, the places in `literal` of those that it
             replaces.
    refused: the nodes of `literal` that might have become integer operators, but did not.
    """

    literal: Model
    model: Model
    groups: tuple[tuple[int, ...], ...]
    refused: tuple[Refusal, ...]


def fuse(model: Model, *, skip: Container[str] = (), move: bool = True) -> Fused:
    """The model with integer operators for all groups that have one, also those that are functions of one tensor, in
    exact arithmetic. skip: outputs of float nodes that stay. move: also let nodes that move data work on integers."""
    literal = _start(_number_nodes(model)).then(_FIRST if move else (_INTEGERS, _MERGE), frozenset(), "exact").model
    whole = _Pass("fuse_qdq", has_quantized, {"functions": True, "skip": skip})
    done = _start(literal).then((whole,), frozenset(), "exact")
    return Fused(literal, done.model, done.groups, tuple(_refusals(done, literal.nodes)))


def _start(begin: Model) -> _Stage:
    """A model before any pass, its nodes numbered by their places."""
    return _Stage(begin, tuple((i,) for i in range(len(begin.nodes))), {})


def makes_tables(model: Model, arith: Arith) -> bool:
    """Whether `optimize` makes tables in place of operators where only the graph's outputs are kept. Takes less work
    than making the tables."""
    memo = _memo(model)

    def found() -> bool:
        fused = _fuse(memo.once("placed", lambda: _number_nodes(model)), frozenset(), arith, False, memo).model
        if has_tables(fused) or not _TABULATE.wanted(fused):
            return has_tables(fused)
        from qrun.passes.tabulate import makes_a_table

        return makes_a_table(fused, arith)

    return memo.once(("makes tables", arith), found)


def _number_nodes(model: Model) -> Model:
    """The model with its nodes numbered by their places; labels stay."""
    if all(node.index == index for index, node in enumerate(model.nodes)):
        return model
    return replace(model, nodes=tuple(replace(node, index=i, name=node.label) for i, node in enumerate(model.nodes)))


def has_tables(model: Model) -> bool:
    """Whether an optimized model has tables in place of operators."""
    return any(node.domain == OWN for node in model.nodes)


def _name_nodes(model: Model, nodes: Iterable[Node], groups: Iterable[tuple[int, ...]]) -> Iterator[Node]:
    """The nodes, each with the name and index of the node of its group that does the work; a new index if that one is
    taken."""
    free = max((node.index for node in model.nodes), default=0) + 1
    taken: set[int] = set()
    for node, group in zip(nodes, groups, strict=True):
        members = [model.nodes[i] for i in group]
        named = next((m for m in members if not (is_dequantize(m) or is_quantize(m))), members[0])
        index, label = named.index, named.label
        if index in taken:
            index, label, free = free, node.label, free + 1
        taken.add(index)
        yield replace(node, index=index, name=label)


def _is_float(model: Model, node: Node) -> bool:
    """Whether the node lies between DequantizeLinear and QuantizeLinear, or beside one of them."""
    if is_dequantize(node) or is_quantize(node):
        return False
    return _reads_dequantized(model, node) or any(
        is_quantize(reader) for name in node.outputs for reader in model.consumers.get(name, ())
    )


def _reads_dequantized(model: Model, node: Node) -> bool:
    """Whether a node reads the output of a DequantizeLinear."""
    return any(is_dequantize(model.producers[name]) for name in node.inputs if name in model.producers)


def _reason(model: Model, node: Node) -> str:
    """Why a node stays in float, where no pass has given a reason."""
    definition = find(node.domain, node.op_type, node.version)
    if definition is None or not (definition.form or node.op_type == "MaxPool"):
        return f"{node.op_type} has no integer form"
    if not _reads_dequantized(model, node):
        source = next((model.producers[name] for name in node.inputs if name in model.producers), None)
        return (
            "its input is not dequantized"
            if source is None
            else f"its input comes from {source.op_type}, not from DequantizeLinear"
        )
    if not any(is_quantize(reader) for name in node.outputs for reader in model.consumers.get(name, ())):
        return "its result is not quantized"
    other = next((name for name in node.inputs if name and not _is_settled(model, name)), None)
    if other is not None:
        return f"its input {other} is neither stored nor dequantized"
    several = sum(bool(name) and model.part(name) is None for name in node.inputs) > 1
    return f"{node.op_type} {'of several tensors' if several else 'alone'} has no integer form"


def _is_settled(model: Model, name: str) -> bool:
    """Whether a tensor is stored, or made by DequantizeLinear."""
    return model.part(name) is not None or (name in model.producers and is_dequantize(model.producers[name]))
