"""Rules on shapes and attributes that do not fit each other: of matrices, operands, windows and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qrun.checking.rules._forms import mistyped_inputs
from qrun.checking.rules._rule import Finding, at, rule
from qrun.checking.rules._scope import Scope, Shape, differ, ints, nodes, number
from qrun.checking.rules._window import CONV_NAMES, CONVS, OPERATORS, Windowed, auto_pad, bad_values, windows
from qrun.ir import Model, Node
from qrun.ir.schema import MS
from qrun.ir.types import shape_text
from qrun.ops import op_names

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
"""Operators, with the places of the two inputs whose shapes must fit each other."""


@rule(
    "QR208",
    "error",
    spec="https://github.com/onnx/onnx/blob/main/docs/Broadcasting.md",
    fix="check the layout of the tensors; qrun inspect MODEL --nodes shows the shapes",
    applies=op_names(_PLACES),
    stops=True,
)
def shape_mismatch(model: Model) -> Iterator[Finding]:
    """The shapes of two inputs do not match.

    The first matrix must have as many columns as the second has rows, x and w of a convolution must have the same rank,
    and operands of an elementwise operator must broadcast. The rule needs both shapes in the file.

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
        if expected and not set(places).intersection(mistyped_inputs(scope, node)):
            first, second = (node.inputs[place] for place in places)
            got = f"{first} {shape_text(scope.shape(first))}, {second} {shape_text(scope.shape(second))}"
            yield Finding(
                f"the shapes do not fit: {got}",
                **scope.at(node, f"{second} (input {places[1]})"),
                expected=expected,
                got=got,
                why=f"{node.op}-{node.version} defines which shapes of its inputs fit each other.",
            )


@rule(
    "QR120",
    "warning",
    spec="https://github.com/onnx/onnx/blob/main/docs/ShapeInference.md",
    fix="remove the shape, or correct it; onnx.shape_inference.infer_shapes adds the right one",
    follows=True,
)
def stated_shape(model: Model, inferred: Mapping[str, Shape]) -> Iterator[Finding]:
    """The file states a shape that the inputs and operators contradict.

    The rule looks at outputs and inner tensors of the main graph. It reports different ranks, and different sizes if
    both are numbers. It reports only the first tensor, because later ones differ too.

    Why is this bad?
        onnx.checker with full_check, and tools that infer shapes strictly, refuse the model. Others trust the file, and
        allocate memory for the wrong shape.

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
            if said is None or made is None or (len(said) == len(made) and not any(map(differ, said, made))):
                continue
            if not wrong.intersection(node.inputs):
                yield Finding(
                    f"{name} is stated as {shape_text(said)}, but the node produces {shape_text(made)}",
                    **at(node),
                    tensor=f"{name} (output {place})",
                    expected=shape_text(made),
                    got=f"{shape_text(said)} in the file",
                    why=f"{node.op}-{node.version} makes this shape from its inputs.",
                )
            wrong.add(name)


def _expected_shapes(scope: Scope, node: Node, places: tuple[int, int]) -> str:
    """A description of the shapes that the inputs should have; "" if they fit or cannot be judged."""
    a, b = (scope.shape(node.inputs[place]) for place in places)
    if a is None or b is None:
        return ""
    key = node.domain, node.op_type
    if key in CONVS:
        return "" if len(a) == len(b) >= 3 else "x [N,C,spatial...] and w of one rank of 3 or more"
    if key in BROADCASTS:
        return "" if _broadcast(a, b) else "equal sizes on every axis, counted from the last, or 1"
    if node.op_type == "MatMulNBits":
        return _packed_misfit(node, a, b)
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


def _packed_misfit(node: Node, a: Shape, b: Shape) -> str:
    """The shapes that operands of a MatMulNBits should have; "" if they fit its attributes or these are invalid.

    A length of 0 in the second omits the product.
    """
    k, n, block = (number(node, name) for name in ("K", "N", "block_size"))
    if min(k, n, block) < 1:
        return ""
    want = (n, -(-k // block), block * number(node, "bits", 4) // 8)
    if (
        a
        and not differ(a[-1], k)
        and len(b) == 3
        and all(m == 0 or not differ(m, n) for m, n in zip(b, want, strict=True))
    ):
        return ""
    return f"[...,{k}], and {shape_text(want)}: N, blocks of K, bytes of a block"


def _broadcast(a: Shape, b: Shape) -> bool:
    return all(not differ(m, n) or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


@rule(
    "QR206",
    "error",
    spec="MaxPool",
    fix="check pads, dilations, the layout and the size of the input",
    applies=tuple(op for op in OPERATORS if op != "ConvTranspose"),
    stops=True,
)
def kernel_too_large(model: Model) -> Iterator[Finding]:
    """The window of a convolution or pool, with its dilations, is larger than the padded input.

    Why is this bad?
        The window does not fit: by the specification's formula, the output size is 0 or less. onnx.checker accepts the
        model; onnxruntime loads it, but fails while running. The usual cause is an input in NHWC order, or a network
        that is too deep for this image size.

    Bad
        main (uint8[1,1,1,3] x) => (uint8[1,2,0,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z)
        }

    Good
        main (uint8[1,1,3,3] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z)
        }
    """
    for window in windows(model):
        found = None if window.transposed else _too_large(window)
        if found:
            axis, room, extent = found
            node = window.node
            yield Finding(
                f"the kernel takes {extent} elements along spatial axis {axis}, but the padded input has {room}",
                **window.scope.at(node, f"{window.x} {shape_text(window.x_shape)}"),
                expected=f"at most {room} (dilated)",
                got=f"{extent}: kernel {shape_text(window.kernel)}, dilations {list(ints(node, 'dilations')) or 1},"
                f" pads {list(ints(node, 'pads')) or 0}",
                why=f"{node.op}-{node.version}: output size = floor((input + pads - ((kernel - 1) * dilation + 1))"
                " / stride + 1).",
            )


def _too_large(window: Windowed) -> tuple[int, int, int] | None:
    """The first spatial axis where the window is too large, the padded size, and the dilated kernel's size; or None."""
    node, rank, size, kernel = window.node, window.rank, window.size, window.kernel
    if rank is None or size is None or kernel is None or auto_pad(node) not in ("NOTSET", "VALID"):
        return None
    if bad_values(node, "pads", 2 * rank, 0) or bad_values(node, "dilations", rank, 1) or len(kernel) != rank:
        return None
    pads = ints(node, "pads") or (0,) * 2 * rank
    dilations = ints(node, "dilations") or (1,) * rank
    for axis, (n, k) in enumerate(zip(size, kernel, strict=True)):
        if isinstance(n, int) and isinstance(k, int):
            room, extent = n + pads[axis] + pads[axis + rank], (k - 1) * dilations[axis] + 1
            if extent > room:
                return axis, room, extent
    return None


