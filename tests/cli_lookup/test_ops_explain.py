"""qrun ops and qrun explain."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx.defs
import pytest
from helpers.cli import ROOT

import qrun
from qrun.checking.rules import RULES
from qrun.cli import main
from qrun.comparing.causes import CAUSES
from qrun.conform.judge import CAUSES as OF_CONFORM
from qrun.errors import NAMES, QrunError
from qrun.ir.schema import ML, STANDARD
from qrun.ops import REGISTRY, RUNNER, operators
from qrun.report.codes import CODES, GROUPS, TOPICS
from qrun.report.explain import names
from qrun.report.glossary import GLOSSARY
from qrun.report.ops import compact, ranges, supported_operators

TOTAL = len(operators())
HOMES = {"": "ops", ML: "ops.aionnxml", "ai.onnx.preview.training": "ops.aionnx_preview_training"}
"""Where onnx.reference has the operators of a domain."""


def run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> tuple[str, str]:
    assert main(list(argv)) == code
    out = capsys.readouterr()
    return out.out, out.err


# ops


def test_every_operator_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(capsys, "ops")
    lines = text.splitlines()
    assert lines[-1] == f"{TOTAL} of {TOTAL} operators"
    assert len(lines) == TOTAL + 2
    names = {line.split()[0] for line in lines[1:-1]}
    assert names == {f"{d}::{o}" if d else o for d, o in operators()}
    assert {line.split()[0] for line in lines[1:-1] if f" {RUNNER} " in line} >= {"CausalConvWithState", "ImageDecoder"}


def test_every_operator_of_onnx_runs() -> None:
    """But one, which trains; what onnx.reference is to run, it has code for."""
    of_onnx = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history() if not s.deprecated}
    assert of_onnx - set(operators()) == {("ai.onnx.preview.training", "Gradient")}
    assert set(operators()) <= of_onnx | set(REGISTRY)
    for domain, op_type in set(operators()) - set(REGISTRY):
        home = import_module(f"onnx.reference.{HOMES.get(domain, 'ops.aionnx_preview')}")
        assert home.load_op(domain, op_type, STANDARD[domain][-1]), op_type


def test_ops_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(capsys, "ops", "qlinearconv")
    rows = text.splitlines()
    assert rows[1].split("  ")[1].strip() == "QLinearConv"
    assert re.search(r" 10 +x u8/i8, w u8/i8, y u8/i8 +QR206-QR208, .*QR301-QR303, QR305-QR307", rows[1])
    assert rows[2].startswith("  com.microsoft::QLinearConv")
    assert rows[-1] == f"2 of {TOTAL} operators"


def test_versions_and_types_of_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(capsys, "ops", "QuantizeLinear")
    row = next(line for line in text.splitlines() if line.startswith("  QuantizeLinear"))
    assert "10, 13, 19, 21, 23, 24, 25, 28" in row
    assert "x i32/f16/f32/bf16, y u2/u4/u8/u16/i2/i4/i8/i16/f4/f6/f8" in row


def test_unknown_operators(capsys: pytest.CaptureFixture[str]) -> None:
    text, error = run(capsys, "ops", "QLinearCnov", code=1)
    assert text == f"0 of {TOTAL} operators\n"
    assert "did you mean QLinearConv" in error


def test_operators_that_onnx_reference_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = run(capsys, "ops", "imagedecoder")[0].splitlines()[1:-1]
    assert row.split()[:4] == ["ImageDecoder", "20", "encoded_stream", "u8"]
    assert RUNNER in row
    told = json.loads(run(capsys, "ops", "CausalConv", "--json")[0])["operators"]
    assert {o["domain"]: o["ran_by"] for o in told} == {"ai.onnx": RUNNER, "com.microsoft": "qrun"}
    text = run(capsys, "explain", "imagedecoder")[0]
    assert f"ran by      {RUNNER}" in text
    assert re.search(r"pixel_format +a string +RGB", text)


def test_ops_cuts_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text, _ = run(capsys, "ops")
    assert "…" not in text
    assert "checked by" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    monkeypatch.setenv("COLUMNS", "120")
    assert "checked by" in run(capsys, "ops", "Conv")[0]


def test_what_begins_with_the_word_is_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row.split()[0] for row in run(capsys, "ops", "Mul")[0].splitlines()[1:-1]]
    assert rows[0] == "Mul"
    assert "MatMul" in rows[1:]


def test_ops_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, "ops", "MatMulInteger", "--json")[0])
    assert report["schema"] == "qrun/ops/1.0"
    first = report["operators"][0]
    assert (first["op"], first["domain"], first["versions"]) == ("MatMulInteger", "ai.onnx", [10])
    assert first["inputs"] == [{"names": [n], "types": ["int8", "uint8"]} for n in "AB"]
    assert json.loads(run(capsys, "ops", "nothing", "--json", code=1)[0])["exit_code"] == 1


def test_short_names_of_types() -> None:
    import ml_dtypes

    half = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
    assert compact(frozenset(half)) == "f16/bf16"
    assert compact(frozenset(map(np.dtype, [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]))) == "f8"
    assert compact(frozenset(map(np.dtype, "BHIQbhiqefd"))) == "numeric"
    assert compact(frozenset(map(np.dtype, "BHIQbhiqefd?O"))) == "any"
    assert compact(None) == ""
    assert ranges(["QR301", "QR302", "QR303", "QR305", "QR401"]) == "QR301-QR303, QR305, QR401"


# explain


def test_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(capsys, "explain", "QR301")
    lines = text.splitlines()
    assert lines[0] == "QR301 scale-shape   error   since qrun 0.1"
    assert lines[1] == "  A scale has a shape that its operator does not allow."
    assert any(line.startswith("  applies to  ConvInteger, DequantizeLinear,") for line in lines)
    assert "com.microsoft::QGemm," in text
    assert "  fix         export one scale per channel" in text
    assert "<ir_version" not in text
    assert run(capsys, "explain", "scale-shape")[0] == text
    assert run(capsys, "explain", "qr301")[0] == text
    assert "<ir_version" in run(capsys, "explain", "QR301", "-v")[0]


@pytest.mark.parametrize(
    "topic", [*TOPICS, *GLOSSARY, *RULES, *CODES, *(name for name, _ in CODES.values()), "QR3", "QR"]
)
def test_every_topic(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text, _ = run(capsys, "explain", topic)
    assert text
    for line in text.splitlines():
        assert len(line) <= 80 or "https://" in line, line


def test_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(capsys, "explain", "qlinearmatmul")
    assert text.startswith("QLinearMatMul   versions 10, 21\n")
    assert "y   = saturate(RNE(acc * a_scale * b_scale / y_scale) + y_zero_point)" in text
    assert re.search(r"b_scale +f16/f32/bf16", text)
    both, _ = run(capsys, "explain", "QLinearConv")
    assert "com.microsoft::QLinearConv   version 1" in both
    assert re.search(r"channels_last +an int +0", both)


@pytest.mark.parametrize(
    ("operator", "told"), [("QGemm", 1), ("QuantizeLinear", 2), ("DynamicQuantizeLinear", 1), ("Add", 0)]
)
def test_quantized_operators_name_what_they_share(capsys: pytest.CaptureFixture[str], operator: str, told: int) -> None:
    assert run(capsys, "explain", operator)[0].count("  see also    qrun explain numerics\n") == told
    assert "its code is x_zero_point" in run(capsys, "explain", "numerics")[0]


def test_every_operator_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    from qrun.report.explain import page
    from qrun.report.screen import Out

    for domain, op_type in operators():
        page(f"{domain}::{op_type}" if domain else op_type).show(Out.open().result)
        assert capsys.readouterr().out.startswith(f"{domain}::{op_type}" if domain else op_type)


def test_every_operator_names_its_page() -> None:
    """And nothing that only concerns Python."""
    for told in supported_operators():
        assert "OperatorError" not in told.text, told.op
        assert "``" not in told.text, told.op
        sources = " ".join(told.text.split()).split("Source: ")[1:]
        assert len(sources) == 1, told.op
        assert told.op_type in sources[0], told.op
    pools = next(s for s in supported_operators() if s.op_type == "QLinearAveragePool")
    own = "onnxruntime ContribOperators, com.microsoft.QLinearAveragePool; ONNX operators, AveragePool-22."
    assert pools.text.endswith(f"Source: {own}")


def test_unknown_topic(capsys: pytest.CaptureFixture[str]) -> None:
    text, error = run(capsys, "explain", "scale-shpae", code=2)
    assert text == ""
    assert "did you mean scale-shape" in error
    assert "did you mean QR306" in run(capsys, "explain", "QR3066", code=2)[1]
    error = run(capsys, "explain", "", code=2)[1]
    assert "topics" in error
    assert f"QR000 to {max(RULES)}" in error


def test_without_a_topic_everything_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(capsys, "explain")
    for name in (*TOPICS, *GLOSSARY, *RULES, *CODES):
        assert name in text
    for rule in RULES.values():
        assert rule.summary.split(". ")[0] in text
    assert "A tensor's data is in an external file, which is missing, too short" in text


def test_levels_are_those_of_check_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "explain", "QR201")[0].startswith(
        "QR201 unsupported-op   note in qrun check, error in qrun run   since"
    )
    assert run(capsys, "explain", "QR301")[0].startswith("QR301 scale-shape   error   since")
    assert re.search(r"QR201 +unsupported-op +note, error ", run(capsys, "explain", "QR2")[0])


@pytest.mark.parametrize("topic", [None, "QR306", "QR001", "QR3", "inputs", "QLinearConv", "usage"])
def test_explain_json(capsys: pytest.CaptureFixture[str], topic: str | None) -> None:
    report = json.loads(run(capsys, "explain", *([topic] if topic else []), "--json")[0])
    assert report["schema"] == "qrun/explain/1.0"
    assert report["exit_code"] == 0
    if topic == "QR306":
        assert (report["code"], report["name"], report["level"]) == ("QR306", "scale-value", "error")
        assert "<ir_version" in report["bad"]
    if topic == "usage":
        assert report["code"] == "QR000"
    if topic in (None, "QR3"):
        assert {"QR301", "QR306"} <= {row["code"] for row in report["codes"]}
    if topic == "QLinearConv":
        assert [o["domain"] for o in report["operators"]] == ["ai.onnx", "com.microsoft"]


def test_explain_json_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "explain", "nope", "--json", code=2)[0])["error"]["code"] == "QR005"


@pytest.mark.parametrize("name", [*CAUSES, "unknown", "inherited", "accepts-invalid", "garbage", "zero-range"])
def test_every_cause_has_a_page(capsys: pytest.CaptureFixture[str], name: str) -> None:
    text, _ = run(capsys, "explain", name)
    of = "a verdict of qrun conform" if name in OF_CONFORM else "a difference in qrun compare"
    assert text.startswith(f"{name}   cause of {of}\n")
    for label in ("confirm", "what to do", "source"):
        assert re.search(rf"^  {label} +\S", text, re.M), label
    told = json.loads(run(capsys, "explain", name, "--json")[0])
    assert told["cause"] == name
    assert all(told[key] for key in ("summary", "source", "confirm", "fix"))
    assert name in names()


def test_words_of_the_screens_are_in_the_glossary(capsys: pytest.CaptureFixture[str]) -> None:
    words = "sqnr fused overhead local step code share group literal roof tie requantization saturation golden"
    assert set(words.split()) <= set(GLOSSARY)
    listed = " ".join(run(capsys, "explain", "glossary")[0].split())
    assert all(f"{name} {text}" in listed for name, text in GLOSSARY.items())
    assert "sum((got - want)^2)" in run(capsys, "explain", "SQNR")[0]
    assert json.loads(run(capsys, "explain", "tie", "--json")[0])["text"] == GLOSSARY["tie"]
    both = run(capsys, "explain", "saturation")[0]
    assert "cause of a difference" in both
    assert "word of the glossary" in both
    assert run(capsys, "explain", "roof")[0].startswith("The roof column")
    assert "did you mean requantization" in run(capsys, "explain", "requantisation", code=2)[1]


def test_a_cause_names_the_rule_of_the_same_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "see also    qrun explain QR409, the rule of the same name" in run(capsys, "explain", "pair-saturation")[0]
    assert run(capsys, "explain", "QR409")[0].startswith("QR409 pair-saturation")
    assert "see also" not in run(capsys, "explain", "float-order")[0]
    assert "did you mean float-order" in run(capsys, "explain", "float-oder", code=2)[1]


def test_no_level_is_told_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert "error, error" not in run(capsys, "explain")[0]
    assert "error, error" not in "".join(run(capsys, "explain", rule)[0] for rule in RULES)


def test_every_code_in_the_source_is_explained() -> None:
    folder = Path(qrun.__file__).parent
    used = {code for path in folder.rglob("*.py") for code in re.findall(r'"(QR\d{3})"', path.read_text("utf-8"))}
    assert used - set(RULES) - set(CODES) == set()
    assert set(RULES) & set(CODES) == set()
    assert {code[:3] for code in used} <= set(GROUPS)


def test_an_error_has_the_name_of_its_rule() -> None:
    assert set(NAMES) <= set(RULES) | set(CODES)
    assert {code: NAMES[code] for code in RULES if code in NAMES} == {c: r.name for c, r in RULES.items() if c in NAMES}
    assert QrunError("QR004", "gone").name == "no-such-file"


def test_exit_codes_are_those_of_the_errors() -> None:
    from qrun.errors import CallError, ModelError, RunError, UnsupportedError

    first = [line.split()[0] for line in TOPICS["exit-codes"].splitlines()]
    stated = {int(word) for word in first if word.isdigit()}
    assert {e.exit_code for e in (CallError, ModelError, QrunError, RunError, UnsupportedError)} <= stated


def test_when_dynamic_quantization_has_no_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "DynamicQuantizeLinear"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "If y_scale would be 0, it is 1 and the zero point is 0: x is then empty, all zeros, or so small that its range"
        in shown
    )


def test_every_variable_that_qrun_heeds_is_explained() -> None:
    folder = Path(qrun.__file__).parent
    sources = "".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    heeded = set(re.findall(r"[\"']((?:QRUN_|NO_|FORCE_|SOURCE_)[A-Z_]+)[\"']", sources))
    assert {"QRUN_CACHE_DIR", "QRUN_ISA", "SOURCE_DATE_EPOCH", "NO_COLOR"} <= heeded
    told = {line.split()[0] for line in TOPICS["environment"].splitlines() if re.match(r"  [A-Z]", line)}
    assert told >= heeded
    page = (ROOT / "docs/configuration.md").read_text("utf-8").partition("## Environment variables")[2]
    rows = {
        name
        for line in page.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([A-Z_]+)`", line.split("|")[1])
    }
    assert rows == told
