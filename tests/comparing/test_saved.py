"""Two results saved with --json: changes that were planted are told, noise is not,
and foreign documents are refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, conv_model
from helpers.models import make_model, typed
from onnx import TensorProto, helper

from qrun.comparing.differences import Difference
from qrun.comparing.saved import ElementPair, SavedArrays, SavedChecks, compare_saved
from qrun.comparing.savedprofiles import LEAST, SavedProfiles, change
from qrun.documents.record import encode
from qrun.errors import CallError
from qrun.report.comparefiles import files_sheet

Document = dict[str, Any]


def put(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def compared(folder: Path, a: Any, b: Any) -> Any:
    return compare_saved(put(folder / "a.json", a), put(folder / "b.json", b))


def node(index: int, name: str, op: str, samples: Sequence[float], **more: Any) -> Document:
    return {"index": index, "name": name, "op": op, "samples_ms": list(samples), **more}


def profile(
    *nodes: Document, samples: Sequence[float] = (1.0,) * LEAST, sha: str = "5a", **environment: Any
) -> Document:
    return {
        "schema": "qrun/profile/1.0", "qrun": "0.1.0", "model": {"path": "m.onnx", "sha256": sha},
        "environment": {"backend": "native", "threads": {}, **environment}, "run": {"samples_ms": list(samples)},
        "inputs": [{"name": "x", "type": "float32", "shape": [1, 3]}], "nodes": list(nodes),
    }  # fmt: skip


STEADY = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09]


# Profiles


def test_a_slower_node_is_told_and_is_no_failure(tmp_path: Path) -> None:
    a = profile(node(0, "conv", "Conv", STEADY), node(1, "relu", "Relu", STEADY), samples=STEADY)
    slow = [2 * t for t in STEADY]
    b = profile(node(0, "conv", "Conv", STEADY), node(1, "relu", "Relu", slow), samples=[t + 1 for t in STEADY])
    found = compared(tmp_path, a, b)
    assert isinstance(found, SavedProfiles)
    assert found.equal
    assert [(n.name, n.change.verdict) for n in found.nodes] == [("conv", "same"), ("relu", "slower")]
    assert found.nodes[1].change.relative == pytest.approx(1)
    assert (found.whole.verdict, found.whole.before, found.whole.after) == (
        "slower",
        pytest.approx(1.045),
        pytest.approx(2.045),
    )
    assert compared(tmp_path, b, a).nodes[1].change.verdict == "faster"
    assert found.settings == ()


def test_few_runs_say_nothing() -> None:
    assert change((1.0,) * (LEAST - 1), (9.0,) * LEAST).verdict == "few runs"
    assert change((1.0,) * LEAST, (9.0,) * (LEAST - 1)).verdict == "few runs"
    assert change((1.0,) * LEAST, (9.0,) * LEAST).verdict == "slower"
    assert change((0.0,) * LEAST, (0.0,) * LEAST).relative is None


def test_noise_is_no_change() -> None:
    """Samples of one distribution: the quartile ranges are apart in about 2 % of pairs of 10 runs."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    wrong = sum(
        change(tuple(rng.gamma(4, 1, LEAST)), tuple(rng.gamma(4, 1, LEAST))).verdict != "same" for _ in range(2000)
    )
    assert wrong < 2000 * 0.05, f"seed {seed}"


def test_nodes_are_matched_by_place_then_by_name(tmp_path: Path) -> None:
    a = profile(
        node(0, "a", "Conv", STEADY),
        node(1, "b", "Relu", STEADY),
        node(2, "", "Add", STEADY),
        node(3, "gone", "Mul", STEADY),
    )
    b = profile(node(0, "new", "Pad", STEADY), node(1, "a", "QLinearConv", STEADY, group=[1, 2, 3]), node(2, "b", "Relu", STEADY),
                node(3, "", "Add", STEADY))  # fmt: skip
    found = compared(tmp_path, a, b)
    assert [(n.index, n.name, n.op) for n in found.nodes] == [(1, "a", "QLinearConv"), (2, "b", "Relu")]
    assert found.nodes[0].note == "stands for 3 nodes, before for 1"
    assert [n.op for n in found.only_a] == ["Add", "Mul"]
    assert [n.op for n in found.only_b] == ["Pad", "Add"]
    names = [node(n, "same", "Relu", STEADY) for n in range(3)]
    twice = compared(tmp_path, profile(*names), profile(*names))
    assert [n.index for n in twice.nodes] == [0, 1, 2]
    unclear = compared(tmp_path, profile(node(9, "same", "Relu", STEADY)), profile(*names))
    assert (unclear.nodes, len(unclear.only_a), len(unclear.only_b)) == ((), 1, 3)


