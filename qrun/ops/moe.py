"""MoE of com.microsoft: mixtures of experts."""

from __future__ import annotations

from functools import partial

import numpy as np

from qrun.ops._body import node
from qrun.ops._experts import (
    ExpertAttributes,
    check_biases,
    chosen,
    expert_macs,
    gated,
    mixture,
    normalized,
    projected,
    routes_of,
    tokens_of,
)
from qrun.ops._op import Array, Context, bad_shape, contrib_op, with_shape
from qrun.ops._signature import FLOATS


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
    """What k of E experts make of each token, in shares: input and output [tokens,H] or [batch,length,H].

    router_probs [tokens,E]: the k greatest choose the experts, of equal ones the last; shares are Softmax of all E, by
    their sum with normalize_routing_weights. fc1_experts_weights [E,I,H], or [E,2I,H] of swiglu with swiglu_fusion:
    gate and linear part in turns (1), or one after the other (2); fc2_experts_weights [E,H,I];
    fc3_experts_weights [E,I,H], the linear part.

        a = activation(x @ fc1' + bias)    relu, gelu (tanh), silu, identity; times (x @ fc3' + bias) if there is fc3
        a = G * sigmoid(alpha * G) * (L + beta)              swiglu: G <= swiglu_limit, |L| <= swiglu_limit
        y = sum of share * (a @ fc2' + bias)                 as MatMul of [1,k] and [k,H]

    Products are those of MatMul, then a bias is added; the rest are the nodes Softmax, ReduceSum, Div, Relu, Gelu,
    Swish, Clip, Add and Mul of ai.onnx. Experts of share 0 are left out, so that their infinities do not count. ``ort``
    also leaves out NaN shares. Raises OperatorError for shapes and attributes that do not fit, and for
    use_sparse_mixer.
    """
    if fc1_experts_weights.ndim != 3:
        raise bad_shape("fc1_experts_weights", "[experts,made,width]", fc1_experts_weights)
    experts, made, _ = fc1_experts_weights.shape
    rows = tokens_of(input, router_probs, experts, attributes)
    gate, width, inner = gated(attributes, fc3_experts_weights is not None), rows.shape[1], made // attributes.parts
    shapes = (experts, inner * attributes.parts, width), (experts, width, inner), (experts, inner, width)
    weights = (fc1_experts_weights, fc2_experts_weights, fc3_experts_weights)
    for number, (given, shape) in enumerate(zip(weights, shapes, strict=True), 1):
        with_shape(given, f"fc{number}_experts_weights", shape)
    biases = (fc1_experts_bias, fc2_experts_bias, fc3_experts_bias)
    check_biases(biases, experts, [shape[1] for shape in shapes])

    def project(number: int, expert: int, x: Array) -> Array:
        matrices, bias = weights[number - 1], biases[number - 1]
        assert matrices is not None
        return projected(x, matrices[expert], None if bias is None else bias[expert], ctx)

    own = chosen(router_probs, attributes.k)
    shares = np.take_along_axis(np.asarray(node("Softmax", [router_probs], ctx)), own, 1)
    shares = normalized(shares, ctx) if attributes.normalize_routing_weights else shares
    y = mixture(rows, routes_of(own, shares, 0.0, ctx), project, attributes, gate, ctx)
    return y.reshape(input.shape)
