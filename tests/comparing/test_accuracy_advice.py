"""Float against quantized: what is said when the ranking cannot be trusted, scales are wrong, or nothing differs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.comparing import sheet_text
from helpers.models import make_model
from onnx import helper, numpy_helper

import qrun
from qrun.comparing.accuracy import Accuracy, accuracy
from qrun.comparing.differences import Columns, columns
from qrun.report.accuracy import accuracy_fields, accuracy_sheet
from qrun.report.accuracyjson import verdict
from qrun.report.json import document

MODELS = Path(__file__).resolve().parents[2] / "models/digits"


def digits(form: str, **scales: float) -> onnx.ModelProto:
    """The model, with these scales so many times as large."""
    model = onnx.load(MODELS / form / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name in scales:
            value = numpy_helper.to_array(tensor) * np.float32(scales[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))
    return model


def swapped() -> onnx.ModelProto:
    """The scales of the input and of the result of the first convolution exchanged."""
    model = digits("qoperator")
    node = next(n for n in model.graph.node if n.name == "Conv_c1.raw_quant")
    node.input[1], node.input[6] = node.input[6], node.input[1]
    return model


def compared(first: onnx.ModelProto, second: onnx.ModelProto, **options: Any) -> Accuracy:
    return accuracy(qrun.load(first), qrun.load(second), [{"images": np.load(MODELS / "x.npy")}], **options)


def text(found: Accuracy, top: int | None = 3, markdown: bool = False) -> str:
    return sheet_text(accuracy_sheet(found, top), markdown=markdown).replace("\\_", "_").replace("&gt;", ">")


@pytest.mark.parametrize("form", ["float", "qoperator", "qdq"])
def test_nodes_that_do_not_explain_the_model_are_not_ranked(form: str) -> None:
    """Measured together they are accurate, or exact, and the model is not: it reads codes with another scale."""
    found = compared(digits(form), swapped())
    gone = found.departure
    assert gone is not None
    assert gone.sqnr < 5 < 30 < gone.measured
    assert gone.node is not None
    assert (gone.node.index, gone.node.label) == (1, "Conv_c1.raw_quant")
    assert gone.hint == "it reads images_quantized with scale 0.01423, but the tensor was quantized with 0.003922"
    assert found.costs == ()
    assert found.suggestion is None
    fields = accuracy_fields(found)
    assert fields["departure"]["node"]["index"] == 1
    assert fields["departure"]["why"] == fields["notes"][0]
    for said in (text(found), text(found, markdown=True)):
        assert "costly nodes" not in said
        assert "Keep in float" not in said
        assert said.index("Nodes are not ranked") < said.index("Outputs")
        assert "It starts at node 1 Conv_c1.raw_quant" in said
        assert "Conv_c1.raw_quant/" not in said


@pytest.mark.parametrize(("tensor", "what", "other", "said"), [
    ("c1", 1, "images_scale", "scale 0.003922, but the tensor was quantized with 0.01423"),
    ("c2", 1, "images_scale", "scale 0.003922, but the tensor was quantized with 0.1131"),
    ("c1", 2, "logits_zero_point", "zero point 129, but the tensor was quantized with 0"),
])  # fmt: skip
def test_a_pair_of_quantizers_that_do_not_fit_is_named(tensor: str, what: int, other: str, said: str) -> None:
    """However much the results before it differ from the first model's."""
    model = digits("qdq")
    node = next(n for n in model.graph.node if n.name == f"{tensor}_DequantizeLinear")
    node.input[what] = other
    found = compared(digits("float"), model)
    assert found.departure is not None
    assert found.departure.node is not None
    assert found.departure.node.label == f"{tensor}_DequantizeLinear"
    assert found.departure.hint == f"it reads {tensor}_QuantizeLinear_Output with {said}"


@pytest.mark.parametrize("form", ["qoperator", "qdq", "dynamic"])
def test_nodes_that_explain_the_model_are_ranked(form: str) -> None:
    found = compared(digits("float"), digits(form))
    assert found.departure is None
    assert found.costs
    assert found.corrections == ()


