"""An output that mixes ranges, boxes beside scores: each range is judged by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from onnx import helper

import qrun
from qrun.comparing.accuracy import Accuracy, accuracy
from qrun.comparing.columns import Columns, columns
from qrun.report.accuracyjson import accuracy_fields, verdict

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


def compared(min_sqnr: float | None = None) -> Accuracy:
    x = np.random.default_rng(1).normal(0, 1, (1, 12, 64)).clip(-3, 3).astype(f32)
    return accuracy(qrun.load(detector(False)), qrun.load(detector(True)), [{"x": x}], min_sqnr=min_sqnr)


def test_a_range_that_is_lost_is_named_with_what_it_was_and_is() -> None:
    found = compared(30)
    (output,) = found.outputs
    assert output.noise.sqnr > 35
    assert not found.passed
    boxes, scores = output.parts
    assert (boxes.name, boxes.lost) == ("y[:, 0:4]", False)
    assert (scores.name, scores.lost, scores.got) == ("y[:, 4:12]", True, (0.0, 0.0))
    said = verdict(found)
    assert said.startswith("too noisy: y[:, 4:12] below 30 dB; SQNR 0.0 dB")
    assert f"y[:, 4:12] is lost: {scores.wanted[0]:.4g} to {scores.wanted[1]:.4g} in g, all 0 in g" in said
    assert "y[:, 4:12] is lost" in verdict(compared())
    assert [part["lost"] for part in map(dict, accuracy_fields(found)["outputs"][0]["parts"])] == [False, True]


def test_the_node_that_loses_it_comes_first() -> None:
    """Not the boxes, whose noise is larger in numbers; and a scale that Concat would round again is no advice."""
    found = compared(30)
    assert found.costs[0].node.label == "scores"
    assert found.corrections == ()
    assert found.suggestion is not None
    assert [n.label for n in (*found.suggestion.nodes, *found.suggestion.around)] == ["scores", "concat"]
    assert found.suggestion.reached


RNG = np.random.default_rng(2)


@pytest.mark.parametrize(("array", "parts"), [
    (np.concatenate([RNG.random((20, 4)) * 640, RNG.random((20, 2)) + 0.1], 1), ((0, 4), (4, 6))),
    (RNG.normal(size=(32, 10)) * 20, ()),
    (RNG.normal(size=(1, 1000)) * 20, ()),
    (np.exp(RNG.normal(size=(64, 5)) * 6), ()),
    (np.array([[600.0, 0.5]]), ()),
])  # fmt: skip
def test_ranges_are_told_from_values_that_happen_to_be_small(
    array: np.ndarray, parts: Sequence[tuple[int, int]]
) -> None:
    assert columns(array.astype(f32)) == tuple(Columns(1, *ends) for ends in parts)
