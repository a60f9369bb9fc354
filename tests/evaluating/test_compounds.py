"""``qrun eval`` of models whose outputs are no tensors of numbers: sequences, maps, optional values and texts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import Ended, call, says
from onnx import TensorProto, helper

import qrun

HEAD = '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>\n'
SPLIT = (
    HEAD
    + "g (float[N,4] x) => (seq(float[N,2]) y) { %s two = Constant<value_int = 2>() y = SplitToSequence<axis=1>(z, two) }"
)
TIMES = "half = Constant<value_float = %s>() z = Mul(x, half)"


def save(text: str, path: str) -> None:
    onnx.save(onnx.parser.parse_model(text), path)


def save_classifier(path: str, factor: float) -> None:
    """Texts of classes, and a sequence of maps: as scikit-learn's classifiers are converted."""
    rows = np.array([[1, -1, 0.5], [-1, 1, 0]], np.float32).reshape(-1) * factor
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", coefficients=rows.tolist(),
                         intercepts=[0.0, 0.0], classlabels_strings=["no", "yes"], post_transform="SOFTMAX"),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"]),
    ]  # fmt: skip
    held = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["N"]),
        helper.make_value_info("maps", helper.make_sequence_type_proto(held)),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=8), path
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def scores(ended: Ended) -> dict[tuple[str, str], float]:
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    assert not found["failures"]
    return {(s["metric"], s["output"]): float(s["value"]) for s in found["models"][0]["scores"]}


@pytest.mark.parametrize("against", ["float.onnx", "ort"])
def test_all_elements_of_a_sequence_count(against: str) -> None:
    save(SPLIT % (TIMES % "0.5"), "half.onnx")
    save(SPLIT % (TIMES % "1.0"), "float.onnx")
    x = np.random.default_rng(0).random((6, 4), np.float32)
    np.save("x.npy", x)
    found = scores(call("eval", "half.onnx", "-i", "x.npy", "--against", against, "--json"))
    apart = x.astype(np.float64) / 2 if against == "float.onnx" else np.zeros(1)
    assert found["argmax", "y"] == 1
    assert found["max_abs", "y"] == pytest.approx(apart.max())
    assert found["mean_abs", "y"] == pytest.approx(apart.mean())


def test_the_argmax_of_a_sequence_is_that_of_each_element() -> None:
    save(SPLIT % "z = Identity(x)", "a.onnx")
    save(SPLIT % "z = Neg(x)", "b.onnx")
    np.save("x.npy", np.array([[1, 2, 3, 3]], np.float32))  # of the second element the first is largest, either way
    assert scores(call("eval", "b.onnx", "-i", "x.npy", "--against", "a.onnx", "--json"))["argmax", "y"] == 0.5


@pytest.mark.parametrize("batch", ["1", "4"])
@pytest.mark.parametrize("against", ["float.onnx", "ort"])
def test_maps_and_texts(against: str, batch: str) -> None:
    save_classifier("float.onnx", 1)
    save_classifier("half.onnx", -1)
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    np.save("x.npy", x)
    found = scores(call("eval", "half.onnx", "-i", "x.npy", "--against", against, "--batch", batch, "--json"))
    sides = [qrun.Session(path).run({"x": x}) for path in ("half.onnx", "half.onnx" if against == "ort" else against)]
    labels = [side["label"] for side in sides]
    values = [np.array([list(row.values()) for row in side["maps"]]) for side in sides]
    assert found["equal", "label"] == (labels[0] == labels[1]).mean()
    assert found["argmax", "maps"] == (values[0].argmax(axis=1) == values[1].argmax(axis=1)).mean()
    assert found["mean_abs", "maps"] == pytest.approx(np.abs(values[0] - values[1]).mean(), abs=1e-6)
    shown = call("eval", "half.onnx", "-i", "x.npy", "--against", against)
    assert "equal elements" in shown.out