@pytest.mark.parametrize(("form", "scale", "factor", "node", "change"), [
    ("qdq", "c2_scale", 1 / 8, "Conv_c2.raw", "0.01414 -> 0.09979"),
    ("qoperator", "c2.raw_scale", 1 / 8, "Conv_c2.raw_quant", "0.01414 -> 0.09979"),
    ("qdq", "images_scale", 64, "images_QuantizeLinear", "0.251 -> 0.003922"),
])  # fmt: skip
def test_a_wrong_scale_is_to_be_corrected_first(form: str, scale: str, factor: float, node: str, change: str) -> None:
    found = compared(digits("float"), digits(form, **{scale: factor}))
    (cost,), (better_by,) = found.mismatches, found.corrections
    assert cost.node.label == node
    assert better_by.before == pytest.approx(found.sqnr)
    for said in (text(found), text(found, markdown=True)):
        assert f"{scale} {change}: {found.sqnr:.1f} -> {better_by.after:.1f} dB" in said
        assert "nodes_to_exclude" not in said
        assert "Then compare again: nodes to keep in float appear once these are corrected." in said
    assert accuracy_fields(found)["keep_in_float"] is None
    assert cost.fit is not None
    better = compared(digits("float"), digits(form, **{scale: factor * cost.fit.wanted / cost.fit.now}))
    assert better.corrections == ()
    assert better.outputs[0].noise.sqnr > found.outputs[0].noise.sqnr + 10
    assert better.outputs[0].noise.sqnr == pytest.approx(better_by.after, abs=0.01)


def test_a_bias_that_follows_from_a_scale_is_not_blamed() -> None:
    """The bias of a QLinearConv has the scale of its input times that of its weights."""
    found = compared(digits("float"), digits("qoperator", images_scale=1 / 0.003921569))
    assert found.costs[0].node.label == "images_QuantizeLinear"
    assert found.costs[0].why.startswith("images_scale 1 is too large: 0.003922 fits")
    assert [one.node.label for one in found.corrections] == ["images_QuantizeLinear"]
    behind = next(cost for cost in found.costs if cost.reason == "bias-factor")
    assert behind.faults == ()
    assert behind.why.endswith("; this follows from images_scale")


@pytest.mark.parametrize("reach", [0.02, 50.0])
def test_the_scale_of_an_input_is_called_so(reach: float) -> None:
    """x is read as it is by Add, and by MatMul behind a quantizer of its own whose scale is far too small or too
    large."""
    rng = np.random.default_rng(8)
    x, weights = rng.normal(size=(50, 16)).astype(np.float32), {"w": rng.normal(size=(16, 16)).astype(np.float32)}
    made = [helper.make_node("MatMul", ["x", "w"], ["p"], "product"), helper.make_node("Add", ["p", "x"], ["y"], "sum")]
    scale = np.float32(reach / 128)
    quantized = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["p"], "product"),
        made[1],
    ]
    shapes: tuple[Any, Any] = ({"x": ["N", 16]}, {"y": ["N", 16]})
    model = make_model(quantized, *shapes, {**weights, "s": np.array(scale), "z": np.array(128, np.uint8)})
    found = accuracy(qrun.load(make_model(made, *shapes, weights)), qrun.load(model), [{"x": x}])
    (cost,) = found.mismatches
    assert cost.fit is not None
    assert cost.fit.inside
    assert cost.fit.now == scale
    assert cost.fit.wanted == pytest.approx((x.max() - x.min()) / 255, rel=0.25)
    assert re.search(r"  s \S+ -> \S+: .* dB \(node \d product\)", text(found))


