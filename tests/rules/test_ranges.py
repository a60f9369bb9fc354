"""QR319, QR320, QR412 to QR416: scales that nobody calibrated, or that leave few codes to the values, and casts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.accuracy import by_hand, ranges_of, sentences, transformer
from helpers.cli import call
from helpers.models import make_model
from helpers.support import node_model
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.checking.rules import Finding

F32 = np.float32


def chain(*steps: str | tuple[str, float, Any], source: str = "x") -> onnx.ModelProto:
    """Float operators by name, and (tensor, scale, zero point) for QuantizeLinear and DequantizeLinear, in a row."""
    nodes, stored, last = [], {}, source
    for place, step in enumerate(steps):
        if isinstance(step, str):
            nodes.append(helper.make_node(step, [last], [f"t{place}"], f"{step}_{place}"))
            last = f"t{place}"
        else:
            name, scale, zero = step
            stored |= {f"{name}_s": F32(scale), f"{name}_z": zero}
            nodes.append(helper.make_node("QuantizeLinear", [last, f"{name}_s", f"{name}_z"], [name], f"q_{name}"))
            nodes.append(
                helper.make_node("DequantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_d"], f"d_{name}")
            )
            last = f"{name}_d"
    nodes[-1].output[0] = "y"
    return make_model(nodes, {"x": [4]}, {"y": [4]}, stored, opset=21)


def calibrated(model: onnx.ModelProto, rule: str) -> list[Finding]:
    return [f for f in qrun.check(model) if f.rule == rule]


U8, I8 = np.uint8, np.int8
A = ("a", 0.02, U8(128))


def test_a_scale_of_one_in_a_calibrated_model() -> None:
    (f,) = calibrated(chain(A, "Exp", ("b", 1, U8(0)), "Relu", ("c", 0.3, U8(0))), "QR319")
    assert (f.level, f.node, f.tensor) == ("warning", "q_b", "b (output)")
    assert f.message == "b has the scale 1 and the zero point 0, as if calibration saw only zeros"


def test_a_model_that_nobody_calibrated_is_one_finding() -> None:
    (f,) = calibrated(chain(("a", 1, I8(0)), "Exp", ("b", 1, I8(0)), "Relu", ("c", 1, I8(0))), "QR319")
    assert f.message.endswith("as if calibration saw only zeros, and 1 more: c"), (
        "a is an input: it may be whole numbers"
    )


@pytest.mark.parametrize(
    "model",
    [
        chain(("a", 1, U8(0)), "Exp", ("b", 0.3, U8(0))),
        chain(A, "Round", ("b", 1, U8(0))),
        chain(("a", 0.25, I8(0)), "Exp", ("b", 1, I8(0)), "Relu", ("c", 0.5, I8(0))),
        chain(A, "Exp", ("b", 1, U8(3))),
        chain("Exp", ("b", 1, U8(0))),
        chain(A, "Shape", "ConstantOfShape", ("b", 1, U8(0))),
    ],
    ids=["pixels", "whole numbers", "powers of two", "another zero point", "alone", "one constant"],
)
def test_a_scale_of_one_that_may_be_meant(model: onnx.ModelProto) -> None:
    assert not calibrated(model, "QR319")


def test_quantized_at_once_again() -> None:
    (f,) = calibrated(of_codes(chain(A, ("b", 0.03, U8(128)))), "QR320")
    assert (f.level, f.node) == ("warning", "q_b")
    assert f.got == "scale 0.02, zero point 128 in q_a; scale 0.03, zero point 128 here"
    assert calibrated(of_codes(chain(A, ("b", 0.02, U8(0)))), "QR320")


def test_pairs_that_onnxruntime_merges_are_one_finding() -> None:
    model = chain(A, ("b", 0.03, U8(128)))
    assert (len(calibrated(model, "QR611")), calibrated(model, "QR320")) == (1, [])


def of_codes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its last DequantizeLinear: what that reads is the output."""
    codes = model.graph.node.pop().input[0]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(codes, onnx.TensorProto.UINT8, [4]))
    return model


