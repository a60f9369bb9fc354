"""QR216 window-attribute."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._window import OPERATORS, Windowed, auto_pad, bad_values, ints, windows
from qrun.ir import Model

_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
_LEAST = {"pads": 0, "strides": 1, "dilations": 1, "kernel_shape": 1}


@rule(
    "QR216",
    "window-attribute",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__Conv.html",
    fix="use Slice to crop; pads, strides and dilations only enlarge or thin out",
    applies=OPERATORS,
)
def window_attribute(model: Model) -> Iterator[Finding]:
    """An attribute of a convolution or pool has a value or a length that no window has.

    pads are 0 or more, two for each spatial axis; strides, dilations and kernel_shape are 1 or more, one for each
    spatial axis; auto_pad is NOTSET, VALID, SAME_UPPER or SAME_LOWER.

    Why is this bad?
        Negative pads mean cropping in some frameworks and nothing in ONNX. onnx.checker looks at them only with
        full_check, and never in com.microsoft operators.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,3,3] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<pads = [-1, 0, 1, 0]>(x, s, z, w, s, wz, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,3,3] x) => (uint8[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<pads = [0, 0, 0, 0]>(x, s, z, w, s, wz, s, z)
        }
    """
    for window in windows(model):
        for name, expected, got in _wrong(window):
            node = window.node
            yield Finding(
                f"{name} is {got}",
                **window.scope.at(node),
                expected=expected,
                got=got,
                why=f"{node.op}-{node.version} defines {name} so.",
                fix="" if name == "pads" else f"write {name} for the axes of this node",
            )


def _wrong(window: Windowed) -> Iterator[tuple[str, str, str]]:
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
