"""``qrun check``: which models and rules, vectors, reports, settings from a file, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from importlib.resources import files as resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest
from helpers.cli import ROOT, call, conv_model, deep_model, quantize_model, save, says, sum_model
from helpers.models import make_model, typed
from onnx import TensorProto, helper, numpy_helper

SCHEMA = json.loads(resources("qrun").joinpath("schemas/check-1.0.json").read_text())


def record(folder: Path, **arrays: list[np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, values in arrays.items():
        for place, array in enumerate(values):
            (folder / f"{kind}_{place}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    return folder


def bad_scale(folder: Path, name: str = "bad.onnx") -> Path:
    """QR301 at /stem/conv, and nothing else that is an error."""
    return save(conv_model(w_scale=np.full(3, 0.01, np.float32)), folder / name)


def codes(*arguments: str | Path, **more: str) -> list[str]:
    ended = call("check", *arguments, "--json", **more)  # type: ignore[arg-type]
    jsonschema.validate(ended.json, SCHEMA)
    return [f["rule"] for model in ended.json["models"] for f in model["findings"]]


# Models


def test_a_clean_model(folder: Path) -> None:
    save(quantize_model(), folder / "m.onnx")
    ended = call("check", "m.onnx")
    assert (ended.code, ended.out, ended.err) == (0, "passed: nothing found in 1 model\n", "")


def test_a_finding_as_a_block(folder: Path) -> None:
    bad_scale(folder)
    ended = call("check", "bad.onnx")
    assert ended.code == 1
    assert ended.out.startswith("error QR301 scale-shape: ")
    assert "  --> bad.onnx  node 0 /stem/conv (QLinearConv-10)" in ended.out
    assert ended.out.endswith("\n\nqrun explain QR301 has details\nfailed: 1 error in 1 model\n")


def test_folders_are_searched(folder: Path) -> None:
    for name in ("a/m.onnx", "a/b/N.ONNX", ".hidden/m.onnx", "env/lib/m.onnx", "env/pyvenv.cfg", "a/text.txt"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        save(quantize_model(), folder / name)
    ended = call("check", ".", "a/m.onnx", "--json")
    assert [m["path"] for m in ended.json["models"]] == ["a/m.onnx", "a/b/N.ONNX"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "QR101"),
        (b"<!DOCTYPE html><html>", "QR101"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 23437214\n", "QR101"),
        (deep_model().SerializeToString()[:-700], "QR101"),
    ],
)
def test_what_cannot_be_read_is_a_finding(folder: Path, data: bytes, code: str) -> None:
    (folder / "m.onnx").write_bytes(data)
    bad_scale(folder, "z.onnx")
    ended = call("check", ".")
    assert ended.code == 1
    assert f"error {code} not-a-model: m.onnx" in ended.out
    assert "QR301" in ended.out, "it goes on with the others"
    assert codes("m.onnx", "--select", "QR3") == [code], "no selection makes such a file look well"
    assert codes("m.onnx", "--ignore", code) == []


def test_a_loader_finding_names_what_the_loader_names(folder: Path) -> None:
    model = sum_model()
    model.opset_import[0].version = 99
    save(model, folder / "m.onnx")
    (found,) = call("check", "m.onnx", "--json").json["models"][0]["findings"]
    assert (found["rule"], found["level"]) == ("QR106", "error")
    assert found["expected"].startswith("opset")
    assert found["got"] == "99"


def test_a_model_that_qrun_cannot_run(folder: Path) -> None:
    nodes = [helper.make_node("MaxPoolX", ["x"], ["h"], domain="com.acme", name="pool"),
             helper.make_node("QuantizeLinear", ["h", "s", "z"], ["y"], name="quant")]  # fmt: skip
    stored = {"s": np.ones((3, 2), np.float32), "z": np.uint8(0)}
    save(make_model(nodes, {"x": [2]}, {"y": typed(np.uint8, [2])}, stored), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.zeros(2, np.float32)], output=[np.zeros(2, np.uint8)])
    ended = call("check", "m.onnx")
    assert "QR301" in ended.out
    assert (
        "QR505 not-replayed: test_data_set_0 was not replayed: qrun cannot run 1 operator of this model (QR201)"
        in ended.out
    )
    accepted = call("check", "m.onnx", "--ignore", "QR505").out
    assert "m.onnx: test_data_set_0 skipped: qrun cannot run 1 operator" in accepted
    assert "1 vector: 1 skipped" in ended.out


@pytest.mark.parametrize("width", [60, 80, 100])
def test_lines_fit(folder: Path, width: int) -> None:
    (folder / "some/rather/long/folder/names").mkdir(parents=True)
    bad_scale(folder, "some/rather/long/folder/names/model.onnx")
    save(quantize_model(np.float32(np.nan)), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([1])], output=[np.uint8([9])])
    shown = call("check", ".", "-v", env={"COLUMNS": str(width)}).out
    assert "QR301" in shown
    assert all(len(line) <= width for line in shown.splitlines()), shown


# Rules


@pytest.mark.parametrize("chosen", ["QR301", "qr301", "QR3", "scale-shape", "QR1,QR301", " QR1 , QR3 "])
def test_select(folder: Path, chosen: str) -> None:
    bad_scale(folder)
    assert codes("bad.onnx", "--select", chosen) == ["QR301"]
    assert codes("bad.onnx", "--ignore", chosen).count("QR301") == 0


def test_select_and_ignore_together(folder: Path) -> None:
    bad_scale(folder)
    assert codes("bad.onnx", "--select", "QR3", "--ignore", "QR301") == []
    assert codes("bad.onnx", "--select", "QR1", "--select", "QR3") == ["QR301"]
    assert codes("bad.onnx", "--select", "QR1") == []


def test_rules_that_need_a_run_have_not_passed_without_one(folder: Path) -> None:
    """What is missing is said, and how to record it; typed, that works."""
    save(quantize_model(np.float32(0.5)), folder / "m.onnx")
    ended = call("check", "m.onnx", "--select", "QR401")
    assert (ended.code, ended.out) == (2, "")
    assert "nothing was checked: QR401 needs a run" in ended.err
    command = ended.err.partition("fix: qrun ")[2].partition(" records a run")[0]
    assert command == "run m.onnx -o test_data_set_0/"
    assert "nothing was checked: QR401, QR501 need a run" in call("check", ".", "--select", "QR401,QR501").err
    ended = call("check", "m.onnx", "--select", "QR401,QR301")
    says(ended, 0, "QR401 not checked without recorded inputs to run: a folder test_data_set_0")
    assert not call("check", "m.onnx").err, "nobody chose these rules"
    assert call(*command.split()).code == 0
    ended = call("check", "m.onnx", "--select", "QR401")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("passed: nothing found")


@pytest.mark.parametrize(("word", "hint"), [("scale-shap", "scale-shape"), ("QR9", ""), ("QR3011", "QR301"), ("Q", "")])
def test_unknown_rules(folder: Path, word: str, hint: str) -> None:
    bad_scale(folder)
    for option in ("--select", "--ignore"):
        says(call("check", "bad.onnx", option, word), 2, f"{option} {word}", hint)


def test_fail_on(folder: Path) -> None:
    bad_scale(folder)
    assert [call("check", "bad.onnx", "--fail-on", on).code for on in ("error", "warning", "note", "never")] == [
        1,
        1,
        1,
        0,
    ]
    warned = quantize_model(np.float32(1e-40))
    save(warned, folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([1, 1, 1])], output=[np.uint8([255, 255, 255])])
    levels = [f["level"] for m in call("check", "m.onnx", "--json").json["models"] for f in m["findings"]]
    assert "warning" in levels
    assert "error" not in levels
    assert [call("check", "m.onnx", "--fail-on", on).code for on in ("error", "warning", "never")] == [0, 1, 0]


# Vectors


def test_vectors_beside_the_model(folder: Path) -> None:
    save(sum_model(), folder / "m.onnx")
    one, two = np.float32([1, 2]), np.float32([3, 4])
    record(folder / "test_data_set_0", input=[one, two], output=[one + two])
    record(folder / "test_data_set_1", input=[one, two], output=[one + two + 1])
    ended = call("check", "m.onnx")
    assert ended.code == 1
    assert (
        "error QR501 output-differs: y differs from test_data_set_1/output_0.pb in 2 of 2 elements, by at most 1"
        in ended.out
    )
    assert "2 vectors: 1 passed, 1 failed" in ended.out
    assert call("check", "m.onnx", "--data", "none").out.startswith("passed: nothing found in 1 model\n")
    assert call("check", "m.onnx", "--data", "test_data_set_0").code == 0
    assert call("check", "m.onnx", "--rtol", "0.5").code == 0
    assert call("check", "m.onnx", "--atol", "1").code == 0
    assert call("check", "m.onnx", "--ignore", "QR501").code == 0
    assert call("check", "m.onnx", "--data", "nothing").code == 2


def test_integer_vectors_by_lsb_and_arith(folder: Path) -> None:
    save(quantize_model(0.5, np.uint8(3)), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([1.25, 2])], output=[np.uint8([6, 7])])
    found = call("check", "m.onnx", "--json").json["models"][0]
    (output,) = found["vectors"][0]["outputs"]
    assert (output["verdict"], output["exact"], output["got"], output["recorded"], output["first"]) == (
        "tie",
        5.5,
        5,
        6,
        [0],
    )
    assert call("check", "m.onnx", "--lsb", "1").code == 0


def test_a_refusal_while_running_is_told_once(folder: Path) -> None:
    bad_scale(folder, "m.onnx")
    for place in range(2):
        record(
            folder / f"test_data_set_{place}",
            input=[np.zeros((1, 3, 8, 8), np.uint8)],
            output=[np.zeros((1, 16, 8, 8), np.uint8)],
        )
    ended = call("check", "m.onnx", "--json")
    assert [f["rule"] for f in ended.json["models"][0]["findings"]].count("QR301") == 1
    assert [v["status"] for v in ended.json["models"][0]["vectors"]] == ["failed", "failed"]


def test_rules_over_runs_see_the_vectors(folder: Path) -> None:
    save(quantize_model(0.5), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([np.nan, 2])], output=[np.uint8([0, 4])])
    assert "QR401" in codes("m.onnx")
    assert "QR401" not in codes("m.onnx", "--data", "none")


@pytest.mark.parametrize("backend", ["native", "reference", "ort", "onnx-ref"])
def test_backends(folder: Path, backend: str) -> None:
    pytest.importorskip("onnxruntime")
    save(sum_model(), folder / "m.onnx")
    one = np.float32([1, 2])
    record(folder / "test_data_set_0", input=[one, one], output=[one + one])
    ended = call("check", "m.onnx", "--backend", backend, "--json")
    assert ended.code == 0
    assert ended.json["summary"]["vectors"]["passed"] == 1


def test_another_runtime_that_refuses_is_skipped(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    bad_scale(folder, "m.onnx")
    record(
        folder / "test_data_set_0", input=[np.zeros((1, 3, 8, 8), np.uint8)], output=[np.zeros((1, 16, 8, 8), np.uint8)]
    )
    ended = call("check", "m.onnx", "--backend", "ort", "--json")
    (vector,) = ended.json["models"][0]["vectors"]
    assert vector["status"] in ("skipped", "failed")
    assert {f["rule"] for f in ended.json["models"][0]["findings"]} >= {"QR301"}
    assert call("check", "m.onnx", "--backend", "ort", "--arith", "ort").code == 2


def test_types_that_cannot_be_handed_over_accuse_nobody() -> None:
    pytest.importorskip("onnxruntime")
    ended = call(
        "check", *(ROOT / "models" / f"quantizelinear_{t}" for t in ("e4m3fn", "int4")), "--backend", "ort", "--json"
    )
    assert [m["vectors"][0]["status"] for m in ended.json["models"]] == ["passed", "skipped"]
    assert [[f["rule"] for f in m["findings"] if f["level"] == "error"] for m in ended.json["models"]] == [
        [],
        ["QR505"],
    ]
    assert ended.code == 1


def test_memory_limits_skip_vectors(folder: Path) -> None:
    save(deep_model(3), folder / "m.onnx")
    record(
        folder / "test_data_set_0", input=[np.zeros((1, 3, 8, 8), np.uint8)], output=[np.zeros((1, 3, 8, 8), np.uint8)]
    )
    ended = call("check", "m.onnx", "--max-memory", "100")
    assert "1 vector: 1 skipped" in ended.out
    assert "test_data_set_0 was not replayed: this run needs more memory than allowed (QR010)" in ended.out


def test_onnx_node_tests_work_as_they_are() -> None:
    ended = call("check", ROOT / "models", "--json")
    jsonschema.validate(ended.json, SCHEMA)
    assert ended.code == 0
    summary = ended.json["summary"]
    assert summary["vectors"]["passed"] == summary["vectors"]["total"] > 30
    assert summary["errors"] == 0


def difference_behind(folder: Path, scale: float) -> list[dict[str, object]]:
    """What is found where the first of two nodes quantizes with this scale, and the record of the second differs."""
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q codes"], name="quant"),
             helper.make_node("DequantizeLinear", ["q codes", "one", "z"], ["y"], name="dequant")]  # fmt: skip
    stored = {"s": np.float32(scale), "one": np.float32(1), "z": np.uint8(0)}
    model = make_model(nodes, {"x": [2]}, {"y": [2]}, stored)
    (folder / "a b").mkdir(exist_ok=True)
    save(model, folder / "a b/m.onnx")
    record(folder / "a b/test_data_set_0", input=[np.float32([1, 2])], output=[np.float32([77, 78])])
    found: list[dict[str, object]] = call("check", "a b/m.onnx", "--json").json["models"][0]["findings"]
    return found


def test_the_fix_of_a_difference_can_be_typed(folder: Path) -> None:
    (found,) = difference_behind(folder, 1)
    fix = str(found["fix"])
    assert not re.search(r"\b[A-Z]{3,}\b", fix.replace("QR501", ""))
    command = fix.partition(" shows ")[0]
    assert command == "qrun run 'a b/m.onnx' -i 'a b/test_data_set_0' -t 'q codes'"
    ended = call(*shlex.split(command)[1:])
    assert ended.code == 0
    assert "q codes" in ended.out
    assert "QR" not in str(found["why"])


def test_a_difference_that_a_finding_explains_says_so(folder: Path) -> None:
    scale, differs = difference_behind(folder, -1)
    assert (scale["rule"], differs["rule"]) == ("QR306", "QR501")
    assert "node 0 quant before it has QR306 scale-value" in str(differs["why"])
    assert str(differs["fix"]).startswith("fix QR306 first")


def test_no_finding_has_the_word_model_for_the_file(folder: Path) -> None:
    save(sum_model(), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([1, 2])] * 2)
    (found,) = call("check", "m.onnx", "--json").json["models"][0]["findings"]
    assert found["rule"] == "QR503"
    fix = found["fix"].partition(" writes ")[0]
    assert fix == "qrun run m.onnx -i test_data_set_0 -o test_data_set_0/"
    assert "MODEL" not in call("m.onnx", "-i", "c=x.npy").err
    assert "qrun inspect m.onnx --nodes" in call("m.onnx", "--random", "-t", "nothing").err


def test_gitlab_tells_what_to_do(folder: Path) -> None:
    bad_scale(folder)
    (issue,) = json.loads(call("check", "bad.onnx", "--format", "gitlab").out)
    assert "fix: export one scale per output channel, or a single scale" in issue["description"]


# Vectors that were not replayed


def refused_vectors(folder: Path, count: int = 2) -> None:
    """A node that no run gets past, and vectors beside the model."""
    bad_scale(folder, "m.onnx")
    for place in range(count):
        x, y = np.zeros((1, 3, 8, 8), np.uint8), np.zeros((1, 16, 8, 8), np.uint8)
        record(folder / f"test_data_set_{place}", input=[x], output=[y])


SELECTIONS = [
    ["--select", "QR5"],
    ["--ignore", "QR301"],
    ["--select", "QR1"],
    ["--ignore", "QR301,QR501,QR502,QR503,QR504"],
]


@pytest.mark.parametrize("chosen", SELECTIONS, ids=" ".join)
def test_a_vector_that_did_not_run_is_an_error_whatever_is_chosen(folder: Path, chosen: list[str]) -> None:
    refused_vectors(folder)
    ended = call("check", "m.onnx", *chosen, "--json")
    jsonschema.validate(ended.json, SCHEMA)
    assert ended.code == ended.json["exit_code"] == 1
    (model,) = ended.json["models"]
    (found,) = model["findings"]
    assert (found["rule"], found["level"], found["node"]) == ("QR505", "error", "/stem/conv")
    assert "2 vectors were not replayed" in found["message"]
    assert "test_data_set_0" in found["message"]
    assert "QR301" in found["message"]
    assert all("w_scale has shape [3]" in v["reason"] for v in model["vectors"])
    assert [v["status"] for v in model["vectors"]] == ["failed", "failed"]


def test_a_vector_that_did_not_run_is_in_every_report(folder: Path) -> None:
    refused_vectors(folder)
    names = ["a.sarif", "a.xml", "a.json", "a.md", "gitlab=b.json", "github=b.txt", "concise=c"]
    ended = call("check", "m.onnx", "--ignore", "QR301", *[word for name in names for word in ("-o", name)])
    assert ended.code == 1
    assert ended.out.startswith("error QR505 not-replayed: 2 vectors were not replayed")
    assert ended.out.endswith("\nfailed: 1 error in 1 model; 2 vectors: 2 failed\n")
    (result,) = json.loads((folder / "a.sarif").read_text())["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("QR505", "error")
    cases = ElementTree.parse(folder / "a.xml").getroot().findall(".//testcase")
    of_vectors = [case for case in cases if "test_data_set" in str(case.get("name"))]
    assert [case.find("failure").get("type") for case in of_vectors] == ["QR505", "QR505"]  # type: ignore[union-attr]
    assert [issue["check_name"] for issue in json.loads((folder / "b.json").read_text())] == ["QR505 not-replayed"]
    assert "::error title=qrun QR505 not-replayed,file=m.onnx" in (folder / "b.txt").read_text()
    assert "QR505 not-replayed" in (folder / "a.md").read_text()
    assert "error QR505 not-replayed" in (folder / "c").read_text()


def test_who_accepts_vectors_that_do_not_run_says_so(folder: Path) -> None:
    refused_vectors(folder)
    ended = call("check", "m.onnx", "--ignore", "QR301,QR505", "-o", "a.xml", "--json")
    assert (ended.code, ended.json["models"][0]["findings"]) == (0, [])
    cases = ElementTree.parse(folder / "a.xml").getroot().findall(".//testcase")
    assert [case.find("skipped") is not None for case in cases if "test_data" in str(case.get("name"))] == [True, True]


def test_a_vector_that_differs_is_no_passed_case(folder: Path) -> None:
    save(sum_model(), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([1, 2])] * 2, output=[np.float32([9, 9])])
    ended = call("check", "m.onnx", "--ignore", "QR501", "-o", "a.xml", "--json")
    assert ended.code == 0
    assert "y differs from" in ended.json["models"][0]["vectors"][0]["reason"]
    (case,) = ElementTree.parse(folder / "a.xml").getroot().findall(".//testcase[@name='test_data_set_0']")
    assert case.find("skipped") is not None


def unreadable_input(folder: Path) -> list[str]:
    save(sum_model(), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([1, 2])] * 2, output=[np.float32([2, 4])])
    (folder / "test_data_set_0/input_0.pb").write_bytes(b"hello")
    return ["--ignore", "QR007"]


def missing_input(folder: Path) -> list[str]:
    save(sum_model(), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([1, 2])], output=[np.float32([2, 4])])
    return ["--ignore", "QR503"]


def other_input(folder: Path) -> list[str]:
    save(sum_model(), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float64([1, 2])] * 2, output=[np.float32([2, 4])])
    return ["--ignore", "QR502"]


def too_much_memory(folder: Path) -> list[str]:
    save(deep_model(3), folder / "m.onnx")
    x = np.zeros((1, 3, 8, 8), np.uint8)
    record(folder / "test_data_set_0", input=[x], output=[x])
    return ["--max-memory", "100"]


def no_kernel(folder: Path) -> list[str]:
    nodes = [helper.make_node("MaxPoolX", ["x"], ["y"], domain="com.acme", name="pool")]
    save(make_model(nodes, {"x": [2]}, {"y": [2]}), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.zeros(2, np.float32)], output=[np.zeros(2, np.float32)])
    return ["--ignore", "QR201"]


def sparse(folder: Path) -> list[str]:
    given = helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2])
    node = helper.make_node("Identity", ["s"], ["y"])
    save(make_model([node], {"s": given}, "y", opset=17), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.zeros(2, np.float32)])
    return ["--ignore", "QR201"]


def tensor_for_a_sequence(folder: Path) -> list[str]:
    node = helper.make_node("SequenceAt", ["s", "i"], ["y"])
    given = {"s": helper.make_sequence_type_proto(typed(np.float32))}
    save(make_model([node], given, "y", {"i": np.int64(0)}, opset=17), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.zeros(2, np.float32)])
    return ["--ignore", "QR201,QR007"]


def no_model(folder: Path) -> list[str]:
    (folder / "m.onnx").write_bytes(b"")
    record(folder / "test_data_set_0", input=[np.zeros(2, np.float32)])
    return ["--ignore", "QR101"]


WAYS = [
    unreadable_input,
    missing_input,
    other_input,
    too_much_memory,
    no_kernel,
    sparse,
    tensor_for_a_sequence,
    no_model,
]


@pytest.mark.parametrize("way", WAYS)
def test_whatever_kept_a_vector_from_running(folder: Path, way: Callable[[Path], list[str]]) -> None:
    chosen = way(folder)
    ended = call("check", "m.onnx", *chosen, "-o", "a.xml", "--json")
    jsonschema.validate(ended.json, SCHEMA)
    (model,) = ended.json["models"]
    assert ended.code == 1
    assert [f["rule"] for f in model["findings"] if f["level"] == "error"] == ["QR505"]
    (vector,) = model["vectors"]
    assert vector["status"] != "passed"
    assert vector["reason"]
    (case,) = ElementTree.parse(folder / "a.xml").getroot().findall(".//testcase[@name='test_data_set_0']")
    assert case.find("failure") is not None
    assert call("check", "m.onnx", *chosen, "--ignore", "QR505").code == 0


def test_a_runtime_that_crashes_is_no_green_vector(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qrun.errors import RunError
    from qrun.running.session import Session

    def crash(*_: object, **__: object) -> None:
        raise RunError("QR015", "onnxruntime crashed: signal 11")

    save(sum_model(), folder / "m.onnx")
    record(folder / "test_data_set_0", input=[np.float32([1, 2])] * 2, output=[np.float32([2, 4])])
    monkeypatch.setattr(Session, "execute", crash)
    assert codes("m.onnx") == ["QR015", "QR505"]
    assert codes("m.onnx", "--ignore", "QR015") == ["QR505"]


@pytest.mark.parametrize(
    "chosen",
    [["--select", "QR301", "--ignore", "QR3"], ["--ignore", "QR"], ["--select", "QR3,QR4", "--ignore", "QR3,QR4"]],
)
def test_a_choice_that_leaves_no_rule_is_a_mistake(folder: Path, chosen: list[str]) -> None:
    bad_scale(folder)
    ended = call("check", "bad.onnx", *chosen)
    assert (ended.code, ended.out) == (2, "")
    assert "QR005" in ended.err
    assert "leave no rule" in ended.err


# Reports


def test_reports_in_files(folder: Path) -> None:
    bad_scale(folder)
    names = ["a.sarif", "a.xml", "a.json", "a.md", "gitlab=b.json", "github=b.txt", "concise=c"]
    ended = call("check", "bad.onnx", *[word for name in names for word in ("-o", name)])
    assert ended.code == 1
    assert ended.out.startswith("error QR301")
    assert json.loads((folder / "a.sarif").read_text())["version"] == "2.1.0"
    assert ElementTree.parse(folder / "a.xml").getroot().tag == "testsuites"
    jsonschema.validate(json.loads((folder / "a.json").read_text()), SCHEMA)
    assert (folder / "a.md").read_text().startswith("### qrun check failed: 1 error in 1 model")
    assert isinstance(json.loads((folder / "b.json").read_text()), list)
    assert "\n::error title=qrun QR301 scale-shape,file=bad.onnx" in (folder / "b.txt").read_text()
    assert (folder / "c").read_text().startswith("bad.onnx: /stem/conv: error QR301")


@pytest.mark.parametrize("target", ["report.html", "nowhere/a.sarif", "m.onnx", "json=m.onnx", "."])
def test_reports_that_cannot_be_written(folder: Path, target: str) -> None:
    save(quantize_model(), folder / "m.onnx")
    before = (folder / "m.onnx").read_bytes()
    assert call("check", "m.onnx", "-o", target).code == 2
    assert (folder / "m.onnx").read_bytes() == before
    assert call("check", "m.onnx", "-o", "a.json", "-o", "gitlab=a.json").code == 2


def test_a_baseline_leaves_what_is_new(folder: Path) -> None:
    """Findings that the saved check has too are in no report and do not count; those gone are counted."""
    bad_scale(folder, "m.onnx")
    saved = folder / "base.json"
    saved.write_text(call("check", "m.onnx", "--json").out)
    known = call("check", "m.onnx", "--baseline", saved, "-o", "a.xml", "-o", "a.sarif", "-o", "gitlab=b.json")
    assert known.code == 0
    assert "since the baseline: 1 known finding not shown, 0 gone\npassed: nothing found in 1 model\n" in known.out
    assert ElementTree.parse(folder / "a.xml").getroot().get("failures") == "0"
    assert (
        json.loads((folder / "a.sarif").read_text())["runs"][0]["results"]
        == json.loads((folder / "b.json").read_text())
        == []
    )
    save(conv_model(y_scale=np.full(2, 0.5, np.float32)), folder / "m.onnx")
    changed = call("check", "m.onnx", "--baseline", saved)
    assert changed.code == 1
    assert "y_scale has shape [2]" in changed.out
    assert "w_scale" not in changed.out
    assert "0 known findings not shown, 1 gone\nfailed: " in changed.out
    assert "QR301" in codes("m.onnx", "--baseline", str(saved))
    moved = save(conv_model(w_scale=np.full(3, 0.01, np.float32)), folder / "moved.onnx")
    assert call("check", moved, "--baseline", saved).code == 0, "one model is the same model, whatever its path"
    assert call("check", "m.onnx", moved, "--baseline", saved).code == 1, "of several models the path counts"


def test_baselines_and_statistics_that_do_not_fit(folder: Path) -> None:
    bad_scale(folder)
    (folder / "run.json").write_text('{"schema": "qrun/run/1.0"}')
    (folder / "base.json").write_text(call("check", "bad.onnx", "--json").out)
    says(call("check", "bad.onnx", "--baseline", "run.json"), 2, "qrun check PATH --json")
    says(
        call("check", "bad.onnx", "--baseline", "base.json", "-o", "base.json"), 2, "it is the baseline of this command"
    )
    says(call("check", "bad.onnx", "--statistics", "--json"), 2, "--statistics prints a table for people")


def test_github(folder: Path) -> None:
    bad_scale(folder)
    (folder / "s.md").write_text("before\n")
    ended = call("check", "bad.onnx", "--format", "github", env={"GITHUB_STEP_SUMMARY": str(folder / "s.md")})
    assert ended.code == 1
    assert ended.out.startswith("error QR301")
    assert "\nfailed: 1 error in 1 model\n::error title=qrun QR301 scale-shape,file=bad.onnx,line=1," in ended.out
    assert (folder / "s.md").read_text().startswith("before\n### qrun check failed: 1 error in 1 model")
    ended = call("check", "bad.onnx", "--format", "github", env={"GITHUB_STEP_SUMMARY": str(folder / "no" / "s.md")})
    says(ended, 1, "job summary")


# Calls that are wrong


def test_wrong_calls(folder: Path) -> None:
    (folder / "empty").mkdir()
    save(quantize_model(), folder / "m.onnx")
    wrong = [
        [],
        ["nothing.onnx"],
        ["empty"],
        ["m.onnx", "nothing.onnx"],
        ["m.onnx", "--format", "yaml"],
        ["m.onnx", "--lsb", "-1"],
    ]
    for arguments in wrong:
        ended = call("check", *arguments)
        assert (ended.code, ended.out) == (2, ""), arguments
        assert "Traceback" not in ended.err
    assert "m.onnx" in call("check", "n.onnx").err
    failed = call("check", "empty", "--json")
    jsonschema.validate(failed.json, SCHEMA)
    assert failed.json["error"]["code"] == "QR004"


def test_help_lists_check() -> None:
    assert re.search(r"^ +check +Check models", call("--help").out, re.M)
    assert all(len(line) <= 80 for line in call("check", "-h").out.splitlines())


# [tool.qrun.check]


def config(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


def test_configuration(folder: Path) -> None:
    bad_scale(folder)
    config(folder, '[tool.qrun.check]\nignore = ["QR301"]\n')
    says(call("check", "bad.onnx"), 0, "ignore from [tool.qrun]")
    config(folder, '[tool.qrun.check]\nselect = ["QR1"]\nfail-on = "never"\n')
    assert call("check", "bad.onnx", "--select", "QR3").code == 0
    assert call("check", "bad.onnx", "--select", "QR3", "--fail-on", "error").code == 1
    assert call("check", "bad.onnx", "--config", "none").code == 1


def test_settings_per_file(folder: Path) -> None:
    (folder / "legacy").mkdir()
    bad_scale(folder)
    bad_scale(folder, "legacy/bad.onnx")
    config(folder, '[tool.qrun.check.per-file]\n"legacy/*" = {ignore = ["QR301"]}\n"other/*" = {lsb = 1}\n')
    models = call("check", ".", "--json").json["models"]
    assert {m["path"]: [f["rule"] for f in m["findings"]] for m in models} == {
        "bad.onnx": ["QR301"],
        "legacy/bad.onnx": [],
    }
    assert call("check", str(folder / "legacy")).code == 0


def test_tolerance_per_file(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        save(quantize_model(0.5, np.uint8(3)), folder / name / "m.onnx")
        record(folder / name / "test_data_set_0", input=[np.float32([1.25, 2])], output=[np.uint8([6, 7])])
    config(folder, '[tool.qrun.check.per-file]\n"a/*" = {lsb = 1, select = "QR5"}\n')
    found = call("check", ".", "--json").json["models"]
    assert [m["vectors"][0]["status"] for m in found] == ["passed", "failed"]


@pytest.mark.parametrize(
    "text",
    [
        '[tool.qrun.check]\nselct = ["QR1"]\n',
        '[tool.qrun.check]\noutput = ["a.json"]\n',
        '[tool.qrun.check]\ndata = ["d"]\n',
        "[tool.qrun.check]\nper-file = 3\n",
        '[tool.qrun.check.per-file]\n"a" = 3\n',
        '[tool.qrun.check.per-file]\n"a" = {ignor = ["QR1"]}\n',
        '[tool.qrun.check.per-file]\n"a" = {lsb = "much"}\n',
        '[tool.qrun.check.per-file]\n"a" = {ignore = ["QR999"]}\n',
        '[tool.qrun.run.per-file]\n"a" = {ignore = ["QR1"]}\n',
    ],
)
def test_mistakes_in_the_configuration(folder: Path, text: str) -> None:
    save(quantize_model(), folder / "m.onnx")
    config(folder, text)
    command = "run" if ".run." in text else "check"
    ended = call(command, "m.onnx")
    assert ended.code == 2
    assert "Traceback" not in ended.err


# pytest


SUITE = """
def test_good(qrun_check):
    report = qrun_check("good.onnx")
    assert len(report.models) == 1

