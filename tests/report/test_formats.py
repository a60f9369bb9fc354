"""The formats of ``qrun check``: each is what its reader expects, whatever signs are in the names."""

from __future__ import annotations

import io
import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from qrun.checking.check import Checked, Report
from qrun.checking.rules import Finding
from qrun.checking.vectors import ComparedOutput, Vector
from qrun.comparing.differences import Tolerance
from qrun.errors import CallError
from qrun.report.formats import FORMATS, Asked, print_report, report_text, suffixes, target
from qrun.report.formats.ci import MOST, MOST_ROWS, workflow_commands
from qrun.report.screen import Screen

ODD = "a|b`c`[d](e)<f>&@g:h,i%j\x00\x1b[31m\nk\u202e\ud800\\_*"
"""A name with signs that mean something to Markdown, HTML, XML, workflow commands, terminals or nothing."""


def finding(level: str = "error", **more: Any) -> Finding:
    fields = {"message": "w_scale has shape [3], expected scalar or [16]", "node": "/stem/conv", "index": 3,
              "op": "QLinearConv-10", "tensor": "w (input 4, w_scale)", "expected": "scalar or [16]", "got": "[3]",
              "why": "QLinearConv-10: one for each output channel.", "fix": "export one value per output channel",
              "rule": "QR301", "name": "scale-shape", "level": level, **more}  # fmt: skip
    return Finding(**fields)


def report(*findings: Finding, path: str = "models/det.onnx", vectors: tuple[Vector, ...] = (), **more: Any) -> Report:
    checked = Checked(Path(path), findings, vectors, 7, ("QR301", "QR302", "QR304"), 5_000_000)
    clean = Checked(Path("models/ok.onnx"), (), (), 1, ("QR301", "QR302", "QR304"), 1_000_000)
    return Report((checked, clean), "reference", "exact", Tolerance(), **more)


def vectors() -> tuple[Vector, ...]:
    passed = Vector("test_data_set_0", Path("models/test_data_set_0"), outputs=[ComparedOutput("y", "f", 4)])
    failed = Vector("test_data_set_1", Path("models/test_data_set_1"), "failed")
    failed.outputs.append(ComparedOutput("y", "f", 4, 1, float("inf"), (0, 2), float("nan"), 1.0, None, "differs"))
    skipped = Vector("test_data_set_2", Path("models/test_data_set_2"), "skipped", f"no kernel for {ODD}")
    return passed, failed, skipped


def everything() -> Report:
    odd = finding("warning", message=ODD, node=ODD, tensor=ODD, expected=ODD, got=ODD, why=ODD, fix=ODD)
    unread = finding(node="", index=None, op="", tensor="", rule="QR101", name="not-a-model")
    three = vectors()
    differs = finding(rule="QR501", name="output-differs", tensor="y (output 0, f)")
    three[1].findings.append(differs)
    return report(finding(), odd, odd, unread, differs, finding("note", rule="QR304", name="bias-scale"), vectors=three)


