"""Rules on a graph's nodes, names and stored tensors: their order, duplicates, and what nothing reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from qrun.checking.rules._rule import Finding, join_names, rule, several
from qrun.checking.rules._scope import Scope, constant_value, names_read, scopes
from qrun.declare import grouped
from qrun.declare.stored import parts
from qrun.ir import Array, Model, Node


@rule("QR108", "error", spec="IR", fix="write the nodes in execution order; qrun inspect MODEL --nodes prints one")
def unsorted_nodes(model: Model) -> Iterator[Finding]:
    """The nodes are not sorted: one reads a tensor that a later node produces.

    Why is this bad?
        The ONNX IR requires topological order. onnx.checker refuses such a model and many tools read nodes in file
        order; qrun and onnxruntime sort them.

    Bad
        main (float[2] x) => (float[2] y)
        {
            y = Relu(t)
            t = Sigmoid(x)
        }

    Good
        main (float[2] x) => (float[2] y)
        {
            t = Sigmoid(x)
            y = Relu(t)
        }
    """
    for scope in scopes(model):
        if not scope.model.was_sorted:
            inside = f" inside {scope.path[:-1]}" if scope.path else ""
            yield Finding(
                f"the nodes of graph {scope.model.name or 'main'}{inside} are not in topological order",
                node=scope.path[:-1],
                index=scope.index,
                expected="every node after the nodes whose tensors it reads",
                got="a different order; qrun sorted the nodes",
                why="ONNX IR: the nodes of a graph are topologically sorted.",
            )


@rule("QR109", "note", spec="IR", fix="remove the initializer from the file")
def unused_initializer(model: Model) -> Iterator[Finding]:
    """A graph stores tensors that no node reads and no output returns.

    Why is this bad?
        They only take space. After quantization, the float weights often stay beside the quantized ones.

    Bad
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            y = Relu(x)
        }

    Good
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            y = Add(x, w)
        }
    """
    for scope in scopes(model):
        graph = scope.model
        unused = sorted(set(graph.constants) - names_read(graph)) if graph.constants else []
        if unused:
            size = sum(parts(graph.constants)[name].nbytes for name in unused)
            yield Finding(
                f"no node reads {several(len(unused), 'stored tensor')} of {size} bytes: {join_names(unused)}",
                node=scope.path[:-1],
                index=scope.index,
                tensor=join_names(unused),
                expected="every initializer is read by a node or is an output",
                got=f"{len(unused)} unused, {size} bytes",
            )


@rule("QR111", "error", spec="IR#names-within-a-graph", fix="give each node its own name, or none")
def duplicate_node_name(model: Model) -> Iterator[Finding]:
    """Two nodes of a graph have the same name. One finding for each name.

    Why is this bad?
        Node names must be unique within a graph. onnxruntime 1.32.0 refuses the model ("two nodes with same node
        name"); onnx.checker does not check it. A quantizer's nodes_to_exclude matches both nodes.

    Bad
        main (float[2] x) => (float[2] y)
        {
            [a] t = Relu(x)
            [a] y = Sigmoid(t)
        }

    Good
        main (float[2] x) => (float[2] y)
        {
            [a] t = Relu(x)
            [b] y = Sigmoid(t)
        }
    """
    for scope in scopes(model):
        for name, same in grouped((node.name, node) for node in scope.model.nodes if node.name).items():
            if len(same) < 2:
                continue
            first, second = same[:2]
            yield Finding(
                f"{len(same)} nodes have the name {name!r}",
                **scope.at(second),
                expected="one node of each name in a graph",
                got=f"{first.op} #{first.index} and {second.op} #{second.index}"
                + (f", and {len(same) - 2} more" if len(same) > 2 else ""),
                why="ONNX IR: names are unique within a namespace, and the nodes of a graph share one.",
            )


@rule(
    "QR114",
    "error",
    spec="IR#names-within-a-graph",
    fix="rename the tensor inside the subgraph",
    applies=("If", "Loop", "Scan"),
)
def shadowed_name(model: Model) -> Iterator[Finding]:
    """A node in a subgraph defines a tensor with a name that the outer graph already uses.

    Why is this bad?
        A node that reads the name may mean either tensor. onnx.checker and onnxruntime refuse the model, because it is
        not in single static assignment form.

    Bad
        main (bool c, float[2] x) => (float[2] y)
        {
            t = Sigmoid(x)
            u = Relu(t)
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Relu(u) },
                else_branch = b () => (float[2] v) { v = Sigmoid(u) }
            >
        }

    Good
        main (bool c, float[2] x) => (float[2] y)
        {
            t = Sigmoid(x)
            u = Relu(t)
            y = If (c) <
                then_branch = a () => (float[2] w) { w = Relu(u) },
                else_branch = b () => (float[2] v) { v = Sigmoid(u) }
            >
        }
    """
    for scope in scopes(model):
        if scope.outer is None:
            continue
        for node in scope.model.nodes:
            for place, name in enumerate(node.outputs):
                where = _outside(scope, name) if name else ""
                if where:
                    yield Finding(
                        f"{name} is defined inside the subgraph, but is already {where}",
                        **scope.at(node, f"{name} (output {place})"),
                        expected="a name that no outer graph uses",
                        got=name,
                        why="ONNX IR: outputs of nodes in a subgraph differ from the names visible from outside.",
                    )


def _outside(scope: Scope, name: str) -> str:
    """Describe the tensor `name` of an outer graph that is visible here; "" if there is none."""
    while scope.outer is not None:
        outer, holder = scope.outer, scope.holder
        if name in outer.model.constants:
            return "an initializer outside"
        if name in outer.model.fed:
            return "a graph input outside"
        maker: Node | None = outer.model.producers.get(name)
        if maker is not None and holder is not None and maker.index < holder.index:
            return f"made by {maker.label} outside"
        scope = outer
    return ""


@rule("QR116", "note", spec="IR", fix="remove it from graph.input, if callers need not feed it")
def unused_input(model: Model) -> Iterator[Finding]:
    """No node reads a graph input.

    Why is this bad?
        Callers must feed a value that changes nothing. Often a conversion has folded away the nodes that read it.

    Bad
        main (float[2] x, float[2] z) => (float[2] y)
        {
            y = Relu(x)
        }

    Good
        main (float[2] x, float[2] z) => (float[2] y)
        {
            y = Add(x, z)
        }
    """
    read = names_read(model)
    unused = [v.name for v in model.inputs if v.name not in read]
    if unused:
        yield Finding(
            f"no node reads graph input{'s' if len(unused) > 1 else ''} {join_names(unused)}",
            tensor=join_names(unused),
            expected="every graph input is read by a node or is an output",
            got=f"{len(unused)} of {len(model.inputs)} unused",
        )


@rule("QR117", "note", spec="IR", fix="remove the nodes, or name their outputs in graph.output")
def dead_node(model: Model) -> Iterator[Finding]:
    """Nodes compute tensors that nothing uses. One finding for each graph.

    Why is this bad?
        They cost time and change nothing. After quantization, a QuantizeLinear often stays behind when its reader is
        replaced, or an output was lost.

    Bad
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
            t = Sigmoid(x)
        }

    Good
        main (float[2] x) => (float[2] y)
        {
            t = Sigmoid(x)
            y = Relu(t)
        }
    """
    for scope in scopes(model):
        read = names_read(scope.model)
        dead = [n for n in scope.model.nodes if any(n.outputs) and not any(name in read for name in n.outputs)]
        if dead:
            count = several(len(dead), "node")
            yield Finding(
                f"{count} whose outputs nothing reads: {join_names([n.label for n in dead])}",
                **scope.at(dead[0], join_names([name for n in dead for name in n.outputs if name])),
                expected="every node computes something that another node or a graph output uses",
                got=f"{count} of {len(scope.model.nodes)}",
            )


LARGE = 1 << 8
"""The smallest size in bytes of a tensor that is reported."""
_PROBE = 16
"""The number of elements at each end that are compared before whole tensors are."""


@rule(
    "QR121", "note", spec="IR", fix="store each tensor once in the main graph; graphs inside nodes read it from there"
)
def stored_copies(model: Model) -> Iterator[Finding]:
    """Several graphs store the same tensors, for example both branches of an If. The model gets one finding.

    The rule counts tensors of 256 bytes or more that are identical, if at least one is stored in a graph inside a node.

    Why is this bad?
        The file and every runtime that loads it contain several copies of these tensors. Exporters that write a decoder
        with and without its cache as the branches of an If double all weights in this way.

    Bad
        main (bool c, double[32] x) => (double[32] y)
        {
            y = If (c) <
                then_branch = a () => (double[32] p)
                <double[32] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                                17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}> {
                    p = Add(x, w)
                },
                else_branch = b () => (double[32] q)
                <double[32] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                                17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}> {
                    q = Sub(x, v)
                }
            >
        }

    Good
        main (bool c, double[32] x) => (double[32] y)
        <double[32] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
                        17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}>
        {
            y = If (c) <
                then_branch = a () => (double[32] p) {
                    p = Add(x, w)
                },
                else_branch = b () => (double[32] q) {
                    q = Sub(x, w)
                }
            >
        }
    """
    copies = list(_copies(model))
    if copies:
        (scope, name, array), again = copies[0]
        wasted = sum(array.nbytes * len(others) for (_, _, array), others in copies)
        more = f", and {several(len(copies) - 1, 'more tensor')}" if copies[1:] else ""
        yield Finding(
            f"{scope.path}{name} is stored again as {again[0][0].path}{again[0][1]}{more}: {wasted} bytes of copies",
            node=again[0][0].path[:-1],
            index=again[0][0].index,
            tensor=f"{again[0][0].path}{again[0][1]}",
            expected="one copy, in a graph around both",
            got=f"{wasted} bytes of copies of {several(len(copies), 'tensor')}",
            why="ONNX IR: a graph inside a node reads the tensors of the graphs around it.",
        )


_Stored = tuple[Scope, str, Array]


def _copies(model: Model) -> Iterator[tuple[_Stored, list[_Stored]]]:
    """Yield each tensor that is stored several times: its first place, and its other places."""
    found = grouped((_key(each[2]), each) for each in _large(model))
    for group in found.values():
        while len(group) > 1:
            first, rest = group[0], group[1:]
            again = [each for each in rest if each[2].tobytes() == first[2].tobytes()]
            group = [each for each in rest if not any(each is other for other in again)]
            if any(each[0].outer is not None for each in again):
                yield first, again


def _large(model: Model) -> Iterator[_Stored]:
    places = scopes(model)
    for scope in places if len(places) > 1 else ():
        stored = dict(scope.model.constants)
        stored |= {node.outputs[0]: v for node in scope.model.nodes if (v := constant_value(node)) is not None}
        for name, array in stored.items():
            if array.nbytes >= LARGE and array.dtype.kind not in "OUS":
                yield scope, name, array


def _key(array: Array) -> Hashable:
    flat = array.reshape(-1)
    return array.dtype.name, array.shape, flat[:_PROBE].tobytes(), flat[-_PROBE:].tobytes()