def test_a_sequence_has_no_batch_axis_and_its_samples_run_alone() -> None:
    save(SPLIT % "z = Identity(x)", "a.onnx")
    np.save("x.npy", np.zeros((4, 4), np.float32))
    found = scores(call("eval", "a.onnx", "-i", "x.npy", "--against", "a.onnx", "--batch", "2", "--json"))
    assert found["max_abs", "y"] == 0


def test_sequences_of_other_lengths_are_told() -> None:
    save(SPLIT % "z = Identity(x)", "a.onnx")
    save(SPLIT % "z = Concat<axis=1>(x, x)", "b.onnx")
    np.save("x.npy", np.zeros((4, 4), np.float32))
    ended = call("eval", "b.onnx", "-i", "x.npy", "--against", "a.onnx")
    assert "output 'y' has two forms" in ended.err
    assert "sequence [2]" in ended.err
    assert "sequence [4]" in ended.err


@pytest.mark.parametrize("given", [None, np.array([1, 2], np.float32)])
def test_optional_values(given: object) -> None:
    save(HEAD + "g (optional(float[2]) x) => (optional(float[2]) y) { y = Identity(x) }", "a.onnx")
    (found,) = qrun.evaluate("a.onnx", [{"x": given}] * 2, against="a.onnx").models
    assert not found.failed
    assert [score.metric for score in found.scores][:2] == ([] if given is None else ["argmax", "mean_abs"])


def test_own_metrics_see_what_a_session_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_classifier("a.onnx", 1)
    (tmp_path / "sureness.py").write_text("def of_yes(outputs, label):\n    return outputs['maps'][0]['yes']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    x = np.ones((2, 3), np.float32)
    np.save("x.npy", x)
    found = scores(call("eval", "a.onnx", "-i", "x.npy", "--metric", "sureness:of_yes", "--json"))
    assert found["sureness:of_yes", ""] == pytest.approx(qrun.Session("a.onnx").run({"x": x})["maps"][0]["yes"])


def test_kept_outputs_hold_every_tensor(tmp_path: Path) -> None:
    save(SPLIT % "z = Identity(x)", "a.onnx")
    save_classifier("b.onnx", 1)
    x = np.random.default_rng(0).random((2, 4), np.float32)
    np.save("x.npy", x)
    np.save("x3.npy", x[:, :3])
    assert call("eval", "a.onnx", "-i", "x.npy", "-o", "a").code == 0
    assert call("eval", "b.onnx", "-i", "x3.npy", "-o", "b").code == 0
    with np.load(io.BytesIO((tmp_path / "a" / "chunk-000000.npz").read_bytes())) as kept:
        assert np.array_equal(kept["outputs/0/y[1]"], x[:, 2:])
    with np.load(io.BytesIO((tmp_path / "b" / "chunk-000000.npz").read_bytes())) as kept:
        assert kept["outputs/0/label"].shape == (2,)
        assert kept["outputs/0/maps.values"].shape == (2, 2)


def test_texts_of_python_are_samples() -> None:
    save(HEAD + "g (string[N] x) => (string[N] y) { y = Identity(x) }", "a.onnx")
    (found,) = qrun.evaluate("a.onnx", [{"x": np.array([text])} for text in ("no", "yes")], against="ort").models
    assert [(score.metric, score.value, score.count) for score in found.scores] == [("equal", 1.0, 2)]


def test_a_gate_of_agreement_counts_texts_and_is_never_passed_unseen() -> None:
    save(HEAD + "g (string[N] x) => (string[N] y) { y = Identity(x) }", "texts.onnx")
    np.save("t.npy", np.array(["no", "yes"]))
    gate = ["--against", "texts.onnx", "--min-agreement", "100", "--json"]
    assert json.loads(call("eval", "texts.onnx", "-i", "t.npy", *gate).out)["gates"][0]["passed"]
    save(HEAD + "g (float[N] x) => (float[N] y) { y = Identity(x) }", "number.onnx")
    np.save("x.npy", np.ones(3, np.float32))
    ended = call("eval", "number.onnx", "-i", "x.npy", "--against", "number.onnx", "--min-agreement", "100")
    says(ended, 2, "--min-agreement finds no output")