def text(format: str, made: Report, notes: bool = False) -> str:
    return report_text(format, made, Asked(["check", "m.onnx"], notes))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_every_format_goes_to_any_stream(format: str, encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    print_report(Screen(stream, terminal=False, width=80, color=False), format, everything(), Asked(notes=True))
    shown = stream.buffer.getvalue()  # type: ignore[attr-defined]
    assert shown.endswith(b"\n")
    assert b"\x00" not in shown
    assert b"\x1b" not in shown


# Text


def test_full() -> None:
    shown = text("full", everything())
    assert "error QR301 scale-shape: w_scale has shape [3]" in shown
    assert "  --> models/det.onnx  node 3 /stem/conv (QLinearConv-10)" in shown
    assert "   =  fix: export one value per output channel" in shown
    assert re.search(r"models/det.onnx +7 +3 +2 +1 of 3", shown)
    assert "test_data_set_2 skipped: no kernel for" in shown
    assert shown.endswith(
        "\n-v shows 1 note; qrun explain QR301 has details\n"
        "failed: 3 errors, 2 warnings, 1 note in 2 models; 3 vectors: 1 passed, 1 failed, 1 skipped\n"
    )
    assert "QR304" not in shown
    assert "QR304" in text("full", everything(), notes=True)


def test_concise_has_one_line_a_finding() -> None:
    lines = text("concise", everything(), notes=True).splitlines()
    assert len(lines) == 8
    assert lines[-1].startswith("failed: 3 errors")
    assert lines[0].startswith("models/det.onnx: /stem/conv: error QR301 scale-shape: w_scale has shape")
    assert lines[1].startswith("models/det.onnx: error QR101 not-a-model: ")
    assert [line.partition(" QR")[0].rpartition(" ")[2] for line in lines[:6]] == ["error"] * 3 + ["warning"] * 2 + [
        "note"
    ]


def test_alike_findings_are_one_block_with_a_count() -> None:
    """Alike: the same but for the numbers and for the names of the node and its tensor."""
    alike = [
        finding(
            "warning",
            message=f"w{n} reaches {n}.5 of 127",
            node=f"conv{n}",
            index=n,
            tensor=f"w{n} (input 3, w)",
            others=("other",) * n,
        )
        for n in range(6)
    ]
    apart = finding(
        "warning", message="w9 reaches 1.5 of 127", node="conv9", tensor="w9 (input 3, w)", fix="another one"
    )
    made = report(*alike[:3], apart, finding(), *alike[3:])
    shown = text("full", made)
    assert shown.count("QR301 scale-shape") == 3
    assert shown.index("error QR301") < shown.index("warning QR301")
    assert "warning QR301 scale-shape (21 nodes in 1 model): w0 reaches 0.5 of 127\n" in shown
    assert "  --> models/det.onnx conv0, conv1, conv2, conv3; … 17 more (-v lists them)\n" in shown
    assert "   |  first    node 0 conv0 (QLinearConv-10)\n" in shown
    every = text("full", made, notes=True)
    assert "  --> models/det.onnx  node 2 conv2 (QLinearConv-10)  and other, other\n" in every
    assert [every.count(f"  --> models/det.onnx  node {n} conv{n} (QLinearConv-10)") for n in range(6)] == [1] * 6


def test_statistics_count_each_rule() -> None:
    made = Asked(statistics=True)
    rows = [line.split() for line in report_text("full", everything(), made).splitlines()]
    assert rows[:2] == [["rule", "name", "level", "count", "models"], ["QR301", "scale-shape", "warning", "2", "1"]]
    assert ["QR304", "bias-scale", "note", "1", "1"] in rows
    assert "det.onnx" not in report_text("concise", everything(), made)
    assert rows[-1][:3] == ["failed:", "3", "errors,"]


def test_nothing_found() -> None:
    assert (
        text("concise", report())
        == text("full", report()).splitlines(keepends=True)[0]
        == "passed: nothing found in 2 models\n"
    )


# JSON


def schema() -> Any:
    return json.loads(files("qrun").joinpath("schemas/check-1.0.json").read_text())


def closed(part: Any) -> Any:
    """The schema with no further keys allowed, so that a key that it does not know is seen."""
    if isinstance(part, dict):
        part = {key: closed(value) for key, value in part.items()}
        if "properties" in part and "type" in part:
            part["additionalProperties"] = False
    return part


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_json_follows_its_schema() -> None:
    document = json.loads(text("json", everything()), parse_constant=refuse)
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(document, closed(schema()))
    assert document["schema"] == "qrun/check/1.0"
    assert document["summary"] == {"models": 2, "errors": 3, "warnings": 2, "notes": 1,
                                   "vectors": {"total": 3, "passed": 1, "failed": 1, "skipped": 1}}  # fmt: skip
    assert document["models"][0]["vectors"][1]["outputs"][0]["got"] == "nan"
    prints = [f["fingerprint"] for f in document["models"][0]["findings"]]
    assert len(set(prints)) == len(prints)


def test_the_schema_refuses_what_is_wrong() -> None:
    document = json.loads(text("json", everything()))
    document["models"][0]["findings"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())


def test_failures_follow_the_schema_too() -> None:
    from qrun.report.json import failure

    error = {"code": "QR004", "name": "n", "message": "m", "where": [], "facts": [], "why": "", "fixes": []}
    jsonschema.validate(json.loads(failure("check", ["check"], error, 2)), closed(schema()))


# GitHub


def test_annotations() -> None:
    lines = workflow_commands(everything()).splitlines()
    assert len(lines) == 5
    pattern = r"::(error|warning) title=qrun QR\d+ [a-z-]+,file=[^,:]+,line=1,col=1,endLine=1,endColumn=1::.+"
    for line in lines:
        assert re.fullmatch(pattern, line)
        assert "\r" not in line
    assert "%0A  fix: export one value per output channel" in lines[0]
    assert "i%25j" in lines[-1]


def test_odd_paths_in_annotations() -> None:
    (line,) = workflow_commands(report(finding(), path="a:b,c%d.onnx")).splitlines()
    assert ",file=a%3Ab%2Cc%25d.onnx,line=1" in line


def test_annotations_are_capped() -> None:
    lines = workflow_commands(report(*[finding()] * 25, *[finding("warning")] * MOST)).splitlines()
    errors = [line for line in lines if line.startswith("::error ")]
    assert len(errors) == MOST + 1
    assert errors[-1].startswith("::error title=qrun check::16 more errors:")
    assert len(lines) - len(errors) == MOST
    assert len(workflow_commands(report(*[finding("note")] * 30), notes=True).splitlines()) == MOST + 1
    assert workflow_commands(report(*[finding("note")] * 30)) == ""


# Markdown


def test_markdown_is_cut() -> None:
    shown = text("markdown", report(*[finding()] * (MOST_ROWS + 5)))
    assert shown.startswith("### qrun check failed: 205 errors in 2 models")
    assert shown.count("| error |") == MOST_ROWS
    assert "5 more findings: " in shown


def test_markdown_names_stay_names() -> None:
    shown = text("markdown", report(finding(message=ODD, node=ODD, fix=ODD)))
    (row,) = [line for line in shown.splitlines() if line.startswith("| error |")]
    cells = re.split(r"(?<!\\)\|", row)
    assert len(cells) == 8
    assert "<f>" not in cells[5]
    assert "&lt;f&gt;" in cells[5]
    assert "@" not in cells[5]
    assert cells[4].strip().startswith("``")
    assert all(sign >= " " for sign in row)


def test_worst_findings_come_first() -> None:
    shown = text("markdown", report(*[finding("warning")] * 3, finding()))
    assert [line.split(" ")[1] for line in shown.splitlines() if line.startswith(("| e", "| w"))] == [
        "error", "warning", "warning", "warning",
    ]  # fmt: skip


# JUnit


def test_junit() -> None:
    root = ElementTree.fromstring(text("junit", everything()))
    assert root.tag == "testsuites"
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("10", "3", "0", "1")
    suites = root.findall("testsuite")
    assert [s.get("name") for s in suites] == ["models/det.onnx", "models/ok.onnx"]
    for suite in suites:
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases))
        for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert suite.get(count) == str(sum(case.find(tag) is not None for case in cases))
        assert all(float(case.get("time", "")) >= 0 and case.get("classname") for case in cases)
    cases = {case.get("name"): case for case in suites[0]}
    assert cases["QR301 scale-shape"].find("failure") is not None
    assert cases["QR302 zero-point-shape"].find("failure") is None
    assert cases["QR304 bias-scale"].find("system-out") is not None
    assert cases["test_data_set_0"].find("*") is None
    failure = cases["test_data_set_1"].find("failure")
    assert failure is not None
    assert failure.get("type") == "QR501"
    assert cases["test_data_set_2"].find("skipped") is not None