def test_what_was_not_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, profile(numpy="2.0", isa="avx2"), profile(numpy="2.1", isa="avx2", sha="5b"))
    assert {(s.name, s.a, s.b) for s in found.settings} == {("numpy", "2.0", "2.1"), ("model sha256", "5a", "5b")}
    assert not found.equal, "times of different models"
    other = profile()
    other["inputs"][0]["shape"] = [8, 3]
    assert not compared(tmp_path, profile(), other).equal


def test_times_of_other_work_are_not_judged(tmp_path: Path) -> None:
    fast, slow = (profile(node(0, "conv", "Conv", s), samples=s, sha=sha) for s, sha in ((STEADY, "5a"), ([9 * t for t in STEADY], "5b")))  # fmt: skip
    found = compared(tmp_path, slow, fast)
    assert {c.verdict for c in (found.whole, *(n.change for n in found.nodes))} == {"other work"}
    assert found.whole.relative is None
    sheet = files_sheet(found, None)
    assert sheet.about[0].startswith(f"before: {found.a}, after: {found.b}; ")
    assert sheet.verdict == (
        "differ: not the same model on the same inputs, so their times cannot be compared: "
        "9.41 ms before, 1.04 ms after."
    )
    assert [list(block.grid.rows[0][-2:]) for block in sheet.blocks if block.title != "Not the same"] == [
        ["-", "-"]
    ] * 2


# Documents that qrun writes


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, Path]:
    """A run, a profile and a check of one model, and a run of another input."""
    onnx.save(conv_model(), tmp_path / "m.onnx")
    for name, seed in (("run", 0), ("run2", 1), ("profile", 0), ("check", 0)):
        words = {"run2": "run"}.get(name, name)
        options = [] if name == "check" else ["--random", "--seed", seed, "--shape", "N=1"]
        options += ["-n", 12] if name == "profile" else []
        ended = call(words, tmp_path / "m.onnx", *options, "--json", *(["--format", "json"] if name == "check" else []))
        assert ended.code == 0, ended.err
        (tmp_path / f"{name}.json").write_text(ended.out)
    return {name: tmp_path / f"{name}.json" for name in ("run", "run2", "profile", "check")}


def test_each_kind_equals_itself(saved: dict[str, Path]) -> None:
    for name in ("run", "profile", "check"):
        found = compare_saved(saved[name], saved[name])
        assert found.equal, name
        assert found.settings == ()


def test_real_runs(saved: dict[str, Path]) -> None:
    found = compare_saved(saved["run"], saved["run2"])
    assert isinstance(found, SavedArrays)
    assert not found.equal
    assert [s.name for s in found.settings] == ["input image sha256"]
    assert found.pairs[0].a == found.pairs[0].b
    profiles = compare_saved(saved["profile"], saved["profile"])
    assert isinstance(profiles, SavedProfiles)
    assert len(profiles.nodes) == 1
    assert profiles.nodes[0].change.relative == 0


def test_one_of_each_kind(saved: dict[str, Path]) -> None:
    with pytest.raises(CallError, match="a saved run and a saved check") as error:
        compare_saved(saved["run"], saved["check"])
    assert "two profiles, two runs or two checks" in dict(error.value.facts)["expected"]
    (fix,) = error.value.fixes
    assert fix.startswith("qrun run MODEL --json > OTHER.json"), "no file of the user's is to be written over"


# Runs


def run(*outputs: Document) -> Document:
    return {
        "schema": "qrun/run/1.0",
        "model": {"path": None, "sha256": "5a"},
        "environment": {},
        "inputs": [],
        "outputs": list(outputs),
    }


def output(
    name: str, values: Any, kind: str = "float32", sha: str = "a", shape: Sequence[int] | None = None
) -> Document:
    return {"name": name, "type": kind, "shape": list(np.shape(values) if shape is None else shape), "min": 0.0, "max": "inf",
            "mean": None, "sha256": sha, "values": values}  # fmt: skip


