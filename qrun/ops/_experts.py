"""Shared by MoE and QMoE of com.microsoft: which experts each token has and with what shares, and what experts make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._body import node
from qrun.ops._chains import chained_products
from qrun.ops._float import single
from qrun.ops._op import Array, Context, Shape, bad_shape, one_of, refuse, require, with_shape
from qrun.ops._signature import Attributes

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
_FUSED = "swiglu"
"""The activation whose gate, and what it is multiplied by, one projection may make."""

Project = Callable[[int, int, Array], Array]
"""What projection 1, 2 or 3 of an expert makes of rows: (projection, expert, rows [count,width])."""


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
    """The chosen experts of each token [tokens,k], and their shares [tokens,k], of the tokens' type;
    an expert of share 0 is not run."""

    experts: Array
    shares: Array


def expert_macs(
    inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any], places: tuple[int, int]
) -> int:
    """Multiply-adds of the chosen experts; places: the input numbers of the weights of fc1 and fc3,
    whose axis 0 counts experts and axis 1 the outputs of the projection."""
    fc1, fc3 = (inputs[place] if place < len(inputs) else () for place in places)
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
        raise refuse(
            "use_sparse_mixer is 1",
            "use_sparse_mixer",
            "0",
            "1",
            why="no page says what the sparse mixer computes, and onnxruntime's CPU ignores it.",
            fix="set it to 0 for what onnxruntime computes on a CPU",
            code="QR204",
        )
    return rows


def gated(attributes: ExpertAttributes, gate_given: bool) -> bool:
    """Whether a third projection multiplies what is activated; refuses one that is missing, or one too many."""
    needed = attributes.activation_type == _FUSED and not attributes.swiglu_fusion
    if needed and not gate_given:
        expected = "fc3_experts_weights, or swiglu_fusion = 1 or 2"
        raise refuse("swiglu has no third projection", "fc3_experts_weights", expected, "nothing", code="QR205")
    if gate_given and attributes.parts == 2:
        expected = "nothing, as swiglu_fusion has it in fc1_experts_weights"
        raise refuse("there are two third projections", "fc3_experts_weights", expected, "a tensor", code="QR205")
    return gate_given


def chosen(router_probs: Array, k: int) -> Array:
    """The experts with the k greatest numbers, int64 [tokens,k]: the greatest first, of equal ones the last,
    NaN before all."""
    tokens, experts = router_probs.shape
    turned = np.asarray(router_probs, np.float64)[:, ::-1]
    order = np.argsort(np.where(np.isnan(turned), -np.inf, -turned), axis=1, kind="stable")
    unknown = np.argsort(~np.isnan(np.take_along_axis(turned, order, 1)), axis=1, kind="stable")
    return np.asarray(experts - 1 - np.take_along_axis(order, unknown, 1)[:, :k]).reshape(tokens, k)


def normalized(shares: Array, ctx: Context) -> Array:
    """Shares divided by their sum, as ReduceSum and Div; those whose sum is 0 stay."""
    total = node("ReduceSum", [shares, np.array([1])], ctx)
    return np.asarray(np.where(total == 0, shares, node("Div", [shares, total], ctx)))


def routes_of(experts: Array, shares: Array, least: float, ctx: Context) -> Routes:
    """Routes with these shares; in ``ort`` arithmetic those up to `least`, and NaN, become 0."""
    kept = shares > least if ctx.arith == "ort" else np.ones(shares.shape, bool)
    return Routes(experts, np.where(kept, shares, np.zeros((), shares.dtype)))


def mixture(
    rows: Array, routes: Routes, project: Project, attributes: ExpertAttributes, gate: bool, ctx: Context
) -> Array:
    """[tokens,width]: a token's shares times what its experts make of it, as MatMul of [1,k] and [k,width].

    An expert is fc2 of the activation of fc1, times fc3 where there is a gate.
    """
    (tokens, k), width = routes.experts.shape, rows.shape[1]
    ctx.claim((tokens, k, width), rows.itemsize + 16, "what the experts make")
    made = np.zeros((tokens, k, width), rows.dtype)
    for number in np.unique(routes.experts[routes.shares != 0]).tolist():
        token, place = np.nonzero((routes.experts == number) & (routes.shares != 0))
        own = rows[token]
        third = project(3, number, own) if gate else None
        made[token, place] = project(2, number, activated(project(1, number, own), third, attributes, ctx))
    return chained_products(routes.shares[:, None], made, rows.dtype)[:, 0]


def activated(first: Array, third: Array | None, attributes: ExpertAttributes, ctx: Context) -> Array:
    """As nodes of ai.onnx, each rounded to the type: Relu, Gelu (tanh), Swish or none; then Mul where there is a third.

    swiglu: Clip both to the limit (the first from above only), Swish with alpha, Add of beta, Mul.
    """
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
    if third is not None:
        return first, third
    width = first.shape[1] // 2
    return (first[:, ::2], first[:, 1::2]) if fusion == 1 else (first[:, :width], first[:, width:])


def _swiglu(gate: Array, linear: Array, attributes: ExpertAttributes, ctx: Context) -> Array:
    alpha, limit = attributes.activation_alpha, attributes.swiglu_limit
    if limit is not None:
        most = np.asarray(single(limit), gate.dtype)
        gate = node("Clip", [gate, None, most], ctx)
        linear = node("Clip", [linear, -most, most], ctx)
    beta = np.asarray(single(attributes.activation_beta), gate.dtype)
    shifted = node("Add", [linear, beta], ctx)
    return np.asarray(node("Mul", [node("Swish", [gate], ctx, alpha=alpha), shifted], ctx))


def projected(rows: Array, weights: Array, bias: Array | None, ctx: Context) -> Array:
    """rows @ weights' as MatMul, then + bias. weights [made,width]."""
    ctx.claim((len(rows), len(weights)), 32, "a projection")
    return chained_products(rows, weights.T, rows.dtype, bias=bias)


def check_biases(biases: Sequence[Array | None], experts: int, widths: Sequence[int]) -> None:
    """Refuse fc1_, fc2_ and fc3_experts_bias that are not [experts, width of what the projection makes]."""
    for number, (bias, width) in enumerate(zip(biases, widths, strict=True), 1):
        with_shape(bias, f"fc{number}_experts_bias", (experts, width))
