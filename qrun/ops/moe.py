"""Mixtures of experts: MoE of com.microsoft, and QMoE, whose weights have 2, 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._blockweights import BlockWeights, dequantized_product, unpack
from qrun.ops._body import node
from qrun.ops._chains import chained_products
from qrun.ops._float import single
from qrun.ops._op import Array, Context, Shape, bad_shape, contrib_op, misfit, one_of, refuse, require, with_shape
from qrun.ops._signature import FLOATS, Attributes, InputRecord

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
_FUSED = "swiglu"
"""The activation for which one projection may compute both the gate and the linear part."""

Project = Callable[[int, int, Array], Array]
"""Applies projection 1, 2 or 3 of an expert to rows: (projection, expert, rows [count,width])."""


@frozen
class ExpertAttributes(Attributes):
    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    activation_type: str = "relu"
    k: int = 1
    normalize_routing_weights: int = 0
    swiglu_fusion: int = 0
    swiglu_limit: float | None = None
    use_sparse_mixer: int = 0

    @property
    def parts(self) -> int:
        """The output width of fc1 as a multiple of the input width of fc2."""
        return 2 if self.activation_type == _FUSED and self.swiglu_fusion else 1


@frozen
class Routes:
    """The chosen experts of each token [tokens,k], and their shares [tokens,k], of the tokens' type; an expert of share
    0 does not run."""

    experts: Array
    shares: Array


def expert_macs(
    inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any], places: tuple[int, int]
) -> int:
    """Multiply-adds of the chosen experts; places: the input numbers of the weights of fc1 and fc3,
    whose axis 0 counts experts and axis 1 the outputs of the projection."""
    fc1, fc3 = (inputs[index] if index < len(inputs) else () for index in places)
    tokens, width = int(np.prod(inputs[0][:-1], dtype=np.int64)), inputs[0][-1]
    fused = attributes.get("activation_type") == "swiglu" and attributes.get("swiglu_fusion")
    inner = fc1[1] // 2 if fused else fc1[1]
    return tokens * int(attributes.get("k", 1)) * width * (fc1[1] + inner + (inner if fc3 else 0))


def tokens_of(x: Array, router_probs: Array, experts: int, attributes: ExpertAttributes) -> Array:
    """The rows [tokens,width] of the input. Refuses attributes, and router_probs that are not [tokens,experts]."""
    if x.ndim not in (2, 3):
        raise bad_shape("input", "[tokens,width] or [batch,length,width]", x)
    rows = x.reshape(int(np.prod(x.shape[:-1])), x.shape[-1])
    with_shape(router_probs, "router_probs", (len(rows), experts))
    require("k", 1 <= attributes.k <= experts, f"1 to {experts}, the experts", attributes.k)
    one_of("activation_type", attributes.activation_type, _ACTIVATIONS)
    one_of("swiglu_fusion", attributes.swiglu_fusion, (0, 1, 2))
    limit = attributes.swiglu_limit
    require("swiglu_limit", limit is None or limit >= 0, "0 or more", limit)
    if attributes.use_sparse_mixer:
        why = "no specification defines the sparse mixer, and onnxruntime's CPU ignores it."
        fix = "set it to 0 for what onnxruntime computes on a CPU"
        raise refuse("use_sparse_mixer is 1", "use_sparse_mixer", "0", "1", why=why, fix=fix, code="QR204")
    return rows


def has_gate(attributes: ExpertAttributes, gate_given: bool) -> bool:
    """Whether a third projection multiplies the activated values; refuses a missing one, or a surplus one."""
    needed = attributes.activation_type == _FUSED and not attributes.swiglu_fusion
    if needed and not gate_given:
        expected = "fc3_experts_weights, or swiglu_fusion = 1 or 2"
        raise refuse("swiglu has no third projection", "fc3_experts_weights", expected, "nothing", code="QR205")
    if gate_given and attributes.parts == 2:
        expected = "nothing, as swiglu_fusion has it in fc1_experts_weights"
        raise refuse("there are two third projections", "fc3_experts_weights", expected, "a tensor", code="QR205")
    return gate_given


def choose_experts(router_probs: Array, k: int) -> Array:
    """The experts with the k greatest numbers, int64 [tokens,k]: the greatest first, of equal ones the last, NaN before
    all."""
    tokens, experts = router_probs.shape
    turned = np.asarray(router_probs, np.float64)[:, ::-1]
    order = np.argsort(np.where(np.isnan(turned), -np.inf, -turned), axis=1, kind="stable")
    unknown = np.argsort(~np.isnan(np.take_along_axis(turned, order, 1)), axis=1, kind="stable")
    return np.asarray(experts - 1 - np.take_along_axis(order, unknown, 1)[:, :k]).reshape(tokens, k)


def normalize_shares(shares: Array, ctx: Context) -> Array:
    """Shares divided by their sum, as ReduceSum and Div; shares whose sum is 0 are unchanged."""
    total = node("ReduceSum", [shares, np.array([1])], ctx)
    return np.asarray(np.where(total == 0, shares, node("Div", [shares, total], ctx)))


def routes_of(experts: Array, shares: Array, least: float, ctx: Context) -> Routes:
    """Routes with these shares; in ``ort`` arithmetic those up to `least`, and NaN, become 0."""
    kept = shares > least if ctx.arith == "ort" else np.ones(shares.shape, bool)
    return Routes(experts, np.where(kept, shares, np.zeros((), shares.dtype)))


def mixture(
    rows: Array, routes: Routes, project: Project, attributes: ExpertAttributes, gate: bool, ctx: Context
) -> Array:
    """[tokens,width]: a token's shares times its experts' results, as MatMul of [1,k] and [k,width].

    An expert is fc2 of the activation of fc1, times fc3 if there is a gate.
    """
    (tokens, k), width = routes.experts.shape, rows.shape[1]
    ctx.claim((tokens, k, width), rows.itemsize + 16, "what the experts make")
    made = np.zeros((tokens, k, width), rows.dtype)
    for number in np.unique(routes.experts[routes.shares != 0]).tolist():
        token, slot = np.nonzero((routes.experts == number) & (routes.shares != 0))
        own = rows[token]
        third = project(3, number, own) if gate else None
        made[token, slot] = project(2, number, activate(project(1, number, own), third, attributes, ctx))
    return chained_products(routes.shares[:, None], made, rows.dtype)[:, 0]


def activate(first: Array, third: Array | None, attributes: ExpertAttributes, ctx: Context) -> Array:
    """The activation as nodes of ai.onnx, each rounded to the type: Relu, Gelu (tanh), Swish or none; then Mul if
    `third` is given. swiglu: Clip both to the limit (the first from above only), Swish with alpha, Add of beta, Mul."""
    kind = attributes.activation_type
    if kind == _FUSED:
        return _swiglu(*_halves(first, third, attributes.swiglu_fusion), attributes, ctx)
    steps: dict[str, tuple[str, dict[str, Any]]] = {
        "relu": ("Relu", {}),
        "gelu": ("Gelu", {"approximate": "tanh"}),
        "silu": ("Swish", {}),
    }
    name, options = steps.get(kind, ("Identity", {}))
    made = np.asarray(node(name, [first], ctx, **options))
    return made if third is None else np.asarray(node("Mul", [made, third], ctx))


def _halves(first: Array, third: Array | None, fusion: int) -> tuple[Array, Array]:
    """Gate and linear part: two matrices, or one with both interleaved (fusion 1) or side by side (2)."""
    if third is not None:
        return first, third
    width = first.shape[1] // 2
    return (first[:, ::2], first[:, 1::2]) if fusion == 1 else (first[:, :width], first[:, width:])


def _swiglu(gate: Array, linear: Array, attributes: ExpertAttributes, ctx: Context) -> Array:
    """The SwiGLU activation: gate * sigmoid(alpha * gate) * (linear + beta), clipped first if there is a limit."""
    alpha, limit = attributes.activation_alpha, attributes.swiglu_limit
    if limit is not None:
        most = np.asarray(single(limit), gate.dtype)
        gate = node("Clip", [gate, None, most], ctx)
        linear = node("Clip", [linear, -most, most], ctx)
    beta = np.asarray(single(attributes.activation_beta), gate.dtype)
    shifted = node("Add", [linear, beta], ctx)
    return np.asarray(node("Mul", [node("Swish", [gate], ctx, alpha=alpha), shifted], ctx))


def project_rows(rows: Array, weights: Array, bias: Array | None, ctx: Context) -> Array:
    """rows @ weights' as MatMul, then + bias. weights [outputs,width]."""
    ctx.claim((len(rows), len(weights)), 32, "a projection")
    return chained_products(rows, weights.T, rows.dtype, bias=bias)