def test_junit_failures_follow_fail_on() -> None:
    def failures(level: str, fail_on: str) -> str | None:
        return ElementTree.fromstring(text("junit", report(finding(level), fail_on=fail_on))).get("failures")

    assert [failures("warning", on) for on in ("error", "warning", "note", "never")] == ["0", "1", "1", "0"]


# GitLab


def test_gitlab() -> None:
    issues = json.loads(text("gitlab", everything()))
    assert len(issues) == 6
    for issue in issues:
        assert set(issue) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert issue["location"] == {"path": "models/det.onnx", "lines": {"begin": 1}}
        assert issue["description"]
    assert len({issue["fingerprint"] for issue in issues}) == 6


def test_fingerprints_do_not_depend_on_other_findings() -> None:
    alone = json.loads(text("gitlab", report(finding())))[0]["fingerprint"]
    later = json.loads(text("gitlab", report(finding(rule="QR302"), finding(message="another text"))))[1]["fingerprint"]
    assert alone == later


# SARIF, by the required and allowed properties of SARIF 2.1.0, sections 3.13 to 3.50

MESSAGE = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}},
           "additionalProperties": False}  # fmt: skip
URI = {"type": "string", "pattern": r"^(file:///|[A-Za-z0-9._~%/-])[A-Za-z0-9._~%/:-]*$"}
LEVEL = {"enum": ["none", "note", "warning", "error"]}


def shape(required: str, optional: str = "", **properties: Any) -> dict[str, Any]:
    allowed = {name: properties.get(name, True) for name in (*required.split(), *optional.split())}
    assert set(properties) <= set(allowed)
    return {"type": "object", "required": required.split(), "properties": allowed, "additionalProperties": False}


STRING = {"type": "string", "minLength": 1}
ONE = {"type": "integer", "minimum": 1}
ARTIFACT = shape("uri", "uriBaseId", uri=URI, uriBaseId=STRING)
REGION = shape("startLine startColumn endLine endColumn", startLine=ONE, startColumn=ONE, endLine=ONE, endColumn=ONE)
LOGICAL = shape("name fullyQualifiedName kind", name=STRING, fullyQualifiedName=STRING, kind=STRING)
LOCATION = shape("physicalLocation", "logicalLocations",
                 physicalLocation=shape("artifactLocation region", artifactLocation=ARTIFACT, region=REGION),
                 logicalLocations={"type": "array", "items": LOGICAL, "minItems": 1})  # fmt: skip