def test_bad(qrun_check):
    qrun_check("good.onnx", "bad.onnx", lsb=1)

def test_ignored(qrun_check):
    qrun_check("bad.onnx", ignore=["QR301"])

def test_never(qrun_check):
    assert qrun_check("bad.onnx", fail_on="never").count("error") == 1

def test_one_code(qrun_check):
    qrun_check("bad.onnx", ignore="QR301")
    qrun_check("bad.onnx", select="QR302")

def test_missing(qrun_check):
    qrun_check("nothing.onnx")

def test_no_level(qrun_check):
    qrun_check("bad.onnx", fail_on="warnings")


def test_no_backend(qrun_check):
    qrun_check("good.onnx", backend="referense")


def test_no_arithmetic(qrun_check):
    qrun_check("good.onnx", arith="onnx")
"""


@pytest.mark.parametrize("named", [True, False])
def test_pytest_plugin(folder: Path, named: bool) -> None:
    """named: with -p; otherwise by its entry point, as an installed qrun has it."""
    save(quantize_model(), folder / "good.onnx")
    bad_scale(folder)
    (folder / "test_models.py").write_text(SUITE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed(folder)), *sys.path])}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *(("-p", "qrun.pytest_plugin") if named else ()),
        "-p",
        "no:cacheprovider",
        "test_models.py",
    ]
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert "5 failed, 4 passed" in ended.stdout, ended.stdout
    assert "error QR301 scale-shape: " in ended.stdout
    assert "--> bad.onnx  node 0 /stem/conv" in ended.stdout
    assert "QR004 no-such-file" in ended.stdout
    assert "During handling" not in ended.stdout
    for meant in ("warning", "reference", "onnx-ref"):
        assert f"fix: did you mean {meant!r}?" in ended.stdout


def installed(folder: Path) -> Path:
    """A folder with the metadata that pip installs for the entry points of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["pytest11"].items()]
    info = folder / "installed" / "onnx_qrun-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onnx-qrun\nVersion: 0\n")
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    return info.parent


