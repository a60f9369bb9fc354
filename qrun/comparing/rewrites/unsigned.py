"""int8 activations become uint8 where one node reads them, before onnxruntime on x86 CPUs looks for groups. That adds
128 to the codes and to the zero point, and changes no result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qrun.comparing.rewrites._rewrite import Rewrite, StoredParameters, number, only_reader, parameters, readers
from qrun.ir import Model
from qrun.ops import unsigned


def with_unsigned_activations(model: Model) -> Model:
    for found in list(_unsigned_pairs(model)):
        model = found.apply(model)
    return model


def _unsigned_pairs(model: Model) -> Iterator[Rewrite]:
    for node in model.nodes:
        q = parameters(model, node, "QuantizeLinear")
        dq = parameters(model, only_reader(model, node)) if q is not None else None
        if q is None or q.zero is None or dq is None or not _has_int8_zero(q) or not _has_int8_zero(dq):
            continue
        made = dq.node.outputs[0]
        uses = len(readers(model, dq.node)) + sum(value.name == made for value in model.outputs)
        if uses > 1 or number(node, "output_dtype") or node.inputs[0] in model.constants:
            continue
        zero = f"{node.label}/unsigned zero point"
        nodes = {n.outputs[0]: (replace(n, inputs=(*n.inputs[:2], zero)),) for n in (node, dq.node)}
        text = f"makes the codes of {node.label} uint8"
        yield Rewrite(node, node.outputs[0], text, nodes, {zero: unsigned(q.zero)})


def _has_int8_zero(p: StoredParameters) -> bool:
    return p.zero is not None and p.zero.size == 1 and p.zero.dtype == np.int8
