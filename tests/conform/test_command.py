"""``qrun conform`` from the shell: screens, files, baselines, the scoreboard, exit codes."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree as Tree

import jsonschema
import pytest
from helpers.cli import call, says
from jsonschema import Draft202012Validator

SCHEMA = json.loads(files("qrun").joinpath("schemas/conform-1.0.json").read_text())
KNOWN = "known/convinteger-o20,known/matmulinteger-o21,known/quantizelinear-o9,known/dequantizelinear-o23,known/qlinearconv-r2"
"""Of onnxruntime: two refusals, a wrong answer, a choice, an exact answer."""


def answer(*words: str) -> dict:
    done = call("conform", "--json", *words)
    document = json.loads(done.out)
    Draft202012Validator(SCHEMA).validate(document)
    assert document["exit_code"] == done.code
    return document


def test_qrun_itself_is_exact() -> None:
    done = call("conform", "--select", "QGemm")
    assert done.code == 0, done.err
    assert done.out.startswith("exact: all 159 cases of suite 1.1, in 2 runtimes\n")
    document = answer("--select", "QGemm,ConvInteger", "--select", "edge")
    assert [each["name"] for each in document["runtimes"]] == ["native", "reference"]
    assert {case["profile"] for each in document["runtimes"] for case in each["cases"]} == {"edge"}


def test_onnxruntime_is_judged() -> None:
    document = answer("--runtime", "ort", "--select", KNOWN)
    (found,) = document["runtimes"]
    assert document["exit_code"] == 1
    assert {case["id"]: (case["verdict"], case["cause"]) for case in found["cases"]} == {
        "known/convinteger-o20": ("refused", ""),
        "known/dequantizelinear-o23": ("choice", "wrap-around"),
        "known/matmulinteger-o21": ("refused", ""),
        "known/qlinearconv-r2": ("exact", ""),
        "known/quantizelinear-o9": ("wrong", "float8-overflow"),
    }
    wrong = next(case for case in found["cases"] if case["id"] == "known/quantizelinear-o9")
    assert (wrong["proved"], wrong["differing"], wrong["total"]) == (True, 2, 2)
    assert (wrong["rule"], wrong["basis"]) == ("QuantizeLinear-19 Q6", "implied")
    assert {key: wrong["elements"][0][key] for key in ("output", "index", "expected", "got", "exact")} == {
        "output": "y0",
        "index": [0],
        "expected": "nan",
        "got": 448.0,
        "exact": 480.0,
    }


def test_the_reference_evaluator_is_judged() -> None:
    document = answer("--runtime", "onnx-ref", "--select", "known")
    verdicts = {case["id"]: (case["verdict"], case["cause"]) for case in document["runtimes"][0]["cases"]}
    assert verdicts["known/qlinearmatmul-r1"] == ("wrong", "zero-point-before-rounding")
    assert verdicts["known/qlinearmatmul-r13"] == ("accepts-invalid", "")
    assert verdicts["known/qlinearmatmul-r11"] == ("choice", "wrong-shape")
    assert verdicts["known/dequantizelinear-r10"][0] == "unsupported"


def test_fail_on_says_what_fails() -> None:
    assert call("conform", "--runtime", "ort", "--select", KNOWN, "--fail-on", "never").code == 0
    assert call("conform", "--runtime", "ort", "--select", "known/matmulinteger-o21").code == 0
    assert call("conform", "--runtime", "ort", "--select", "known/matmulinteger-o21", "--fail-on", "refused").code == 1
    says(call("conform", "--fail-on", "exact"), 2, "not verdicts")


def test_verbose_shows_a_case_in_full() -> None:
    done = call("conform", "--runtime", "ort", "--select", "known/quantizelinear-o5", "-v")
    told = " ".join(done.out.split())
    assert "input i0 float16 [1] [inf]" in told
    assert "expected y0 uint8 [1] [255]" in told
    assert "rule Infinity becomes the smallest or largest code" in told
    assert 'quote QuantizeLinear-21: "Saturation is done according to' in told


def test_files_have_all_formats(tmp_path: Path) -> None:
    names = ["a.json", "a.xml", "a.sarif", "a.md", "a.html", "a.txt", "junit=b.log"]
    targets = [
        f"{name.partition('=')[0]}={tmp_path}/{name.partition('=')[2]}" if "=" in name else f"{tmp_path}/{name}"
        for name in names
    ]
    assert (
        call("conform", "--runtime", "ort", "--select", KNOWN, *(word for t in targets for word in ("-o", t))).code == 1
    )
    suite = Tree.parse(tmp_path / "a.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "2")
    assert (tmp_path / "b.log").read_text().startswith("<?xml")
    log = json.loads((tmp_path / "a.sarif").read_text())
    assert {r["ruleId"] for r in log["runs"][0]["results"]} == {"refused", "float8-overflow", "wrap-around"}
    assert len({r["partialFingerprints"]["qrunCase/v1"] for r in log["runs"][0]["results"]}) == 4
    assert "| QuantizeLinear |" in (tmp_path / "a.md").read_text().replace("`", "")
    page = (tmp_path / "a.html").read_text()
    assert "Conformance" in page
    assert "src=" not in page
    assert "float8-overflow" in page


def test_sarif_names_models_that_an_export_has(tmp_path: Path) -> None:
    """Of a case that must be answered, of one that may be refused, and of one that must be."""
    select, path = "known/quantizelinear-o9,known/dequantizelinear-o23,known/qlinearmatmul-r13", tmp_path / "a.sarif"
    call("conform", "--runtime", "onnx-ref", "--select", select, "-o", str(path))
    call("conform", "--runtime", "ort", "--select", select, "-o", str(tmp_path / "b.sarif"))
    assert call("conform", "export", str(tmp_path / "suite"), "--select", select).code == 0
    runs = [run for name in ("a", "b") for run in json.loads((tmp_path / f"{name}.sarif").read_text())["runs"]]
    uris = set()
    for run in runs:
        for result in run["results"]:
            artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
            assert list(run["originalUriBaseIds"]) == [artifact["uriBaseId"]]
            assert (tmp_path / "suite" / artifact["uri"]).is_file()
            uris.add(artifact["uri"].partition("/")[0])
    assert uris == {"node", "lenient", "refusal"}
    if os.environ.get("QRUN_SARIF_SCHEMA"):
        schema = json.loads(Path(os.environ["QRUN_SARIF_SCHEMA"]).read_text(encoding="utf-8"))
        jsonschema.validate(json.loads(path.read_text()), schema)


def test_a_baseline_leaves_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "ort.json"
    assert call("conform", "--runtime", "ort", "--select", "known/quantizelinear-o9", "-o", str(path)).code == 1
    same = call("conform", "--runtime", "ort", "--select", "known/quantizelinear-o9", "--baseline", str(path))
    assert same.code == 0
    assert "nothing changed" in same.out
    document = json.loads(path.read_text())
    document["runtimes"][0]["cases"][0]["cause"] = "unknown"
    path.write_text(json.dumps(document))
    other = call("conform", "--runtime", "ort", "--select", KNOWN, "--baseline", str(path))
    assert other.code == 1
    told = " ".join(other.out.split())
    assert (
        "1 of 1 case changed: 1 wrong with another cause; 4 not in the baseline: 1 exact, 1 choice, 2 refused" in told
    )
    assert "wrong, unknown wrong, float8-overflow 1 known/quantizelinear-o9" in told
    assert "has no runtime" in call("conform", "--select", "QGemm", "--baseline", str(path)).err
    path.write_text('{"schema": "qrun/profile/1.0"}')
    assert call("conform", "--select", "QGemm", "--baseline", str(path)).code == 2


def test_a_scoreboard_of_saved_answers(tmp_path: Path) -> None:
    paths = []
    for name in ("ort", "onnx-ref"):
        paths.append(str(tmp_path / f"{name}.json"))
        call("conform", "--runtime", name, "--select", "known", "-o", paths[-1])
    board = tmp_path / "board.md"
    done = call("conform", "scoreboard", *paths, "-o", str(board), "-o", str(tmp_path / "board.html"))
    assert done.code == 0, done.err
    assert done.out.startswith("2 runtimes: ")
    text = board.read_text()
    assert "## onnx\\.reference" in text or "## onnx.reference" in text
    assert "`known/quantizelinear-o5" in text
    assert "Scoreboard" in (tmp_path / "board.html").read_text()
    assert call("conform", "scoreboard").code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export",), "export needs one folder"),
        (("judge",), "does not know 'judge'"),
        (("-o", "x.doc"), "the format is not known"),
        (("--select", "nothing-like-it"), "matches no case"),
        (("--select", "QLinearMul,core"), "the operators named have cases in contrib"),
        (("--list", "--select", "QLinearMul", "--select", "core"), "--select QLinearMul,core matches no case"),
        (("--runtime", "cmd:mine {modl} {inputs} {outputs}"), "no {model}, but {modl}"),
        (("--timeout", "0"), "not a number above 0"),
        (("--runtime", "openvin"), "unknown runtime"),
    ],
)
def test_calls_that_are_wrong(words: tuple[str, ...], message: str) -> None:
    says(call("conform", *words), 2, message)


def test_reports_write_over_nothing_that_the_call_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = call("conform", "--runtime", "native", "--select", "qgemm", "--json")
    Path("base.json").write_text(saved.out)
    for words, message in (
        (("--baseline", "base.json", "-o", "base.json"), "it is the baseline of this command"),
        (("-o", "a.xml", "-o", "junit=a.xml"), "it is another report of this command"),
        (("scoreboard", "base.json", "-o", "html=base.json"), "it is a saved result of this command"),
    ):
        says(call("conform", *words), 2, message)
    assert Path("base.json").read_text() == saved.out


def ending_program(tmp_path: Path, lines: str) -> str:
    path = tmp_path / "mine"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return f"cmd:{path} {{model}} {{inputs}} {{outputs}} --fast"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            'echo "cannot open mine.py for $2" >&2; exit 2',
            "every one was refused with: cannot open mine.py for {inputs}",
        ),
        ("echo 'no libmine' >&2; exit 127", "every one crashed: exit code 127: no libmine"),
        ("exit 1", "every one crashed: exit code 1"),
        (
            "mkdir $3/output_0.pb",
            "every one crashed: output_0.pb is not a tensor: cannot read '{outputs}/output_0.pb': not",
        ),
    ],
)
def test_a_program_that_ends_alike_in_every_case_is_a_wrong_call(tmp_path: Path, lines: str, message: str) -> None:
    """Also where some of the models must be refused."""
    select = ("--select", "edge", "--select", "matmulinteger-10")
    done = call("conform", "--runtime", ending_program(tmp_path, lines), *select)
    says(done, 2, f"no case was answered: {message}", "; does the program start?")
    assert ("exit code 2 means" in done.err) is ("refused" in message)


@pytest.mark.parametrize(
    ("lines", "code"), [("wc -c <$1 >&2; exit 2", 0), ("kill -SEGV $$", 1), ("echo bad >&2; kill -SEGV $$", 1)]
)
def test_other_ends_of_a_program_are_judged(tmp_path: Path, lines: str, code: int) -> None:
    """A message for each model, and a crash without any."""
    assert call("conform", "--runtime", ending_program(tmp_path, lines), "--select", "known/qgemm").code == code


def test_a_place_that_qrun_does_not_know_is_refused(tmp_path: Path) -> None:
    name = ending_program(tmp_path, "exit 2")
    says(call("conform", "--runtime", f"{name} {{other}}", "--select", "known/qlinearmatmul-o1"), 2, "unknown: {other}")
    name = ending_program(tmp_path, 'echo "got $5 $6" >&2; exit 2') + " '${other}' {}"
    assert "got ${other} {}" in call("conform", "--runtime", name, "--select", "known/qlinearmatmul-o1").out


def test_a_narrow_screen_keeps_the_message_of_a_refusal(tmp_path: Path) -> None:
    """Its beginning and its end; and says where the case is shown in full."""
    name = ending_program(tmp_path, f"echo 'no form {'like this ' * 20} at all' >&2; exit 2")
    done = call("conform", "--runtime", name, "--select", "known/qlinearmatmul-o1", env={"COLUMNS": "80"})
    told = " ".join(done.out.split())
    assert "no form like this" in told
    assert "at all" in told
    assert f"--runtime '{name}' --select known/qlinearmatmul-o1 -v" in told
    assert f"{tmp_path}/mine --fast: profiles" in told


def test_two_runtimes_have_one_verdict(tmp_path: Path) -> None:
    """Which says how many of what it fails for, and no more."""
    name = ending_program(tmp_path, "exit 7")
    done = call("conform", "--runtime", "native", "--runtime", name, "--select", "known/qlinearmatmul-o1")
    assert done.code == 1
    assert done.out.startswith("no: 1 crashed in suite 1.1\n")
    assert "the case is exact, in" in done.out
    done = call(
        "conform",
        "--runtime",
        "native",
        "--runtime",
        name,
        "--select",
        "known/qlinearmatmul-o1",
        "--fail-on",
        "wrong,hung",
    )
    assert done.out.startswith("yes: wrong or hung does not occur in 1 case of suite 1.1\n")


SELECT = ("--select", "known/qlinearmatmul-o1,known/qlinearmatmul-o2")


def test_a_baseline_without_one_of_several_runtimes_is_refused_before_any_case(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    assert call("conform", *SELECT, "-o", str(path)).code == 0
    name = ending_program(tmp_path, f"touch {tmp_path}/started; exit 3")
    done = call("conform", "--runtime", name, *SELECT, "--baseline", str(path))
    assert done.code == 2
    assert f"--runtime '{name}' -o FILE.json" in " ".join(done.err.split())
    assert not (tmp_path / "started").exists()


def test_another_build_of_a_program_is_compared_with_the_one_saved(tmp_path: Path) -> None:
    """Whatever its name; every report says which that was, and counts what changed."""
    path, old = tmp_path / "old.json", ending_program(tmp_path, "exit 3")
    call("conform", "--runtime", old, *SELECT, "-o", str(path))
    Path(tmp_path / "mine").rename(tmp_path / "mine-2")
    new = old.replace("/mine", "/mine-2")
    same = call("conform", "--runtime", new, *SELECT, "--baseline", str(path))
    assert same.code == 0
    assert "mine-2 --fast: nothing changed in 2 cases, in " in same.out
    assert f"compared with {tmp_path}/mine --fast, 20" in same.out
    outputs = [tmp_path / name for name in ("a.json", "a.md", "a.html", "a.xml", "a.sarif")]
    words = [word for output in outputs for word in ("-o", str(output))]
    done = call("conform", "--runtime", "native", *SELECT, "--baseline", str(path), *words)
    assert done.code == 0
    assert "2 of 2 cases changed: 2 unsupported -> exact, in " in done.out
    texts = [" ".join(output.read_text().split()) for output in outputs]
    assert all(f"{tmp_path}/mine --fast" in text.replace("\\", "") for text in texts[:3])
    assert all("2 of 2 cases changed: 2 unsupported -&gt; exact" in text for text in texts[1:3])
    assert '<b class="good">2</b>' in texts[2]
    Draft202012Validator(SCHEMA).validate(json.loads(outputs[0].read_text()))
    assert [case["before"] for case in json.loads(outputs[0].read_text())["runtimes"][0]["cases"]] == [
        "unsupported"
    ] * 2
    for again in (("--baseline", str(outputs[0])), ("scoreboard", str(outputs[0]))):
        says(call("conform", *again), 2, "only the cases that changed since a baseline")


def test_changes_of_several_runtimes_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    assert call("conform", *SELECT, "-o", str(path)).code == 0
    same = call("conform", *SELECT, "--baseline", str(path))
    assert same.out.startswith("nothing changed in 2 cases of suite 1.1, in 2 runtimes\n")
    document = json.loads(path.read_text())
    document["runtimes"][0]["cases"][0] |= {"verdict": "wrong", "cause": "saturation"}
    del document["runtimes"][1]["cases"][0]
    path.write_text(json.dumps(document))
    done = call("conform", *SELECT, "--baseline", str(path))
    assert done.code == 0
    assert done.out.startswith(
        "yes: wrong or unstable or crashed or hung does not occur in 2 cases that changed or are new\n"
    )
    told = " ".join(done.out.split())
    assert "1 of 2 cases changed: 1 wrong -> exact, in " in told
    assert "reference backend: 1 not in the baseline: 1 exact, in " in told


def test_open_questions_are_counted_as_such() -> None:
    done = call("conform", "--runtime", "ort", "--select", "QGemm,known")
    assert "of 3 cases that the specification leaves open, in " in done.out


def test_the_list_of_cases() -> None:
    done = call("conform", "--list", "--select", "known")
    assert "known/qlinearmatmul-o1" in done.out.splitlines()
