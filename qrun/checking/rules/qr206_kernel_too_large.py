"""QR206 kernel-too-large."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._window import OPERATORS, Windowed, auto_pad, bad_values, ints, windows
from qrun.ir import Model
from qrun.ir.types import shape_text


@rule(
    "QR206",
    "kernel-too-large",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__MaxPool.html",
    fix="check pads, dilations, the layout and the size of the input",
    applies=tuple(op for op in OPERATORS if op != "ConvTranspose"),
    stops=True,
)
def kernel_too_large(model: Model) -> Iterator[Finding]:
    """The window of a convolution or pool, with its dilations, is larger than the padded input.

    Why is this bad?
        There is no place for the window: by the formula of the page the output has no elements, or fewer than none.
        onnx.checker accepts the model, onnxruntime loads it and fails while running. The usual cause is an input in
        NHWC order, or a network that is too deep for this image size.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,1,3] x) => (uint8[1,2,0,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
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
                **window.scope.at(node),
                tensor=f"{window.x} {shape_text(window.x_shape)}",
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
