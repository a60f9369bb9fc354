"""Softmax whose result has one scale per slice becomes QLinearSoftmax, which reads the first scale only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qrun.comparing.rewrites._rewrite import Rewrite, only_reader, parameters
from qrun.ir import Model


def slice_rewrites(model: Model) -> Iterator[Rewrite]:
    for node in model.nodes:
        if node.op_type != "Softmax" or node.domain:
            continue
        x = parameters(model, model.producers.get(node.inputs[0]))
        y = parameters(model, only_reader(model, node), "QuantizeLinear")
        if x is None or y is None or x.zero is None or y.zero is None or not x.is_scalar or y.is_scalar:
            continue
        if {x.zero.dtype, y.zero.dtype} != {np.dtype(np.uint8)}:
            continue
        names = f"{y.node.label}/first scale", f"{y.node.label}/first zero point"
        values = y.scale.ravel()[0], y.zero.ravel()[0]
        text = f"quantizes {node.outputs[0]} with the first of its {y.scale.size} scales, {float(values[0]):.6g}"
        made = replace(y.node, inputs=(y.node.inputs[0], *names))
        constants = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
        yield Rewrite(node, node.outputs[0], text, {y.node.outputs[0]: (made,)}, constants)
