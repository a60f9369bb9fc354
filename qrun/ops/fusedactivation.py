"""Operators by which onnxruntime's optimizer replaces chains of nodes: FusedConv, FusedGemm, ScaledSiLU, GatedAdd and
GatedRMSNorm of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._body import InnerNode, node, nodes_kernel, run_nodes
from qrun.ops._float import is_integer, narrow, round_to_type, single, widen
from qrun.ops._matmul import GemmAttributes, gemm_macs
from qrun.ops._op import Array, Context, bad_shape, contrib_op, misfit, one_of, refuse, with_shape
from qrun.ops._signature import FLOATS
from qrun.ops._window import ConvGeometry, conv_macs, conv_window
from qrun.ops.lowering.kernel import EveryType, LoweringContext, NativeKernel, decline_error

_OF_GEMM = (
    *("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "Celu", "Selu", "HardSigmoid", "Softplus", "Softsign"),
    "ThresholdedRelu",
)
"""Activations by name; of alpha, beta and gamma, those that their operators have are passed on."""
_NAMES = ("alpha", "beta", "gamma")
_OF_CONV: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "LeakyRelu": ("alpha",),
    "Sigmoid": (),
    "Tanh": (),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min_", "max_"),
}
"""Activations by name, with the attributes of their operators that the parameters give, in order."""


@contrib_op("FusedGemm", types={"T": ("float16 float double uint32 uint64 int32 int64", "A B C")}, cost=gemm_macs)
def fused_gemm(
    A: Array,
    B: Array,
    C: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    product: GemmAttributes,
    ctx: Context,
) -> Array:
    """activation(alpha * A' @ B' + beta * C), as Gemm of ai.onnx and then the operator of that name, each rounded once.

    activation: Relu, LeakyRelu, Sigmoid, Tanh, Elu, Celu, Selu, HardSigmoid, Softplus, Softsign, ThresholdedRelu, or
    none; activation_alpha, _beta and _gamma are its attributes, with its own defaults. Integers know Relu only.
    Raises OperatorError for what Gemm refuses, and for other activations.
    """
    values = dict(zip(_NAMES, (activation_alpha, activation_beta, activation_gamma), strict=True))
    made: Array = run_nodes(_gemm_nodes(product, activation, values, A), (A, B, C), ctx)[""]
    return made


def _gemm_nodes(product: GemmAttributes, name: str, values: Mapping[str, Any], a: Array) -> list[InnerNode]:
    """Gemm and its activation; refuses an unknown activation."""
    if name and (name not in _OF_GEMM or (is_integer(a.dtype) and name != "Relu")):
        expected = "Relu" if is_integer(a.dtype) else ", ".join(_OF_GEMM)
        raise refuse(f"unknown activation {name!r}", "activation", expected, name, code="QR204")
    gemm = InnerNode("Gemm", (0, 1, 2), product.by_name(), "product" if name else "")
    if not name:
        return [gemm]
    known = InnerNode(name, ()).definition.attributes
    after = {key: value for key, value in values.items() if value is not None and key in known}
    return [gemm, InnerNode(name, ("product",), after)]


@fused_gemm.native
def _lower_gemm(site: LoweringContext) -> NativeKernel:
    given = site.attributes
    values = {name: given[f"activation_{name}"] for name in _NAMES}
    return nodes_kernel(site, _gemm_nodes(GemmAttributes.of(given), given["activation"], values, site.inputs[0]))


@contrib_op("FusedConv", types={"T": ("float16 float double", "X W B Z")}, cost=conv_macs)
def fused_conv(
    X: Array,
    W: Array,
    B: Array | None = None,
    Z: Array | None = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    geometry: ConvGeometry,
    ctx: Context,
) -> Array:
    """activation(Conv(X, W, B) + Z), as Conv of ai.onnx, Add, and the operator of that name, each rounded once.

    Z has the result's shape. activation: Relu, LeakyRelu, Sigmoid, Tanh, HardSigmoid, Clip, or none; activation_params
    are alpha of LeakyRelu, alpha and beta of HardSigmoid, min and max of Clip, which all need them.
    Raises OperatorError for what Conv refuses, another shape of Z, other activations and numbers of parameters.
    """
    nodes = _conv_nodes(geometry, activation, activation_params, (X, W, Z))
    made: Array = run_nodes(nodes, (X, W, B, Z), ctx)[""]
    return made


def _conv_nodes(
    geometry: ConvGeometry, name: str, params: Sequence[float], given: tuple[Array, Array, Array | None]
) -> list[InnerNode]:
    """Conv, Add if Z is given, and the activation; refuses another shape of Z, and an unknown activation."""
    x, w, z = given
    shape = (*x.shape[:1], *w.shape[:1], *conv_window(x, w, geometry, ("X", "W")).out)
    if z is not None and z.shape != shape:
        raise misfit("Z has not the result's shape", "Z", shape_text(shape), z)
    if name and name not in _OF_CONV:
        raise refuse(f"unknown activation {name!r}", "activation", ", ".join(_OF_CONV), name, code="QR204")
    names = _OF_CONV.get(name, ())
    if name and len(params) != len(names):
        what = f"{name} has {len(params)} parameters"
        raise refuse(what, "activation_params", f"{len(names)}, for {name}", len(params), code="QR204")
    nodes = [InnerNode("Conv", (0, 1, 2), geometry.by_name(), "sums")]
    if z is not None:
        nodes.append(InnerNode("Add", ("sums", 3), {}, "total"))
    if name:
        after = dict(zip(names, params, strict=True))
        nodes.append(InnerNode(name, (nodes[-1].output,), after, version=6 if name == "Clip" else 24))
        return nodes
    return [*nodes[:-1], replace(nodes[-1], output="")]


@fused_conv.native
def _lower_conv(site: LoweringContext) -> NativeKernel:
    given, (x, w, _, z) = site.attributes, site.inputs
    nodes = _conv_nodes(ConvGeometry.of(given), given["activation"], given["activation_params"], (x, w, z))
    return nodes_kernel(site, nodes)


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
    """Raise OperatorError for a gate whose shape does not fit."""
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
    return round_to_type(made, X.dtype)


@gated_rms_norm.native
@EveryType
def _lower_gated_rms_norm(site: LoweringContext) -> NativeKernel:
    x, scale, gate = site.inputs
    given = site.attributes
    width = _check_norm(x, scale, gate, given["activation"])
    if x.dtype != np.float32:
        raise decline_error("its steps are float32, its operands are not")
    if x.shape[-1] != width:
        raise decline_error("a row has several groups")
    nodes = [
        InnerNode("RMSNormalization", (0, 1), {"epsilon": given["epsilon"]}, "normal"),
        InnerNode(_function(given["activation"]), (2,), output="opened"),
        InnerNode("Mul", ("normal", "opened")),
    ]
    return nodes_kernel(site, nodes)


def _function(activation: str) -> str:
    """The operator of an activation's name."""
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
