"""Models that grow in one way each, to a size that is given: what a command costs should grow with them, not faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from helpers.models import make_model
from qrun import TensorType

MS = "com.microsoft"
F, U8 = TensorProto.FLOAT, TensorProto.UINT8
Node = onnx.NodeProto
Made = Callable[[int], onnx.ModelProto]

node = helper.make_node


def value(name: str, dtype: int = F, shape: Sequence[int | str] | None = (2,)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Iterable[Node],
    inputs: Iterable[onnx.ValueInfoProto] = (),
    outputs: Iterable[onnx.ValueInfoProto] = (),
    stored: Iterable[tuple[str, object]] = (),
    infos: Iterable[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    return make_model(nodes, inputs, outputs, dict(stored), opset=17, value_info=list(infos))


ONE = np.float32(0.5)
QUANTIZE = (("s", ONE), ("z", np.uint8(0)))


def chain(n: int) -> onnx.ModelProto:
    names = ["x", *(f"t{i}" for i in range(n - 1)), "y"]
    return model((node("Relu", [a], [b], f"n{i}") for i, (a, b) in enumerate(zip(names, names[1:], strict=False))),
                 [value("x")], [value("y")])  # fmt: skip


def stated_chain(n: int) -> onnx.ModelProto:
    """A chain whose tensors the file states."""
    made = chain(n)
    made.graph.value_info.extend(value(f"t{i}") for i in range(n - 1))
    return made


def reversed_chain(n: int) -> onnx.ModelProto:
    """A chain that the file holds backwards."""
    made = chain(n)
    nodes = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend(reversed(nodes))
    return made


def inputs(n: int) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(n)]
    return model([node("Sum", names[:2], ["y"])], map(value, names), [value("y")])


def read_inputs(n: int) -> onnx.ModelProto:
    """As many inputs as nodes: y = x0 + x1 + ..."""
    sums = ["x0", *(f"t{i}" for i in range(1, n - 1)), "y"]
    return model((node("Add", [sums[i - 1], f"x{i}"], [sums[i]]) for i in range(1, n)),
                 (value(f"x{i}") for i in range(n)), [value("y")])  # fmt: skip


def quantized_inputs(n: int) -> onnx.ModelProto:
    """As many inputs as DequantizeLinear, all added in one node."""
    names = [f"f{i}" for i in range(n)]
    nodes = [node("DequantizeLinear", [f"x{i}", "s", "z"], [names[i]]) for i in range(n)]
    return model([*nodes, node("Sum", names, ["m"]), node("QuantizeLinear", ["m", "s", "z"], ["y"])],
                 (value(f"x{i}", U8) for i in range(n)), [value("y", U8)], QUANTIZE)  # fmt: skip


def outputs(n: int) -> onnx.ModelProto:
    names = [f"y{i}" for i in range(n)]
    return model([node("Split", ["x"], names, axis=0)], [value("x", F, (n,))], (value(name, F, (1,)) for name in names))


def readers(n: int) -> onnx.ModelProto:
    """One tensor read by n nodes, whose results nobody reads."""
    names = [f"y{i}" for i in range(n)]
    return model((node("Relu", ["x0"], [name]) for name in names), [value("x0")], [value(names[0])])


def made_readers(n: int) -> onnx.ModelProto:
    """One tensor of a node, read by n nodes that are all outputs."""
    names = [f"y{i}" for i in range(n)]
    return model([node("Sigmoid", ["x"], ["x0"]), *(node("Relu", ["x0"], [name]) for name in names)],
                 [value("x")], map(value, names))  # fmt: skip


def dequantized_readers(n: int) -> onnx.ModelProto:
    """One DequantizeLinear read by n nodes, each quantized again."""
    nodes = [node("DequantizeLinear", ["x", "s", "z"], ["f"])]
    for i in range(n):
        nodes += [node("Add", ["f", "f"], [f"a{i}"]), node("QuantizeLinear", [f"a{i}", "s", "z"], [f"y{i}"])]
    return model(nodes, [value("x", U8)], (value(f"y{i}", U8) for i in range(n)), QUANTIZE)


def initializers(n: int) -> onnx.ModelProto:
    names = ["x", *(f"t{i}" for i in range(n - 1)), "y"]
    return model((node("Add", [names[i], f"w{i}"], [names[i + 1]]) for i in range(n)),
                 [value("x")], [value("y")], ((f"w{i}", np.ones(2, np.float32)) for i in range(n)))  # fmt: skip


def defaults(n: int) -> onnx.ModelProto:
    """Initializers that are graph inputs too."""
    made = initializers(n)
    made.graph.input.extend(value(f"w{i}") for i in range(n))
    return made


def unused(n: int) -> onnx.ModelProto:
    """Initializers that nobody reads."""
    return model(
        [node("Relu", ["x"], ["y"])], [value("x")], [value("y")], ((f"w{i}", np.ones(2, np.float32)) for i in range(n))
    )


def constants(n: int) -> onnx.ModelProto:
    """Constant nodes, folded before the run."""
    names = ["x", *(f"t{i}" for i in range(n - 1)), "y"]
    nodes = []
    for i in range(n):
        nodes += [node("Constant", [], [f"c{i}"], value_floats=[1.0, 2.0]),
                  node("Add", [names[i], f"c{i}"], [names[i + 1]])]  # fmt: skip
    return model(nodes, [value("x")], [value("y")])


def folded(n: int) -> onnx.ModelProto:
    """A chain of nodes that depend on stored tensors only."""
    names = ["w", *(f"t{i}" for i in range(n))]
    nodes = [node("Neg", [a], [b]) for a, b in zip(names, names[1:], strict=False)]
    return model(
        [*nodes, node("Add", ["x", names[-1]], ["y"])], [value("x")], [value("y")], [("w", np.ones(2, np.float32))]
    )


def wide(n: int) -> onnx.ModelProto:
    """One node with n inputs, each made by a node."""
    names = [f"t{i}" for i in range(n)]
    return model([*(node("Relu", ["x"], [name]) for name in names), node("Concat", names, ["y"], axis=0)],
                 [value("x")], [value("y", F, (2 * n,))])  # fmt: skip


def repeated(n: int) -> onnx.ModelProto:
    """One node that reads one tensor n times."""
    return model([node("Concat", ["x"] * n, ["y"], axis=0)], [value("x")], [value("y", F, (2 * n,))])


def quantized_concat(n: int) -> onnx.ModelProto:
    """One QLinearConcat of n tensors."""
    three = [name for i in range(n) for name in (f"x{i}", "s", "z")]
    return model([node("QLinearConcat", ["s", "z", *three], ["y"], domain=MS, axis=0)],
                 (value(f"x{i}", U8) for i in range(n)), [value("y", U8, (2 * n,))], QUANTIZE)  # fmt: skip


def pairs(n: int) -> onnx.ModelProto:
    """QuantizeLinear and DequantizeLinear in turn."""
    names = ["x", *(f"t{i}" for i in range(n - 1)), "y"]
    nodes = []
    for i in range(n):
        nodes += [node("QuantizeLinear", [names[i], "s", "z"], [f"q{i}"]),
                  node("DequantizeLinear", [f"q{i}", "s", "z"], [names[i + 1]])]  # fmt: skip
    return model(nodes, [value("x")], [value("y")], QUANTIZE)


def groups(n: int) -> onnx.ModelProto:
    """DequantizeLinear, MatMul, QuantizeLinear in a row, each with weights and a scale of its own."""
    nodes, stored = [], list(QUANTIZE)
    for i in range(n):
        stored += [(f"w{i}", np.full((2, 2), 3, np.int8)), (f"k{i}", np.float32(0.25)), (f"v{i}", np.int8(0))]
        nodes += [
            node("DequantizeLinear", [f"q{i}", "s", "z"], [f"f{i}"]),
            node("DequantizeLinear", [f"w{i}", f"k{i}", f"v{i}"], [f"g{i}"]),
            node("MatMul", [f"f{i}", f"g{i}"], [f"m{i}"]),
            node("QuantizeLinear", [f"m{i}", "s", "z"], [f"q{i + 1}"]),
        ]
    return model(nodes, [value("q0", U8, (1, 2))], [value(f"q{n}", U8, (1, 2))], stored)


def integer(n: int) -> onnx.ModelProto:
    """Integer operators in a row, with parameters of their own."""
    nodes, stored = [], list(QUANTIZE)
    for i in range(n):
        stored += [(f"w{i}", np.full((2, 2), 3, np.int8)), (f"k{i}", np.float32(0.25)), (f"v{i}", np.int8(0))]
        nodes.append(node("QLinearMatMul", [f"q{i}", "s", "z", f"w{i}", f"k{i}", f"v{i}", "s", "z"], [f"q{i + 1}"]))
    return model(nodes, [value("q0", U8, (1, 2))], [value(f"q{n}", U8, (1, 2))], stored)


def same_findings(n: int) -> onnx.ModelProto:
    """Nodes that all give the same finding, a scale of 0 that they share."""
    made = pairs(n)
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32(0), "s"))
    return made


def own_findings(n: int) -> onnx.ModelProto:
    """Nodes that each give a finding of their own, a scale of a wrong shape."""
    nodes = [node("QuantizeLinear", ["x", f"s{i}", "z"], [f"y{i}"], f"n{i}") for i in range(n)]
    return model(nodes, [value("x")], (value(f"y{i}", U8) for i in range(n)),
                 [("z", np.uint8(0)), *((f"s{i}", np.full(3, 0.5, np.float32)) for i in range(n))])  # fmt: skip


def duplicate_names(n: int) -> onnx.ModelProto:
    """Nodes that all have one name."""
    made = chain(n)
    for each in made.graph.node:
        each.name = "same"
    return made


def _branch(out: str, read: str, inner: Sequence[Node] = ()) -> onnx.GraphProto:
    return helper.make_graph([*inner, node("Relu", [read], [out])], out, [], [value(out)])


def branches(n: int) -> onnx.ModelProto:
    """If nodes in a row."""
    names = ["x", *(f"t{i}" for i in range(n - 1)), "y"]
    nodes = [node("If", ["c"], [names[i + 1]], f"if{i}", then_branch=_branch(f"a{i}", names[i]),
                  else_branch=_branch(f"b{i}", names[i])) for i in range(n)]  # fmt: skip
    return model(nodes, [value("x"), value("c", TensorProto.BOOL, ())], [value("y")])


def quantized_branches(n: int) -> onnx.ModelProto:
    """If nodes in a row, whose branches quantize with parameters of the graph outside."""
    names = ["x", *(f"t{i}" for i in range(n - 1)), "y"]
    nodes = []
    for i in range(n):
        sides = []
        for side in "ab":
            inner = [
                node("QuantizeLinear", [names[i], "s", "z"], [f"{side}q{i}"]),
                node("DequantizeLinear", [f"{side}q{i}", "s", "z"], [f"{side}{i}"]),
            ]
            sides.append(helper.make_graph(inner, f"{side}{i}", [], [value(f"{side}{i}")]))
        nodes.append(node("If", ["c"], [names[i + 1]], then_branch=sides[0], else_branch=sides[1]))
    return model(nodes, [value("x"), value("c", TensorProto.BOOL, ())], [value("y")], QUANTIZE)


def nested(n: int) -> onnx.ModelProto:
    """If nodes inside each other, as deep as a file can hold them."""
    inner: list[Node] = []
    read = "x"
    for i in range(n):
        graph = _branch(f"a{i}", read, inner)
        other = helper.make_graph([node("Relu", ["x"], [f"b{i}"])], "e", [], [value(f"b{i}")])
        inner, read = [node("If", ["c"], [f"t{i}"], then_branch=graph, else_branch=other)], f"t{i}"
    return model([*inner, node("Relu", [read], ["y"])], [value("x"), value("c", TensorProto.BOOL, ())], [value("y")])


def functions(n: int) -> onnx.ModelProto:
    """Calls of one model-local function in a row."""
    made = chain(n)
    for each in made.graph.node:
        each.op_type, each.domain = "Twice", "own"
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(
        helper.make_function(
            "own", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
        )
    )
    return made


def long_name(n: int) -> onnx.ModelProto:
    """A name of n characters for a tensor and a node."""
    return model([node("Relu", ["x"], ["t" * n], "n" * n), node("Relu", ["t" * n], ["y"])], [value("x")], [value("y")])


def long_text(n: int) -> onnx.ModelProto:
    """Documentation of n characters."""
    made = chain(2)
    made.doc_string = made.graph.doc_string = made.graph.node[0].doc_string = "word " * (n // 5)
    return made


def long_finding(n: int) -> onnx.ModelProto:
    """A finding about tensors with names of n characters."""
    return model([node("QuantizeLinear", ["x", "s" * n, "z"], ["y" * n], "n" * n)], [value("x")], [value("y" * n, U8)],
                 [("z", np.uint8(0)), ("s" * n, np.full(3, 0.5, np.float32))])  # fmt: skip


def sizes(n: int) -> onnx.ModelProto:
    """Inputs with sizes of n names."""
    return model((node("Relu", [f"x{i}"], [f"y{i}"]) for i in range(n)),
                 (value(f"x{i}", F, (f"N{i}",)) for i in range(n)), (value(f"y{i}", F, (f"N{i}",)) for i in range(n)))  # fmt: skip


def unknown(n: int) -> onnx.ModelProto:
    """Operators that nobody knows, each another one."""
    made = chain(n)
    for i, each in enumerate(made.graph.node):
        each.op_type = f"Strange{i}"
    return made


def opsets(n: int) -> onnx.ModelProto:
    """Imports of n domains."""
    made = chain(2)
    made.opset_import.extend(helper.make_opsetid(f"own{i}", 1) for i in range(n))
    return made


def reshapes(n: int) -> onnx.ModelProto:
    """Views of one tensor of codes, each of another."""
    names = ["x", *(f"t{i}" for i in range(n - 1)), "y"]
    nodes = (node("Flatten", [a], [b], axis=i % 2) for i, (a, b) in enumerate(zip(names, names[1:], strict=False)))
    return model(nodes, [value("x", U8, (2, 2))], [value("y", U8, None)])


def joined(n: int) -> onnx.ModelProto:
    """Concatenations of codes, each of the one before."""
    names = ["x", *(f"t{i}" for i in range(n - 1)), "y"]
    nodes = (node("Concat", [a, "x"], [b], axis=1) for a, b in zip(names, names[1:], strict=False))
    return model(nodes, [value("x", U8, (2, 1))], [value("y", U8, None)])


SHAPES: tuple[Made, ...] = (
    chain, stated_chain, reversed_chain, inputs, read_inputs, quantized_inputs, outputs, readers, made_readers,
    dequantized_readers, initializers, defaults, unused, constants, folded, wide, repeated, quantized_concat, pairs,
    groups, integer, same_findings, own_findings, duplicate_names, branches, quantized_branches, functions,
    long_name, long_text, long_finding, sizes, unknown, opsets, reshapes, joined,
)  # fmt: skip


def random_array(wanted: TensorType) -> np.ndarray:
    assert wanted.dtype is not None
    assert wanted.shape is not None
    return np.ones([d if isinstance(d, int) else 1 for d in wanted.shape], wanted.dtype)


RUNNABLE = tuple(
    made
    for made in SHAPES
    if made not in (branches, quantized_branches, own_findings, unknown, same_findings, long_finding)
)