def test_the_range_of_an_operator_is_not_called_wrong() -> None:
    """Codes of a Softmax stand for 0 to 1 by convention; small probabilities are a reason to keep it in float."""
    shapes: tuple[Any, Any] = ({"x": ["N", 200]}, {"y": ["N", 200]})
    made = helper.make_node("Softmax", ["x"], ["y"], "softmax")
    quantized = [
        helper.make_node("Softmax", ["x"], ["p"], "softmax"),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    model = make_model(quantized, *shapes, {"s": np.array(1 / 256, np.float32), "z": np.array(0, np.uint8)})
    x = np.random.default_rng(3).normal(size=(20, 200)).astype(np.float32)
    found = accuracy(qrun.load(make_model([made], *shapes)), qrun.load(model), [{"x": x}])
    assert found.costs[0].reason == "range-unused"
    assert found.corrections == ()
    assert 'nodes_to_exclude=["softmax"]' in text(found)


def test_two_quantized_models_get_no_list_to_keep_in_float() -> None:
    found = compared(digits("qdq"), digits("qoperator"))
    assert found.costs
    assert found.suggestion is None
    assert "Keep in float" not in text(found)


@pytest.mark.parametrize(("one", "other"), list(permutations(["qdq", "qoperator", "dynamic", "float"], 2)))
def test_only_rounded_weights_are_blamed(one: str, other: str) -> None:
    """Where a node has weights, and the first model does not round there as well."""
    found = compared(digits(one), digits(other))
    for cost in found.costs:
        if cost.reason.startswith("weights"):
            assert one == "float", cost
            assert cost.node.op_type in ("Conv", "Gemm", "QLinearConv", "QGemm", "ConvInteger", "MatMulInteger"), cost


def test_models_that_round_one_result_in_other_steps() -> None:
    (cost,) = compared(digits("qdq"), digits("qoperator")).costs
    assert (cost.node.op_type, cost.reason) == ("QLinearAveragePool", "both-round")
    assert "both models round here, with different steps (0.0713, in the first model 0.118)" in cost.why
    assert (cost.local.weights, cost.local.before > cost.local.rounding > 0) == (0, True)


def test_a_first_model_that_rounds_where_the_second_does_not() -> None:
    """The second has rounded weights only, and the first one those and rounded results: these are what is lost."""
    model = digits("float")
    sizes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if len(t.dims) == 4}
    for name, weights in sizes.items():
        scale = np.float32(np.abs(weights).max() / 2**20)
        codes = np.rint(weights / scale).astype(np.int32)
        model.graph.initializer.append(numpy_helper.from_array(codes, f"{name}.codes"))
        model.graph.initializer.append(numpy_helper.from_array(scale, f"{name}.scale"))
        model.graph.node.insert(
            0, helper.make_node("DequantizeLinear", [f"{name}.codes", f"{name}.scale"], [f"{name}.real"])
        )
    for node in model.graph.node:
        if node.op_type == "Conv":
            node.input[1] += ".real"
    costs = compared(digits("qdq"), model).costs
    assert "first-rounds" in {cost.reason for cost in costs}, [(c.reason, c.why) for c in costs]
    assert all(cost.reason in ("first-rounds", "operator") for cost in costs)
    told = next(cost.why for cost in costs if cost.reason == "first-rounds")
    assert told.startswith("only the first model rounds here, in steps of 0.")


def test_a_node_that_makes_more_noise_alone_is_remarked() -> None:
    found = compared(digits("float"), digits("qdq"))
    assert "cancel" not in text(found)
    near = replace(found.costs[0], ratio=10 ** (-(found.sqnr - 0.6) / 10))
    assert "cancel" not in text(replace(found, costs=(near, *found.costs[1:]))), "that hardly misleads"
    dearest = replace(found.costs[0], ratio=10 ** (-(found.sqnr - 2) / 10))
    assert (
        "alone adds more noise to the outputs (33.8 dB) than all nodes together (35.8 dB): the errors of different nodes"
        in text(replace(found, costs=(dearest, *found.costs[1:])))
    )


