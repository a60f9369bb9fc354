"""``qrun check --target`` and other commands that take targets: verdicts, reasons, exit codes, files of one's own."""

from __future__ import annotations

import json
from importlib.resources import files as resources
from pathlib import Path
from time import process_time
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import ROOT, call, fixes, save, says, terminal
from helpers.models import make_model
from onnx import helper

from qrun.checking.targets import names

SCHEMA = json.loads(resources("qrun").joinpath("schemas/check-1.0.json").read_text())
DIGITS = ROOT / "models" / "digits"
INT8 = DIGITS / "qdq" / "model.onnx"
FLOAT = DIGITS / "float" / "model.onnx"


def rule(id: str, otherwise: str, require: dict[str, Any], *operators: str, **more: Any) -> dict[str, Any]:
    told = {"cause": f"{id} is so", "fix": f"change {id}", "source": "page 7 of its manual", "proof": "docs"}
    return {"id": id, "operators": list(operators), "require": require, "otherwise": otherwise, **told, **more}


NEVER: dict[str, Any] = {"not": {"all": []}}
ZERO = rule("zero", "refused", {"port": "q", "zero": 0}, "QuantizeLinear", says="no zero points here")
CONV = rule("conv", "float", NEVER, "Conv")
ADD = rule("add", "slow", NEVER, "Add", why="its adder is small")


def target(path: Path, *rules: dict[str, Any], **more: Any) -> Path:
    """The file of a target for NPUs of Acme; rules: the three above, unless others are given."""
    head = {"schema": "qrun/target/1.0", "name": "Acme", "on": "Acme NPUs", "versions": ["3.1"]}
    proof = {"proof": "the manual", "verified": False, "not_judged": ["memory"]}
    path.write_text(json.dumps({**head, **proof, "rules": rules or [CONV, ADD, ZERO], **more}))
    return path


@pytest.fixture
def acme(folder: Path) -> Path:
    return target(folder / "acme.json")


def check(*arguments: str | Path, **more: Any) -> Any:
    return call("check", *arguments, "--data", "none", **more)


def result(*arguments: str | Path) -> Any:
    """The JSON report, which its schema describes."""
    found = check(*arguments, "--json").json
    jsonschema.validate(found, SCHEMA)
    return found


# The screen


def test_the_verdict_comes_first_then_a_block_for_each_reason(acme: Path) -> None:
    """Worst first: consequence, cause, number of nodes, the first of them, why, the target's words, the fix."""
    acme.with_name("m.onnx").write_bytes(INT8.read_bytes())
    shown = check("m.onnx", "--target", acme, env={"COLUMNS": "90"}).out.splitlines()
    nodes = onnx.load(INT8).graph.node
    of = [at for at, node in enumerate(nodes) if node.op_type == "Conv"]
    assert shown[0].endswith("m.onnx on Acme 3.1, Acme NPUs: will not load: 3 reasons, 6 of 39 nodes")
    assert shown[2:5] == [
        "  refused  zero is so".ljust(74) + "1 QuantizeLinear",
        "    node   node 37 logits_QuantizeLinear, zero point 129",
        "    says   no zero points here",
    ]
    assert shown[5] == "    fix    change zero"
    assert shown[6] == "  float    conv is so".ljust(84) + "4 Conv"
    assert shown[7] == f"    first  node {of[0]} {nodes[of[0]].name}"
    assert shown[9:12] == [
        "  slow     add is so".ljust(85) + "1 Add",
        f"    node   node {[n.op_type for n in nodes].index('Add')} Add_sum",
        "    why    its adder is small",
    ]


