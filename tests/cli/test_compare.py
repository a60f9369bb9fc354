"""``qrun compare`` of two runtimes: what it prints, its exit codes, and calls that cannot be."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from importlib.metadata import version
from importlib.resources import files as resources
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from helpers.cli import ESCAPE, ROOT, call, npy, process, quantize_model, save, says, terminal
from helpers.models import make_model, typed
from helpers.support import MS, node_model
from onnx import helper

from qrun.comparing.differences import Tolerance, pair
from qrun.report.compare import _argmax, share_text

SCHEMA = json.loads(resources("qrun").joinpath("schemas/compare-1.0.json").read_text())
DIGITS = ROOT / "models" / "digits"
FORMS = ("float", "qoperator", "qdq", "dynamic")
f32, u8, i8 = np.float32, np.uint8, np.int8
needs_ort = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """tie.onnx: a product whose results are ties, zero point 1;
    onnx.reference rounds half of them to the other side."""
    inputs = [np.arange(8, dtype=u8).reshape(8, 1), f32(0.5), u8(0), np.array([[1]], u8), f32(1), u8(0), f32(1), u8(1)]
    model, feeds = node_model("QLinearMatMul", inputs, opset=10, outputs=(u8,), constants=range(1, 8))
    save(model, folder / "tie.onnx")
    npy(folder / "x.npy", feeds["i0"])
    add = node_model(
        "QLinearAdd",
        [feeds["i0"], f32(0.5), u8(0), np.zeros(1, u8), f32(1), u8(0), f32(1), u8(1)],
        opset=17, domain=MS, outputs=(u8,), constants=range(1, 8),
    )[0]  # fmt: skip
    save(add, folder / "add.onnx")


def digits(form: str) -> list[str]:
    return [str(DIGITS / form / "model.onnx"), "-i", str(DIGITS / "x.npy")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("against", ["native", "reference"])
def test_own_backends_are_equal_bit_for_bit(form: str, against: str) -> None:
    ended = call("compare", *digits(form), "--against", against, "--json")
    found = ended.json
    jsonschema.validate(found, SCHEMA)
    assert ended.code == 0, ended.err
    assert found["tolerance"] == {"lsb": 0, "rtol": 0, "atol": 0, "eps": 0}
    assert found["summary"]["identical"] == found["summary"]["tensors"] >= found["summary"]["nodes"] > 0
    assert found["first"] is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("against", ["fused", "literal"])
def test_fused_and_literal(form: str, against: str) -> None:
    """The codes may differ by a step where float32 steps do not give the real value; then that is the cause."""
    ended = call("compare", *digits(form), "--against", against, "--json")
    found = ended.json
    jsonschema.validate(found, SCHEMA)
    assert ended.code == (0 if found["equal"] else 1), ended.err
    assert found["summary"]["tensors"] > 0
    assert {t["by_itself"]["cause"] for t in found["tensors"] if t["by_itself"]} <= {"fused-requantization"}
    if form == "qdq":
        assert any(len(t["group"]) > 1 for t in found["tensors"])


@needs_ort
@pytest.mark.parametrize("form", FORMS)
def test_onnxruntime(form: str) -> None:
    """Whatever the CPU: every tensor that differs by itself has a cause, and all others are inherited."""
    if version("onnxruntime").split("+")[0] != "1.32.0":
        pytest.skip(f"onnxruntime is {version('onnxruntime')}; the causes are those of 1.32.0")
    ended = call("compare", *digits(form), "--against", "ort", "--isolate", "--json")
    found = ended.json
    jsonschema.validate(found, SCHEMA)
    assert ended.code == (0 if found["equal"] else 1), ended.err
    assert found["sides"][1]["label"].endswith("graph optimizations off)")
    assert found["summary"]["tensors"] >= found["summary"]["nodes"]
    for t in found["tensors"]:
        assert t["equal"] == (t["by_itself"] is None)
        if t["by_itself"] and t["unit"] == "step":
            assert t["by_itself"]["cause"] in ("pair-saturation", "float32-multiplier", "float32-arithmetic"), t


@needs_ort
@pytest.mark.parametrize("form", FORMS)
def test_onnxruntime_as_users_run_it(form: str) -> None:
    ended = call("compare", *digits(form), "--against", "ort-optimized", "--json")
    found = ended.json
    jsonschema.validate(found, SCHEMA)
    assert found["sides"][1]["label"].endswith("graph optimizations on)")
    assert {t["name"] for t in found["tensors"]} > {o["name"] for o in found["outputs"]}


def test_first_difference(folder: Path) -> None:
    ended = call("compare", "tie.onnx", "-i", "x.npy", "--arith", "onnx-ref")
    assert ended.code == 1
    lines = [re.sub(" +", " ", line.strip()) for line in ended.out.splitlines()]
    for line in [
        "First difference node 0 of 1 node",
        "node n QLinearMatMul",
        "output y0",
        "type uint8 [8,1]",
        "differ 4 of 8 elements, largest 1 step",
        "where [1,0] exact 1 onnx-ref 2 before rounding 1.5",
        "inputs equal bit for bit",
        "cause zero-point-before-rounding: adds the odd zero point 1 before rounding",
        "evidence 4 of 4 differing elements reproduced bit for bit, and all others",
        "ties all are exact ties",
        "0 y0 QLinearMatMul uint8 [8,1] 50.0 % 1 1 9.3 dB zero-point-before-rounding",
        "zero-point-before-rounding 1 4 #0 n",
        "y0 1 1 9.3 dB - differs",
        "differ: first at node 0 by 1 step, zero-point-before-rounding; "
        "1 of 1 tensor beyond rtol 0.001, atol 1e-07, 1 not inherited.",
    ]:
        assert line in lines, (line, ended.out)


def test_tolerance(folder: Path) -> None:
    ended = call("compare", "tie.onnx", "-i", "x.npy", "--arith", "onnx-ref", "--lsb", "1")
    assert ended.code == 0
    assert "within lsb 1" in ended.out
    assert ended.out.startswith("equal within the tolerance, lsb 1, rtol 0.001, atol 1e-07: 1 tensor.\n")


@pytest.mark.parametrize(("arith", "code"), [("ort", 0), ("onnx-ref", 1)])
def test_arithmetics_of_qrun(arith: str, code: int) -> None:
    ended = call("compare", "tie.onnx", "-i", "x.npy", "--arith", arith, "--json")
    assert (ended.code, [s["name"] for s in ended.json["sides"]]) == (code, ["exact", arith])


@needs_ort
def test_a_model_that_the_other_side_refuses_runs_node_by_node(folder: Path) -> None:
    ended = call("compare", "add.onnx", "-i", "x.npy", "--against", "onnx-ref", "--json")
    found = ended.json
    jsonschema.validate(found, SCHEMA)
    assert ended.code == 1
    assert "QLinearAdd" in found["refused"]
    (tensor,) = found["tensors"]
    assert (tensor["by_itself"]["cause"], tensor["form"]) == ("refused", ["uint8 [8,1]", "nothing"])
    text = call("compare", "add.onnx", "-i", "x.npy", "--against", "onnx-ref").out
    assert "The whole model is refused" in text
    assert "QLinearAdd" in text.split("cause", 1)[1]


def test_json_and_its_schema_refuse_what_is_wrong() -> None:
    found = call("compare", "tie.onnx", "-i", "x.npy", "--arith", "onnx-ref", "--json").json
    jsonschema.validate(found, SCHEMA)
    own = found["tensors"][0]["by_itself"]
    assert (own["cause"], own["explained"], own["exact_ties"], own["before_rounding"]) == (
        "zero-point-before-rounding", 4, 4, 1.5,
    )  # fmt: skip
    del found["tensors"][0]["by_itself"]["cause"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, SCHEMA)


def test_markdown() -> None:
    ended = call("compare", "tie.onnx", "-i", "x.npy", "--arith", "onnx-ref", "--format", "markdown")
    assert ended.code == 1
    assert ended.out.startswith("### qrun compare: differ: first at node 0")
    assert "| `y0` | QLinearMatMul | uint8 \\[8,1\\] | 50.0 % |" in ended.out


def test_quiet_prints_the_verdict_only() -> None:
    ended = call("compare", "tie.onnx", "-i", "x.npy", "--arith", "onnx-ref", "-q")
    assert ended.out.splitlines()[0].startswith("differ: first at node 0")
    assert len(ended.out.splitlines()) == 1
    assert ended.err == ""


def test_a_verdict_on_random_inputs_says_so() -> None:
    """Whatever is compared, and also when quiet; one on given inputs does not."""
    two = [str(DIGITS / form / "model.onnx") for form in ("float", "qdq")]
    for words in (two, two[1:], [*two[1:], "--record", "golden"], [*two[1:], "golden"]):
        against = ["--against", "native"] if words == two[1:] else []
        ended = call("compare", *words, *against, "-q", "--seed", "3")
        (line,) = ended.out.splitlines()
        assert line.endswith(". Inputs are random, seed 3."), line
        found = call("compare", *words, *against, "--seed", "3", "--json").json
        jsonschema.validate(found, SCHEMA)
        assert [i["source"] for i in found["inputs"]] == ["random, seed 3"], words
    given = call("compare", *two, "-i", DIGITS / "x.npy", "-q")
    assert "random" not in given.out
    assert len(given.out.splitlines()) == 1
    assert "x.npy" in call("compare", *two, "-i", DIGITS / "x.npy").out.partition("Outputs")[0]


def test_next_to_nothing_has_the_unit_of_the_others() -> None:
    assert [share_text(n, 10_000) for n in (0, 1, 4, 6, 200)] == ["0.0 %", "<0.1 %", "<0.1 %", "0.1 %", "2.0 %"]
    assert share_text(0, 0) == "0.0 %"


def test_a_backend_that_is_not_there_refuses_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.delitem(sys.modules, "llvmlite.binding", raising=False)
    for against in ("native", "reference"):
        ended = call("compare", *digits("qdq"), "--against", against)
        assert (ended.code, ended.out) == (4, "")
        assert "QR014 native-unavailable" in ended.err
        assert "fix: pip install llvmlite" in ended.err


def test_top(folder: Path) -> None:
    names = ["x", *(f"t{i}" for i in range(6))]
    nodes = [
        helper.make_node("QLinearMatMul", [a, "half", "zero", "one", "scale", "zero", "scale", "odd"], [b])
        for a, b in pairwise(names)
    ]
    stored = {"half": f32(0.5), "scale": f32(1), "zero": u8(0), "odd": u8(1), "one": np.ones((1, 1), u8)}
    column = typed(u8, [8, 1])
    save(make_model(nodes, {names[0]: column}, {names[-1]: column}, stored, opset=13), folder / "chain.onnx")
    call_it = ("compare", "chain.onnx", "-i", "x.npy", "--arith", "onnx-ref")
    differing = call(*call_it, "--json").json["summary"]["differing"]
    assert differing == 6
    short, whole = call(*call_it, "--top", "2").out, call(*call_it, "--top", "all").out
    assert "4 more tensors   --top all, --isolate, --json" in short
    assert "more tensors" not in whole
    assert len(whole.splitlines()) - len(short.splitlines()) == 4 - 1


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminals(width: int, folder: Path) -> None:
    shown = ESCAPE.sub(
        "", terminal("compare", "tie.onnx", "-i", "x.npy", "--arith", "onnx-ref", width=width, only="out")
    )
    assert max(map(len, shown.splitlines())) <= width, shown
    assert "zero-point-before-rounding" in shown
    assert "│" not in shown
    assert "─" * 20 in shown


def test_model_from_stdin(folder: Path) -> None:
    ended = call("compare", "-", "-i", "x.npy", "--arith", "onnx-ref", stdin=(folder / "tie.onnx").read_bytes())
    assert ended.code == 1, ended.err


@needs_ort
def test_dynamic_sizes_and_random_inputs(folder: Path) -> None:
    save(quantize_model(), folder / "q.onnx")
    ended = call("compare", "q.onnx", "--shape", "N=64", "--seed", "3")
    assert ended.code == 0, ended.out + ended.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a.npz"], "a second file is missing"),
        (["a.json"], "a second file is missing"),
        (["a.npz", "b.json"], "cannot read 'a.npz'"),
        (["tie.onnx", "b.json"], "these two cannot be compared"),
        (["a.npz", "b.npz", "--against", "ort"], "--against does not fit"),
        (["tie.onnx", "tie.onnx", "--isolate"], "--isolate does not fit"),
        (["tie.onnx", "tie.onnx", "--record", "r"], "--record takes one model"),
        (
            ["tie.onnx", "-i", "x.npy", "--arith", "ort", "--against", "ort", "--record", "r"],
            "another runtime has its own",
        ),
        (["missing.onnx"], "missing.onnx"),
        ([], "Missing argument"),
        (["tie.onnx", "--against", "tflite"], "tflite"),
        (["tie.onnx", "--lsb", "-1"], "-1"),
        (["tie.onnx", "--top", "0"], "neither a number above 0 nor 'all'"),
        (["tie.onnx", "-i", "nothing.npy"], "nothing.npy"),
    ],
)
def test_bad_calls(arguments: list[str], says: str) -> None:
    ended = call("compare", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert "Traceback" not in ended.err


def test_an_arithmetic_of_qrun_against_another_runtime() -> None:
    """onnx.reference rounds ties to the other side, and so does its arithmetic; exact arithmetic does not."""
    where = ("tie.onnx", "-i", "x.npy", "--against", "onnx-ref", "--json")
    assert call("compare", *where).code == 1
    ended = call("compare", *where, "--arith", "onnx-ref")
    assert (ended.code, ended.json["equal"]) == (0, True)
    assert "arith onnx-ref" in ended.json["sides"][0]["label"]
    assert [side["name"] for side in ended.json["sides"]] == ["qrun", "onnx-ref"]


@pytest.mark.parametrize("against", ["native", "reference", "fused", "literal"])
def test_an_arithmetic_holds_on_both_sides_of_qrun(against: str) -> None:
    ended = call("compare", *digits("qoperator"), "--arith", "ort", "--against", against, "--json")
    assert ended.code == 0, ended.out
    assert ["arith ort" in side["label"] for side in ended.json["sides"]] == [True, True]


@needs_ort
@pytest.mark.parametrize("form", FORMS)
def test_the_arithmetic_of_onnxruntime_against_onnxruntime(form: str) -> None:
    """The codes that are made from others are those of onnxruntime, whatever floats its CPU gives."""
    ended = call("compare", *digits(form), "--arith", "ort", "--against", "ort", "--isolate", "--json")
    integers = [t for t in ended.json["tensors"] if t["type"].startswith(("uint8", "int32"))]
    named = {t["by_itself"]["cause"] for t in integers if not t["identical"]}
    assert named <= {"pair-saturation", "fused-requantization"}, named


def test_failure_is_json_too() -> None:
    ended = call("compare", "a.npz", "--json")
    assert ended.code == 2
    jsonschema.validate(ended.json, SCHEMA)
    assert ended.json["error"]["code"] == "QR005"


def test_qrun_refuses_the_model(folder: Path) -> None:
    model, _ = node_model("NoSuchOperator", [np.zeros(1, f32)], domain="some.where")
    save(model, folder / "other.onnx")
    says(call("compare", "other.onnx", "--random", "--arith", "onnx-ref"), 4, "NoSuchOperator")


def test_memory_limit() -> None:
    says(call("compare", *digits("qdq"), "--against", "native", "--max-memory", "1000"), 5, "QR010")


def test_without_onnxruntime(folder: Path) -> None:
    """--against ort says what to install; onnx.reference works without them."""
    (folder / "onnxruntime.py").write_text("raise ImportError('not here')\n")
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    ended = process("compare", "tie.onnx", "-i", "x.npy", env=env)
    assert ended.code == 4
    assert "onnx-qrun[ort]" in ended.err
    assert process("compare", "tie.onnx", "-i", "x.npy", "--against", "onnx-ref", env=env).code in (0, 1)


def words(*arguments: str) -> tuple[list[str], str]:
    """The lines of the report, without repeated spaces; and its first paragraph, the verdict, in one line."""
    out = call("compare", *arguments).out
    return [re.sub(" +", " ", line.strip()) for line in out.splitlines()], " ".join(out.split("\n\n")[0].split())


def float_sum(folder: Path) -> None:
    """sum.onnx: products of 64 random terms, which each library adds in its own order."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype(f32) for shape in ((16, 64), (64, 8)))
    model, feeds = node_model("MatMul", [a, b], opset=13, outputs=(f32,), constants=[1])
    save(model, folder / "sum.onnx")
    npy(folder / "a.npy", feeds["i0"])


