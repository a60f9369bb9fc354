"""Shapes that do not go together: of matrices, operands, windows and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qrun.checking.rules._forms import mistyped
from qrun.checking.rules._rule import Finding, at, rule
from qrun.checking.rules._scope import Scope, Shape, differ, nodes, number
from qrun.checking.rules._window import CONVS
from qrun.ir import Model, Node
from qrun.ir.schema import MS
from qrun.ir.types import shape_text
from qrun.ops import written

PRODUCTS: dict[tuple[str, str], tuple[int, int]] = {
    ("", "MatMul"): (0, 1),
    ("", "MatMulInteger"): (0, 1),
    ("", "QLinearMatMul"): (0, 3),
    ("", "Gemm"): (0, 1),
    (MS, "QGemm"): (0, 3),
    (MS, "MatMulIntegerToFloat"): (0, 1),
    (MS, "DynamicQuantizeMatMul"): (0, 1),
    (MS, "MatMulNBits"): (0, 1),
}
BROADCASTS: dict[tuple[str, str], tuple[int, int]] = {
    **{("", name): (0, 1) for name in ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Equal", "Greater", "Less")},
    (MS, "QLinearAdd"): (0, 3),
    (MS, "QLinearMul"): (0, 3),
}
_PLACES = {**PRODUCTS, **BROADCASTS, **CONVS}
"""Operators, and the places of the two tensors that must fit together."""


@rule(
    "QR208",
    "error",
    spec="https://github.com/onnx/onnx/blob/main/docs/Broadcasting.md",
    fix="check the layout of the tensors; qrun inspect MODEL --nodes shows the shapes",
    applies=written(_PLACES),
    stops=True,
)
def shape_mismatch(model: Model) -> Iterator[Finding]:
    """The shapes of two inputs do not go together.

    The columns of the first matrix are the rows of the second, x and w of a convolution have one rank, and operands of
    an elementwise operator broadcast. Judged where the file gives both shapes.

    Why is this bad?
        The node cannot be computed. Without full_check, onnx.checker accepts the model, and it never looks at operators
        of com.microsoft; onnxruntime may find out only while running.

    Bad
        main (uint8[2,3] x) => (uint8[2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,2] w = {1, 2, 3, 4}, int8 wz = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, wz, s, z)
        }

    Good
        main (uint8[2,2] x) => (uint8[2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,2] w = {1, 2, 3, 4}, int8 wz = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, wz, s, z)
        }
    """
    for scope, node in nodes(model, _PLACES):
        key = node.domain, node.op_type
        places = _PLACES[key]
        if max(places) >= len(node.inputs) or (key in BROADCASTS and not node.domain and node.version < 7):
            continue
        expected = _expected_shapes(scope, node, places)
        if expected and not set(places).intersection(mistyped(scope, node)):
            first, second = (node.inputs[place] for place in places)
            got = f"{first} {shape_text(scope.shape(first))}, {second} {shape_text(scope.shape(second))}"
            yield Finding(
                f"the shapes do not fit: {got}",
                **scope.at(node, f"{second} (input {places[1]})"),
                expected=expected,
                got=got,
                why=f"{node.op}-{node.version} says how the shapes of its inputs go together.",
            )


@rule(
    "QR120",
    "warning",
    spec="https://github.com/onnx/onnx/blob/main/docs/ShapeInference.md",
    fix="leave the shape out, or state the one that is made; onnx.shape_inference.infer_shapes adds it",
    follows=True,
)
def stated_shape(model: Model, inferred: Mapping[str, Shape]) -> Iterator[Finding]:
    """The file states another shape of a tensor than follows from the inputs and operators.

    Reported for outputs and inner tensors of the main graph, where the ranks differ, or two sizes that are numbers.
    Only the first tensor is reported, as the tensors behind it differ too.

    Why is this bad?
        onnx.checker with full_check, and tools that infer shapes strictly, refuse the model. Others trust the file:
        they reserve room for another tensor than comes, and a caller prepares for one.

    Bad
        main (float[2,3] x) => (float y)
        {
            y = Relu(x)
        }

    Good
        main (float[2,3] x) => (float[2,3] y)
        {
            y = Relu(x)
        }
    """
    stated = {v.name: v for v in (*model.types.values(), *model.outputs)}
    wrong: set[str] = set()
    for node in model.nodes:
        for place, name in enumerate(node.outputs):
            said, made = stated[name].shape if name in stated else None, inferred.get(name)
            if said is None or made is None or not _other_shape(said, made):
                continue
            if not wrong.intersection(node.inputs):
                yield Finding(
                    f"{name} is stated as {shape_text(said)}, and made as {shape_text(made)}",
                    **at(node),
                    tensor=f"{name} (output {place})",
                    expected=shape_text(made),
                    got=f"{shape_text(said)} in the file",
                    why=f"{node.op}-{node.version} makes this shape of its inputs.",
                )
            wrong.add(name)


def _other_shape(said: Shape, made: Shape) -> bool:
    return len(said) != len(made) or any(map(differ, said, made))


def _expected_shapes(scope: Scope, node: Node, places: tuple[int, int]) -> str:
    """What the shapes should be, or "" if they fit or cannot be judged."""
    a, b = (scope.shape(node.inputs[place]) for place in places)
    if a is None or b is None:
        return ""
    key = node.domain, node.op_type
    if key in CONVS:
        return "" if len(a) == len(b) >= 3 else "x [N,C,spatial...] and w of one rank of 3 or more"
    if key in BROADCASTS:
        return "" if _broadcast(a, b) else "equal sizes on every axis, counted from the last, or 1"
    if node.op_type == "MatMulNBits":
        return _packed(node, a, b)
    if node.op_type in ("Gemm", "QGemm"):
        if len(a) != 2 or len(b) != 2:
            return "two matrices"
        a = a[::-1] if number(node, "transA") else a
        b = b[::-1] if number(node, "transB") else b
    return _product(a, b)


def _product(a: Shape, b: Shape) -> str:
    if not a or not b:
        return "a rank of 1 or more"
    k, rows = a[-1], b[-2 if len(b) > 1 else 0]
    if differ(k, rows):
        return f"{k} rows in the second, one per column of the first"
    return "" if _broadcast(a[:-2], b[:-2]) else "leading axes that are equal, or 1"


def _packed(node: Node, a: Shape, b: Shape) -> str:
    """What operands of a MatMulNBits should be, or "" if they fit its attributes or those say nothing."""
    k, n, block = (number(node, name) for name in ("K", "N", "block_size"))
    if min(k, n, block) < 1:
        return ""
    want = (n, -(-k // block), block * number(node, "bits", 4) // 8)
    if a and not differ(a[-1], k) and len(b) == 3 and not any(map(differ, b, want)):
        return ""
    return f"[...,{k}], and {shape_text(want)}: N, blocks of K, bytes of a block"


def _broadcast(a: Shape, b: Shape) -> bool:
    return all(not differ(m, n) or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))