def test_the_plugin_imports_nothing_until_it_checks(folder: Path) -> None:
    """pytest loads it in every project that has qrun installed."""
    (folder / "test_other.py").write_text(
        "import sys\n\ndef test_other():\n    assert 'qrun.pytest_plugin' in sys.modules\n"
        "    assert [m for m in sys.modules if m.startswith('qrun')] == ['qrun', 'qrun.pytest_plugin']\n"
        "    assert 'numpy' not in sys.modules\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed(folder)), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_other.py"]
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert "1 passed" in ended.stdout, ended.stdout


def test_many_models_are_each_read_and_run_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qrun.checking import check as checking
    from qrun.child import current_child
    from qrun.running.session import Session

    current_child()  # one process infers the shapes of all models, and may run already
    counts = Counter[str]()

    def counted(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def counting(*args: object, **more: object) -> object:
            counts[name] += 1
            return real(*args, **more)

        monkeypatch.setattr(owner, name, counting)

    for owner, name in ((checking, "load"), (Session, "__init__"), (Session, "execute"), (subprocess, "Popen")):
        counted(owner, name)
    for place in range(100):
        (folder / f"m{place}").mkdir()
        save(quantize_model(0.5 + place), folder / f"m{place}" / "model.onnx")
        record(folder / f"m{place}" / "test_data_set_0", input=[np.float32([0])], output=[np.uint8([0])])
    ended = call("check", ".")
    for_rules = 100  # rules that look at tensors inside have a session of their own
    assert counts == {"load": 100, "__init__": 100 + for_rules, "execute": 100}
    assert "passed: nothing found in 100 models; 100 vectors: 100 passed" in ended.out, ended.out[-500:] + ended.err


@pytest.mark.parametrize("format", ["full", "concise"])
def test_quiet_prints_the_findings_and_what_failed(folder: Path, format: str) -> None:
    save(quantize_model(), folder / "good.onnx")
    assert call("check", "good.onnx", "-q", "--format", format).out == ""
    bad_scale(folder)
    words = ("check", "good.onnx", "bad.onnx", "--format", format)
    loud, quiet = call(*words), call(*words, "-q")
    assert quiet.code == loud.code == 1
    assert "QR301" in quiet.out
    assert "tells more" in loud.out or "has details" in loud.out
    assert "tells more" not in quiet.out
    assert "has details" not in quiet.out
    assert quiet.out.splitlines()[-1] == loud.out.splitlines()[-1] == "failed: 1 error in 2 models"


def test_processes_change_nothing_but_the_time(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(ROOT / "models" / "digits", folder)
    (folder / "broken.onnx").write_bytes(b"no model")
    alone, shared = (call("check", folder, "--json", "-j", jobs) for jobs in ("1", "3"))
    assert alone.code == shared.code == 1

    def plain(found: Any) -> Any:
        """Without times."""
        if isinstance(found, dict):
            return {key: plain(value) for key, value in found.items() if not key.endswith("_ms")}
        return [plain(each) for each in found] if isinstance(found, list) else found

    assert plain(alone.json["models"]) == plain(shared.json["models"])
    assert len(shared.json["models"]) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="processes end themselves with SIGKILL")
def test_a_model_that_ends_its_process_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import qrun.checking.check as c, os\nload = c.load\n"
        "def killing(path):\n    if path.name == 'b.onnx':\n        os.kill(os.getpid(), 9)\n    return load(path)\n"
        "c.load = killing\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    for name in ("a", "b", "c"):
        shutil.copy(ROOT / "models" / "digits" / "qdq" / "model.onnx", tmp_path / f"{name}.onnx")
    ended = call("check", tmp_path, "-j", "2", "--json")
    assert ended.code == 1
    errors = {
        Path(m["path"]).name: [f["rule"] for f in m["findings"] if f["level"] == "error"] for m in ended.json["models"]
    }
    assert errors == {"a.onnx": [], "b.onnx": ["QR015"], "c.onnx": []}
