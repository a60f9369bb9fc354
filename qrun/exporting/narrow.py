"""Weights of 4 bits: widened to 8 bits for the integer operators, and packed where they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np

from qrun.declare.stored import Part, constants_of, parts
from qrun.ir import Array, Model, Node

_WIDER = {np.dtype(ml_dtypes.int4): np.int8, np.dtype(ml_dtypes.uint4): np.uint8}


def is_narrow(dtype: np.dtype) -> bool:
    """Whether numbers of this type have 4 bits."""
    return dtype in _WIDER


def widen(model: Model) -> tuple[Model, Mapping[str, np.dtype]]:
    """The model with 8 bits in place of the 4-bit constants of DequantizeLinear, which gives the same reals; and the
    types of these constants by name. Blocks with scales of their own stay: they have no integer sum."""
    stored: dict[str, Part] = dict(parts(model.constants))
    found = {name: part.dtype for name, part in stored.items() if is_narrow(part.dtype)}
    kept = {value.name for value in model.outputs} | {name for node in model.nodes for name in node.captured}
    for name in kept.intersection(found):
        del found[name]
    while mixed := {
        name for node in model.nodes if not _reads_alike(node, found) for name in node.inputs if name in found
    }:
        found = {name: dtype for name, dtype in found.items() if name not in mixed}
    for name, dtype in found.items():
        stored[name] = model.constants[name].astype(_WIDER[dtype])
    return (replace(model, constants=constants_of(stored)) if found else model), found


def _reads_alike(node: Node, found: Mapping[str, np.dtype]) -> bool:
    """Whether a node works as well with the wider types: it dequantizes them with one zero point for each scale."""
    codes = [name in found for name in (*node.inputs[:1], *node.inputs[2:3]) if name]
    plain = node.op_type == "DequantizeLinear" and not node.attributes.get("block_size", 0)
    return plain and len(set(codes)) == 1


def pack(values: Array) -> Array:
    """4-bit numbers in C order, two in a byte, the first in the low half; an odd count ends with zero bits."""
    halves = np.ascontiguousarray(values).reshape(-1).astype(np.int8).view(np.uint8) & 15
    halves = np.append(halves, np.zeros(halves.size % 2, np.uint8))
    return np.asarray(halves[::2] | halves[1::2] << 4)