@pytest.mark.parametrize(
    "model",
    [chain(A, ("b", 0.02, U8(128))), chain(A, ("b", 0.0002, np.uint16(0))), chain(A, "Relu", ("b", 0.03, U8(128)))],
    ids=["the same scale", "another type", "something between"],
)
def test_pairs_that_round_once_or_are_meant(model: onnx.ModelProto) -> None:
    assert not calibrated(model, "QR320")


def test_what_others_read_too_is_not_judged() -> None:
    model = chain(A, ("b", 0.03, U8(128)))
    model.graph.node.append(helper.make_node("Relu", ["a_d"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [4]))
    assert not calibrated(model, "QR320")


ZERO: Any = np.uint8(0)
RAMP = np.linspace(-4, 4, 64, dtype=F32)[None]
RULES = ("QR413", "QR414", "QR416")


def quantized(op_type: str, scale: float, zero: Any = ZERO, size: int = 64) -> onnx.ModelProto:
    """A float operator, then QuantizeLinear and DequantizeLinear."""
    nodes = [
        helper.make_node(op_type, ["x"], ["p"], "f"),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dequantize"),
    ]
    return make_model(nodes, {"x": [1, size]}, {"y": [1, size]}, {"s": F32(scale), "z": zero}, opset=13)


def collapsed(model: onnx.ModelProto, x: np.ndarray = RAMP, backend: str = "native") -> list[Finding]:
    result = qrun.Session(model, backend=backend).execute({"x": x})
    return [f for f in qrun.check(model, result, {"x": x}) if f.rule in RULES]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_one_code_for_all_values(backend: str) -> None:
    (f,) = collapsed(quantized("Relu", 10), backend=backend)
    assert (f.rule, f.node, f.message) == ("QR413", "quantize", "all 64 values of q have code 0")
    assert f.got == "values from 0 to 4; scale 10, zero point 0"
    assert f.fix.startswith("give q the scale 0.01569 and the zero point 0")


def test_the_scale_that_a_finding_names_mends_the_model() -> None:
    for zero, scale in ((np.uint8(0), 4 / 255), (np.int8(0), 4 / 127), (np.int8(-128), 4 / 255)):
        (f,) = collapsed(quantized("Relu", 10, zero))
        assert f"the scale {scale:.4g} and the zero point {zero}," in f.fix
        assert collapsed(quantized("Relu", float(f"{scale:.4g}"), zero)) == []


def test_two_neighbouring_codes_are_as_bad() -> None:
    (f,) = collapsed(quantized("Relu", 5))
    assert f.message == "all 64 values of q have code 0 or 1"


def test_a_quarter_of_the_codes() -> None:
    """17 codes; at a scale of exactly four times what fits, all is as it may be."""
    (f,) = collapsed(quantized("Relu", 0.25))
    assert (f.rule, f.level, f.message) == ("QR414", "note", "the 64 values of q use 17 of 256 codes")
    assert collapsed(quantized("Relu", 4 * 4 / 255)) == []
    assert [f.rule for f in collapsed(quantized("Relu", 4.1 * 4 / 255))] == ["QR414"]


def sparse() -> np.ndarray:
    x = np.full((1, 64), -1, F32)
    x[0, :3] = 4
    return x


@pytest.mark.parametrize(
    ("name", "scale", "x"),
    [
        ("zeros", 1, np.zeros((1, 64), F32)),
        ("a constant", 10, np.full((1, 64), 3, F32)),
        ("a mask", 10, (np.arange(64) % 2).astype(F32)[None]),
        ("classes", 10, (np.arange(64) % 5).astype(F32)[None]),
        ("sparse behind a Relu", 4 / 255, sparse()),
        ("values that reach the end once", 4 / 255, np.append(np.full(63, 1e-3, F32), F32(4))[None]),
    ],
)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_values_that_are_few_need_few_codes(name: str, scale: float, x: np.ndarray, backend: str) -> None:
    assert collapsed(quantized("Relu", scale), x, backend) == [], name


def test_a_handful_of_values_proves_nothing() -> None:
    assert collapsed(quantized("Relu", 10, size=15), np.linspace(0, 4, 15, dtype=F32)[None]) == []
    assert collapsed(quantized("Relu", 0.25, size=63), np.linspace(0, 4, 63, dtype=F32)[None]) == []


# Functions with bounds


def test_all_that_a_sigmoid_gives_becomes_one_code_whatever_is_fed() -> None:
    model = quantized("Sigmoid", 2.5, np.int8(-128))
    (f,) = [f for f in qrun.check(model) if f.rule in RULES]
    assert (f.rule, f.node) == ("QR416", "quantize")
    assert f.message == "Sigmoid can use only 1 of 256 codes of q"
    assert f.got == "Sigmoid gives 0 to 1, which are the codes -128 to -128; scale 2.5, zero point -128"
    assert f.fix.startswith("give q the scale 0.003922 and the zero point -128")
    assert [f.rule for f in collapsed(model)] == ["QR416"], "and not once more for what the run shows"


@pytest.mark.parametrize(("op_type", "scale", "zero"), [("Sigmoid", 1 / 256, np.uint8(0)), ("Tanh", 1 / 128, np.int8(0)),
                                                        ("Softmax", 1 / 256, np.uint8(0))])  # fmt: skip
def test_a_function_that_happens_to_give_little_has_the_right_scale(op_type: str, scale: float, zero: Any) -> None:
    model = quantized(op_type, scale, zero)
    assert collapsed(model, RAMP / 100) == []
    assert collapsed(model, RAMP - 20) == []


def test_scores_that_are_joined_with_boxes() -> None:
    """The fix names the node that would round them once more."""
    model = quantized("Sigmoid", 640 / 255, np.int8(-128))
    model.graph.node.append(helper.make_node("Concat", ["y", "x"], ["all"], "join", axis=1))
    (f,) = [f for f in qrun.check(model) if f.rule in RULES]
    assert "and leave Concat node 3 join, which joins it with others, in float" in f.fix


# Where it is reported


def vector(folder: Path, x: np.ndarray, model: onnx.ModelProto) -> None:
    folder.mkdir()
    y = qrun.Session(model).run({"x": x})["y"]
    for kind, array in (("input", x), ("output", y)):
        (folder / f"{kind}_0.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())


def test_recorded_vectors_must_all_show_it(tmp_path: Path) -> None:
    model = quantized("Relu", 10)
    onnx.save(model, tmp_path / "m.onnx")
    vector(tmp_path / "test_data_set_0", RAMP, model)
    assert "all 64 values of q have code 0" in call("check", str(tmp_path)).out
    vector(tmp_path / "test_data_set_1", RAMP / 2, model)
    assert "QR413" in call("check", str(tmp_path)).out
    vector(tmp_path / "test_data_set_2", RAMP * 1000, model)
    assert "nothing found" in call("check", str(tmp_path)).out


def test_a_run_reports_it_of_inputs_that_were_given(tmp_path: Path) -> None:
    onnx.save(quantized("Relu", 10), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", RAMP)
    m, x = str(tmp_path / "m.onnx"), str(tmp_path / "x.npy")
    for _ in range(2):  # the second process finds what the first one kept
        assert "QR413 warning  node 1 quantize: all 64 values of q have code 0" in call(m, "-i", x).out
    assert "QR413" not in call(m).out, "random inputs prove nothing"


def test_an_evaluation_reports_it_over_all_samples(tmp_path: Path) -> None:
    """Also where the first samples say nothing: Relu makes them 0."""
    onnx.save(quantized("Relu", 10), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.linspace(-4, 4, 640, dtype=F32).reshape(10, 64))
    shown = call("eval", str(tmp_path / "m.onnx"), "-i", str(tmp_path / "x.npy"), "--against", "ort", "--health").out
    assert "QR413 warning  node 1 quantize: all 640 values of q have code 0" in shown
    np.save(tmp_path / "x.npy", np.zeros((10, 64), F32))
    shown = call("eval", str(tmp_path / "m.onnx"), "-i", str(tmp_path / "x.npy"), "--against", "ort", "--health").out
    assert "No rule is broken, but q use under a quarter of the codes." in shown


Array = np.ndarray
RNG = np.random.default_rng(12)
NEAR = RNG.normal(0, 2, (4, 100)).astype(np.float32)


def quantizer(scale: float, zero: int = 250) -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "rounding"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    return make_model(nodes, {"x": [4, 100]}, {"y": [4, 100]}, {"s": np.float32(scale), "z": np.uint8(zero)})


def crowded(model: onnx.ModelProto, feeds: dict[str, Array] | None) -> list[Finding]:
    return [f for f in qrun.check(model, None, feeds) if f.rule == "QR412"]


def masked(value: float, values: Array = NEAR) -> Array:
    return np.where(np.arange(100) < 75, values, value).astype(np.float32)


def test_scores_beside_a_mask_share_a_code() -> None:
    (told,) = crowded(quantizer(40), {"x": masked(-10000)})
    assert (told.node, told.level) == ("rounding", "warning")
    assert "75 % of q share one code" in told.message
    assert "300 of 400 elements, from " in told.got
    assert "have code 250; others reach -1e+04; the scale is 40" in told.got


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (masked(-100), 0.5),  # scores keep codes of their own
        (masked(-10000, np.zeros_like(NEAR)), 40),  # the mask itself: nothing is lost of 0
        (np.maximum(NEAR * 20, 0), 1),  # behind a Relu
        (NEAR, 40),  # too large a scale for this input, nothing far away
        (np.where(np.arange(100) < 75, NEAR, np.linspace(-1e4, 0, 100)), 40),  # spread out over all codes
    ],
)
def test_values_that_lose_nothing_to_far_ones(values: Array, scale: float) -> None:
    assert crowded(quantizer(scale), {"x": values.astype(np.float32)}) == []


def test_without_inputs_nothing_is_known() -> None:
    assert crowded(quantizer(40), None) == []


def test_the_mask_of_an_attention() -> None:
    """As a quantizer writes it, per tensor: the sum of scores and mask, and nothing else."""
    model, feeds = transformer(0), list(sentences(20, 2))
    (told,) = crowded(by_hand(model, ranges_of(model, feeds)), dict(feeds[0]))
    assert told.tensor.startswith("hiding")


def test_an_integer_operator() -> None:
    """What QLinearAdd rounds is known from what it reads."""
    inputs = ["a", "one", "zero", "b", "far", "zero", "far", "end"]
    node = helper.make_node("QLinearAdd", inputs, ["c"], "adding", domain="com.microsoft")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["a"]),
        helper.make_node("QuantizeLinear", ["m", "far", "zero"], ["b"]),
        node,
        helper.make_node("DequantizeLinear", ["c", "far", "end"], ["y"]),
    ]
    stored = {"one": np.float32(0.1), "far": np.float32(80), "zero": np.uint8(128), "end": np.uint8(250)}
    model = make_model(nodes, {"x": [4, 100], "m": [4, 100]}, {"y": [4, 100]}, stored)
    mask = np.where(np.arange(100) < 75, 0, -10000) * np.ones((4, 1))
    told = crowded(model, {"x": NEAR, "m": mask.astype(np.float32)})
    assert [f.node for f in told] == ["adding"]


