"""Fuses DequantizeLinear of narrow weights with the product that reads them into a MatMulNBits, whose weights stay
quantized.

The results are those of the two nodes: a weight is (code - zero point) * scale in float32 steps, and sums have the same
order. Weights are constants of 2 or 4 bits, in blocks along K, or with one scale or one per column; scales are float32,
positive and finite; no other node reads the weights in float. MatMul takes them on the right. Gemm takes them too, with
alpha = beta = 1, A not transposed, and C omitted or constant, one value for each column. Gemm's sums begin with C: with
more than one block of K it is not fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from qrun.ir import Array, Model, Node
from qrun.ir.types import DTYPES, NUMBERS, PACKED_INTEGERS
from qrun.ops import Arith
from qrun.ops._chains import BLOCK
from qrun.passes._draft import Draft, Refused, Rewritten
from qrun.passes._sides import is_dequantize

_SIGNED = (DTYPES[22], DTYPES[26])
_F32 = np.dtype(np.float32)
_LEAST, _BLOCK = 16, 128
"""The smallest block that MatMulNBits has; the block for weights with one scale per column."""
_MATMUL, _GEMM = "MatMul", "Gemm"
_MATRIX, _BIAS = 2, 5
"""Axes of a matrix; the index of MatMulNBits' bias."""


def multiply_codes(model: Model, keep: Iterable[str], arith: Arith) -> Rewritten:
    """The model with MatMulNBits for products of narrow weights."""
    draft = Draft(model, keep, arith)
    for node in model.nodes:
        if not node.domain and node.op_type in (_MATMUL, _GEMM):
            source = draft.producer(node.inputs[1])
            if source is not None and is_dequantize(source):
                try:
                    _put(draft, node, source)
                except Refused as reason:
                    draft.refused[node.index] = str(reason)
    return draft.finish()


def _put(draft: Draft, node: Node, source: Node) -> None:
    """Replace both nodes by one. Raises Refused with the reason if that is impossible."""
    name = node.inputs[1]
    if name in draft.preserved or len(draft.consumers(name)) > 1:
        raise Refused("its weights are read in float as well")
    codes, scale, zero, block = _weights(draft, source, _is_transposed(draft, node))
    columns, depth = codes.shape
    shape = draft.shapes.get(node.inputs[0])
    if (shape or (depth,))[-1] not in (depth, None):
        raise Refused(f"A has {(shape or ())[-1:]} columns, and the weights {depth} rows")
    if draft.arith == "ort":
        raise Refused("onnxruntime adds products with dequantized weights in its own order")
    bias = _bias(draft, node, columns)
    if bias and depth > BLOCK:
        raise Refused(f"C comes before the products of {BLOCK} rows of weights, and the bias of MatMulNBits after all")
    bits = PACKED_INTEGERS[codes.dtype]
    middle = 2 ** (bits - 1)
    offset = middle if codes.dtype in _SIGNED else 0
    points = (np.zeros(scale.shape, np.int16) if zero is None else zero.astype(np.int16)) + offset
    made = np.zeros((columns, scale.shape[1] * block), np.uint8)
    made[:, :depth] = codes.astype(np.int8) + np.int8(offset)
    packed = _pack(made, bits).reshape(columns, scale.shape[1], -1)
    given = {"codes": packed, "scales": scale, "zero_points": _pack(points.astype(np.uint8), bits)}
    if bool((points == middle).all()):
        del given["zero_points"]
    inputs = [node.inputs[0], *(draft.constant(array, f"{name}_{what}") for what, array in given.items())]
    if bias:
        inputs += [""] * (_BIAS - len(inputs)) + [bias]
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    fused = Node(node.index, node.label, "com.microsoft", "MatMulNBits", 1, tuple(inputs), node.outputs, attributes)
    draft.put(node.index, (fused, (source.index, node.index)))


def _is_transposed(draft: Draft, node: Node) -> bool:
    """Whether the right operand is [N, K]. Raises Refused for a Gemm that does more than multiply and add."""
    if node.op_type == _MATMUL:
        return False
    given: Mapping[str, Any] = node.attributes
    if given.get("alpha", 1.0) != 1 or given.get("beta", 1.0) != 1 or given.get("transA", 0):
        raise Refused("it has alpha, beta or transA")
    if len(draft.shapes.get(node.inputs[0]) or ()) != _MATRIX:
        raise Refused("it is not known that A is a matrix")
    return bool(given.get("transB", 0))


def _bias(draft: Draft, node: Node, columns: int) -> str:
    """The name of the vector that is added to the columns; "" if there is none."""
    name = node.inputs[2] if len(node.inputs) > _MATRIX else ""
    if not name:
        return ""
    value = draft.value(name)
    if value is None or value.dtype != _F32 or value.shape not in ((columns,), (1, columns)):
        raise Refused("C is not a constant for each column")
    return name if value.ndim == 1 else draft.constant(value.reshape(-1), f"{name}_row")


def _weights(draft: Draft, source: Node, turned: bool) -> tuple[Array, Array, Array | None, int]:
    """Quantized weights [N, K], scales [N, blocks], zero points of the same shape or None, and the size of a block."""
    codes, scale, *rest = (draft.value(name) if name else None for name in source.inputs)
    zero = rest[0] if rest else None
    attributes: Mapping[str, Any] = source.attributes
    if codes is None or scale is None or (zero is None and any(source.inputs[2:])):
        raise Refused("its weights, their scale or their zero point are not constant")
    if (
        codes.dtype not in PACKED_INTEGERS
        or codes.ndim != _MATRIX
        or not codes.size
        or (zero is not None and zero.dtype != codes.dtype)
    ):
        raise Refused("its weights are not a matrix of 2 or 4 bits")
    if scale.dtype != _F32 or attributes.get("output_dtype", 0) not in (0, NUMBERS[_F32]):
        raise Refused("its weights are not dequantized to float32")
    if not bool(np.all(np.isfinite(scale) & (scale > 0))):
        raise Refused("a scale of its weights is not a positive finite number")
    if zero is not None and zero.shape != scale.shape:
        raise Refused("its weights have different numbers of zero points and scales")
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    along, across = (1, 0) if turned else (0, 1)
    depth, columns = codes.shape[along], codes.shape[across]

    def shaped(array: Array) -> Array:
        if scale.ndim == _MATRIX:
            return array if turned else array.T
        return np.broadcast_to(array.reshape(-1, 1), (columns, -(-depth // size)))

    if scale.ndim == _MATRIX:
        expected = tuple(-(-depth // block) if n == along else columns for n in range(_MATRIX)) if block > 0 else ()
        if scale.shape != expected or axis % _MATRIX != along or block < _LEAST or block & (block - 1):
            raise Refused("its weights have no blocks of 16, 32, 64, ... along K")
        size = block
    else:
        if scale.size != 1 and (axis % _MATRIX != across or scale.shape != (columns,)):
            raise Refused("its weights have a scale for each row")
        size = max(_LEAST, min(_BLOCK, 1 << (depth - 1).bit_length()))
    return codes if turned else codes.T, shaped(scale), None if zero is None else shaped(zero), size


def _pack(codes: Array, bits: int) -> Array:
    """Codes in bytes, from the low bits up, along the last axis; zeros fill the last byte."""
    each = 8 // bits
    wide = np.pad(codes, [(0, 0), (0, -codes.shape[1] % each)])
    made = np.zeros((len(codes), wide.shape[1] // each), np.uint8)
    for n in range(each):
        made |= wide[:, n::each] << np.uint8(bits * n)
    return made
