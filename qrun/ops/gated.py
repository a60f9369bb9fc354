"""Chains of gates that onnxruntime's optimizer makes one node of:
ScaledSiLU, GatedAdd and GatedRMSNorm of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ops._body import InnerNode, node, nodes_kernel
from qrun.ops._float import narrow, rounded, single, widen
from qrun.ops._op import Array, Context, bad_shape, contrib_op, misfit, one_of, with_shape
from qrun.ops._signature import FLOATS
from qrun.ops.lowering.kernel import EveryType, LoweringContext, NativeKernel, declined

_ACTIVATIONS = ("silu", "swish", "sigmoid")


@contrib_op("ScaledSiLU", types={"T": (FLOATS, "X"), "M": (FLOATS, "scale")})
def scaled_silu(X: Array, scale: Array | None = None, *, alpha: float = 1.0, ctx: Context) -> Array:
    """Z * Sigmoid(Z) with Z = scale * X, or alpha * X without a scale:
    Z, its Sigmoid and the product, each rounded to X's type.

    scale: a scalar or [1], of any floating-point type. Raises OperatorError for a scale of another shape.
    """
    with_shape(scale, "scale", (), (1,))
    ctx.claim(X.shape, 24)
    factor = single(alpha) if scale is None else float(scale.reshape(()))
    with np.errstate(all="ignore"):
        scaled = narrow(widen(X) * factor, X.dtype)
    return np.asarray(node("Mul", [scaled, node("Sigmoid", [scaled], ctx)], ctx))


@contrib_op("GatedAdd", types={"T": (FLOATS, "X Y gate")})
def gated_add(X: Array, Y: Array, gate: Array, *, ctx: Context) -> Array:
    """X + Y * gate, as the nodes Mul and Add: X and Y [...,C], gate [...,1]. Raises OperatorError for other shapes."""
    _check_gate(X, Y, gate)
    return np.asarray(node("Add", [X, node("Mul", [Y, gate], ctx)], ctx))


@gated_add.native
def _lower_gated_add(site: LoweringContext) -> NativeKernel:
    x, y, gate = site.inputs
    _check_gate(x, y, gate)
    return nodes_kernel(site, [InnerNode("Mul", (1, 2), output="scaled"), InnerNode("Add", (0, "scaled"))])


def _check_gate(x: Array, y: Array, gate: Array) -> None:
    if not x.ndim:
        raise bad_shape("X", "[...,C]", x)
    with_shape(y, "Y", x.shape)
    with_shape(gate, "gate", (*x.shape[:-1], 1))


@contrib_op("GatedRMSNorm", types={"T": (FLOATS, "X scale gate")})
def gated_rms_norm(
    X: Array, scale: Array, gate: Array, *, activation: str = "silu", epsilon: float = 1e-5, ctx: Context
) -> Array:
    """RMSNormalization(X) * Swish(gate), or * Sigmoid(gate), of each group of C elements:
    X and gate [...,H*C], scale [C].

    activation: silu, swish (the same) or sigmoid. As the nodes RMSNormalization, Swish or Sigmoid, and Mul, each
    rounded to float32; the result is then rounded to X's type.
    Raises OperatorError for shapes and attributes that do not fit.
    """
    width = _check_norm(X, scale, gate, activation)
    ctx.claim(X.shape, 24)
    groups = X.astype(np.float32).reshape(-1, width)
    normal = node("RMSNormalization", [groups, scale.astype(np.float32)], ctx, epsilon=epsilon).reshape(X.shape)
    opened = node(_function(activation), [gate.astype(np.float32)], ctx)
    made = np.asarray(node("Mul", [normal, opened], ctx))
    return rounded(made, X.dtype)


@gated_rms_norm.native
@EveryType
def _lower_gated_rms_norm(site: LoweringContext) -> NativeKernel:
    x, scale, gate = site.inputs
    given = site.attributes
    width = _check_norm(x, scale, gate, given["activation"])
    if x.dtype != np.float32:
        raise declined("its steps are float32, its operands are not")
    if x.shape[-1] != width:
        raise declined("a row has several groups")
    nodes = [
        InnerNode("RMSNormalization", (0, 1), {"epsilon": given["epsilon"]}, "normal"),
        InnerNode(_function(given["activation"]), (2,), output="opened"),
        InnerNode("Mul", ("normal", "opened")),
    ]
    return nodes_kernel(site, nodes)


def _function(activation: str) -> str:
    return "Sigmoid" if activation == "sigmoid" else "Swish"


def _check_norm(x: Array, scale: Array, gate: Array, activation: str) -> int:
    """The width of a group; refuses shapes and an activation that do not fit."""
    one_of("activation", activation, _ACTIVATIONS)
    if scale.ndim != 1 or not scale.size:
        raise bad_shape("scale", "[C]", scale)
    if not x.ndim or x.shape[-1] % len(scale):
        expected = f"[...,H*{len(scale)}], groups as long as scale"
        raise misfit("X has no whole groups", "X", expected, x)
    with_shape(gate, "gate", x.shape)
    return len(scale)