def test_equal_models_have_no_inaccurate_tensors_and_no_foreign_names() -> None:
    found = compared(digits("qoperator"), digits("qoperator"))
    assert "tensors, in graph order" not in text(found)
    names = {name for node in digits("qoperator").graph.node for name in node.output} | {"images"}
    assert {row.reference for row in found.tensors} <= names
    assert text(found, None).count("exact") > len(found.tensors)


def test_only_tensors_with_noise_are_least_accurate() -> None:
    said = text(compared(digits("qdq"), digits("qoperator")), 5)
    rows = said[said.index("Least accurate") : said.index("more tensors")].splitlines()
    assert len([row for row in rows if " dB " in row]) == 3
    assert "features_quantized" in said
    assert "sum_quantized" not in said


def test_a_list_that_does_not_help_says_what_help_would_be() -> None:
    found = compared(digits("float"), digits("qdq"))
    assert found.suggestion is not None
    said = text(replace(found, suggestion=replace(found.suggestion, count=0)))
    assert "No short list helps" in said
    assert "qrun suggests a list only if it removes 50 % of the noise (3 dB)." in said


def test_ranges_that_are_all_too_small_are_corrected_together() -> None:
    """Each one alone gains next to nothing, as the others still clip."""
    scales = [f"{name}_scale" for name in ("images", "c1", "dw", "pw", "c2", "sum", "mean", "logits")]
    found = compared(digits("float"), digits("qdq", **dict.fromkeys(scales, 0.15)))
    together = found.corrections[-1]
    assert together.text.startswith("together: ")
    assert together.text.count(" -> ") >= 5
    assert together.after is not None
    assert together.after > 30 > found.sqnr + 20
    assert found.wrong
    said = text(found)
    assert "Correct first" in said
    assert "Keep in float" not in said


def test_models_in_the_wrong_order_are_noted() -> None:
    sentence = "name the float model first"
    assert sentence in text(compared(digits("qdq"), digits("float")))
    assert sentence not in text(compared(digits("float"), digits("qdq")))
    assert sentence not in text(compared(digits("qdq"), digits("qoperator")))


def test_two_baselines_are_both_named() -> None:
    found = compared(digits("float"), digits("qdq"))
    assert found.sqnr == pytest.approx(found.outputs[0].noise.sqnr)
    assert "the model itself" not in text(found)
    assert "from 35.8 dB (the model itself: 34.9 dB) to " in text(replace(found, sqnr=34.9))


def test_readers_that_would_round_again() -> None:
    found = compared(digits("float"), digits("qdq"))
    said = text(found)
    assert "Flatten_features is listed too: it consumes these results and would requantize them." in said
    assert found.suggestion is not None
    better = text(replace(found, suggestion=replace(found.suggestion, listed=47.11)))
    assert "would requantize them (47.1 dB with the whole list)." in better
    assert "they read" not in said


def labelled(form: str, output: str) -> onnx.ModelProto:
    """The model with the classes that it decides for as a further output."""
    model = digits(form)
    model.graph.node.append(helper.make_node("ArgMax", [output], ["labels"], axis=1, keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, None))
    return model


def test_labels_beside_the_outputs_do_not_halve_their_noise() -> None:
    plain = compared(digits("float"), digits("qdq"))
    found = compared(labelled("float", "logits"), labelled("qdq", "logits"))
    assert [o.name for o in found.outputs] == ["logits", "labels"]
    assert found.sqnr == pytest.approx(found.outputs[0].noise.sqnr)
    assert [c.ratio for c in found.costs] == pytest.approx([c.ratio for c in plain.costs])
    assert plain.suggestion is not None
    assert found.suggestion is not None
    assert found.suggestion.tried == plain.suggestion.tried


def test_a_mean_over_several_outputs_is_called_so() -> None:
    found = compared(digits("float"), digits("qdq"))
    assert "in float raises the outputs from" in text(found)
    assert "in float raises the outputs (mean of 2) from" in text(replace(found, averaged=2))


