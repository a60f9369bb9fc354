"""QR304 and QR318: a bias scale in QDQ form, and tensors that are read with another scale than they were made with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.checking.rules import Finding

U8, I8, F16, F32 = np.uint8, np.int8, np.float16, np.float32
X_SCALE, W_SCALE = F32(0.02), F32(0.01)


def dense(
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


def biases(model: onnx.ModelProto) -> list[Finding]:
    return [f for f in qrun.check(model) if f.level != "note"]


@pytest.mark.parametrize("ratio", [1, 1 + 1e-7, 1 + 5e-6, np.ones(4)], ids=str)
def test_the_product_is_fine(ratio: Any) -> None:
    assert biases(dense(ratio)) == []
    assert biases(dense(ratio, zero=0)) == []


@pytest.mark.parametrize("ratio", [1 + 2e-5, 0.999, 2])
@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_another_scale_is_reported(ratio: float, op_type: str) -> None:
    (f,) = biases(dense(ratio, op_type))
    assert f.rule == "QR304"
    assert f.level == "warning"
    assert f.node == "bias"
    assert f.tensor == f"bs, feeds {op_type} node"
    assert f.expected.endswith("= x_scale 0.02 * w_scale 0.01")


def test_one_channel_of_a_bias_scale() -> None:
    (f,) = biases(dense([1, 1, 1.25, 1]))
    assert f.message == "bias scale 0.00025, expected 0.0002 (bs[2])"
    assert f.got == "0.00025 at bs[2]; 1 of 4 channels, 25 % off"


def test_zero_point() -> None:
    (f,) = biases(dense(1, zero=5))
    assert f.message == "bias zero point is not 0"
    assert f.got == "5"
    assert "does not fuse such a Conv" in f.why
    assert "fuses this Gemm" in biases(dense(1, "Gemm", zero=5))[0].why


def test_without_quantized_weights_nothing_is_said_of_the_bias() -> None:
    model = dense(2)
    model.graph.node[4].input[1] = "w2"
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3, 3, 3), F32), "w2"))
    assert [f.rule for f in biases(model)] == ["QR601"]


CASES = [("Conv", 1.0, X_SCALE), ("Conv", 1.005, X_SCALE), ("Conv", 1.02, X_SCALE), ("Conv", 2.0, X_SCALE),
         ("Conv", 2.0, 1e-5), ("Gemm", 2.0, X_SCALE)]  # fmt: skip


@pytest.mark.parametrize(("op_type", "ratio", "x_scale"), CASES)
def test_onnxruntime_does_what_the_message_says(tmp_path: Path, op_type: str, ratio: float, x_scale: float) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = dense(ratio, op_type, x_scale=x_scale)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ops = {n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node}
    fused = "QLinearConv" in ops or "QGemm" in ops
    texts = [f.why for f in biases(model)]
    if ratio == 1:
        assert (texts, fused) == ([], True)
    else:
        assert fused == ("onnxruntime fuses" in texts[0])
        assert fused != ("does not fuse" in texts[0])


make = helper.make_node
ZERO = U8(128)


def graph(nodes: Sequence[onnx.NodeProto], opset: int = 21, **stored: Any) -> onnx.ModelProto:
    """float [2,4] x to y, of an unstated shape."""
    return make_model(nodes, {"x": [2, 4]}, "y", stored, opset=opset)


def pair(s: Any, t: Any, z: Any = ZERO, u: Any = ZERO, between: Sequence[onnx.NodeProto] = (), **more: Any) -> Any:
    """QuantizeLinear with s and z, the nodes between, from `q` to `r`, DequantizeLinear with t and u."""
    nodes = [make("QuantizeLinear", ["x", "s", "z"], ["q"], name="Q", **more), *between,
             make("DequantizeLinear", ["r" if between else "q", "t", "u"], ["y"], name="DQ", **more)]  # fmt: skip
    return graph(nodes, s=s, t=t, z=z, u=u, axes=np.array([0]), sizes=np.array([1, 1, 2, 4]), ends=np.array([2]))


def found(model: onnx.ModelProto) -> list[Finding]:
    return [f for f in qrun.check(model) if f.rule == "QR318"]


def only(model: onnx.ModelProto) -> Finding:
    (finding,) = found(model)
    return finding


def test_another_scale() -> None:
    f = only(pair(F32(0.5), F32(0.25)))
    assert f.level == "warning"
    assert f.node == "DQ"
    assert f.tensor == "q (input 0, x)"
    assert f.message == "read with scale 0.25, but Q wrote it with scale 0.5"
    assert f.expected == "scale 0.5, as in Q (y_scale s)"
    assert f.got == "scale 0.25 in DQ (x_scale t)"
    assert "multiplied by 0.5" in f.why


def test_another_zero_point() -> None:
    f = only(pair(F32(0.5), F32(0.5), U8(128), U8(125)))
    assert f.message == "read with zero point 125, but Q wrote it with zero point 128"
    assert "move by +3 steps" in f.why


def test_both() -> None:
    f = only(pair(F32(0.5), F32(0.25), U8(128), U8(125)))
    assert f.message == "read with scale 0.25 and zero point 125, but Q wrote it with scale 0.5 and zero point 128"


def test_no_zero_point_is_zero() -> None:
    nodes = [make("QuantizeLinear", ["x", "s"], ["q"]), make("DequantizeLinear", ["q", "s", "z"], ["y"])]
    assert found(graph(nodes, s=F32(0.5), z=U8(0))) == []
    assert "zero point 3" in only(graph(nodes, s=F32(0.5), z=U8(3))).message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (F32(0.1), F32(0.1)),
        (F32(0.1), np.array([0.1], F32)),
        (F32(0.1), np.nextafter(F32(0.1), F32(1))),
        (np.full(4, 0.1, F32), F32(0.1)),
        (np.arange(1, 5, dtype=F32), np.arange(1, 5, dtype=F32)),
    ],
    ids=str,
)
def test_equal_values_pass(first: Any, second: Any) -> None:
    zeros = [np.full(np.shape(s), 128, U8) for s in (first, second)]
    assert found(pair(first, second, *zeros, axis=1)) == []


def test_a_scale_rounded_to_float16_passes() -> None:
    nodes = [make("QuantizeLinear", ["x", "s", "z"], ["q"]), make("DequantizeLinear", ["q", "t", "z"], ["h"]),
             make("Cast", ["h"], ["y"], to=TensorProto.FLOAT)]  # fmt: skip
    assert found(graph(nodes, s=F32(0.1), t=F16(0.1), z=U8(1))) == []
    assert "0.125" in only(graph(nodes, s=F32(0.1), t=F16(0.125), z=U8(1))).message


@pytest.mark.parametrize(
    ("first", "second"), [(np.arange(1, 5), np.array([1, 2, 3.5, 4])), (np.full(4, 3), np.array([3, 3, 3.5, 3]))]
)
def test_one_channel_of_several(first: Any, second: Any) -> None:
    zeros = np.full(4, 128, U8)
    f = only(pair(first.astype(F32), second.astype(F32), zeros, zeros, axis=1))
    assert f.message == "read with scale[2] 3.5, but Q wrote it with scale[2] 3"


MOVES = {
    "Reshape": make("Reshape", ["q", "sizes"], ["r"]), "Transpose": make("Transpose", ["q"], ["r"]),
    "Flatten": make("Flatten", ["q"], ["r"]), "Unsqueeze": make("Unsqueeze", ["q", "axes"], ["r"]),
    "Identity": make("Identity", ["q"], ["r"]), "Slice": make("Slice", ["q", "axes", "ends"], ["r"]),
    "Gather": make("Gather", ["q", "axes"], ["r"]), "Split": make("Split", ["q"], ["p", "r"], num_outputs=2),
    "Clip": make("Clip", ["q", "z"], ["r"]),
}  # fmt: skip


@pytest.mark.parametrize("op_type", MOVES)
def test_through_moved_codes(op_type: str) -> None:
    f = only(pair(F32(0.5), F32(0.25), between=[MOVES[op_type]]))
    assert f.tensor == "r (input 0, x), codes of q"
    assert found(pair(F32(0.5), F32(0.5), between=[MOVES[op_type]])) == []


def test_through_a_chain() -> None:
    chain = [make("Reshape", ["q", "sizes"], ["m"]), make("MaxPool", ["m"], ["r"], kernel_shape=[1, 2])]
    assert only(pair(F32(0.5), F32(0.25), between=chain)).tensor == "r (input 0, x), codes of q"
    assert found(pair(F32(0.5), F32(0.5), between=chain)) == []


def test_not_through_concat_and_not_to_other_types() -> None:
    assert found(pair(F32(0.5), F32(0.25), between=[make("Concat", ["q", "q"], ["r"], axis=0)])) == []
    cast = make("Cast", ["q"], ["r"], to=TensorProto.INT8)
    assert found(pair(F32(0.5), F32(0.25), u=I8(0), between=[cast])) == []


def test_channels_that_were_moved_are_not_paired() -> None:
    """Each half of a tensor with scales per channel may be read with its own."""
    nodes = [make("QuantizeLinear", ["x", "s", "z"], ["q"], axis=0),
             make("Split", ["q"], ["a", "b"], axis=0, num_outputs=2),
             make("DequantizeLinear", ["a", "s0"], ["c"]), make("DequantizeLinear", ["b", "s1"], ["d"]),
             make("Add", ["c", "d"], ["y"])]  # fmt: skip
    stored = {"s": np.array([0.5, 0.25], F32), "z": np.zeros(2, U8), "s0": F32(0.5), "s1": F32(0.25)}
    assert found(graph(nodes, **stored)) == []


def test_equal_scales_of_all_channels_are_one_scale() -> None:
    nodes = [make("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1), make("Reshape", ["q", "sizes"], ["r"]),
             make("DequantizeLinear", ["r", "t", "u"], ["y"])]  # fmt: skip
    stored = {"s": np.full(4, 0.5, F32), "z": np.zeros(4, U8), "u": U8(0), "sizes": np.array([8])}
    assert found(graph(nodes, t=F32(0.5), **stored)) == []
    assert only(graph(nodes, t=F32(0.25), **stored)).tensor.endswith("codes of q")


def test_codes_of_the_caller_and_computed_scales_pass() -> None:
    fed = [make("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), make("DequantizeLinear", ["q", "t", "z"], ["y"])]
    assert found(graph(fed, t=F32(0.25))) == []
    made = [make("Abs", ["t"], ["a"]), make("QuantizeLinear", ["x", "s", "z"], ["q"]),
            make("DequantizeLinear", ["q", "a", "z"], ["y"])]  # fmt: skip
    assert found(graph(made, s=F32(0.5), t=F32(0.25), z=U8(0))) == []


def test_one_finding_for_readers_that_agree() -> None:
    nodes = [make("QuantizeLinear", ["x", "s", "z"], ["q"], name="Q")]
    nodes += [make("DequantizeLinear", ["q", "t", "z"], [f"d{i}"], name=f"D{i}") for i in range(3)]
    nodes += [make("Sum", ["d0", "d1", "d2"], ["y"])]
    f = only(graph(nodes, s=F32(0.5), t=F32(0.25), z=U8(0)))
    assert (f.node, f.got) == ("D0", "scale 0.25 in D0, and by 2 more (x_scale t)")


def test_inside_a_branch() -> None:
    inner = helper.make_graph(
        [make("DequantizeLinear", ["q", "t", "z"], ["i"], name="inside")], "b", [],
        [helper.make_tensor_value_info("i", TensorProto.FLOAT, None)],
    )  # fmt: skip
    nodes = [make("QuantizeLinear", ["x", "s", "z"], ["q"], name="Q"),
             make("If", ["c"], ["y"], name="If", then_branch=inner, else_branch=inner)]  # fmt: skip
    stored = {"s": F32(0.5), "z": U8(0), "c": np.array(True)}
    assert "If/else_branch/inside" in found(graph(nodes, t=F32(0.25), **stored))[0].node
    assert found(graph(nodes, t=F32(0.5), **stored)) == []


def test_what_other_rules_report_is_not_repeated() -> None:
    """A scale of 0 (QR306), a zero point of another type (QR303), a scale of a wrong length (QR301)."""
    assert found(pair(F32(0.5), F32(0))) == []
    assert found(pair(F32(0.5), F32(0.5), U8(128), I8(0))) == []
    assert found(pair(F32(0.5), np.full(3, 0.25, F32), u=np.zeros(3, U8))) == []
