"""What Python users see: public names, one-line texts, notebooks, `qrun.compare`, `qrun.report`,
and errors in Python's words."""

from __future__ import annotations

import html
import inspect
import pydoc
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import qrun
from qrun.cli.compare import AGAINST as OFFERED
from qrun.comparing.choices import AGAINST

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "models" / "digits"
X = {"images": np.load(DIGITS / "x.npy")}
OPTIONS = re.compile(r"(?<![\w-])--?[a-z]")


@pytest.fixture(scope="module")
def session() -> qrun.Session:
    return qrun.Session(DIGITS / "qoperator" / "model.onnx")


@pytest.mark.parametrize("first", ["qrun.report", "qrun.report.text"])
def test_the_public_names_are_there_whatever_is_imported_first(first: str) -> None:
    code = f"import qrun, {first}\nassert callable(qrun.report)\nfor name in qrun.__all__: getattr(qrun, name)\nimport qrun.report.text"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {n for n in dir(qrun) if not n.startswith("_")} == set(qrun.__all__)


def test_the_calls_of_onnxruntime_work(session: qrun.Session) -> None:
    """What a script for onnxruntime calls, and it gets lists in the order of the names."""
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, list(given.shape or ())) == ("images", "tensor(float)", ["N", 1, 8, 8])
    known = session.run(X, ["logits", "c1.raw_quantized"])
    assert isinstance(known, dict)
    for names, want in [
        (None, ["logits"]),
        ([], ["logits"]),
        ([made.name], ["logits"]),
        ("logits", ["logits"]),
        (["c1.raw_quantized", "logits"], ["c1.raw_quantized", "logits"]),
    ]:
        for call in ((names, X), (names, X, None)):
            got = session.run(*call)
            assert isinstance(got, list)
            assert len(got) == len(want)
            assert all(np.array_equal(array, known[name]) for array, name in zip(got, want, strict=True))
    with pytest.raises(qrun.CallError, match="run_options is not valid"):
        session.run(None, X, object())  # type: ignore[call-overload]
    with pytest.raises(qrun.CallError, match="no tensor 'logit'"):
        session.run(["logit"], X)


