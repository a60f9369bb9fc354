"""Model to Plan: binds each node to the declaration of its operator once, and finds the last use of each value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.declare.stored import constants_of, parts
from qrun.errors import CallError, OperatorError, UnsupportedError, close_matches
from qrun.ir import Model, Node, TensorType
from qrun.ir.schema import DOMAINS, MS, OPSETS, Formal, schema
from qrun.ops import CUSTOM, OpDef, find, near_operators

BACKENDS = ("native", "reference")


@frozen
class Step:
    """One node ready to run.

    kwargs:   the node's attributes as the kernel takes them.
    frees:    names of the values that no later step reads.
    accepted: combinations of input types that passed the check; shared by all steps of the operator.
    bodies:   plans of the graphs inside the node, by attribute.
    memo:     results that its kernel computes from the attributes alone.
    fixed:    which inputs are constants of the model.
    stated:   for a custom operator, the types that the model states for the outputs.
    """

    node: Node
    definition: OpDef
    kwargs: Mapping[str, Any]
    formals: tuple[Formal, ...]
    frees: tuple[str, ...]
    accepted: set[tuple[np.dtype[Any] | None, ...]] = field(default_factory=set)
    bodies: Mapping[str, Plan] = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo)
    fixed: tuple[bool, ...] = ()
    stated: tuple[TensorType | None, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values that the step reads, "" for an omitted one: the node's inputs, then those that its bodies
        capture."""
        captured = (name for body in self.bodies.values() for name in body.model.captured)
        return (*self.node.inputs, *captured) if self.bodies else self.node.inputs


@frozen
class Plan:
    """The steps of a model in order, and the names of the values that are kept to the end."""

    model: Model
    steps: Sequence[Step]
    keep: tuple[str, ...]


def plan(model: Model, keep: Iterable[str] = ()) -> Plan:
    """Bind every node to its operator's declaration.

    keep: names of tensors to keep; the model's outputs if empty.
    Raises UnsupportedError naming all operators without a kernel, OperatorError where attributes or inputs do not fit,
    CallError for a name the graph does not have.
    """
    kept = tuple(dict.fromkeys(keep)) or tuple(v.name for v in model.outputs)
    known = _tensor_names(model)
    for name in kept:
        if name not in known:
            raise _unknown_tensor(model, name, known)
    _refuse_unsupported(model)
    return _bind(model, kept, frozenset())


def _bind(model: Model, kept: tuple[str, ...], outside: frozenset[str]) -> Plan:
    """The plan of a model, or of a body. outside: names of the values that the body captures."""
    last = _last_use(model, kept, outside)
    accepted: dict[tuple[str, str, int], set[tuple[np.dtype[Any] | None, ...]]] = {}
    types = {**model.types, **{value.name: value for value in model.outputs}}
    steps = []
    for node in model.nodes:
        definition = find(node.domain, node.op_type, node.version)
        assert definition is not None
        try:
            kwargs = definition.bind(node)
        except OperatorError as error:
            raise locate(error, model, node, definition) from None
        seen = accepted.setdefault((node.domain, node.op_type, node.version), set())
        bodies = {name: _body(model, node, name) for name in definition.graphs if name in node.attributes}
        formals, frees = definition.formals(node.version), last.get(node.index, ())
        fixed = tuple([bool(name) and model.part(name) is not None for name in node.inputs])
        stated = tuple(map(types.get, node.outputs)) if definition.runner == CUSTOM else ()
        steps.append(Step(node, definition, kwargs, formals, frees, seen, bodies, fixed=fixed, stated=stated))
    return Plan(model, tuple(steps), kept)


def varying_names(plan: Plan, step: Step) -> tuple[str, ...]:
    """Names of the values that are not constant and that the step or its bodies read, each once."""
    constants = plan.model.constants
    return tuple(dict.fromkeys(n for n in step.reads if n and n not in constants))


def step_of(model: Model, node: Node) -> Step:
    """A node as a step of its own; the model may lack this node. Raises OperatorError as `plan`."""
    definition = find(node.domain, node.op_type, node.version)
    assert definition is not None
    bodies = {name: _body(model, node, name) for name in definition.graphs if name in node.attributes}
    return Step(node, definition, definition.bind(node), definition.formals(node.version), (), bodies=bodies)


def _body(model: Model, node: Node, name: str) -> Plan:
    """The plan of a graph inside a node. Constants that the graph captures become its own constants. Inputs that have
    initializers are constants, as nothing feeds them."""
    given = node.attributes[name]
    assert isinstance(given, Model)
    graph = given.with_fed_defaults()
    captured = {n: part for n in graph.captured if (part := model.part(n)) is not None}
    constants = constants_of({**captured, **parts(graph.constants)})
    own = replace(graph, constants=constants, source=f"{model.label}: {node.label}/{name}")
    return _bind(own, tuple(dict.fromkeys(v.name for v in own.outputs)), frozenset(own.captured))