@needs_ort
def test_beyond_the_tolerance_and_other_bits_are_two_numbers(folder: Path) -> None:
    float_sum(folder)
    where = ("sum.onnx", "-i", "a.npy", "--against", "onnx-ref")
    (exact,) = call("compare", *where, "--rtol", "0", "--atol", "0", "--json").json["tensors"]
    if exact["differing"] < 2:
        pytest.skip("numpy adds in the order of qrun here")
    assert exact["differing"] == exact["other_bits"]
    half = str(exact["largest"] / 2)
    (some,) = call("compare", *where, "--rtol", "0", "--atol", half, "--json").json["tensors"]
    assert 0 < some["differing"] < some["other_bits"] == exact["other_bits"]
    assert some["largest_beyond"] == abs(some["a"] - some["b"]) > exact["largest"] / 2
    lines, last = words(*where, "--rtol", "0", "--atol", half)
    told = f"rtol 0, atol {exact['largest'] / 2:g}"
    beyond = f"differ {some['differing']} of 128 elements beyond {told}, largest of these "
    assert any(line.startswith(beyond) for line in lines)
    assert any(line.startswith(f"different bits {some['other_bits']} elements, largest ") for line in lines)
    assert f"Tensors that differ, beyond {told}" in lines
    assert f"1 of 1 tensor beyond {told}, 1 not inherited" in last