def check_biases(biases: Sequence[Array | None], experts: int, widths: Sequence[int]) -> None:
    """Refuse fc1_, fc2_ and fc3_experts_bias that are not [experts, output width of the projection]."""
    for number, (bias, width) in enumerate(zip(biases, widths, strict=True), 1):
        with_shape(bias, f"fc{number}_experts_bias", (experts, width))


@contrib_op(
    "MoE",
    cost=partial(expert_macs, places=(2, 6)),
    types={
        "T": (
            FLOATS,
            "input router_probs fc1_experts_weights fc1_experts_bias fc2_experts_weights fc2_experts_bias"
            " fc3_experts_weights fc3_experts_bias",
        )
    },
)
def moe(
    input: Array,
    router_probs: Array,
    fc1_experts_weights: Array,
    fc1_experts_bias: Array | None,
    fc2_experts_weights: Array,
    fc2_experts_bias: Array | None = None,
    fc3_experts_weights: Array | None = None,
    fc3_experts_bias: Array | None = None,
    *,
    attributes: ExpertAttributes,
    ctx: Context,
) -> Array:
    """Mix the results of k of E experts for each token; input and output are [tokens,H] or [batch,length,H].

    router_probs [tokens,E]: the k greatest choose the experts, of equal ones the last; shares are Softmax of all E, by
    their sum with normalize_routing_weights. fc1_experts_weights [E,I,H], or [E,2I,H] of swiglu with swiglu_fusion:
    gate and linear part in turns (1), or one after the other (2); fc2_experts_weights [E,H,I];
    fc3_experts_weights [E,I,H], the linear part.

        a = activation(x @ fc1' + bias)    relu, gelu (tanh), silu, identity; times (x @ fc3' + bias) if there is fc3
        a = G * sigmoid(alpha * G) * (L + beta)              swiglu: G <= swiglu_limit, |L| <= swiglu_limit
        y = sum of share * (a @ fc2' + bias)                 as MatMul of [1,k] and [k,H]

    Products are computed as in MatMul, then a bias is added; the rest are the nodes Softmax, ReduceSum, Div, Relu,
    Gelu, Swish, Clip, Add and Mul of ai.onnx. Experts of share 0 are left out, so that their infinities do not count.
    ``ort`` also leaves out NaN shares. Raises OperatorError for shapes and attributes that do not fit, and for
    use_sparse_mixer.
    """
    if fc1_experts_weights.ndim != 3:
        raise bad_shape("fc1_experts_weights", "[experts,made,width]", fc1_experts_weights)
    experts, made, _ = fc1_experts_weights.shape
    rows = tokens_of(input, router_probs, experts, attributes)
    gate, width, inner = has_gate(attributes, fc3_experts_weights is not None), rows.shape[1], made // attributes.parts
    shapes = (experts, inner * attributes.parts, width), (experts, width, inner), (experts, inner, width)
    weights = (fc1_experts_weights, fc2_experts_weights, fc3_experts_weights)
    for number, (given, shape) in enumerate(zip(weights, shapes, strict=True), 1):
        with_shape(given, f"fc{number}_experts_weights", shape)
    biases = (fc1_experts_bias, fc2_experts_bias, fc3_experts_bias)
    check_biases(biases, experts, [shape[1] for shape in shapes])

    def project(number: int, expert: int, x: Array) -> Array:
        matrices, bias = weights[number - 1], biases[number - 1]
        assert matrices is not None
        return project_rows(x, matrices[expert], None if bias is None else bias[expert], ctx)

    own = choose_experts(router_probs, attributes.k)
    shares = np.take_along_axis(np.asarray(node("Softmax", [router_probs], ctx)), own, 1)
    shares = normalize_shares(shares, ctx) if attributes.normalize_routing_weights else shares
    y = mixture(rows, routes_of(own, shares, 0.0, ctx), project, attributes, gate, ctx)
    return y.reshape(input.shape)