def _tensor_names(model: Model) -> set[str]:
    """The names of all tensors of a graph."""
    names = {v.name for v in (*model.inputs, *model.defaults)} | set(model.constants)
    return names | {name for node in model.nodes for name in node.outputs if name}


def _unknown_tensor(model: Model, name: str, known: set[str]) -> CallError:
    """The QR006 error of a tensor name that the model lacks."""
    near = close_matches(name, known, 3)
    return CallError(
        "QR006",
        f"the model has no tensor {name!r}",
        where=[model.label],
        facts=[("got", name)],
        fixes=[f"did you mean {near[0]}?"] if near else [model.fill_in("qrun inspect MODEL --nodes lists the tensors")],
        calls=[f"did you mean {near[0]!r}?"]
        if near
        else ["node.outputs of the nodes in session.model.nodes are the tensors"],
    )


def _last_use(model: Model, kept: Iterable[str], outside: frozenset[str]) -> dict[int, tuple[str, ...]]:
    """For each node, the tensors that can be freed after it."""
    last: dict[str, int] = {}
    for node in model.nodes:
        captured = node.captured if node.attributes else ()
        for name in (*node.inputs, *captured, *node.outputs):
            if name:
                last[name] = node.index
    for name in kept:
        last.pop(name, None)
    frees = grouped((at, name) for name, at in last.items() if name not in model.constants and name not in outside)
    return {index: tuple(names) for index, names in frees.items()}


def _refuse_unsupported(model: Model) -> None:
    """Raise one UnsupportedError that names all operators without a declaration."""
    unknown = (pair for pair in model.everywhere() if find(pair[0].domain, pair[0].op_type, pair[0].version) is None)
    missing = grouped((node.op, (node, label)) for node, label in unknown)
    if not missing:
        return
    from qrun.ops._advice import why_without

    count = len(missing)
    facts = [
        (op or "no op_type", f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}, first {nodes[0][1]}")
        for op, nodes in list(missing.items())[:4]
    ]
    if count > 4:
        facts.append(("and", ", ".join(list(missing)[4:16]) + (f" and {count - 16} more" if count > 16 else "")))
    firsts = [nodes[0][0] for nodes in missing.values()]
    raise UnsupportedError(
        "QR201",
        f"qrun cannot run {count} operator{'s' if count > 1 else ''} of this model",
        where=[model.label, model.opset],
        facts=facts,
        why=next((why for node in firsts if (why := why_without(node))), ""),
        fixes=(fixes := unsupported_fixes(firsts)),
        calls=[fix for fix in fixes if not fix.startswith("-")],
    )


def unsupported_fixes(nodes: Iterable[Node]) -> list[str]:
    """Fixes where these operators have no kernel: the right spelling, the opset that has them, a later opset at which
    qrun runs them, or another runtime if that knows them all."""
    from qrun.ops._advice import instead, runs_in_ort

    nodes = list(nodes)
    strange = [n for n in nodes if n.domain != MS and schema(n.domain, n.op_type, n.version) is None]
    near = {n.op_type: names[0] for n in strange if n.domain in DOMAINS and (names := near_operators(n.op_type, 0.8))}
    fixes = [f"did you mean {right} instead of {wrong}?" for wrong, right in list(near.items())[:2] if right != wrong]
    later = {n.op_type: first for n in strange if not n.domain and (first := _later_opset(n))}
    fixes += [f"import opset {first} or later, which has {name}" for name, first in list(later.items())[:2]]
    if any(not n.domain and find("", n.op_type, OPSETS[-1]) for n in nodes):
        fixes.append("onnx.version_converter.convert_version(model, 21) rewrites most older models")
    advice = [text for node in nodes if (text := instead(node))]
    fixes += advice[:1]
    if all(map(runs_in_ort, strange)) and (strange or not advice):
        fixes.append("--backend ort runs the model with ONNX Runtime")
    if any(node.domain not in DOMAINS for node in strange):
        fixes.append("--ops FILE or --functions FILE defines it for this run (qrun explain custom-operators)")
    return [*fixes, "qrun ops lists what runs"]


def _later_opset(node: Node) -> int:
    """The first opset after the model's that has this operator of ai.onnx; 0 for none."""
    return next((v for v in range(node.version + 1, OPSETS[-1] + 1) if schema("", node.op_type, v)), 0)


def locate(error: OperatorError, model: Model, node: Node, definition: OpDef | None = None) -> OperatorError:
    """The error with file, node and tensor added."""
    where = [model.label, f"node {node.index} {node.label} ({node.op}-{node.version})"]
    names = [p.name for p in definition.inputs] if definition else []
    if error.param in names:
        index = names.index(error.param)
        tensor = node.inputs[index] if index < len(node.inputs) else ""
        where.append(f"tensor {tensor} (input {index}, {error.param})" if tensor else f"input {index}, {error.param}")
    elif error.param:
        where.append(f"attribute {error.param}" if error.param in node.attributes else error.param)
    error.where = tuple(where)
    return error