def test_argmax_is_told_of_each_row() -> None:
    a = np.eye(3, 4, dtype=f32)
    b = np.flip(a, 1).copy()
    b[0] = a[0]
    assert pair(a, b, Tolerance()).agreed == (1, 3)
    assert _argmax(pair(a, b, Tolerance())) == "same in 1 of 3"
    assert _argmax(pair(a[:1], a[:1], Tolerance())) == "same (0)"
    assert _argmax(pair(a[1:2], b[1:2], Tolerance())) == "1 and 2"
    assert pair(a.astype(i8), a.astype(i8), Tolerance()).agreed is None
    same = call("compare", *digits("qdq"), "--against", "native").out
    assert "same in 8 of 8" in same


@needs_ort
def test_a_record_of_onnxruntime_as_users_run_it_is_of_its_outputs(folder: Path) -> None:
    """Which tensors are left inside depends on the CPU."""
    made = call("compare", *digits("qdq"), "--against", "ort-optimized", "--record", str(folder / "golden"), "--json")
    assert made.code == 0, made.err
    assert made.json["record"]["tensors"] == 1


@needs_ort
@pytest.mark.parametrize("form", FORMS)
def test_onnxruntime_as_users_run_it_is_compared_inside(form: str) -> None:
    """By the tensors that its graph still has; no advice leads to a comparison of another graph, which may be equal."""
    lines, last = words(*digits(form), "--against", "ort-optimized", "--rtol", "0", "--atol", "0")
    assert not any("--against" in line for line in lines)
    found = call("compare", *digits(form), "--against", "ort-optimized", "--rtol", "0", "--atol", "0", "--json").json
    assert len(found["tensors"]) > 1
    causes = {t["by_itself"]["cause"] for t in found["tensors"] if t["by_itself"]}
    assert "unknown" not in causes
    if found["first"]:
        first = next(t for t in found["tensors"] if t["name"] == found["first"]["tensor"])
        assert first["by_itself"], first
    if last.startswith("equal"):
        pytest.skip("onnxruntime gives the exact bits on this CPU")