def test_values_of_runs(tmp_path: Path) -> None:
    a = run(
        output("y", [[1, 2.5, "nan"], [4, 5, "inf"]]), output("z", None, shape=[100]), output("s", ["a", "b"], "string")
    )
    b = copy.deepcopy(a)
    assert compared(tmp_path, a, b).equal
    b["outputs"][0] |= {"values": [[1, 2.5, "nan"], [4.5, 5, 7]], "sha256": "b"}
    b["outputs"][1] |= {"sha256": "b", "min": -1}
    b["outputs"][2] |= {"sha256": "b", "values": ["a", "c"]}
    found = compared(tmp_path, a, b)
    y, z, s = found.pairs
    assert (y.difference.differing, y.difference.total, y.difference.largest) == (2, 6, 0.5)
    assert y.first == ElementPair((1, 0), 4, 4.5)
    assert (z.equal, z.difference, z.low) == (False, None, (0.0, -1.0))
    assert (encode(z)["min"], encode(z)["differing"], encode(y)["differing"]) == ([0.0, -1.0], None, 2)
    assert (s.difference.differing, s.first) == (1, ElementPair((1,), '"b"', '"c"'))
    b["outputs"] = [output("y", [1.0, 2.0]), output("new", 1.0)]
    found = compared(tmp_path, a, b)
    assert (found.pairs[0].a, found.pairs[0].b, found.pairs[0].equal) == ("float32 [2,3]", "float32 [2]", False)
    assert (found.only_a, found.only_b) == (("z", "s"), ("new",))


def test_large_integers_of_runs(tmp_path: Path) -> None:
    a, b = (run(output("y", [2**63 + n], "uint64", str(n))) for n in (0, 1))
    assert compared(tmp_path, a, b).pairs[0].first == ElementPair((0,), 2**63, 2**63 + 1)
    assert not compared(tmp_path, a, run(output("y", [10**300], "uint64", "c"))).equal
    one, two = (run(output("y", n, "int64", str(n))) for n in (3, 5))
    assert compared(tmp_path, one, two).pairs[0].first == ElementPair((), 3, 5)


# Checks


def check(*models: Document) -> Document:
    return {"schema": "qrun/check/1.3", "backend": "native", "models": list(models)}


def model(*findings: Document, path: str = "m.onnx", **vectors: str) -> Document:
    return {"path": path, "findings": list(findings), "vectors": [{"name": n, "status": s} for n, s in vectors.items()]}


def finding(rule: str = "QR301", where: str = "conv", **more: Any) -> Document:
    return {
        "rule": rule,
        "name": "n",
        "level": "error",
        "message": "m",
        "node": where,
        "index": 1,
        "tensor": "w",
        "fingerprint": "0",
        **more,
    }


def test_findings_new_and_gone(tmp_path: Path) -> None:
    a = check(model(finding(), finding(), finding("QR302"), one="passed", two="failed"))
    b = check(
        model(
            finding(message="other values", index=2), finding("QR303"), one="failed", two="failed", path="moved/m.onnx"
        )
    )
    found = compared(tmp_path, a, b)
    assert isinstance(found, SavedChecks)
    assert not found.equal
    assert [f.rule for f in found.new] == ["QR303"]
    assert [f.rule for f in found.gone] == ["QR301", "QR302"], "one of two was left"
    assert found.kept == 1
    assert found.vectors == (("m.onnx", "one", "passed", "failed"),)
    level = compared(tmp_path, check(model(finding())), check(model(finding(level="warning"))))
    assert (len(level.new), len(level.gone)) == (1, 1)


def test_models_of_checks(tmp_path: Path) -> None:
    a, b = check(model(path="a"), model(path="b")), check(model(path="b"), model(finding(), path="c"))
    found = compared(tmp_path, a, b)
    assert (found.only_a, found.only_b, found.new) == (("a",), ("c",), ())
    assert not found.equal


# Documents that are not what they should be

