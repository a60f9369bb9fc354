"""Labels of ``qrun eval``: class numbers, or names where the model returns texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call, fixes

import qrun
from qrun.errors import CallError

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
NAMES = HEAD + "g (string[N] x) => (string[N] y) { y = Identity(x) }"
NUMBERS = HEAD + "g (float[N,3] x) => (int64[N] y, float[N,3] z) { y = ArgMax<axis=1, keepdims=0>(x) z = Identity(x) }"
SCORES = HEAD + "g (float[N,3] x) => (float[N,3] y) { y = Identity(x) }"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("names", NAMES), ("numbers", NUMBERS), ("scores", SCORES)):
        onnx.save(onnx.parser.parse_model(text), f"{name}.onnx")
    np.save("t.npy", np.array(["no", "01", "New York", "no"]))
    np.save("x.npy", np.eye(3, dtype=np.float32))


def top1(*args: str) -> tuple[float, int]:
    ended = call("eval", *args, "--json")
    assert ended.code == 0, ended.err
    scores: list[dict[str, Any]] = json.loads(ended.out)["models"][0]["scores"]
    (found,) = [score for score in scores if score["metric"] == "top1"]
    return found["value"], found["count"]


def test_names_of_classes() -> None:
    Path("y.txt").write_text("no\n01\nNew York\n\nmaybe\n")
    np.save("y.npy", np.array(["no", "01", "New York", "maybe"]))
    assert top1("names.onnx", "-i", "t.npy", "--labels", "y.txt") == (0.75, 4)
    assert top1("names.onnx", "-i", "t.npy", "--labels", "y.npy") == (0.75, 4)
    found = qrun.evaluate("names.onnx", "t.npy", labels=["no", "1", "New York", "no"])
    assert found.models[0].scores[0].value == 0.75
    pairs = [({"x": np.array([name])}, name) for name in ("no", "yes")]
    assert qrun.evaluate("names.onnx", pairs).models[0].scores[0].value == 1


def test_a_model_that_returns_the_class() -> None:
    Path("y.txt").write_text("0 1 1")
    assert top1("numbers.onnx", "-i", "x.npy", "--labels", "y.txt") == (pytest.approx(2 / 3), 3)


@pytest.mark.parametrize("form", ["txt", "npy"])
def test_names_for_scores_are_refused(form: str) -> None:
    Path("y.txt").write_text("0\nno\n1\n")
    np.save("y.npy", np.array(["0", "no", "1"]))
    ended = call("eval", "scores.onnx", "-i", "x.npy", "--labels", f"y.{form}")
    (fix,) = fixes(ended, 2, "QR007")
    assert "the correct class number for each sample" in ended.err
    assert "invalid literal" not in ended.err
    assert "write each class as its index" in fix


@pytest.mark.parametrize("label", ["no", 0.5, None])
def test_labels_of_python_that_are_no_classes(label: object) -> None:
    for given in ({"samples": [(np.eye(3, dtype=np.float32)[0], label)]}, {"samples": "x.npy", "labels": [label] * 3}):
        with pytest.raises(CallError, match="class number") as caught:
            qrun.evaluate("scores.onnx", **given)  # type: ignore[arg-type]
        assert dict(caught.value.facts)["got"] == repr(label)


def test_kept_results_are_of_these_names() -> None:
    Path("y.txt").write_text("no\n01\nNew York\nmaybe\n")
    args = ["eval", "names.onnx", "-i", "t.npy", "--labels", "y.txt", "-o", "out"]
    assert call(*args).code == 0
    assert call(*args, "--resume").code == 0
    Path("y.txt").write_text("no\n01\nNew York\nno\n")
    assert "labels differs" in call(*args, "--resume").err


@pytest.mark.parametrize("form", ["txt", "npy"])
def test_names_of_classes_for_scores(form: str) -> None:
    names = ["New York", "no", "yes"]
    Path("names.txt").write_text("\n".join(names))
    Path("y.txt").write_text("New York\nno\nno\n")
    np.save("y.npy", np.array(["New York", "no", "no"]))
    args = ["scores.onnx", "-i", "x.npy", "--classes", "names.txt", "--labels"]
    assert top1(*args, f"y.{form}") == (pytest.approx(2 / 3), 3)
    found = qrun.evaluate("scores.onnx", "x.npy", labels=["New York", "no", "no"], classes="names.txt")
    assert found.models[0].scores[0].value == pytest.approx(2 / 3)
    Path("y.txt").write_text("New York\nno\nyess\n")
    np.save("y.npy", np.array(["New York", "no", "yess"]))
    ended = call("eval", *args, f"y.{form}")
    assert "'yess'" in ended.err
    assert fixes(ended, 2, "QR007") == ["did you mean 'yes'?"]
    for text in ("New York\n0\n1\n", "0 no 1", "²"):
        Path("y.txt").write_text(text)
        assert fixes(call("eval", *args, "y.txt"), 2, "QR007") is not None