def test_refusals_are_no_differences() -> None:
    """onnx.reference has no DequantizeLinear of opset 17:
    the other nodes are compared, and the fix is a newer opset."""
    lines, last = words(*digits("qdq"), "--against", "onnx-ref")
    assert last.startswith(
        "not compared in full: onnx-ref refuses the nodes of 20 of 39 tensors, first at node 0; the other 19 are equal"
    )
    assert any(line.startswith("fix convert the model to opset 19:") for line in lines)
    assert "Tensors that onnx-ref refuses" in lines
    found = call("compare", *digits("qdq"), "--against", "onnx-ref", "--json").json
    jsonschema.validate(found, SCHEMA)
    assert (found["exit_code"], found["summary"]["refused"]) == (1, 20)


@needs_ort
def test_an_inherited_difference_says_what_shows_its_origin() -> None:
    """Whatever the CPU does: bits that differ before the first tensor beyond the tolerance can be looked into."""
    lines, _ = words(*digits("qdq"), "--against", "ort")
    if not any(line.startswith("cause inherited: ") and "Other bits start" in line for line in lines):
        pytest.skip("onnxruntime's first difference has no earlier origin on this CPU")
    (tight,) = [line for line in lines if line.startswith("next ") and "--rtol 0 --atol 0 " in line]
    assert tight.endswith(
        (
            "shows why they start there",
            "--isolate --rtol 0 --atol 0 judges each node by itself and shows more of this one",
        )
    )
    assert ("more of this one" in tight) == any(line.startswith("there ") for line in lines)


