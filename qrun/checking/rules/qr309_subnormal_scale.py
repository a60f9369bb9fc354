"""QR309 subnormal-scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._parameters import TABLE, operators
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import nodes
from qrun.checking.rules._typed import sound
from qrun.ir import Model
from qrun.ir.types import type_name

_SMALLEST = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}
"""The smallest normal number of each type."""


@rule(
    "QR309",
    "subnormal-scale",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="calibrate again, or store the scale as float32; a tensor that is always 0 can have the scale 1",
    applies=operators(),
)
def subnormal_scale(model: Model) -> Iterator[Finding]:
    """A stored scale is positive, but below the smallest normal number of its type.

    Why is this bad?
        Subnormal numbers have few significant bits left, and processors that flush them to zero divide by 0. In float32
        it means that the tensor was as good as 0 in calibration; in float16 the scale lost digits when it was stored.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.000000000000000000000000000000000000001}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.001}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    seen: set[tuple[int, str]] = set()
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            home = scope.home(q.scale.tensor) if q.scale else None
            value = home.value(q.scale.tensor) if home and q.scale else None
            least = _SMALLEST.get(value.dtype.name) if value is not None else None
            if value is None or least is None or not q.scale or (id(home), q.scale.tensor) in seen:
                continue
            seen.add((id(home), q.scale.tensor))
            real = value.astype(np.float64)
            small = (real > 0) & (real < least)
            if not small.any():
                continue
            first = tuple(int(i) for i in np.argwhere(small)[0])
            place = f"[{','.join(map(str, first))}]" if first else ""
            count = f"; {int(small.sum())} of {small.size} scales" if small.size > 1 else ""
            name = type_name(value.dtype)
            yield Finding(
                f"{q.scale.name}{place} is {real[first]:.6g}, subnormal in {name}{count}",
                **scope.at(node),
                tensor=f"{q.scale.tensor}{place} (input {q.scale.place}, {q.scale.name})",
                expected=f"at least {least:.6g}, the smallest normal {name}",
                got=f"{real[first]:.6g}{count}",
                why=f"{node.op}-{node.version} divides or multiplies by it; the result depends on flushing to zero.",
            )
