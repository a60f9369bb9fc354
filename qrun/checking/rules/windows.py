"""Windows of convolutions and pools: kernels, pads, groups and attributes."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import differ, ints, number
from qrun.checking.rules._window import CONV_NAMES, OPERATORS, Windowed, auto_pad, bad_values, windows
from qrun.ir import Model
from qrun.ir.types import shape_text


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
        There is no place for the window: by the formula of the specification the output has no elements, or fewer than
        none. onnx.checker accepts the model, onnxruntime loads it and fails while running. The usual cause is an input
        in NHWC order, or a network that is too deep for this image size.

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
                f"the kernel takes {extent} elements along spatial axis {axis}, the padded input has {room}",
                **window.scope.at(node, f"{window.x} {shape_text(window.x_shape)}"),
                expected=f"at most {room} (dilated)",
                got=f"{extent}: kernel {shape_text(window.kernel)}, dilations {list(ints(node, 'dilations')) or 1},"
                f" pads {list(ints(node, 'pads')) or 0}",
                why=f"{node.op}-{node.version}: output size = floor((input + pads - ((kernel - 1) * dilation + 1))"
                " / stride + 1).",
            )


def _too_large(window: Windowed) -> tuple[int, int, int] | None:
    """Spatial axis, its padded size, and the size of the dilated kernel there."""
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
    """The channels of a convolution do not fit its groups.

    x has C channels, w is [M, C / group, kernel...], and M is a multiple of group. In ConvTranspose, w is
    [C, M / group, kernel...] and C is a multiple of group.

    Why is this bad?
        onnx.checker accepts the model; onnxruntime fails while running. The usual causes are a weight in HWIO order, an
        input in NHWC order, or a depthwise convolution whose group was lost.

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
    """What w should be, or "" if it fits or cannot be judged."""
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


@rule("QR214", "error", spec="QLinearConv", fix="remove kernel_shape: w gives it", applies=CONV_NAMES, stops=True)
def kernel_shape(model: Model) -> Iterator[Finding]:
    """The attribute kernel_shape of a convolution differs from the spatial axes of its weight.

    Why is this bad?
        The shape of the weight already gives the kernel, so one of the two is wrong. onnx.checker accepts the model and
        infers the output's shape from the attribute; onnxruntime fails while running.

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
        The specification says that the two cannot be used simultaneously. onnxruntime refuses such a convolution, even
        if all pads are 0, and ignores the pads of such a pool; onnx.checker accepts both.

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
    """An attribute of a convolution or pool has a value or a length that no window has.

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
                why=f"{node.op}-{node.version} defines {name} so.",
                fix="" if name == "pads" else f"write {name} for the axes of this node",
            )


def _wrong_attributes(window: Windowed) -> Iterator[tuple[str, str, str]]:
    """Name, what it should be, and what it is."""
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
