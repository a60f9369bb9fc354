"""QR215 pads-and-auto-pad."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._window import OPERATORS, auto_pad, ints, windows
from qrun.ir import Model


@rule(
    "QR215",
    "pads-and-auto-pad",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__Conv.html",
    fix="remove pads, or set auto_pad to NOTSET",
    applies=OPERATORS,
)
def pads_and_auto_pad(model: Model) -> Iterator[Finding]:
    """A convolution or pool has pads, and an auto_pad that is not NOTSET.

    Why is this bad?
        The page says that the two cannot be used simultaneously. onnxruntime refuses such a convolution, even if all
        pads are 0, and ignores the pads of such a pool; onnx.checker accepts both.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,3,3] x) => (uint8[1,2,3,3] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8 wz = {0}>
        {
            y = QLinearConv<auto_pad = "SAME_UPPER", pads = [0, 0, 1, 1]>(x, s, z, w, s, wz, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
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
