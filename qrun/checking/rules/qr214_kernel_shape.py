"""QR214 kernel-shape."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._window import CONV_NAMES, ints, windows
from qrun.ir import Model
from qrun.ir.types import shape_text


@rule(
    "QR214",
    "kernel-shape",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
    fix="remove kernel_shape: w gives it",
    applies=CONV_NAMES,
)
def kernel_shape(model: Model) -> Iterator[Finding]:
    """The attribute kernel_shape of a convolution differs from the spatial axes of its weight.

    Why is this bad?
        Two answers to one question. onnx.checker accepts the model and infers the output's shape from the attribute;
        onnxruntime fails while running.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,3,3] x) => (uint8[1,2,h,v] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<kernel_shape = [3, 3]>(x, s, z, w, s, wz, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
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
        if len(given) == len(spatial) and all(
            not isinstance(k, int) or k == g for k, g in zip(spatial, given, strict=True)
        ):
            continue
        node = window.node
        yield Finding(
            f"kernel_shape is {shape_text(given)}, but w {window.w} has kernel {shape_text(spatial)}",
            **window.scope.at(node),
            tensor=f"{window.w} (input {window.w_place})",
            expected=shape_text(spatial),
            got=shape_text(given),
            why=f"{node.op}-{node.version}: kernel_shape is the shape of the kernel in w.",
        )
