"""Rewrites products with a quantized bias as runtimes do that fuse them into integer operators, which have no scale for
the bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qrun.comparing.rewrites import Rewrite, StoredParameters, only_reader, parameters
from qrun.ir import Array, Model, Node


def bias_scale_rewrites(model: Model) -> Iterator[Rewrite]:
    """The int32 codes of a bias count as multiples of x_scale * w_scale, whatever scale and zero point they have."""
    for node in model.nodes:
        for end, bias in _biases(model, node):
            x, w = (parameters(model, model.producers.get(name)) for name in node.inputs[:2])
            if x is None or w is None or not x.is_scalar or w.scale.ndim > 1:
                continue
            scale = np.asarray(x.scale.ravel()[0] * w.scale)
            if not _has_scale(bias, scale):
                yield _rescaled(end, bias, scale)


def _biases(model: Model, node: Node) -> Iterator[tuple[Node, StoredParameters]]:
    """Yield the node that adds a bias to a product, and the parameters of the bias."""
    if node.domain or node.op_type not in ("Conv", "Gemm", "MatMul") or not node.outputs:
        return
    end = only_reader(model, node) if node.op_type == "MatMul" else node
    if end is None or (end is not node and end.op_type != "Add"):
        return
    for name in end.inputs[2:] if end is node else end.inputs:
        bias = parameters(model, model.producers.get(name))
        if bias is not None and bias.scale.ndim < 2 and _has_int32_codes(model, bias):
            yield end, bias


def _has_int32_codes(model: Model, p: StoredParameters) -> bool:
    """Does a DequantizeLinear read int32 codes?"""
    name = p.node.inputs[0]
    stored, stated = model.constants.get(name), model.types.get(name)
    return (stored.dtype if stored is not None else stated.dtype if stated is not None else None) == np.int32


def _has_scale(p: StoredParameters, scale: Array) -> bool:
    """Does a DequantizeLinear have this scale, and zero points of 0?"""
    fits = scale.size == p.scale.size or 1 in (scale.size, p.scale.size)
    return not fits or (not np.any(p.zero) and bool(np.all(p.scale.ravel() == scale.ravel())))


def _rescaled(end: Node, bias: StoredParameters, scale: Array) -> Rewrite:
    """The rewrite of a node that adds a bias, to another scale of the bias and no zero point."""
    old, codes = bias.node.outputs[0], bias.node.inputs[0]
    new, scale_name = f"{old}/rescaled", f"{old}/scale"
    made = replace(
        bias.node, inputs=(codes, scale_name), outputs=(new,), attributes={**bias.node.attributes, "axis": 0}
    )
    reader = replace(end, inputs=tuple(new if name == old else name for name in end.inputs))
    ignored = "its own scale" if not np.any(bias.zero) else "its own scale, and ignores its zero point"
    text = f"takes the codes of the bias {codes} as multiples of x_scale * w_scale instead of {ignored}"
    return Rewrite(end, codes, text, {end.outputs[0]: (made, reader)}, {scale_name: scale})
