"""The tensors of a model that a dump may hold: qrun's values, their scales, and which of them are the same values."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from qrun.comparing.mapping.fit import ModelTensor
from qrun.comparing.matching.operators import is_dequantize
from qrun.comparing.meanings import TensorScales
from qrun.comparing.sides import Results, Values
from qrun.declare import grouped
from qrun.ir import Array, Model
from qrun.ir.compound import is_compound

_QUANTIZED = "_quantized"
"""The end of the names of codes in models with quantized operators that onnxruntime writes."""
_REARRANGES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose")
"""Operators that give every element of their first input another place, or none."""


def targets(model: Model, feeds: Values, results: Results) -> dict[str, ModelTensor]:
    """The tensors that a dump may hold, by name, in graph order: inputs and results of numbers."""
    scales = TensorScales(model, feeds)
    known: dict[str, Array] = {**feeds, **{name: array for name, array in results.items() if array is not None}}
    order = {name: place for place, name in enumerate(model.producers)}
    found = {}
    for name in sorted(known, key=lambda name: order.get(name, -1)):
        array = known[name]
        if not is_compound(array) and array.dtype.kind in "iuf" and array.size:
            affine = scales.affine(name, array.dtype)
            found[name] = ModelTensor(name, array, affine.scale, affine.zero, _root(model, name, known))
    return found


def _root(model: Model, name: str, known: Mapping[str, Array]) -> str:
    """The first tensor with the same values from which a tensor is computed. Codes that are dequantized, rearranged or
    scaled, and quantized again may be the same codes."""
    root, requantized = name, False
    while (node := model.producers.get(name)) is not None and node.inputs and not node.domain:
        requantized |= node.op_type == "QuantizeLinear"
        follows = (*_REARRANGES, "QuantizeLinear", *(("Mul", "Div") if requantized else ()))
        if node.op_type not in follows and not is_dequantize(node):
            break
        name = node.inputs[0]
        if name in known and (not requantized or _same_values(known[name], known[root])):
            root = name
        elif not requantized:
            break
    return root


def _same_values(a: Array, b: Array) -> bool:
    """Do two tensors hold the same values, in whatever order?"""
    return a.dtype == b.dtype and np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None))


def plain_name(name: str) -> str:
    """A name as tools write it in files: without ``:0``, every other character but letters and digits one ``_``."""
    return re.sub(r"[^0-9a-zA-Z]+", "_", re.sub(r":\d+$", "", name)).strip("_").lower()


def aliases(model: Model, known: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Names that a device may give to the model's tensors: their own, and those of the tensors that they quantize.

    A name may be that of two: an input, and its codes.
    """
    pairs = [(name, name) for name in known]
    for name in known:
        node = model.producers.get(name)
        if node is not None and node.op_type == "QuantizeLinear":
            pairs.append((node.inputs[0], name))
        elif name.endswith(_QUANTIZED):
            pairs.append((name.removesuffix(_QUANTIZED), name))
    return {alias: tuple(dict.fromkeys(names)) for alias, names in grouped(pairs).items()}


def named(dump: Mapping[str, object], names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Names of a dump's tensors, and the model's tensors of the same name, or of the same plain name if only one has it
    on each side. Numbers are no names: every tool counts in its own way."""
    plain_dump = grouped((plain_name(name), name) for name in dump)
    plain_model = grouped((plain_name(name), name) for name in names)
    found = {}
    for plain, stored in plain_dump.items():
        others = plain_model.get(plain, [])
        for name in stored if plain and not plain.isdigit() else ():
            if name in names:
                found[name] = names[name]
            elif len(stored) == len(others) == 1:
                found[name] = names[others[0]]
    return found
