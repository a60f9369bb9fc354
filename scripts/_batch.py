"""A network of static batch 1, rewritten for a batch of N."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]


def batched(source: Path, target: Path, count: int) -> None:
    """Write `source` with `count` images per run: inputs, outputs and the Reshape targets that state a batch of 1."""
    model = onnx.load(source)
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for value in (*graph.input, *graph.output):
        if value.name not in constants and value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_value = count
    del graph.value_info[:]
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[0] in constants or node.input[1] not in constants:
            continue
        shape = numpy_helper.to_array(constants[node.input[1]])
        if shape.size and shape[0] == 1:
            name = f"{node.input[1]}_batch"
            if name not in constants:
                tensor = numpy_helper.from_array(np.concatenate([[0], shape[1:]]).astype(np.int64), name)
                graph.initializer.append(tensor)
                constants[name] = tensor
            node.input[1] = name
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    onnx.save(model, target)


def images(x: Array, count: int) -> Array:
    """`count` different images made from one, [1,...] -> [count,...]."""
    return np.concatenate([np.roll(x, 7 * i, axis=-1) for i in range(count)])