@needs_ort
@pytest.mark.parametrize("form", FORMS)
def test_from_an_origin_to_the_first_difference_every_tensor_has_other_bits(form: str) -> None:
    found = call("compare", *digits(form), "--against", "ort", "--json").json
    origin = found["first"] and found["first"]["origin"]
    if not origin:
        pytest.skip("onnxruntime's first difference has no earlier origin on this CPU")
    from qrun.ir.load import load

    producers = load(DIGITS / form / "model.onnx").producers
    other = {t["name"] for t in found["tensors"] if not t["identical"]}
    reached, pending = set(), [found["first"]["tensor"]]
    while pending:
        name = pending.pop()
        if name in other and name not in reached:
            reached.add(name)
            pending += producers[name].inputs
    assert origin["tensor"] in reached
    assert other.isdisjoint(producers[origin["tensor"]].inputs)


def test_a_cpu_without_vnni_is_emulated() -> None:
    """The verdict begins with the outputs; the same words in JSON's numbers."""
    ended = call("compare", *digits("qoperator"), "--emulate", "avx2")
    assert ended.code == 1
    first = ended.out.splitlines()[0]
    assert first.startswith("differ: without VNNI logits SQNR ")
    assert "pair-saturation" in first
    told = json.loads(call("compare", *digits("qoperator"), "--emulate", "avx2", "--json").out)
    assert [side["name"] for side in told["sides"]] == ["exact", "avx2"]
    assert f"logits SQNR {told['outputs'][0]['sqnr_db']:.1f} dB, argmax the same" in first
    assert call("compare", *digits("float"), "--emulate", "avx2").out.startswith("equal: ")


