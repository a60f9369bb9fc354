"""QR306 scale-value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.ir import Array, Model, Node
from qrun.rules._parameters import Slot, operators
from qrun.rules._rule import Finding, rule
from qrun.rules._scope import Scope, nodes
from qrun.rules._typed import sound


@rule(
    "QR306",
    "scale-value",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="calibrate again; a tensor that is always 0 can have any positive scale, such as 1",
    applies=operators(),
)
def scale_value(model: Model) -> Iterator[Finding]:
    """A stored scale is zero, negative, infinite or NaN.

    A scale is the real distance between two neighbouring codes, so it is positive and finite.

    Why is this bad?
        Quantizing divides by the scale: 0 gives infinities and NaN, whose codes no specification defines. A negative
        scale turns the order of the codes round. onnx.checker, onnx.reference and onnxruntime all accept such models
        and compute something. Usual causes are calibration data that are all zero, and float16 underflow.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.0}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    seen: set[tuple[int, str]] = set()
    for scope, node in nodes(model):
        for q in sound(scope, node):
            home = scope.home(q.scale.tensor) if q.scale else None
            value = home.value(q.scale.tensor) if home and q.scale else None
            if value is None or value.dtype.kind in "Oc" or not q.scale or not home:
                continue
            key = (id(home.model), q.scale.tensor)
            if key not in seen:
                yield from _judge(scope, node, q.scale, np.asarray(value).astype(np.float64))
            seen.add(key)


def _judge(scope: Scope, node: Node, scale: Slot, real: Array) -> Iterator[Finding]:
    bad = ~(np.isfinite(real) & (real > 0))
    if not bad.any():
        return
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    place = f"[{','.join(map(str, first))}]" if first else ""
    of_all = f"; {int(bad.sum())} of {bad.size} scales" if bad.size > 1 else ""
    home = scope.home(scale.tensor)
    readers = len(home.model.consumers.get(scale.tensor, ())) if home else 0
    shared = f", read by {readers} nodes" if readers > 1 else ""
    yield Finding(
        f"{scale.name}{place} is {real[first]:.6g}{of_all}",
        **scope.at(node),
        tensor=f"{scale.tensor}{place} (input {scale.place}, {scale.name}{shared})",
        expected="a positive, finite number",
        got=f"{real[first]:.6g}{of_all}",
        why=f"{node.op}-{node.version}: a scale is the distance between two codes.",
    )
