"""QR304: what is reported of a bias scale in QDQ form, and that onnxruntime does what the message says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from onnx import helper, numpy_helper

import qrun
from qrun.checking.rules import Finding

F32 = np.float32
X_SCALE, W_SCALE = F32(0.02), F32(0.01)


def network(
    ratio: Any, op_type: str = "Conv", *, zero: int | None = None, channels: int = 4, x_scale: float = X_SCALE
) -> onnx.ModelProto:
    """Q, DQ, Conv or Gemm with a DQ bias of scale x_scale * w_scale * ratio, Q, DQ."""
    rng = np.random.default_rng(0)
    kernel = (channels, 3, 3, 3) if op_type == "Conv" else (4, channels)
    stored = {
        "xs": F32(x_scale), "xz": np.uint8(128), "ws": W_SCALE, "wz": np.int8(0), "ys": F32(0.05), "yz": np.uint8(100),
        "w": rng.integers(-64, 65, kernel).astype(np.int8), "b": rng.integers(-1000, 1000, channels).astype(np.int32),
        "bs": np.asarray(F32(x_scale) * W_SCALE * np.asarray(ratio, F32), F32),
    }  # fmt: skip
    if zero is not None:
        stored["bz"] = np.full_like(stored["bs"], zero, np.int32)
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        node("DequantizeLinear", ["b", "bs", *(["bz"] if zero is not None else [])], ["bd"], name="bias", axis=0),
        node(op_type, ["xd", "wd", "bd"], ["f"], name="node"),
        node("QuantizeLinear", ["f", "ys", "yz"], ["yq"]),
        node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    return make_model(nodes, {"x": [1, 3, 8, 8] if op_type == "Conv" else [2, 4]}, "y", stored, opset=13)


def found(model: onnx.ModelProto) -> list[Finding]:
    return [f for f in qrun.check(model) if f.level != "note"]


@pytest.mark.parametrize("ratio", [1, 1 + 1e-7, 1 + 5e-6, np.ones(4)], ids=str)
def test_the_product_is_fine(ratio: Any) -> None:
    assert found(network(ratio)) == []
    assert found(network(ratio, zero=0)) == []


@pytest.mark.parametrize("ratio", [1 + 2e-5, 0.999, 2])
@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_another_scale_is_reported(ratio: float, op_type: str) -> None:
    (f,) = found(network(ratio, op_type))
    assert f.rule == "QR304"
    assert f.level == "warning"
    assert f.node == "bias"
    assert f.tensor == f"bs, feeds {op_type} node"
    assert f.expected.endswith("= x_scale 0.02 * w_scale 0.01")


def test_one_channel_of_several() -> None:
    (f,) = found(network([1, 1, 1.25, 1]))
    assert f.message == "bias scale 0.00025, expected 0.0002 (bs[2])"
    assert f.got == "0.00025 at bs[2]; 1 of 4 channels, 25% off"


def test_zero_point() -> None:
    (f,) = found(network(1, zero=5))
    assert f.message == "bias zero point is not 0"
    assert f.got == "5"
    assert "does not fuse such a Conv" in f.why
    assert "fuses this Gemm" in found(network(1, "Gemm", zero=5))[0].why


def test_without_quantized_weights_nothing_is_said_of_the_bias() -> None:
    model = network(2)
    model.graph.node[4].input[1] = "w2"
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3, 3, 3), F32), "w2"))
    assert [f.rule for f in found(model)] == ["QR601"]


CASES = [("Conv", 1.0, X_SCALE), ("Conv", 1.005, X_SCALE), ("Conv", 1.02, X_SCALE), ("Conv", 2.0, X_SCALE),
         ("Conv", 2.0, 1e-5), ("Gemm", 2.0, X_SCALE)]  # fmt: skip


@pytest.mark.parametrize(("op_type", "ratio", "x_scale"), CASES)
def test_onnxruntime_does_what_the_message_says(tmp_path: Path, op_type: str, ratio: float, x_scale: float) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = network(ratio, op_type, x_scale=x_scale)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ops = {n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node}
    fused = "QLinearConv" in ops or "QGemm" in ops
    texts = [f.why for f in found(model)]
    if ratio == 1:
        assert (texts, fused) == ([], True)
    else:
        assert fused == ("onnxruntime fuses" in texts[0])
        assert fused != ("does not fuse" in texts[0])