def test_the_typical_value_is_the_median_of_what_is_not_0() -> None:
    """Of the values of all runs, not the edge of a class of a histogram."""
    x = np.load(MODELS / "x.npy")
    feeds = [{"images": part} for part in (x[:3], x[3:])]
    found = accuracy(qrun.load(digits("float")), qrun.load(digits("qdq")), feeds)
    session = qrun.Session(MODELS / "float/model.onnx")
    for cost in found.costs:
        made = (
            [abs(session.values(feed, [cost.target])[cost.target]) for feed in feeds]
            if cost.target != "images"
            else [abs(x)]
        )
        true = np.concatenate([array.reshape(-1) for array in made])
        assert cost.spread.typical == pytest.approx(np.median(true[true > 0]), rel=1e-6), cost.target


@pytest.mark.parametrize(
    ("tensor", "factor", "told"),
    [
        ("images_scale", 1.5, "images_scale 0.005882 -> 0.003921: "),
        ("dw.raw_scale", 1.5, "dw.raw_scale 0.03208 -> 0.02139: "),
        ("c1.raw_scale", 2.5, "c1.raw_scale 0.03558 -> 0.01423: "),
    ],
)
def test_a_wide_scale_of_an_input_is_named_not_the_bias_that_it_scales(tensor: str, factor: float, told: str) -> None:
    """QLinearConv has no scale of the bias: it is that of the input times that of the weights."""
    found = compared(digits("float"), digits("qoperator", **{tensor: factor}))
    (first, *_) = found.corrections
    assert told in text(found)
    assert first.text.startswith(told.rstrip(": "))
    assert "the bias is" not in text(found)


def test_a_bias_that_is_too_large_is_named_where_the_scale_of_the_input_suits_its_values() -> None:
    model = digits("qoperator")
    bias = next(t for t in model.graph.initializer if t.name == "pointwise.bias_quantized")
    codes = np.rint(numpy_helper.to_array(bias) * 1.5).astype(np.int32)
    bias.CopyFrom(numpy_helper.from_array(codes, bias.name))
    said = text(compared(digits("float"), model))
    assert "the bias is 1.5 times as large as in " in said
    assert " too large: " not in said


DIGITS = Path(__file__).resolve().parents[2] / "models/digits"


@cache
def digits_compared(
    min_sqnr: float | None = None, seconds: float = math.inf, sets: int = 1, **options: Any
) -> Accuracy:
    first, second = (qrun.load(onnx.load(DIGITS / form / "model.onnx")) for form in ("float", "qdq"))
    images = np.array_split(np.load(DIGITS / "x.npy"), sets)
    feeds = [{"images": part} for part in images]
    return accuracy(first, second, feeds, min_sqnr=min_sqnr, seconds=seconds, **options)


def listed(found: Accuracy) -> str:
    return sheet_text(accuracy_sheet(found, 5))


@pytest.mark.parametrize("sets", [1, 3])
def test_the_list_is_as_long_as_the_sqnr_takes_and_no_longer(sets: int) -> None:
    plain = digits_compared(sets=sets)
    assert plain.suggestion is not None
    assert plain.suggestion.reached is None
    wanted = plain.sqnr + 8
    found = digits_compared(wanted, sets=sets)
    advice = found.suggestion
    assert advice is not None
    assert advice.reached is True
    tried = dict(advice.tried)
    assert tried[advice.count] >= wanted > tried[advice.count - 1]
    said = listed(found)
    assert f"which reaches --min-sqnr {wanted:g}" in said
    assert accuracy_fields(found)["keep_in_float"]["reached"] is True


def test_a_list_of_more_than_half_of_the_nodes_comes_with_other_advice() -> None:
    found = digits_compared(90.0)
    assert found.suggestion is not None
    assert found.suggestion.count > found.quantizing / 2
    assert "more than half of them: 16-bit activations" in listed(found)


def test_an_sqnr_that_all_nodes_reach_steers_nothing() -> None:
    plain, found = digits_compared(), digits_compared(10.0)
    assert plain.suggestion is not None
    assert found.suggestion == replace(plain.suggestion, reached=True)
    assert "which reaches" not in listed(found)


