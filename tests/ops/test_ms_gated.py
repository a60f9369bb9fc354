"""ScaledSiLU, GatedAdd, GatedRMSNorm and TransposeMatMul of com.microsoft: against fractions, beside onnxruntime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, qrun_node
from helpers.placed import same_everywhere
from helpers.support import MS, assert_equal, node_model
from oracle.blocks import nearest
from oracle.polynomials import sigmoid as single_sigmoid
from oracle.recurrent import exp

import qrun

F, H, BF = np.float32, np.float16, ml_dtypes.bfloat16
Q = Fraction


def real(value: Any) -> Q:
    return Q(float(value))


def sigmoid(x: Q) -> Q:
    return 1 / (1 + exp(-x))


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_scaled_silu(dtype: Any) -> None:
    peer = Peer()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(2, 3, 5)).astype(dtype) * 3
        kind = (dtype, F, H, dtype)[seed % 4]
        scale = np.asarray(rng.normal(), kind).reshape(((), (1,))[seed == 7]) if seed % 3 else None
        attributes = {"alpha": 0.7} if seed % 2 else {}
        factor = real(scale.reshape(())) if scale is not None else real(F(attributes.get("alpha", 1)))
        want = np.zeros(x.shape, dtype)
        for place in np.ndindex(x.shape):
            z = nearest(factor * real(x[place]), dtype)
            want[place] = nearest(Q(z) * Q(nearest(single_sigmoid(Q(z)), dtype)), dtype)
        inputs = [x] if scale is None else [x, scale]
        assert_equal(qrun_node("ScaledSiLU", inputs, attributes, domain=MS), want, f"seed {seed}", signed_zeros=False)
        if dtype == F:
            peer.check("ScaledSiLU", inputs, attributes, message=f"seed {seed}", domain=MS, opset=17)
    if dtype == F:
        peer.finish()


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_gated_add(dtype: Any) -> None:
    peer, rng = Peer(), np.random.default_rng(3)
    for lead in ((), (3,), (2, 3), (2, 0)):
        x, y = rng.normal(size=(2, *lead, 7)).astype(dtype)
        gate = rng.normal(size=(*lead, 1)).astype(dtype)
        want = np.zeros(x.shape, dtype)
        for place in np.ndindex(x.shape):
            product = nearest(real(y[place]) * real(gate[(*place[:-1], 0)]), dtype)
            want[place] = nearest(real(x[place]) + Q(product), dtype)
        assert_equal(qrun_node("GatedAdd", [x, y, gate], domain=MS), want, signed_zeros=False)
        same_everywhere(*node_model("GatedAdd", [x, y, gate], domain=MS, opset=17, outputs=[dtype]))
        if dtype == F:
            peer.check("GatedAdd", [x, y, gate], message=f"{lead}", domain=MS, opset=17)
    if dtype == F:
        peer.finish()


@pytest.mark.parametrize("activation", ["", "silu", "swish", "sigmoid"])
@pytest.mark.parametrize("dtype", [F, H, BF])
def test_gated_rms_norm(dtype: Any, activation: str) -> None:
    peer, rng = Peer(), np.random.default_rng(4)
    for shape, width in (((2, 3, 8), 8), ((3, 12), 4), ((5,), 5), ((0, 4), 4)):
        x, gate = rng.normal(size=(2, *shape)).astype(dtype)
        scale = rng.normal(size=width).astype(dtype)
        attributes: dict[str, Any] = {"epsilon": 0.01, **({"activation": activation} if activation else {})}
        want = np.zeros(shape, dtype)
        groups = x.reshape(-1, width)
        norms = qrun_node("RMSNormalization", [groups.astype(F), scale.astype(F)], {"epsilon": 0.01}, opset=23)
        flat = want.reshape(-1)
        for place, (normal, z) in enumerate(zip(norms.reshape(-1), gate.reshape(-1), strict=True)):
            opened = single_sigmoid(real(z)) * (1 if activation == "sigmoid" else real(z))
            flat[place] = nearest(Q(nearest(real(normal) * Q(nearest(opened, F)), F)), dtype)
        got = qrun_node("GatedRMSNorm", [x, scale, gate], attributes, domain=MS)
        assert_equal(got, want, f"{shape} {width}", signed_zeros=False)
        for fixed in ((), (1,)):
            model, feeds = node_model(
                "GatedRMSNorm", [x, scale, gate], attributes, domain=MS, opset=17, outputs=[dtype], constants=fixed
            )
            same_everywhere(model, feeds)
        if dtype == F:
            peer.check("GatedRMSNorm", [x, scale, gate], attributes, message=f"{shape}", domain=MS, opset=17)
    if dtype == F:
        peer.finish()


def test_transpose_mat_mul_is_fused_mat_mul() -> None:
    peer, rng = Peer(), np.random.default_rng(5)
    for dtype in (F, H, BF, np.float64):
        for number in range(8):
            a, b = rng.normal(size=(2, 3, 4)).astype(dtype), rng.normal(size=(2, 4, 5)).astype(dtype)
            attributes = {"transA": number & 1, "transB": number >> 1 & 1, "alpha": (1.0, -0.3)[number >> 2]}
            inputs = [np.ascontiguousarray(x.swapaxes(1, 2)) if attributes[name] else x for x, name in ((a, "transA"), (b, "transB"))]  # fmt: skip
            want = qrun_node("FusedMatMul", inputs, attributes, domain=MS)
            assert_equal(qrun_node("TransposeMatMul", inputs, attributes, domain=MS), want)
            same_everywhere(*node_model("TransposeMatMul", inputs, attributes, domain=MS, opset=17, outputs=[dtype]))
            if dtype == F:
                peer.check("TransposeMatMul", inputs, attributes, message=f"{number}", domain=MS, opset=17)
    peer.finish()


@pytest.mark.parametrize(
    ("text", "op_type", "shapes", "attributes"),
    [
        ("scale has shape", "ScaledSiLU", [(3,), (3,)], {}),
        ("X has shape", "GatedAdd", [(), (), (1,)], {}),
        ("Y has shape", "GatedAdd", [(2, 3), (3,), (2, 1)], {}),
        ("gate has shape", "GatedAdd", [(2, 3), (2, 3), (2, 3)], {}),
        ("scale has shape", "GatedRMSNorm", [(2, 4), (2, 2), (2, 4)], {}),
        ("scale has shape", "GatedRMSNorm", [(2, 4), (0,), (2, 4)], {}),
        ("X has no whole groups", "GatedRMSNorm", [(2, 4), (3,), (2, 4)], {}),
        ("gate has shape", "GatedRMSNorm", [(2, 4), (4,), (2, 1)], {}),
        ("activation is relu", "GatedRMSNorm", [(2, 4), (4,), (2, 4)], {"activation": "relu"}),
        ("cannot be multiplied", "TransposeMatMul", [(2, 4), (3, 4)], {}),
    ],
)
def test_refusals(text: str, op_type: str, shapes: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node(op_type, [np.ones(shape, F) for shape in shapes], attributes, domain=MS)


@pytest.mark.parametrize("op_type", ["GatedAdd", "GatedRMSNorm"])
def test_special_numbers(op_type: str) -> None:
    special = np.array([[np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, 1e-45, 1]], F)
    for last in (special[:, :1], special[:, 2:3], special[:, 4:5]):
        inputs = [special, special[:, ::-1].copy(), last]
        if op_type == "GatedRMSNorm":
            inputs = [special, special[0, ::-1].copy(), np.broadcast_to(last, special.shape).copy()]
        same_everywhere(*node_model(op_type, inputs, domain=MS, opset=17, outputs=[F]))