@pytest.mark.parametrize(("option", "value"), [("--against", "ort"), ("--arith", "ort"), ("--record", "golden")])
def test_an_emulated_cpu_is_a_side_of_its_own(option: str, value: str) -> None:
    says(call("compare", *digits("qdq"), "--emulate", "avx2", option, value), 2, f"omit {option}")


def test_the_finding_names_the_command_that_shows_it() -> None:
    """It can be pasted: the model's file stands in it."""
    (finding,) = json.loads(call("run", *digits("qoperator"), "--json").out)["findings"]
    assert finding["message"].endswith("int16 holds 32767 (4 nodes)")
    command = finding["why"].partition("See it: qrun ")[2]
    assert shlex.split(command) == ["compare", digits("qoperator")[0], "-i", "x.npy", "--emulate", "avx2"]
    x = digits("qoperator")[2]
    assert call(*[x if word == "x.npy" else word for word in shlex.split(command)]).code == 1


def test_a_run_with_inputs_counts_sums_that_leave_int16() -> None:
    counted = "sums exceed int16: Conv_c1.raw"
    assert counted in " ".join(call("run", *digits("qdq"), "-v").out.split())
    assert counted in call("run", *digits("qdq"), "--json").out
    assert counted not in " ".join(call("run", digits("qdq")[0], "-v").out.split())