def test_what_runs_in_integers_now_and_once_fixed(folder: Path) -> None:
    floats = check(INT8, "--target", target(folder / "a.json", CONV)).out
    assert "\n  in integers  0 of 4 Conv, 1 of 1 MaxPool, " in floats
    assert "\n  once fixed   4 of 4 Conv, 1 of 1 MaxPool, " in floats
    refused = check(INT8, "--target", target(folder / "b.json", ZERO)).out
    assert "\n  in integers  nothing before this is fixed\n  once fixed   4 of 4 Conv, " in refused
    never = check(INT8, "--target", target(folder / "c.json", {**CONV, "fixable": False})).out
    assert "in integers  0 of 4 Conv" in never
    assert "once fixed" not in never
    fits = check(INT8, "--target", target(folder / "d.json", rule("no", "refused", NEVER, "LSTM")))
    assert fits.code == 0
    assert ": runs in integers: all 39 nodes fit\n\n  in integers  4 of 4 Conv, " in fits.out
    assert "once fixed" not in fits.out


def test_what_was_not_judged_and_how_the_rules_are_proved(acme: Path) -> None:
    shown = check(INT8, "--target", acme).out
    assert "\n  not judged   memory\n  proved by    the manual\n" in shown
    assert "known from" not in shown
    more = check(INT8, "--target", acme, "-v").out
    assert "    rule   acme/conv, known from documentation (page 7 of its manual)\n" in more


def test_verbose_names_every_node(acme: Path) -> None:
    shown = check(INT8, "--target", acme, "-v").out
    for node in onnx.load(INT8).graph.node:
        assert node.op_type != "Conv" or f" {node.name}\n" in shown


@pytest.mark.parametrize(
    ("consequence", "words", "code"),
    [
        ("refused", "will not load", 1),
        ("crash", "loads, then fails", 1),
        ("wrong", "loads, but computes other numbers", 1),
        ("cpu", "runs partly on the CPU", 0),
        ("float", "runs partly in float", 0),
        ("weight-only", "runs, with weights converted to float", 0),
        ("slow", "runs in integers, partly slowly", 0),
        ("note", "runs in integers", 0),
    ],
)
def test_each_consequence_has_its_words_and_exit_code(folder: Path, consequence: str, words: str, code: int) -> None:
    ended = check(INT8, "--target", target(folder / "t.json", rule("r", consequence, NEVER, "Conv")))
    assert f"Acme NPUs: {words}: 1 reason, 4 of 39 nodes\n\n  {consequence}  " in ended.out
    assert ended.code == code


def test_a_float_model_runs_in_float(acme: Path) -> None:
    """The user may have taken the wrong file: a check that wants integers fails."""
    ended = check(FLOAT, "--target", acme, "--fail-on", "float")
    assert ended.code == 1
    assert "  float    no node of the model is quantized, so all of it is computed in float\n" in ended.out
    assert "  in integers  nothing: no operator has quantized activations\n" in ended.out
    assert "runs in float" in check(FLOAT, "--target", "onnxruntime-cpu").out


def test_a_model_that_cannot_be_read_has_no_verdict(folder: Path, acme: Path) -> None:
    (folder / "m.onnx").write_bytes(b"<html>")
    ended = check("m.onnx", "--target", acme)
    assert ended.code == 1
    assert ended.out.startswith("error QR101 not-a-model: m.onnx")
    assert "Acme" not in ended.out
    assert result("m.onnx", "--target", acme)["models"][0]["targets"] == []


def test_all_targets_have_a_line_each() -> None:
    shown = check(INT8, "--target", "all", env={"COLUMNS": "100"}).out
    rows = [line.split()[0] for line in shown.splitlines()[2:] if line.startswith("  ") and line[2] != " "]
    assert rows == list(names())
    assert "-v shows all reasons" in shown
    every = check(INT8, "--target", "all", "-v").out
    assert every.count("\n  proved by    ") == len(names())


