"""QMoE of com.microsoft: mixtures of experts whose weights are codes of 2, 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._blockweights import BlockWeights, dequantized_product, unpack
from qrun.ops._body import node
from qrun.ops._experts import (
    ExpertAttributes,
    check_biases,
    chosen,
    expert_macs,
    gated,
    mixture,
    normalized,
    routes_of,
    tokens_of,
)
from qrun.ops._op import Array, Context, bad_shape, contrib_op, misfit, one_of, refuse, require, with_shape
from qrun.ops._signature import FLOATS, InputRecord

_BITS = (2, 4, 8)
_NO_SHARE = 1e-8
"""onnxruntime leaves out experts of shares up to this, in MoE those up to 0."""
_OF_OTHER_TYPES = (
    "fc1_global_scale",
    "fc2_global_scale",
    "fc1_act_scale",
    "fc2_act_scale",
    "fc1_act_block_scale",
    "fc2_act_block_scale",
)


@frozen
class CodedExperts(InputRecord):
    input: Array
    router_probs: Array
    fc1_experts_weights: Array
    fc1_scales: Array | None
    fc1_experts_bias: Array | None
    fc2_experts_weights: Array
    fc2_scales: Array | None = None
    fc2_experts_bias: Array | None = None
    fc3_experts_weights: Array | None = None
    fc3_scales: Array | None = None
    fc3_experts_bias: Array | None = None
    fc1_zero_points: Array | None = None
    fc2_zero_points: Array | None = None
    fc3_zero_points: Array | None = None
    router_weights: Array | None = None
    fc1_global_scale: Array | None = None
    fc2_global_scale: Array | None = None
    fc1_act_scale: Array | None = None
    fc2_act_scale: Array | None = None
    fc1_act_block_scale: Array | None = None
    fc2_act_block_scale: Array | None = None


@contrib_op(
    "QMoE",
    cost=partial(expert_macs, places=(2, 8)),
    types={
        "T": (FLOATS, "input router_probs fc1_experts_bias fc2_experts_bias fc3_experts_bias router_weights"),
        "T1": (
            "uint8",
            "fc1_experts_weights fc2_experts_weights fc3_experts_weights"
            " fc1_zero_points fc2_zero_points fc3_zero_points",
        ),
        "T2": (FLOATS, "fc1_scales fc2_scales fc3_scales fc1_act_block_scale fc2_act_block_scale"),
        "T4": ("float", "fc1_global_scale fc2_global_scale fc1_act_scale fc2_act_scale"),
    },
)
def qmoe(
    given: CodedExperts,
    *,
    accuracy_level: int = 0,
    block_size: int = 0,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None,
    fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None,
    quant_type: str = "int",
    weights_prepacked: int = -1,
    attributes: ExpertAttributes,
    ctx: Context,
) -> Array:
    """MoE with weights of 2, 4 or 8 bits: fc1, fc2 and fc3_experts_weights uint8, codes packed along the last axis.

    The first code is in the low bits. fc1_scales [E,made], or [E,made,width / block_size] with block_size, which
    divides the width; fc1_zero_points packed as the weights, [E,made], or with block_size [E,made,blocks]; without them
    2**(bits - 1); the like of fc2 and fc3. fc*_expert_weight_bits, if given, stand for expert_weight_bits.

        w[n,k] = (code - zero_point) * scale              in float32 steps, as MatMulNBits

    Shares are Softmax of the k greatest of router_probs; or router_weights [tokens,E] of these experts, by their sum
    with normalize_routing_weights unless it is 0. The rest is as in MoE. accuracy_level allows a runtime to round
    activations; exact arithmetic does not. ``ort`` multiplies int8 where onnxruntime does: with block_size, of 8 bits,
    of 4 with accuracy_level 4, of 2 in blocks of 32, 64 and 128; and leaves out shares up to 1e-8, and NaN.
    Raises OperatorError for shapes and attributes that do not fit, for quant_type but int and for prepacked weights.
    """
    _check_kind(given, quant_type, weights_prepacked, block_size)
    bits = [
        expert_weight_bits if own is None else own
        for own in (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)
    ]
    experts = given.fc1_experts_weights.shape[0] if given.fc1_experts_weights.ndim == 3 else 0
    rows = tokens_of(given.input, given.router_probs, experts, attributes)
    gate = gated(attributes, given.fc3_experts_weights is not None)
    weights = _weights_of(given, rows, attributes, bits, block_size)
    biases = (given.fc1_experts_bias, given.fc2_experts_bias, given.fc3_experts_bias)
    check_biases(biases, experts, [w.codes.shape[1] if w else 0 for w in weights])

    def project(number: int, expert: int, x: Array) -> Array:
        own, bias = weights[number - 1], biases[number - 1]
        assert own is not None
        level = (accuracy_level if own.bits == 4 else 4) if block_size else 0
        return dequantized_product(x, own.part(expert), None if bias is None else bias[expert], level, ctx)

    own = chosen(given.router_probs, attributes.k)
    routes = routes_of(own, _shares(given, own, attributes, ctx), _NO_SHARE, ctx)
    return mixture(rows, routes, project, attributes, gate, ctx).reshape(given.input.shape)


def _shares(given: CodedExperts, experts: Array, attributes: ExpertAttributes, ctx: Context) -> Array:
    if given.router_weights is None:
        return np.asarray(node("Softmax", [np.take_along_axis(given.router_probs, experts, 1)], ctx))
    with_shape(given.router_weights, "router_weights", given.router_probs.shape)
    shares = np.take_along_axis(given.router_weights, experts, 1)
    return normalized(shares, ctx) if attributes.normalize_routing_weights else shares


def _weights_of(
    given: CodedExperts, rows: Array, attributes: ExpertAttributes, bits: Sequence[int], block_size: int
) -> list[BlockWeights | None]:
    """The projections of all experts, checked; None for fc3 where there is none.
    Without block_size the width is one block."""
    for number, width in enumerate(bits, 1):
        one_of(f"fc{number}_expert_weight_bits", width, _BITS)
    codes = given.fc2_experts_weights
    if codes.ndim != 3 or given.fc1_experts_weights.ndim != 3:
        wrong = "fc2_experts_weights" if codes.ndim != 3 else "fc1_experts_weights"
        raise bad_shape(wrong, "[experts,made,bytes of a row]", codes if codes.ndim != 3 else given.fc1_experts_weights)
    experts, width, inner = len(given.fc1_experts_weights), rows.shape[1], codes.shape[2] * 8 // bits[1]
    sizes = (inner * attributes.parts, width), (width, inner), (inner, width)
    found: list[BlockWeights | None] = []
    for number, (own, (made, depth)) in enumerate(zip(bits, sizes, strict=True), 1):
        parts = [getattr(given, f"fc{number}_{what}") for what in ("experts_weights", "scales", "zero_points")]
        if parts[0] is None:
            found.append(None)
        else:
            form = (experts, made, depth, own, block_size)
            found.append(_projection(f"fc{number}", parts, form))
    return found


def _projection(name: str, parts: Sequence[Array | None], form: tuple[int, int, int, int, int]) -> BlockWeights:
    """The weights of a projection, checked. parts: codes, scales, zero points.
    form: experts, made, width, bits, block_size."""
    codes, scales, zeros = parts
    experts, made, depth, bits, block_size = form
    assert codes is not None
    if depth * bits % 8 or (block_size and depth % block_size):
        expected = "a width of whole bytes and blocks"
        raise misfit(f"{name} has rows of {depth} codes", f"{name}_experts_weights", expected, codes)
    with_shape(codes, f"{name}_experts_weights", (experts, made, depth * bits // 8))
    if scales is None:
        expected = "a number for each row of the weights, or for each block"
        raise refuse(f"{name}_scales is missing", f"{name}_scales", expected, "nothing", code="QR205")
    blocks = depth // block_size if block_size else 1
    with_shape(scales, f"{name}_scales", (experts, made, blocks) if block_size else (experts, made))
    if zeros is not None:
        shape = (experts, made, -(-blocks * bits // 8)) if block_size else (experts, -(-made * bits // 8))
        with_shape(zeros, f"{name}_zero_points", shape)
        if not block_size:
            zeros = unpack(zeros, bits)[:, :made, None]
    block = block_size or max(depth, 1)
    return BlockWeights(codes, scales.reshape(experts, made, blocks), zeros, None, depth, bits, block)


def _check_kind(given: CodedExperts, quant_type: str, weights_prepacked: int, block_size: int) -> None:
    """Refuse what has no kernel on a CPU."""
    one_of("quant_type", quant_type, ("int",))
    require(
        "weights_prepacked", weights_prepacked in (-1, 0), "-1 or 0: 1 is the layout of one device", weights_prepacked
    )
    fits = block_size == 0 or (block_size >= 16 and not block_size & (block_size - 1))
    require("block_size", fits, "0, or a power of two, 16 or more", block_size)
    for name in _OF_OTHER_TYPES:
        if getattr(given, name) is not None:
            expected = "nothing: it belongs to other quant_types"
            raise refuse(f"{name} is given", name, expected, "a tensor", code="QR205")