def test_types_in_the_words_of_onnxruntime() -> None:
    ort = pytest.importorskip("onnxruntime")
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N] a, uint8[2] b, float16[2] c, string[2] d, bool[2] e, double[2] f, seq(int64[2]) s)
      => (float[N] y, uint8[2] bb, float16[2] cc, string[2] dd, bool[2] ee, double[2] ff, seq(int64[2]) ss)
    { y = Identity(a) bb = Identity(b) cc = Identity(c) dd = Identity(d) ee = Identity(e) ff = Identity(f)
      ss = Identity(s) }"""
    data = onnx.parser.parse_model(text).SerializeToString()
    theirs = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).get_inputs()
    assert [v.type for v in qrun.Session(data).get_inputs()] == [v.type for v in theirs]


def answers(session: qrun.Session) -> dict[str, Any]:
    return {
        "Model": session.model,
        "Profile": session.profile(X, runs=3),
        "Finding": qrun.check(session.model)[0],
        "Comparison": qrun.compare(DIGITS / "qdq" / "model.onnx", feeds=X, against="fused"),
        "Accuracy": qrun.compare(DIGITS / "float" / "model.onnx", DIGITS / "qdq" / "model.onnx", X),
        "Evaluation": qrun.evaluate(DIGITS / "qdq" / "model.onnx", [X], against=DIGITS / "float" / "model.onnx"),
    }


def test_an_answer_is_one_line_and_printed_or_in_a_notebook_what_the_terminal_shows(session: qrun.Session) -> None:
    words = {
        "Model": "QLinearConv",
        "Profile": "Slowest nodes",
        "Finding": "reduce_range",
        "Comparison": "First difference",
        "Accuracy": "Keep in float",
        "Evaluation": "argmax agreement",
    }
    for name, answer in answers(session).items():
        line, shown = repr(answer), answer._repr_html_()
        assert line.startswith(f"<qrun.{name} "), line
        assert "\n" not in line
        assert len(line) < 300
        assert shown.startswith("<pre")
        assert shown.count("<") == 2, "names are text"
        assert words[name] in shown
        assert html.unescape(shown).partition(">")[2].removesuffix("</pre>") == str(answer)
        assert isinstance(answer, getattr(qrun, name))
        assert "\\n" not in shown
        assert not re.search(r"--(top|by)", shown)


def test_compare_says_what_the_command_does(session: qrun.Session) -> None:
    found = qrun.compare((DIGITS / "qdq" / "model.onnx").read_bytes(), feeds=X, against="fused")
    assert not found.equal
    assert found.first is not None
    assert found.first.node.index == 30
    assert found.first.cause == "fused-requantization"
    assert [t.cause for t in found.tensors if t.name == "logits"] == [""]
    assert qrun.compare(session.model, feeds=X, against="native").equal
    cost = qrun.compare(DIGITS / "float" / "model.onnx", DIGITS / "qdq" / "model.onnx", [X, X], min_sqnr=90)
    assert isinstance(cost, qrun.Accuracy)
    assert not cost.passed
    assert cost.runs == 2
    assert cost.sqnr == pytest.approx(cost.outputs[0].noise.sqnr)
    assert cost.outputs[0].noise.outliers == 0
    assert not cost.budget_exceeded
    assert qrun.compare(DIGITS / "float" / "model.onnx", DIGITS / "qdq" / "model.onnx", X, budget=0).budget_exceeded
    assert set(OFFERED) <= set(AGAINST)


def test_report_is_the_page(session: qrun.Session, tmp_path: Path) -> None:
    text = qrun.report(session.model, X, tmp_path / "page.html", runs=2, against="native")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    assert text.startswith("<!DOCTYPE html>")
    assert all(f'id="{part}"' in text for part in ("findings", "nodes", "comparison"))


def wrong_calls(session: qrun.Session) -> list[Any]:
    path, other = DIGITS / "qdq" / "model.onnx", {"images": X["images"].astype(np.float64)}
    return [
        lambda: session.run({}),
        lambda: session.run({"image": X["images"]}),
        lambda: session.run(other),
        lambda: session.run(X, ["no such"]),
        lambda: session.run(X, ["logit"]),
        lambda: qrun.compare(path),
        lambda: qrun.compare(path, path),
        lambda: qrun.compare(path, feeds=X, against="tflite"),
        lambda: qrun.compare(path, feeds=[X, X], against="native"),
        lambda: qrun.report(path, X["images"]),
        lambda: qrun.Session(path, max_memory=5000).run(X),
        lambda: qrun.Session("no.onnx"),
        lambda: qrun.Session(path, isa="z"),
        lambda: qrun.Session(path, threads=0),
        lambda: qrun.Session(path, arith="fast"),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("place", range(15))
def test_errors_in_python_name_no_option_of_the_command(place: int, session: qrun.Session) -> None:
    with pytest.raises(qrun.QrunError) as caught:
        wrong_calls(session)[place]()
    assert not OPTIONS.search(str(caught.value)), str(caught.value)


def test_the_command_still_names_its_options(session: qrun.Session) -> None:
    with pytest.raises(qrun.QrunError) as caught:
        session.run({})
    assert caught.value.fixes[0] == "add -i images=FILE"
    assert "session.run({'images': array})" in str(caught.value)


def test_a_profile_says_whether_the_machine_was_busy(session: qrun.Session) -> None:
    quiet = replace(session.profile(X, runs=5), run_ns=(10**9,) * 20, on_ns=None)
    assert not quiet.noisy
    assert "the machine is busy" not in str(quiet)
    noisy = replace(quiet, run_ns=(10**9,) * 15 + (3 * 10**9,) * 5)
    assert noisy.noisy
    assert "the machine is busy" in str(noisy)


def test_help_shows_the_function_of_the_report() -> None:
    """Its package has the same name."""
    from qrun.report import text

    assert text.__name__ == "qrun.report.text"
    assert inspect.isfunction(qrun.report)
    shown = pydoc.render_doc(qrun.report, renderer=pydoc.plaintext)
    assert "report(model: 'str | Path | bytes | onnx.ModelProto | Model', feeds:" in shown
    assert "as for Session" in shown
    assert list(inspect.signature(qrun.report).parameters)[:3] == ["model", "feeds", "output"]