def test_several_models_have_a_line_each(folder: Path, acme: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (folder / name).write_bytes(INT8.read_bytes())
    shown = check("a.onnx", "b.onnx", "--target", acme).out
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [["a.onnx", "acme"], ["b.onnx", "acme"]]
    assert shown.count("will not load") == 2
    alone = check("a.onnx", "b.onnx", "--target", acme, "-j", "2").out
    assert alone == shown


def test_rules_that_are_no_errors_wait_for_verbose(acme: Path) -> None:
    """The question is the target: a warning about another runtime would only distract."""
    shown = check(INT8, "--target", acme)
    assert "QR409" not in shown.out
    assert "-v shows 1 warning, 2 notes" in shown.out
    assert "warning QR409" in check(INT8, "--target", acme, "-v").out
    assert "warning QR409" in check(INT8, "--target", acme, "--fail-on", "warning").out


ODD = "[red]a[/red]\U0001f980:b" + "/long" * 60 + "\x1b[31m"


def odd_model(path: Path) -> Path:
    stored = {"s": np.float32(0.1), "z": np.uint8(3)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name=ODD),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="b"),
    ]
    return save(make_model(nodes, {"x": [2]}, {"y": [2]}, stored), path)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_any_name_and_text_survives(folder: Path, width: int) -> None:
    odd = target(folder / "o.json", {**ZERO, "cause": ODD, "says": ODD, "fix": ODD}, name=ODD)
    shown = terminal("check", str(odd_model(folder / "m.onnx")), "--target", str(odd), width=width, NO_COLOR="1")
    assert "[red]a[/red]\U0001f980:b" in shown
    assert "\x1b[31m" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("given", ["tensorrt", "all"])
def test_a_screen_keeps_its_width(width: int, given: str) -> None:
    shown = check(INT8, "--target", given, env={"COLUMNS": str(width)}).out
    assert max(map(len, shown.splitlines()), default=0) <= width


# Exit codes


@pytest.mark.parametrize(
    ("bound", "fails"),
    [
        ("error", "refused crash wrong"),
        ("refused", "refused"),
        ("wrong", "refused crash wrong"),
        ("cpu", "refused crash wrong cpu"),
        ("float", "refused crash wrong cpu float"),
        ("warning", "refused crash wrong cpu float"),
        ("note", "refused crash wrong cpu float weight-only slow note"),
        ("never", ""),
    ],
)
def test_fail_on(folder: Path, bound: str, fails: str) -> None:
    save_as = folder / "m.onnx"
    save_as.write_bytes(INT8.read_bytes())
    failing = []
    for consequence in ("refused", "crash", "wrong", "cpu", "float", "weight-only", "slow", "note"):
        own = target(folder / f"{consequence}.json", rule("r", consequence, NEVER, "Conv"))
        ended = check(save_as, "--target", own, "--fail-on", bound, "--ignore", "QR4,QR6")
        failing += [consequence] * ended.code
    assert failing == fails.split()


def test_a_consequence_needs_a_target() -> None:
    assert fixes(check(INT8, "--fail-on", "cpu"), 2, "QR005") == ["--target NAME", "--fail-on error"]


