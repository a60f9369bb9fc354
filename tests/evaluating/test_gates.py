"""Answers of ``qrun eval`` do not look better than they are: gates, samples that fail, words and intervals."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from evaluating.conftest import MODELS, Digits
from helpers.cli import Ended, call, fixes

import qrun

QDQ, FLOAT = MODELS / "qdq" / "model.onnx", MODELS / "float" / "model.onnx"


@pytest.mark.parametrize(
    ("options", "other"), [(["--against", FLOAT], "--labels FILE"), (["--labels"], "--against MODEL")]
)
def test_a_drop_needs_labels_and_a_second_model(digits: Digits, options: list[str], other: str) -> None:
    given = [*options, digits.folder / "y.npy"] if options == ["--labels"] else options
    ended = call("eval", QDQ, "-i", digits.folder / "x.npy", "--limit", "9", "--max-drop", "1", *given)
    assert f"--max-drop goes with {other}" in ended.err
    assert fixes(ended, 2, "QR005")[0].startswith(f"add {other}")


def test_a_drop_between_two_models_needs_no_reference(digits: Digits) -> None:
    ended = call("eval", FLOAT, QDQ, *digits.options, "--limit", "99", "--max-drop", "50", "--json")
    assert [(gate["option"], gate["passed"]) for gate in ended.json["gates"]] == [("--max-drop", True)]


@pytest.fixture
def half(digits: Digits) -> list[str]:
    """Ten samples; the odd ones cannot be read."""
    Path("samples").mkdir()
    for place in range(10):
        np.save(f"samples/x{place}.npy", digits.images[place])
        if place % 2:
            Path(f"samples/x{place}.npy").write_bytes(b"garbage")
    np.save("y.npy", digits.labels[:10])
    return ["eval", str(QDQ), "-i", "samples", "--labels", "y.npy"]


def first(ended: Ended) -> str:
    return ended.out.splitlines()[0]


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_the_first_line_counts_samples_that_failed(half: list[str], quiet: list[str]) -> None:
    ended = call(*half, *quiet)
    assert first(ended).startswith("5 of 10 samples could not be read; accuracy: ")
    assert ended.code == 0


@pytest.mark.parametrize("gate", [["--min-accuracy", "1"], ["--min-agreement", "1", "--against", FLOAT]])
def test_no_gate_passes_with_samples_that_failed(half: list[str], gate: list[str]) -> None:
    ended = call(*half, "-q", *gate)
    assert first(ended).startswith("failed: 5 of 10 samples could not be read")
    assert ended.code == 1
    assert call(*half, *gate, "--json").code == 1


def test_fail_fast_ends_with_an_error_that_names_the_sample(half: list[str]) -> None:
    ended = call(*half, "-q", "--fail-fast")
    assert first(ended).startswith("failed: stopped at samples/x1.npy")
    assert ended.code == 5
    answer = call(*half, "--fail-fast", "--json")
    jsonschema.validate(answer.json, json.loads(files("qrun").joinpath("schemas/eval-1.0.json").read_text()))
    assert answer.json["exit_code"] == answer.code == 5


def test_the_example_of_folders_with_names_runs(digits: Digits) -> None:
    """As the help prints it, for the digits in folders with names, and their size."""
    import re
    import shlex

    from PIL import Image

    shown = call("eval", "-h").out.replace("\\\n", " ")
    (example,) = re.findall("qrun (eval int8.onnx -i pets/ --labels folders .*)", shown)
    for name, place in (("zero", 0), ("one", 1)):
        Path("pets", name).mkdir(parents=True)
        pixels = (digits.images[place, 0] * 255).astype(np.uint8)
        Image.fromarray(pixels).save(f"pets/{name}/a.png")
    Path("names.txt").write_text("zero\none\n" + "\n".join("23456789"))
    Path("int8.onnx").write_bytes(QDQ.read_bytes())
    words = shlex.split(example.replace("size=224 color=rgb", "size=8 color=gray"))
    ended = call(*words)
    assert ended.code == 0, ended.err
    assert first(ended).startswith("accuracy: int8.onnx 100.00 %")


@pytest.mark.parametrize("file", ["out.json", "out.csv"])
def test_an_output_is_a_folder(digits: Digits, file: str) -> None:
    ended = call("eval", QDQ, *digits.options, "--limit", "3", "-o", file)
    (fix,) = fixes(ended, 2, "QR005")
    assert f"> {file}" in fix
    assert not Path(file).exists()


@pytest.mark.parametrize(("first", "second", "agree"), [(5, 0, False), (1, 1, True), (9, 0, True), (60, 20, True)])
def test_the_verdict_and_the_interval_beside_it_agree(first: int, second: int, agree: bool) -> None:
    """5 samples lost of 2000: Newcombe's interval excludes 0, McNemar's p is 0.06."""
    from qrun.evaluating.evaluation import Evaluation, ModelScores
    from qrun.evaluating.statistics import Pairs
    from qrun.evaluating.tally import PairedDifference
    from qrun.report.evaluation import verdict_of

    pairs = Pairs(2000 - first - second, first, second, 0)
    d = pairs.difference()
    apart = PairedDifference(0, "top1", d.value, d.low, d.high, second, first, pairs.p_value())
    models = [ModelScores(name, "", (), made, (), 0) for name, made in (("a", ()), ("b", (apart,)))]
    found = Evaluation("x", 2000, 2000, "", tuple(models), (), 0, "", 1.0, 1.0, 0, 1, (None, None))
    words = verdict_of(found)[0]
    assert ("McNemar's p is 0.062" in words) is not agree
    assert words.startswith(("worse", "better")) is (pairs.p_value() < 0.05)


def test_a_score_has_the_name_that_the_table_prints(digits: Digits) -> None:
    found = qrun.evaluate(QDQ, digits.images[:20], labels=digits.labels[:20], against=FLOAT)
    for name, title in (("top1", "top-1"), ("argmax", "argmax agreement"), ("sqnr_db", "SQNR")):
        assert found.score(0, title) is found.score(0, name) is not None
    assert found.score(0, "equal") is None
    with pytest.raises(qrun.CallError, match="'top-11' does not exist") as caught:
        found.score(0, "top-11")
    assert caught.value.fixes == ("did you mean 'top1'?",)
    with pytest.raises(qrun.CallError):
        found.score(0, "nonsense")


@pytest.mark.parametrize("gate", ["--min-accuracy", "--min-agreement"])
def test_a_share_is_no_percentage(digits: Digits, gate: str) -> None:
    """0.9 % would always be reached."""
    ended = call("eval", QDQ, *digits.options, gate, "0.9")
    assert ended.code == 2
    assert "0.9 %; did you mean 90?" in ended.err