def test_an_sqnr_that_was_not_reached_is_said_to_be_so() -> None:
    found = digits_compared(90.0, seconds=0.0)
    assert found.suggestion is not None
    assert (found.suggestion.reached, found.suggestion.count) == (False, 0)
    said = listed(found)
    assert "--min-sqnr 90 was not reached in time" in said
    assert "No short list helps" not in said


def test_too_little_time_is_the_first_thing_said_of_the_run() -> None:
    rushed = digits_compared(seconds=0.0, sets=3)
    assert rushed.budget_exceeded
    said = listed(rushed)
    assert "No short list helps" not in said
    assert said.index("Stopped at once") < said.index("3 sets of inputs") < said.index("Outputs")
    assert "1 of 3 sets of inputs" in said
    assert "; raise --budget (10m, or none)." in said
    fields = accuracy_fields(rushed)
    assert fields["out_of_time"] is True
    assert fields["budget_s"] == 0
    assert fields["notes"][0].startswith("Stopped at once")


def test_with_time_enough_none_ran_out() -> None:
    found = digits_compared()
    assert not found.budget_exceeded
    assert "Stopped after" not in listed(found)
    assert accuracy_fields(found)["budget_s"] is None


def test_operators_are_measured_with_all_their_nodes_in_float() -> None:
    """The one with all its nodes in float is as good as a list of just these nodes."""
    found = digits_compared()
    assert found.suggestion is not None
    rows = {row.name: row for row in found.suggestion.operators}
    kinds = [cost.node.op_type for cost in found.costs]
    assert {name: row.nodes for name, row in rows.items()} == {kind: kinds.count(kind) for kind in kinds}
    assert [row.sqnr for row in rows.values()] == sorted((row.sqnr for row in rows.values()), reverse=True)
    first = found.costs[0]
    if kinds.count(first.node.op_type) == 1:
        assert rows[first.node.op_type].sqnr == dict(found.suggestion.tried)[1]
    assert all(row.sqnr > found.sqnr - 1 for row in rows.values())
    assert "with every node of one type kept in float" in listed(found)
    assert json.loads(document("compare", [], accuracy_fields(found)))["operators"][0]["op"] == next(iter(rows))


f32 = np.float32


def detector(quantized: bool) -> onnx.ModelProto:
    """x [1,12,64]: four rows times 100 plus 320 are boxes, eight through a Sigmoid scores, in one output; quantized,
    these share the scale of the boxes."""
    constants: dict[str, np.ndarray] = {"k": f32(100), "o": f32(320)}
    nodes: list[onnx.NodeProto] = []

    def qdq(name: str, scale: float, zero: int) -> str:
        if not quantized:
            return name
        parameters = [f"{name}_scale", f"{name}_zero"]
        constants.update({parameters[0]: f32(scale), parameters[1]: np.int8(zero)})
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_d"]))
        return f"{name}_d"

    x = qdq("x", 3 / 127, 0)
    nodes.append(helper.make_node("Split", [x], ["b", "s"], "split", axis=1))
    constants["sizes"] = np.array([4, 8])
    nodes[-1].input.append("sizes")
    nodes.append(helper.make_node("Mul", ["b", "k"], ["bm"], "scaling"))
    nodes.append(helper.make_node("Add", ["bm", "o"], ["box"], "boxes"))
    nodes.append(helper.make_node("Sigmoid", ["s"], ["score"], "scores"))
    parts = [qdq(name, 640 / 255, -128) for name in ("box", "score")]
    nodes.append(helper.make_node("Concat", parts, ["all"], "concat", axis=1))
    nodes.append(helper.make_node("Identity", [qdq("all", 640 / 255, -128)], ["y"]))
    return make_model(nodes, {"x": [1, 12, 64]}, {"y": [1, 12, 64]}, constants, opset=13)


