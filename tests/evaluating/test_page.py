"""``qrun report eval.json``: the scores as a page."""

from __future__ import annotations

from pathlib import Path

from evaluating.conftest import MODELS, Digits
from helpers.cli import call


def saved(name: str, *arguments: str | Path) -> str:
    Path(name).write_text(call(*arguments, "--json").out)
    return name


def test_scores_are_a_section_of_the_page(digits: Digits) -> None:
    model = MODELS / "qdq" / "model.onnx"
    args = ["eval", model, MODELS / "dynamic" / "model.onnx", *digits.options, "--limit", "60"]
    answer = saved("eval.json", *args, "--against", MODELS / "float" / "model.onnx", "--health")
    assert call("report", answer, "-o", "alone.html").code == 0
    page = Path("alone.html").read_text()
    for words in (
        "No significant difference",
        "dynamic/model.onnx",
        "argmax agreement",
        "Samples on which qdq/model.onnx",
    ):
        assert words in page
    check = saved("check.json", "check", model)
    assert call("report", answer, check, "-o", "both.html").code == 0
    assert "QR409" in Path("both.html").read_text()
    other = saved("other.json", "check", MODELS / "qoperator" / "model.onnx")
    refused = call("report", answer, other, "-o", "none.html")
    assert refused.code == 2
    assert "these reports are of different models" in refused.err


def test_a_damaged_answer_is_refused(digits: Digits) -> None:
    args = ["eval", MODELS / "qdq" / "model.onnx", *digits.options, "--limit", "5"]
    answer = saved("eval.json", *args)
    Path(answer).write_text(Path(answer).read_text().replace('"scores": [{', '"scores": [7, {'))
    refused = call("report", answer, "-o", "page.html")
    assert refused.code == 2
    assert "scores[0]" in refused.err
