"""QR207 group-mismatch."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._window import CONV_NAMES, Windowed, number, windows
from qrun.ir import Model
from qrun.ir.types import shape_text


@rule(
    "QR207",
    "group-mismatch",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
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
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,3,3,3] x) => (uint8[1,2,2,2] y)
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
        expected = _expected(window) if window.w else ""
        if expected:
            node, group = window.node, number(window.node, "group", 1)
            yield Finding(
                f"channels do not fit group {group}: x has {_text(window.channels)}, w is {shape_text(window.w_shape)}",
                **window.scope.at(node),
                tensor=f"{window.w} (input {window.w_place})",
                expected=expected,
                got=shape_text(window.w_shape),
                why=f"{node.op}-{node.version}: C is w's axis 0, a multiple of group."
                if window.transposed
                else f"{node.op}-{node.version}: C = group * (size of w's axis 1), and M is a multiple of group.",
            )


def _expected(window: Windowed) -> str:
    """What w should be, or "" if it fits or cannot be judged."""
    group, c = number(window.node, "group", 1), window.channels
    if group < 1:
        return "a group of 1 or more"
    if window.w_shape is None or len(window.w_shape) < 3:
        return ""
    first, second = window.w_shape[:2]
    if window.transposed:
        fits = (not isinstance(first, int) or first % group == 0) and (not _known(first, c) or first == c)
        return "" if fits else f"[{_text(c)},M/{group},kernel...], {_text(c)} a multiple of {group}"
    if isinstance(first, int) and first % group:
        return f"[M,...] with M a multiple of {group}"
    if isinstance(c, int) and isinstance(second, int) and second * group != c:
        return f"[M,{c}/{group},kernel...]" if c % group else f"[M,{c // group},kernel...]"
    return ""


def _known(*sizes: int | str | None) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _text(size: int | str | None) -> str:
    return "C" if size is None else str(size)