ODD = {
    "text": ("hello", "a JSON document"),
    "empty": ("", "it is empty"),
    "cut off": ('{"schema": "qrun/run/1.0", "outputs": [', "a JSON document"),
    "NaN": ('{"schema": "qrun/run/1.0", "time_ms": NaN}', "NaN is not JSON"),
    "deep": ("[" * 100_000, "a JSON document"),
    "binary": ("\x00\x01", "a JSON document"),
    "list": ([], "a document with a schema"),
    "no schema": ({"outputs": []}, "a document with a schema"),
    "schema of a kind": ({"schema": 1}, "a document with a schema"),
    "foreign": ({"schema": "https://json.schemastore.org/sarif-2.1.0.json"}, "qrun/profile/1.x"),
    "unknown": ({"schema": "qrun/inspect/1.0"}, "qrun/profile/1.x or qrun/run/1.x or qrun/check/1.x"),
    "record": ({"schema": "qrun/record/1.0"}, "qrun/profile/1.x"),
    "later": ({"schema": "qrun/run/2.0"}, "qrun/run/1.x, which this version of qrun reads"),
    "no version": ({"schema": "qrun/run/x"}, "qrun/profile/1.x"),
    "failure": ({"schema": "qrun/run/1.0", "error": {"message": "no such file"}}, "a failure: no such file"),
    "no outputs": ({"schema": "qrun/run/1.0"}, "a key 'outputs'"),
    "outputs": ({"schema": "qrun/run/1.0", "outputs": {}}, "outputs: a list"),
    "output": (run(1), "outputs[0]: an object"),
    "name": (run({**output("y", [1]), "name": 1}), "outputs[0].name: a string"),
    "shape": (run({**output("y", [1]), "shape": [-1]}), "outputs[0].shape[0]: an integer from 0"),
    "values": (run(output("y", [1, 2], shape=[3])), "outputs[0].values: 3 elements"),
    "depth": (run(output("y", [[1, 2]], shape=[2])), "outputs[0].values"),
    "element": (run(output("y", ["many"], shape=[1])), "outputs[0].values[0]: a number"),
    "twice": (run(output("y", [1]), output("y", [1])), "'y' again"),
    "samples": (profile(node(0, "a", "Add", [])), "nodes[0].samples_ms: times of 0 or more"),
    "times": (profile(node(0, "a", "Add", ["nan"])), "nodes[0].samples_ms: times of 0 or more"),
    "run samples": (profile(samples=[]), "run.samples_ms"),
    "findings": (check({"path": "m", "findings": [3], "vectors": []}), "models[0].findings[0]: an object"),
}


@pytest.mark.parametrize("case", ODD)
def test_damaged(tmp_path: Path, case: str) -> None:
    document, said = ODD[case]
    path = put(tmp_path / "bad.json", document)
    with pytest.raises(CallError) as error:
        compare_saved(path, path)
    assert error.value.where == (str(path),)
    assert any(said in value for _, value in error.value.facts), error.value.facts


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="cannot read"):
        compare_saved(tmp_path / "a.json", tmp_path / "b.json")


def test_changed_at_random(saved: dict[str, Path], tmp_path: Path) -> None:
    """Whatever value is replaced in a document, it is compared or refused."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    odd = [None, [], {}, "", "nan", -1, 1e300, 2**70, [[1]], "\ud800", True]

    def places(value: Any) -> list[tuple[Any, Any]]:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
        return [place for key in keys for place in ((value, key), *places(value[key]))]

    for name in ("run", "profile", "check"):
        good = json.loads(saved[name].read_text())
        for _ in range(100):
            document = copy.deepcopy(good)
            every = places(document)
            holder, key = every[rng.integers(len(every))]
            holder[key] = odd[rng.integers(len(odd))]
            try:
                compare_saved(saved[name], put(tmp_path / "odd.json", document))
            except CallError:
                continue
            except Exception as error:
                raise AssertionError(f"seed {seed}: {name}, {key}") from error


def test_truth_values_of_runs(tmp_path: Path) -> None:
    """As qrun saves them."""
    proto = make_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": typed(TensorProto.BOOL, [2])},
        {"y": typed(TensorProto.BOOL, [2])},
    )
    onnx.save(proto, tmp_path / "m.onnx")
    for name, given in (("a", "[true,false]"), ("b", "[true,true]")):
        ended = call("run", tmp_path / "m.onnx", "-i", f"x={given}", "--json")
        assert ended.code == 0, ended.err
        (tmp_path / f"{name}.json").write_text(ended.out)
    found = compare_saved(tmp_path / "a.json", tmp_path / "b.json")
    assert isinstance(found, SavedArrays)
    assert (found.pairs[0].difference, found.pairs[0].first) == (
        Difference(2, 1, 1.0, (1,), (1,), integral=True),
        ElementPair((1,), 0, 1),
    )