@rule(
    "QR207",
    "error",
    spec="QLinearConv",
    fix="check group, and the layout of x and w: channels are axis 1 of both",
    applies=CONV_NAMES,
    stops=True,
)
def group_mismatch(model: Model) -> Iterator[Finding]:
    """The channel counts of a convolution are inconsistent with its group attribute.

    x has C channels, w is [M, C / group, kernel...], and M is a multiple of group. In ConvTranspose, w is
    [C, M / group, kernel...] and C is a multiple of group.

    Why is this bad?
        onnx.checker accepts the model; onnxruntime fails while running. The usual causes are a weight in HWIO order, an
        input in NHWC order, or a depthwise convolution that lost its group attribute.

    Bad
        main (uint8[1,3,3,3] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z)
        }

    Good
        main (uint8[1,1,3,3] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z)
        }
    """
    for window in windows(model):
        expected = _expected_weight(window) if window.w else ""
        if expected:
            node, group = window.node, number(window.node, "group", 1)
            yield Finding(
                f"channels do not fit group {group}: x has {_size_text(window.channels)}, w is {shape_text(window.w_shape)}",
                **window.scope.at(node, f"{window.w} (input {window.w_place})"),
                expected=expected,
                got=shape_text(window.w_shape),
                why=f"{node.op}-{node.version}: C is w's axis 0, a multiple of group."
                if window.transposed
                else f"{node.op}-{node.version}: C = group * (size of w's axis 1), and M is a multiple of group.",
            )


def _expected_weight(window: Windowed) -> str:
    """The shape that w should have; "" if it fits or cannot be judged."""
    group, c = number(window.node, "group", 1), window.channels
    if group < 1:
        return "a group of 1 or more"
    if window.w_shape is None or len(window.w_shape) < 3:
        return ""
    first, second = window.w_shape[:2]
    if window.transposed:
        fits = (not isinstance(first, int) or first % group == 0) and not differ(first, c)
        return "" if fits else f"[{_size_text(c)},M/{group},kernel...], {_size_text(c)} a multiple of {group}"
    if isinstance(first, int) and first % group:
        return f"[M,...] with M a multiple of {group}"
    if isinstance(c, int) and isinstance(second, int) and second * group != c:
        return f"[M,{c}/{group},kernel...]" if c % group else f"[M,{c // group},kernel...]"
    return ""


def _size_text(size: int | str | None) -> str:
    return "C" if size is None else str(size)


