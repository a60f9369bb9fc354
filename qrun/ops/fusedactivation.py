"""Products with the activation that followed them: FusedConv and FusedGemm of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qrun.ir.types import shape_text
from qrun.ops._body import InnerNode, nodes_kernel, run_nodes
from qrun.ops._conv import ConvGeometry, conv_macs, conv_window
from qrun.ops._float import is_integer
from qrun.ops._matmul import GemmAttributes, gemm_macs
from qrun.ops._op import Array, Context, contrib_op, misfit, refuse
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel

_OF_GEMM = (
    *("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "Celu", "Selu", "HardSigmoid", "Softplus", "Softsign"),
    "ThresholdedRelu",
)
"""Activations by name; those of alpha, beta and gamma that their operators have are given."""
_NAMES = ("alpha", "beta", "gamma")
_OF_CONV: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "LeakyRelu": ("alpha",),
    "Sigmoid": (),
    "Tanh": (),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min_", "max_"),
}
"""Activations by name, with the attributes of their operators that are given, in order."""


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
    """Gemm and its activation; refuses an activation that there is not."""
    if name and (name not in _OF_GEMM or (is_integer(a.dtype) and name != "Relu")):
        expected = "Relu" if is_integer(a.dtype) else ", ".join(_OF_GEMM)
        raise refuse(f"there is no activation {name!r}", "activation", expected, name, code="QR204")
    gemm = InnerNode("Gemm", (0, 1, 2), product.named(), "product" if name else "")
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
    """Conv, Add if Z is there, and the activation; refuses another shape of Z, and an activation that there is not."""
    x, w, z = given
    shape = (*x.shape[:1], *w.shape[:1], *conv_window(x, w, geometry, ("X", "W")).out)
    if z is not None and z.shape != shape:
        raise misfit("Z has not the result's shape", "Z", shape_text(shape), z)
    if name and name not in _OF_CONV:
        raise refuse(f"there is no activation {name!r}", "activation", ", ".join(_OF_CONV), name, code="QR204")
    names = _OF_CONV.get(name, ())
    if name and len(params) != len(names):
        raise refuse(
            f"{name} has {len(params)} parameters",
            "activation_params",
            f"{len(names)}, for {name}",
            len(params),
            code="QR204",
        )
    nodes = [InnerNode("Conv", (0, 1, 2), geometry.named(), "sums")]
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