def detector_compared(min_sqnr: float | None = None) -> Accuracy:
    x = np.random.default_rng(1).normal(0, 1, (1, 12, 64)).clip(-3, 3).astype(f32)
    return accuracy(qrun.load(detector(False)), qrun.load(detector(True)), [{"x": x}], min_sqnr=min_sqnr)


def test_a_range_that_is_lost_is_named_with_what_it_was_and_is() -> None:
    found = detector_compared(30)
    (output,) = found.outputs
    assert output.noise.sqnr > 35
    assert not found.passed
    boxes, scores = output.parts
    assert (boxes.name, boxes.lost) == ("y[:, 0:4]", False)
    assert (scores.name, scores.lost, scores.got) == ("y[:, 4:12]", True, (0.0, 0.0))
    said = verdict(found)
    assert said.startswith("too noisy: y[:, 4:12] below 30 dB; SQNR 0.0 dB")
    assert f"y[:, 4:12] is lost: {scores.wanted[0]:.4g} to {scores.wanted[1]:.4g} in g, all 0 in g" in said
    assert "y[:, 4:12] is lost" in verdict(detector_compared())
    assert [part["lost"] for part in map(dict, accuracy_fields(found)["outputs"][0]["parts"])] == [False, True]


def test_the_node_that_loses_it_comes_first() -> None:
    """Not the boxes, whose noise is larger in numbers; and a scale that Concat would round again is no advice."""
    found = detector_compared(30)
    assert found.costs[0].node.label == "scores"
    assert found.corrections == ()
    assert found.suggestion is not None
    assert [n.label for n in (*found.suggestion.nodes, *found.suggestion.around)] == ["scores", "concat"]
    assert found.suggestion.reached


COLUMNS_RNG = np.random.default_rng(2)


@pytest.mark.parametrize(("array", "parts"), [
    (np.concatenate([COLUMNS_RNG.random((20, 4)) * 640, COLUMNS_RNG.random((20, 2)) + 0.1], 1), ((0, 4), (4, 6))),
    (COLUMNS_RNG.normal(size=(32, 10)) * 20, ()),
    (COLUMNS_RNG.normal(size=(1, 1000)) * 20, ()),
    (np.exp(COLUMNS_RNG.normal(size=(64, 5)) * 6), ()),
    (np.array([[600.0, 0.5]]), ()),
])  # fmt: skip
def test_ranges_are_told_from_values_that_happen_to_be_small(
    array: np.ndarray, parts: Sequence[tuple[int, int]]
) -> None:
    assert columns(array.astype(f32)) == tuple(Columns(1, *ends) for ends in parts)


def first_convolution_in_float() -> onnx.ModelProto:
    """The quantized model of the digits with its first convolution excluded from quantization."""
    model, floats = digits("qdq"), digits("float")
    kept, relu = floats.graph.node[:2]
    at = next(i for i, node in enumerate(model.graph.node) if node.name == kept.name)
    model.graph.node.remove(model.graph.node[at])
    model.graph.node.insert(at, kept)
    model.graph.node.insert(at + 1, relu)
    model.graph.node[at].input[2] = "float.bias"
    weight, bias = (next(t for t in floats.graph.initializer if t.name == name) for name in kept.input[1:])
    bias.name = "float.bias"
    model.graph.initializer.extend([weight, bias])
    for node in model.graph.node:
        node.input[:] = ["c1" if name == "c1_DequantizeLinear_Output" else name for name in node.input]
    return model


def test_the_list_says_that_it_omits_nodes_already_in_float() -> None:
    """A second list replaces no first one: quantize_static needs both."""
    said = "omits nodes that are already in float: add it to the nodes that you already exclude"
    feeds = [{"images": np.load(DIGITS / "x.npy")}]
    models = [qrun.load(model) for model in (digits("float"), first_convolution_in_float())]
    assert said in " ".join(listed(accuracy(*models, feeds)).split())
    assert said not in " ".join(listed(digits_compared()).split())
