"""A float tensor times stored weights of 8 bits or fewer becomes MatMulNBits, which rounds the tensor to int8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qrun.comparing.rewrites._rewrite import (
    Rewrite,
    StoredParameters,
    number,
    only_reader,
    parameters,
    product_end,
    readers,
)
from qrun.comparing.rewrites.moves import MOVES
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS
from qrun.ops._quantize import limits

_CODES = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
_BLOCK = 32
"""Elements of a row that share a scale in the MatMulNBits that stands for weights without blocks."""
_SMALLEST = 16


def weight_only_rewrites(model: Model) -> Iterator[Rewrite]:
    """A float tensor times stored weights of 8 bits or fewer becomes MatMulNBits, which rounds the tensor to int8."""
    for node in model.nodes:
        multiplies = bool(node.outputs) and _multiplies(node)
        w = parameters(model, model.producers.get(node.inputs[1])) if multiplies else None
        codes = model.constants.get(w.node.inputs[0]) if w is not None else None
        if w is None or codes is None or codes.ndim != 2 or codes.dtype.name not in _CODES:
            continue
        if _is_of_bytes(model, node.inputs[0]) or w.scale.dtype.name not in ("float32", "float16"):
            continue
        if only_reader(model, w.node) is None or node.inputs[0] in model.constants or _is_before_codes(model, node):
            continue
        block = _block(w, codes)
        if block is not None:
            yield _in_blocks(node, w, codes, block)


def _is_of_bytes(model: Model, name: str) -> bool:
    """Is it dequantized from codes of 8 bits, or from such that an operator only moves?"""
    maker = model.producers.get(name)
    while maker is not None and maker.op_type in MOVES and maker.inputs:
        maker = model.producers.get(maker.inputs[0])
    if maker is None or maker.op_type != "DequantizeLinear":
        return False
    p = parameters(model, maker)
    return p is None or p.zero is None or p.zero.dtype.itemsize == 1


def _is_before_codes(model: Model, node: Node) -> bool:
    """Does onnxruntime take a product for one whose result is quantized, and leave its weights alone?

    So it is behind Relu or Clip too, and where others read the result as well. It has no integer product for 16 bits:
    of these, it takes only the results that others read too, or that Relu or Clip changes.
    """
    end = product_end(model, node)
    while (reader := only_reader(model, end)) is not None and reader.op_type in (*MOVES, "Identity") and reader.outputs:
        end = reader
    if reader is None:
        return any(n.op_type == "QuantizeLinear" for n in readers(model, end))
    last = only_reader(model, reader) if reader.op_type in ("Relu", "Clip") else reader
    p = parameters(model, last, "QuantizeLinear")
    if p is None or p.zero is None or p.zero.dtype.itemsize == 1:
        return last is not None and last.op_type == "QuantizeLinear"
    return reader.op_type == "Clip" or (last is not reader and p.zero.ravel()[0] != limits(p.zero.dtype)[0])


def _multiplies(node: Node) -> bool:
    """Is it a product without factors or transposed operands?"""
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    at_once = all(number(node, name, value) == value for name, value in plain.items())
    return node.op_type in ("MatMul", "Gemm") and not node.domain and len(node.inputs) > 1 and at_once


def _block(w: StoredParameters, codes: Array) -> int | None:
    """Elements of a column that share a scale; None where onnxruntime makes no MatMulNBits of the weights."""
    axis, block = w.node.attributes.get("axis", 1), w.node.attributes.get("block_size", 0)
    if not isinstance(axis, int) or not isinstance(block, int):
        return None
    if block:
        power = block >= _SMALLEST and block & (block - 1) == 0
        return block if power and axis % 2 == 0 and w.scale.ndim == 2 else None
    return _BLOCK if w.is_scalar or (w.scale.ndim == 1 and axis % 2 == 1) else None


def _in_blocks(node: Node, w: StoredParameters, codes: Array, block: int) -> Rewrite:
    """MatMulNBits with accuracy_level 4, whose B has a row for each column of the weights."""
    depth, columns = codes.shape
    count = -(-depth // block)
    low, high = limits(codes.dtype)
    bits = int(high - low).bit_length()
    zero = np.zeros((), np.int64) if w.zero is None else w.zero.astype(np.int64)
    scales, zeros = (_per_block(each, count, columns) for each in (w.scale, zero - int(low)))
    full = np.full((columns, count * block), -int(low), np.int64)
    full[:, :depth] = codes.T.astype(np.int64) - int(low)
    arrays = (_packed(full, bits).reshape(columns, count, -1), scales.ravel(), _packed(zeros, bits).ravel())
    names = tuple(f"{node.label}/{part}" for part in ("B", "scales", "zero_points"))
    inputs = (node.inputs[0], *names, *(("", node.inputs[2]) if len(node.inputs) > 2 else ()))
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": 4}
    made = replace(node, domain=MS, op_type="MatMulNBits", version=1, inputs=inputs, attributes=attributes)
    text = (
        f"makes MatMulNBits with accuracy_level 4 of {w.node.label} and {node.label}, which rounds blocks of {block} "
        f"elements of {node.inputs[0]} to int8"
    )
    constants = dict(zip(names, arrays, strict=True))
    return Rewrite(node, node.inputs[0], text, {node.outputs[0]: (made,)}, constants)


def _per_block(values: Array, count: int, columns: int) -> Array:
    """A scale, or one for each column or block of a column, as [columns, blocks]."""
    if values.size == 1:
        return np.full((columns, count), values.reshape(()))
    return np.ascontiguousarray(np.broadcast_to(values.reshape(-1, columns).T, (columns, count)))


def _packed(codes: Array, bits: int) -> Array:
    """Codes of some bits in bytes along the last axis, the first in the lowest bits."""
    each = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    parts = padded.reshape(*padded.shape[:-1], -1, each) << (np.arange(each) * bits)
    return np.asarray(parts.sum(-1), np.uint8)


_UNIT = 2.0**-24


def sum_bound(nodes: Sequence[Node], tensor: str, values: Mapping[str, Array]) -> Array | None:
    """How far the sums of a MatMulNBits that makes this tensor may be from each other, in whatever order they are
    added; None if none makes it."""
    node = next((n for n in nodes if n.op_type == "MatMulNBits" and tensor in n.outputs), None)
    if node is None or node.inputs[0] not in values or values[node.inputs[0]].dtype != np.float32:
        return None
    bits, block, depth, columns = (node.attributes[key] for key in ("bits", "block_size", "K", "N"))
    assert isinstance(bits, int)
    assert isinstance(block, int)
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    packed, scales, zeros = (values[name] for name in node.inputs[1:4])
    count = packed.shape[1]
    codes = _unpacked(packed.reshape(columns, -1), bits).reshape(columns, count, block)
    offset = _unpacked(zeros.reshape(columns, -1), bits)[:, :count, None]
    weights = np.abs(codes - offset) * np.abs(scales.astype(np.float64)).reshape(columns, count, 1)
    x = np.abs(values[node.inputs[0]].astype(np.float64))
    sizes = x @ weights.reshape(columns, -1)[:, :depth].T
    bias = values.get(node.inputs[5]) if len(node.inputs) > 5 else None
    sizes = sizes * 2 if bias is None else sizes * 2 + np.abs(bias)
    return np.asarray(4 * (depth + 8) * _UNIT * sizes)


def _unpacked(packed: Array, bits: int) -> Array:
    """The codes in bytes along the last axis, as int64."""
    parts = packed.astype(np.int64)[..., None] >> (np.arange(8 // bits) * bits)
    return np.asarray((parts & ((1 << bits) - 1)).reshape(*packed.shape[:-1], -1))