RULE = shape("id name shortDescription fullDescription help defaultConfiguration", "helpUri properties",
             id={"type": "string", "pattern": r"^QR\d{3}$"}, shortDescription=MESSAGE, fullDescription=MESSAGE, help=MESSAGE,
             helpUri={"type": "string", "pattern": "^https://"}, defaultConfiguration=shape("level", level=LEVEL))  # fmt: skip
RESULT = shape("ruleId ruleIndex level message locations partialFingerprints", "properties", ruleIndex={"type": "integer", "minimum": 0},
               level=LEVEL, message=MESSAGE, locations={"type": "array", "items": LOCATION, "minItems": 1, "maxItems": 1},
               partialFingerprints=shape("primaryLocationLineHash qrunFinding/v1"),
               properties={"type": "object"})  # fmt: skip
RUN = shape("tool results", "columnKind invocations artifacts",
            tool=shape("driver", driver=shape("name version semanticVersion rules", "fullName",
                                              rules={"type": "array", "items": RULE, "uniqueItems": True})),
            results={"type": "array", "items": RESULT}, columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            invocations={"type": "array", "items": shape("executionSuccessful", "exitCode")},
            artifacts={"type": "array", "items": shape("location", location=ARTIFACT)})  # fmt: skip
SARIF = shape(
    "version runs", "$schema", version={"const": "2.1.0"}, runs={"type": "array", "items": RUN, "minItems": 1}
)


def sarif(made: Report) -> Any:
    document = json.loads(text("sarif", made), parse_constant=refuse)
    jsonschema.validate(document, SARIF)
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    return run


def test_sarif() -> None:
    run = sarif(everything())
    assert run["invocations"] == [{"executionSuccessful": True, "exitCode": 1}]
    assert len(run["results"]) == 6
    first = run["results"][0]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "models/det.onnx", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1},
    }
    assert [place["name"] for place in first["locations"][0]["logicalLocations"]] == [
        "/stem/conv",
        "w (input 4, w_scale)",
    ]
    prints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    assert len(set(prints)) == len(prints)
    assert all(re.fullmatch(r"[0-9a-f]{16}:1", fingerprint) for fingerprint in prints)
    assert prints == [r["partialFingerprints"]["primaryLocationLineHash"] for r in sarif(everything())["results"]]
    assert "logicalLocations" not in run["results"][3]["locations"][0]


def test_sarif_of_odd_paths() -> None:
    run = sarif(report(finding(), path="my models/ä#1?.onnx"))
    location = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "my%20models/%C3%A4%231%3F.onnx", "uriBaseId": "%SRCROOT%"}
    away = sarif(report(finding(), path="/somewhere else/m.onnx"))["results"][0]
    assert away["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "file:///somewhere%20else/m.onnx"}


def test_every_rule_has_what_code_scanning_shows() -> None:
    from qrun.report.catalog import catalog

    run = sarif(report(*[finding(rule=id, name=entry.name, level=entry.level) for id, entry in catalog().items()]))
    assert len(run["tool"]["driver"]["rules"]) == len(catalog())


PUBLISHED = os.environ.get("QRUN_SARIF_SCHEMA", "")


@pytest.mark.skipif(
    not PUBLISHED, reason="QRUN_SARIF_SCHEMA does not name a file with the published SARIF 2.1.0 schema"
)
@pytest.mark.parametrize("path", ["models/det.onnx", "my models/ä#1?.onnx", "/somewhere else/m.onnx"])
def test_sarif_by_the_published_schema(path: str) -> None:
    schema = json.loads(Path(PUBLISHED).read_text(encoding="utf-8"))
    for made in (everything(), report(path=path), report(finding(node=ODD, tensor=ODD, message=ODD), path=path)):
        jsonschema.validate(json.loads(text("sarif", made)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(text("sarif", everything())), "version": "2"}, schema)


# -o


def test_formats_are_found_without_importing_them() -> None:
    declared = {made.name: made.suffix for made in FORMATS.values()}
    assert dict(suffixes()) == declared
    assert next(iter(suffixes())) == "full"
    assert len(declared) >= 8
    written = [suffix for suffix in declared.values() if suffix]
    assert len(written) == len(set(written))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("a.sarif", ("sarif", "a.sarif")),
        ("a.sarif.json", ("sarif", "a.sarif.json")),
        ("r/a.XML", ("junit", "r/a.XML")),
        ("a.json", ("json", "a.json")),
        ("gitlab=a.json", ("gitlab", "a.json")),
        ("a.md", ("markdown", "a.md")),
        ("junit=out", ("junit", "out")),
        ("odd=name.json", ("json", "odd=name.json")),
    ],
)
def test_targets(spec: str, expected: tuple[str, str]) -> None:
    assert target(spec, suffixes()) == expected


@pytest.mark.parametrize("spec", ["report", "a.html", "html=a", "sarif="])
def test_unknown_targets(spec: str) -> None:
    with pytest.raises(CallError, match="format is not known"):
        target(spec, suffixes())
