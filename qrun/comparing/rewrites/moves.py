"""The pair around dequantized int32 codes is repeated behind an operator that only moves elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qrun.comparing.rewrites._rewrite import Rewrite, StoredParameters, parameters, readers
from qrun.ir import Model, Node

MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool")
"""Operators behind which onnxruntime repeats the DequantizeLinear before them, with a QuantizeLinear."""
_MOVED = "/moved"


def moved_int32(model: Model) -> Iterator[tuple[StoredParameters, Node]]:
    """Each DequantizeLinear of int32 codes with one scale, and an operator that only moves what it makes."""
    for node in model.nodes:
        p = parameters(model, node)
        codes = node.inputs[0] if p is not None else ""
        stored = model.constants.get(codes)
        if p is None or not p.is_scalar or (stored is not None and stored.dtype != np.int32):
            continue
        for reader in readers(model, node):
            folded = stored is not None and reader.op_type != "Transpose"
            if reader.op_type in MOVES and reader.outputs and not folded and reader.inputs[0] == node.outputs[0]:
                yield p, reader


def int32_rewrites(model: Model) -> Iterator[Rewrite]:
    """Behind an operator that moves dequantized int32 codes without a zero point, all is rounded to uint8."""
    for p, mover in moved_int32(model):
        value, codes = model.types.get(p.node.inputs[0]), model.constants.get(p.node.inputs[0])
        dtype = codes.dtype if codes is not None else value.dtype if value is not None else None
        if p.zero is not None or dtype != np.int32 or mover.outputs[0].endswith(_MOVED):
            continue
        start, made = mover.outputs[0], mover.outputs[0] + _MOVED
        quantize = Node(
            mover.index, f"{start}/q", "", "QuantizeLinear", 13, (made, p.node.inputs[1]), (f"{start}/codes",), {}
        )
        inputs = (f"{start}/codes", p.node.inputs[1])
        dequantize = Node(mover.index, f"{start}/dq", "", "DequantizeLinear", 13, inputs, (start,), {})
        text = f"rounds the result of {mover.label} to uint8, with the scale of the int32 codes {p.node.inputs[0]}"
        yield Rewrite(mover, start, text, {start: (replace(mover, outputs=(made,)), quantize, dequantize)}, {})