@rule(
    "QR214",
    "error",
    spec="QLinearConv",
    fix="remove kernel_shape: the shape of w determines it",
    applies=CONV_NAMES,
    stops=True,
)
def kernel_shape(model: Model) -> Iterator[Finding]:
    """The attribute kernel_shape of a convolution differs from the spatial axes of its weight.

    Why is this bad?
        The shape of the weight already determines the kernel, so one of the two is wrong. onnx.checker accepts the
        model and infers the output's shape from the attribute; onnxruntime fails while running.

    Bad
        main (uint8[1,1,3,3] x) => (uint8[1,2,h,v] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<kernel_shape = [3, 3]>(x, s, z, w, s, wz, s, z)
        }

    Good
        main (uint8[1,1,3,3] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<kernel_shape = [2, 2]>(x, s, z, w, s, wz, s, z)
        }
    """
    for window in windows(model):
        given = ints(window.node, "kernel_shape")
        if not given or not window.w or window.w_shape is None or len(window.w_shape) < 3:
            continue
        spatial = window.w_shape[2:]
        if len(given) == len(spatial) and not any(map(differ, spatial, given)):
            continue
        node = window.node
        yield Finding(
            f"kernel_shape is {shape_text(given)}, but w {window.w} has kernel {shape_text(spatial)}",
            **window.scope.at(node, f"{window.w} (input {window.w_place})"),
            expected=shape_text(spatial),
            got=shape_text(given),
            why=f"{node.op}-{node.version}: kernel_shape is the shape of the kernel in w.",
        )


@rule("QR215", "error", spec="Conv", fix="remove pads, or set auto_pad to NOTSET", applies=OPERATORS)
def pads_and_auto_pad(model: Model) -> Iterator[Finding]:
    """A convolution or pool has pads, and an auto_pad that is not NOTSET.

    Why is this bad?
        The specification forbids using both. onnxruntime refuses such a convolution, even if all pads are 0, and
        ignores the pads of such a pool; onnx.checker accepts both.

    Bad
        main (uint8[1,1,3,3] x) => (uint8[1,2,3,3] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<auto_pad = "SAME_UPPER", pads = [0, 0, 1, 1]>(x, s, z, w, s, wz, s, z)
        }

    Good
        main (uint8[1,1,3,3] x) => (uint8[1,2,3,3] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<pads = [0, 0, 1, 1]>(x, s, z, w, s, wz, s, z)
        }
    """
    for window in windows(model):
        node = window.node
        pads, auto = ints(node, "pads"), auto_pad(node)
        if pads and auto != "NOTSET":
            yield Finding(
                f"both pads and auto_pad {auto} are given",
                **window.scope.at(node),
                expected="pads, or auto_pad",
                got=f"pads {list(pads)}, auto_pad {auto}",
                why=f"{node.op}-{node.version}: the pads attribute cannot be used simultaneously with auto_pad.",
            )


_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


_LEAST = {"pads": 0, "strides": 1, "dilations": 1, "kernel_shape": 1}


@rule(
    "QR216",
    "error",
    spec="Conv",
    fix="use Slice to crop; pads, strides and dilations only enlarge or thin out",
    applies=OPERATORS,
    stops=True,
)
def window_attribute(model: Model) -> Iterator[Finding]:
    """An attribute of a convolution or pool has an impossible value or length.

    pads are 0 or more, two for each spatial axis; strides, dilations and kernel_shape are 1 or more, one for each
    spatial axis; auto_pad is NOTSET, VALID, SAME_UPPER or SAME_LOWER.

    Why is this bad?
        Negative pads mean cropping in some frameworks and nothing in ONNX. onnx.checker looks at them only with
        full_check, and never in com.microsoft operators.

    Bad
        main (uint8[1,1,3,3] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<pads = [-1, 0, 1, 0]>(x, s, z, w, s, wz, s, z)
        }

    Good
        main (uint8[1,1,3,3] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<pads = [0, 0, 0, 0]>(x, s, z, w, s, wz, s, z)
        }
    """
    for window in windows(model):
        for name, expected, got in _wrong_attributes(window):
            node = window.node
            yield Finding(
                f"{name} is {got}",
                **window.scope.at(node),
                expected=expected,
                got=got,
                why=f"{node.op}-{node.version} defines {name} this way.",
                fix="" if name == "pads" else f"write {name} for the axes of this node",
            )


def _wrong_attributes(window: Windowed) -> Iterator[tuple[str, str, str]]:
    """Yield each wrong attribute: its name, what it should be, and what it is."""
    node, rank = window.node, window.rank
    for name, least in _LEAST.items():
        if name == "kernel_shape" and window.w_shape is not None:
            continue
        count = None if rank is None else 2 * rank if name == "pads" else rank
        if bad_values(node, name, count, least):
            numbers = f"{count} numbers" if count is not None else "numbers"
            yield name, f"{numbers} of {least} or more", str(list(ints(node, name)))
    if auto_pad(node) not in _AUTO_PADS:
        yield "auto_pad", ", ".join(_AUTO_PADS), auto_pad(node)