def test_errors_of_rules_fail_beside_a_consequence(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(b"<html>")
    assert check("m.onnx", "--target", "tensorrt", "--fail-on", "wrong").code == 1


def test_a_known_reason_can_be_ignored(acme: Path) -> None:
    ended = check(INT8, "--target", acme, "--ignore", "acme/zero")
    assert ended.code == 0
    assert ": will not load: " in ended.out, "the verdict stays true"
    assert "zero is so" not in ended.out
    assert "\n  not shown    1 reason: known from the baseline, or ignored\n" in ended.out
    assert "acme/zero" not in json.dumps(
        result(INT8, "--target", acme, "--ignore", "acme/zero")["models"][0]["findings"]
    )
    assert fixes(check(INT8, "--target", acme, "--ignore", "acme/zeros"), 2, "QR005") == ["did you mean acme/zero?"]


def test_a_baseline_knows_reasons(folder: Path, acme: Path) -> None:
    (folder / "before.json").write_text(check(INT8, "--target", acme, "--json").out)
    ended = check(INT8, "--target", acme, "--baseline", "before.json")
    assert ended.code == 0
    assert "not shown    3 reasons" in ended.out
    target(folder / "acme.json", CONV, ADD, ZERO, rule("pool", "refused", NEVER, "MaxPool"))
    ended = check(INT8, "--target", acme, "--baseline", "before.json")
    assert ended.code == 1
    assert "refused  pool is so" in ended.out


# Which targets


def test_an_unknown_target(folder: Path) -> None:
    assert fixes(check(INT8, "--target", "tensorr"), 2, "QR005") == ["--target tensorrt"]
    for name in names():
        says(check(INT8, "--target", "blackbox"), 2, "no target is named blackbox", name)


def test_a_file_that_is_no_target(folder: Path) -> None:
    says(check(INT8, "--target", "none.json"), 2, "QR004")
    (folder / "t.json").write_text("{")
    says(check(INT8, "--target", "t.json"), 2, "QR017", "t.json")
    target(folder / "t.json", {**CONV, "otherwise": "explodes"})
    says(check(INT8, "--target", "t.json"), 2, "QR017", "--> t.json  rules[0].otherwise", "explodes", "refused")
    target(folder / "t.json", {**CONV, "reqiure": {}})
    says(check(INT8, "--target", "t.json"), 2, "QR017", "rules[0]", "reqiure")


def test_two_targets_of_one_name(folder: Path, acme: Path) -> None:
    (folder / "other").mkdir()
    other = target(folder / "other" / "acme.json", CONV)
    says(check(INT8, "--target", acme, "--target", other), 2, "QR005", "two targets are named acme")
    assert check(INT8, "--target", f"{acme},{acme}").code == 1, "one target, given twice"


def test_versions_and_options_of_a_target(folder: Path) -> None:
    old = {**CONV, "since": "1", "until": "2"}
    chip = rule("chip", "cpu", {"option": "arch", "min": 73}, "Conv")
    path = target(folder / "t.json", old, chip, versions=["1", "2", "3"], options={"arch": 73})
    assert [t["worst"] for t in result(INT8, "--target", path)["models"][0]["targets"]] == ["int"]
    for given, worst in (("@2", "float"), ("@arch=68", "cpu"), ("@1@arch=68", "cpu"), ("@3@arch=75", "int")):
        (found,) = result(INT8, "--target", f"t.json{given}")["models"][0]["targets"]
        assert found["worst"] == worst, given
    says(check(INT8, "--target", "t.json@4"), 2, "QR005", "3")
    says(check(INT8, "--target", "t.json@speed=1"), 2, "QR005", "t has no option speed", "arch")


def test_targets_of_the_project(folder: Path, acme: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.qrun.check]\ntarget = ["acme.json"]\nfail-on = "cpu"\n')
    ended = call("check", INT8, "--data", "none")
    assert "on Acme 3.1" in ended.out
    assert "target from [tool.qrun]" in ended.err.replace("fail-on, ", "")
    (folder / "pyproject.toml").write_text('[tool.qrun]\ntarget = ["tensorrt", "qnn-htp"]\n')
    assert [t["target"] for t in result(INT8)["models"][0]["targets"]] == ["tensorrt", "qnn-htp"]


@pytest.mark.parametrize(
    ("typed", "found"), [("tens", "tensorrt"), ("al", "all"), ("qnn-htp,tens", "qnn-htp,tensorrt")]
)
def test_the_tab_key_completes_targets(folder: Path, typed: str, found: str) -> None:
    env = {"_QRUN_COMPLETE": "bash_complete", "COMP_WORDS": f"qrun check m.onnx --target {typed}", "COMP_CWORD": "4"}
    assert call(env=env).out.splitlines() == [f"plain,{found}"]
    env["COMP_WORDS"] = "qrun check m.onnx --target my"
    assert call(env=env).out.splitlines() == ["file,my"]


# Formats


def test_json_has_all_that_the_screen_has(acme: Path) -> None:
    (found,) = result(INT8, "--target", acme)["models"][0]["targets"]
    assert {key: found[key] for key in ("target", "name", "version", "on", "worst", "nodes", "broken", "verified")} == {
        "target": "acme", "name": "Acme", "version": "3.1", "on": "Acme NPUs", "worst": "refused",
        "nodes": 39, "broken": 6, "verified": False,
    }  # fmt: skip
    assert (found["not_judged"], found["proof"]) == (["memory"], "the manual")
    assert [(r["id"], r["consequence"], len(r["nodes"])) for r in found["reasons"]] == [
        ("zero", "refused", 1), ("conv", "float", 4), ("add", "slow", 1)]  # fmt: skip
    assert found["reasons"][0] | {"nodes": [], "seen": []} == {
        "id": "zero", "consequence": "refused", "cause": "zero is so", "says": "no zero points here",
        "fix": "change zero", "proof": "docs", "nodes": [], "seen": [],
    }  # fmt: skip
    assert found["integers"][0] == {"op": "Conv", "nodes": 4, "integer": 0, "fixed": 4}


def test_without_a_target_there_are_none() -> None:
    found = result(INT8)
    assert found["models"][0]["targets"] == []
    assert not any("/" in rule for rule in found["models"][0]["rules"])


def test_each_reason_is_a_finding(acme: Path) -> None:
    found = [f for f in result(INT8, "--target", acme)["models"][0]["findings"] if "/" in f["rule"]]
    assert [(f["rule"], f["name"], f["level"], f["op"]) for f in found] == [
        ("acme/zero", "refused", "error", "QuantizeLinear-13"),
        ("acme/conv", "float", "warning", "Conv-11"),
        ("acme/add", "slow", "note", "Add-14"),
    ]
    assert found[0]["message"] == "Acme 3.1: zero is so (1 QuantizeLinear)"
    assert (found[0]["got"], found[0]["why"]) == ("zero point 129", 'it says "no zero points here"')


def test_sarif_declares_the_rules_of_targets(acme: Path) -> None:
    run = check(INT8, "--target", acme, "--format", "sarif").json["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    of_acme = {r["id"]: r for r in rules if r["id"].startswith("acme/")}
    assert list(of_acme) == ["acme/add", "acme/conv", "acme/zero"]
    assert of_acme["acme/zero"]["shortDescription"]["text"] == "zero is so"
    assert of_acme["acme/zero"]["defaultConfiguration"]["level"] == "error"
    assert "no zero points here" in of_acme["acme/zero"]["help"]["text"]
    for found in run["results"]:
        assert rules[found["ruleIndex"]]["id"] == found["ruleId"]
    assert {r["ruleId"]: r["level"] for r in run["results"] if "/" in r["ruleId"]} == {
        "acme/zero": "error", "acme/conv": "warning", "acme/add": "note"}  # fmt: skip


def test_junit_has_a_case_for_each_rule_of_a_target(acme: Path) -> None:
    suite = ElementTree.fromstring(check(INT8, "--target", acme, "--format", "junit").out)[0]
    cases = {case.attrib["name"]: case for case in suite if case.attrib["name"].startswith("acme/")}
    assert list(cases) == ["acme/conv float", "acme/add slow", "acme/zero refused"]
    assert cases["acme/zero refused"].find("failure") is not None
    assert cases["acme/conv float"].find("failure") is None


def test_other_reports_name_target_and_reason(acme: Path) -> None:
    lines = check(INT8, "--target", acme, "--format", "concise").out.splitlines()
    assert lines[0].endswith("error acme/zero refused: Acme 3.1: zero is so (1 QuantizeLinear)")
    github = check(INT8, "--target", acme, "--format", "github").out
    assert "::error title=qrun acme/zero refused,file=" in github
    markdown = check(INT8, "--target", acme, "--format", "markdown").out
    assert "model.onnx` on Acme 3.1: will not load: 3 reasons, 6 of 39 nodes\n" in markdown
    assert "| acme/zero refused |" in markdown
    gitlab = json.loads(check(INT8, "--target", acme, "--format", "gitlab").out)
    assert "acme/zero refused" in [issue["check_name"] for issue in gitlab]


# Other commands


@pytest.mark.parametrize("name", names())
def test_explain_lists_a_target_and_its_rules(name: str) -> None:
    shown = call("explain", name).out
    found = call("explain", name, "--json").json
    assert shown.startswith(f"{name}   {found['name']}")
    for each in found["rules"]:
        assert f"\n  {each['id']}: " in shown
        page = call("explain", f"{name}/{each['id']}", "--json").json
        assert {key: page[key] for key in each} == each


def test_explain_a_file_of_ones_own(acme: Path) -> None:
    shown = call("explain", acme).out
    assert "proved by     the manual" in shown
    assert "refused: the model does not load (1 rule)\n  zero: zero is so (QuantizeLinear)\n" in shown
    one = call("explain", f"{acme}/zero").out
    assert "  it says      no zero points here\n  fix          change zero\n" in one
    assert "known from   documentation (page 7 of its manual)" in one


def test_explain_with_a_typing_error() -> None:
    assert fixes(call("explain", "tensorrt/zero-point"), 2, "QR005") == ["did you mean tensorrt/zero-point-0?"]
    assert "did you mean tensorrt" in fixes(call("explain", "tensort"), 2, "QR005")[0]


def test_inspect_has_a_column_for_each_target(acme: Path) -> None:
    shown = call("inspect", INT8, "--target", acme).out
    assert shown.splitlines()[0].split()[:4] == ["#", "name", "op", "acme"]
    found = call("inspect", INT8, "--target", acme, "--json").json["nodes"]
    of = {node["name"]: (node["op"], node["targets"]["acme"]) for node in found}
    assert {effect for op, effect in of.values() if op == "Conv"} == {"float"}
    assert of["logits_QuantizeLinear"] == ("QuantizeLinear", "refused")
    assert {effect for op, effect in of.values() if op == "MaxPool"} == {"int"}
    assert "targets" not in call("inspect", INT8, "--nodes", "--json").json["nodes"][0]


def test_a_page_has_the_reasons(folder: Path, acme: Path) -> None:
    call("report", INT8, "-i", DIGITS / "x.npy", "-n", "1", "--target", acme, "-o", "live.html")
    (folder / "check.json").write_text(check(INT8, "--target", acme, "--json").out)
    call("report", "check.json", "-o", "saved.html")
    for page in ("live.html", "saved.html"):
        text = (folder / page).read_text("utf-8")
        assert "acme/zero refused" in text
        assert "Acme 3.1: zero is so (1 QuantizeLinear)" in text


def test_a_large_model_is_judged_fast(folder: Path) -> None:
    """1,000 nodes for all targets: not more than 2 s of CPU time, here with some room for other machines."""
    from qrun.checking.deploy import judge_for
    from qrun.checking.targets import find
    from qrun.ir.load import load

    model = load(save(chain(166), folder / "m.onnx"))
    start = process_time()
    for name in names():
        judge_for(find(name), model)
    assert len(model.nodes) > 990
    assert process_time() - start < 4


def chain(length: int) -> onnx.ModelProto:
    """Groups of DequantizeLinear, Conv, Relu and QuantizeLinear, six nodes each."""
    stored: dict[str, Any] = {"s": np.float32(0.02), "z": np.uint8(0), "ws": np.full(8, 0.01, np.float32),
                              "wz": np.zeros(8, np.int8), "bz": np.zeros(8, np.int32)}  # fmt: skip
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    before = "q"
    for at in range(length):
        stored |= {f"w{at}": np.ones((8, 8, 1, 1), np.int8), f"b{at}": np.zeros(8, np.int32)}
        nodes += [
            helper.make_node("DequantizeLinear", [before, "s", "z"], [f"d{at}"]),
            helper.make_node("DequantizeLinear", [f"w{at}", "ws", "wz"], [f"wd{at}"], axis=0),
            helper.make_node("DequantizeLinear", [f"b{at}", "ws", "bz"], [f"bd{at}"], axis=0),
            helper.make_node("Conv", [f"d{at}", f"wd{at}", f"bd{at}"], [f"c{at}"]),
            helper.make_node("Relu", [f"c{at}"], [f"r{at}"]),
            helper.make_node("QuantizeLinear", [f"r{at}", "s", "z"], [f"q{at}"]),
        ]
        before = f"q{at}"
    nodes.append(helper.make_node("DequantizeLinear", [before, "s", "z"], ["y"]))
    return make_model(nodes, {"x": [1, 8, 8, 8]}, {"y": [1, 8, 8, 8]}, stored)