NAN, INF = np.nan, np.inf


def unfit(values: list[float], to: int, backend: str = "native", dtype: type = np.float32) -> list[Finding]:
    model, feeds = node_model("Cast", [np.array(values, dtype)], {"to": to}, outputs=[to])
    result = qrun.Session(model, backend=backend).execute(feeds)
    return [f for f in qrun.check(model, result) if f.rule == "QR415"]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_does_not_fit_is_reported_with_the_first_value(backend: str) -> None:
    (f,) = unfit([50, 300, NAN, INF, -INF, -50], TensorProto.INT8, backend)
    assert f.message == "300.0 does not fit int8: 4 of 6 elements, first at [1]"
    assert (f.level, f.node, f.tensor) == ("warning", "n", "i0 (input 0, input)")


@pytest.mark.parametrize(
    ("least", "most", "to"),
    [
        (-128.9, 127.9, TensorProto.INT8),
        (-0.9, 255.9, TensorProto.UINT8),
        (-(2.0**31), 2.0**31 - 128, TensorProto.INT32),
        (-(2.0**63), 2.0**63 - 2.0**40, TensorProto.INT64),
    ],
)
def test_limits_of_a_type_are_cut_toward_zero_and_fit(least: float, most: float, to: int) -> None:
    assert not unfit([least, most], to)
    assert unfit([least, 2 * most + 1], to)


def test_every_number_fits_bool_and_floats() -> None:
    assert not unfit([1e30, NAN], TensorProto.BOOL)
    assert not unfit([1e30, NAN], TensorProto.FLOAT16)
