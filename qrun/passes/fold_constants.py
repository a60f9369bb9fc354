"""Folds nodes that only read constants into constants, also in graphs inside nodes.

The reference kernels compute them, in the session's arithmetic, so the values are those of a run. Some nodes stay:
nodes with subgraphs; nodes that refuse their inputs or make an output of another type than the graph declares (they
will fail when run, with their own message); nodes that have something to report about their values (a run will report
it); and nodes whose results would need too much memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from qrun.declare.stored import constants_of, parts
from qrun.ir import Array, Model, Node
from qrun.ir.compound import of_type
from qrun.ops import Arith
from qrun.passes._draft import Draft, Rewritten
from qrun.passes._evaluate import evaluate

LIMIT = 64 << 20
"""The most bytes by which a result may exceed its inputs, or all results together the model's constants."""

_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "TransposeMatMul")


def fold_constants(model: Model, keep: Iterable[str], arith: Arith, *, dequantize: bool = True) -> Rewritten:
    """The model without nodes that only read constants.

    dequantize: also fold DequantizeLinear, which turns one byte into four.
    """
    draft = Draft(model, keep, arith)
    room = LIMIT
    left = LIMIT + sum(part.nbytes for part in parts(model.constants).values())
    declared = {value.name: value for value in model.outputs}
    known = {"", *model.constants}.difference(v.name for v in model.defaults)
    for node in model.nodes:
        if any(node.subgraphs):
            folded = _inside(node, draft, dequantize)
            if folded is not node:
                draft.put(node.index, (folded, (node.index,)))
            continue
        if not known.issuperset(node.inputs) or (node.op_type == "DequantizeLinear" and not dequantize):
            continue
        if arith == "ort" and node.inputs and _is_multiplied(draft, node):
            continue
        args = [draft.value(name) if name else None for name in node.inputs]
        given = sum({id(a): a.nbytes for a in args if a is not None}.values())
        made = evaluate(node, args, arith, min(room + given, left))
        if made is None:
            continue
        named = {name: array for name, array in zip(node.outputs, made, strict=False) if name}
        if not all(of_type(named[name], declared[name]) for name in named.keys() & declared.keys()):
            continue
        growth = sum(a.nbytes for a in named.values() if node.inputs) - given
        fresh = sum(a.nbytes for a in named.values() if not any(_share(a, b) for b in args))
        if growth > room or (node.inputs and fresh > left):
            continue
        room -= max(0, growth)
        left -= fresh if node.inputs else -fresh
        draft.constants.update((name, _freeze(array)) for name, array in named.items())
        known.update(named)
        draft.put(node.index)
    return draft.finish()


def _is_multiplied(draft: Draft, node: Node) -> bool:
    """Whether a product reads a result: onnxruntime adds products with stored matrices in another order."""
    return any(reader.op_type in _PRODUCTS for name in node.outputs if name for reader in draft.consumers(name))


def _inside(node: Node, draft: Draft, dequantize: bool) -> Node:
    """The node with the graphs inside it folded."""
    graphs = {name: graph for name, graph in node.attributes.items() if isinstance(graph, Model)}
    made = {name: _body(graph, draft, dequantize) for name, graph in graphs.items()}
    same = all(made[name] is graphs[name] for name in made)
    return node if same else replace(node, attributes={**node.attributes, **made})


def _body(graph: Model, draft: Draft, dequantize: bool) -> Model:
    """The folded graph. Its nodes keep their numbers; constants of the graphs around it stay there."""
    taken = {name: array for name in graph.captured if (array := draft.value(name)) is not None}
    numbered = tuple(replace(node, index=at, name=node.label) for at, node in enumerate(graph.nodes))
    own = replace(graph, nodes=numbered, constants=constants_of({**taken, **parts(graph.constants)}))
    done = fold_constants(own, (), draft.arith, dequantize=dequantize)
    if done.model is own:
        return graph
    origins = (graph.nodes[first].index for first, *_ in done.origins)
    nodes = tuple(replace(node, index=index) for node, index in zip(done.model.nodes, origins, strict=True))
    left = {name: part for name, part in parts(done.model.constants).items() if name not in taken}
    return replace(graph, nodes=nodes, constants=constants_of(left))


def _share(made: Array, given: Array | None) -> bool:
    """Whether two arrays may share memory."""
    return given is not None and np.may_share_memory(made, given)


def _freeze(array: Array) -> Array:
    """A read-only view of an array."""
    view = np.asarray(array).view()
    view.setflags(write=False)
    return view