_BITS = (2, 4, 8)
_NO_SHARE = 1e-8
"""onnxruntime leaves out experts of shares up to this; in MoE, of shares up to 0."""
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
    """MoE with weights of 2, 4 or 8 bits, packed in uint8 along the last axis of fc1, fc2 and fc3_experts_weights.

    The first code is in the low bits. fc1_scales are [E,made], or with block_size, which divides the width,
    [E,made,width / block_size]. fc1_zero_points are packed like the weights, [E,made], or with block_size
    [E,made,blocks]; the default is 2**(bits - 1). fc2 and fc3 likewise. fc*_expert_weight_bits override
    expert_weight_bits.

        w[n,k] = (code - zero_point) * scale              in float32 steps, as MatMulNBits

    The mixing weights are Softmax of the k largest router_probs, or router_weights [tokens,E] of these experts, which
    normalize_routing_weights divides by their sum unless that is 0. The rest is as in MoE. accuracy_level allows a
    runtime to round activations; exact arithmetic does not round them. ``ort`` multiplies int8 where onnxruntime does:
    with block_size, for 8 bits, for 4 bits with accuracy_level 4, and for 2 bits in blocks of 32, 64 and 128. It skips
    experts whose mixing weight is NaN or at most 1e-8.
    Raises OperatorError for shapes and attributes that do not fit, for quant_type but int and for prepacked weights.
    """
    _check_kind(given, quant_type, weights_prepacked, block_size)
    bits = [
        expert_weight_bits if own is None else own
        for own in (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)
    ]
    experts = given.fc1_experts_weights.shape[0] if given.fc1_experts_weights.ndim == 3 else 0
    rows = tokens_of(given.input, given.router_probs, experts, attributes)
    gate = has_gate(attributes, given.fc3_experts_weights is not None)
    weights = _weights_of(given, rows, attributes, bits, block_size)
    biases = (given.fc1_experts_bias, given.fc2_experts_bias, given.fc3_experts_bias)
    check_biases(biases, experts, [w.codes.shape[1] if w else 0 for w in weights])

    def project(number: int, expert: int, x: Array) -> Array:
        own, bias = weights[number - 1], biases[number - 1]
        assert own is not None
        level = (accuracy_level if own.bits == 4 else 4) if block_size else 0
        return dequantized_product(x, own.part(expert), None if bias is None else bias[expert], level, ctx)

    own = choose_experts(given.router_probs, attributes.k)
    routes = routes_of(own, _shares(given, own, attributes, ctx), _NO_SHARE, ctx)
    return mixture(rows, routes, project, attributes, gate, ctx).reshape(given.input.shape)


def _shares(given: CodedExperts, experts: Array, attributes: ExpertAttributes, ctx: Context) -> Array:
    """The share of each chosen expert in a row's result."""
    if given.router_weights is None:
        return np.asarray(node("Softmax", [np.take_along_axis(given.router_probs, experts, 1)], ctx))
    with_shape(given.router_weights, "router_weights", given.router_probs.shape)
    shares = np.take_along_axis(given.router_weights, experts, 1)
    return normalize_shares(shares, ctx) if attributes.normalize_routing_weights else shares


def _weights_of(
    given: CodedExperts, rows: Array, attributes: ExpertAttributes, bits: Sequence[int], block_size: int
) -> list[BlockWeights | None]:
    """The projections of all experts, checked; None for fc3 if it is missing. Without block_size a row is one block."""
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
    """The weights of a projection, checked. parts: codes, scales, zero points. form: experts, output width, input
    width, bits, block_size."""
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
    """Refuse forms that have no kernel on a CPU."""
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
