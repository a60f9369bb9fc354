"""Two .npz files, two results saved with --json, and a run beside a record: planted changes are told and noise is
not, in reports for any stream; files that lie are refused."""

from __future__ import annotations

import copy
import io
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.cli import call, conv_model
from helpers.comparing import sheet_text
from helpers.models import make_model, typed
from onnx import TensorProto, helper

from qrun.comparing.differences import EXACT, Difference, Tolerance
from qrun.comparing.record import Recorded, RecordEntry, fill, read_record
from qrun.comparing.recordchanges import RecordComparison, judge
from qrun.comparing.saved import (
    LEAST,
    ArrayPair,
    Change,
    ElementPair,
    Found,
    Lone,
    NodeChange,
    SavedArrays,
    SavedChecks,
    SavedProfiles,
    Setting,
    change,
    compare_npz,
    compare_saved,
)
from qrun.documents.record import encode
from qrun.errors import CallError, MemoryLimitError
from qrun.io.arrays import write_npy
from qrun.io.outputs import save, write_npz
from qrun.ir import Node
from qrun.report.comparefiles import Files, files_fields, files_sheet, recorded_fields, recorded_sheet
from qrun.report.json import document


def written(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def compared_npz(
    folder: Path, a: dict[str, Any], b: dict[str, Any], tolerance: Tolerance = EXACT, **more: Any
) -> SavedArrays:
    return compare_npz(written(folder / "a.npz", **a), written(folder / "b.npz", **b), tolerance, **more)


def test_one_changed_element_is_found(tmp_path: Path) -> None:
    same = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    codes = np.full((2, 5, 5), 100, np.uint8)
    other = codes.copy()
    other[0, 3, 1], other[1, 2, 4] = 101, 90
    found = compared_npz(tmp_path, {"same": same, "codes": codes}, {"codes": other, "same": same})
    assert not found.equal
    first, second = found.pairs
    assert first.name == "same"
    assert first.difference.equal
    assert first.sqnr == np.inf
    assert (second.name, second.a) == ("codes", "uint8 [2,5,5]")
    assert (second.difference.differing, second.difference.largest) == (2, 10)
    assert second.first is not None
    assert (second.first.index, second.first.a, second.first.b) == ((0, 3, 1), 100, 101)
    assert second.worst is not None
    assert (second.worst.index, second.worst.a, second.worst.b) == ((1, 2, 4), 100, 90)
    assert second.sqnr == pytest.approx(10 * np.log10(50 * 100**2 / (1 + 100)))


def test_tolerance(tmp_path: Path) -> None:
    a, b = (
        {"c": np.uint8([10, 20]), "f": np.float32([1, 1000])},
        {"c": np.uint8([11, 20]), "f": np.float32([1, 1000.5])},
    )
    assert not compared_npz(tmp_path, a, b).equal
    assert compared_npz(tmp_path, a, b, Tolerance(lsb=1)).equal
    assert not compared_npz(tmp_path, a, b, Tolerance(lsb=0)).equal
    assert not compared_npz(tmp_path, a, b, Tolerance(lsb=1, rtol=1e-4)).equal


def test_keys_and_forms(tmp_path: Path) -> None:
    found = compared_npz(tmp_path, {"x": np.zeros(2), "y": np.zeros(3, np.uint8), "old": np.zeros(1)},
                     {"x": np.zeros((2, 1)), "y": np.zeros(3, np.int8), "new": np.zeros(1)})  # fmt: skip
    assert not found.equal
    assert (found.only_a, found.only_b) == (("old",), ("new",))
    assert [(p.a, p.b, p.first) for p in found.pairs] == [
        ("float64 [2]", "float64 [2,1]", None),
        ("uint8 [3]", "int8 [3]", None),
    ]
    alone = compared_npz(tmp_path, {"x": np.zeros(2)}, {"x": np.zeros(2), "z": np.zeros(1)})
    assert not alone.equal


def test_nan_empty_scalar_text_and_bool(tmp_path: Path) -> None:
    arrays = {"nan": np.float32([np.nan, -np.inf, -0.0]), "empty": np.zeros((0, 3)), "scalar": np.float64(2),
              "text": np.array(["a", "b"]), "truth": np.array([True, False]), "z": np.complex64([1 + 2j])}  # fmt: skip
    assert compared_npz(tmp_path, arrays, arrays).equal
    changed = {
        **arrays,
        "text": np.array(["a", "c"]),
        "truth": np.array([True, True]),
        "nan": np.float32([0, -np.inf, 0]),
    }
    found = {p.name: p for p in compared_npz(tmp_path, arrays, changed).pairs if not p.difference.equal}
    assert set(found) == {"text", "truth", "nan"}
    assert found["nan"].first is not None
    assert found["nan"].first.index == (0,)
    assert found["text"].worst is not None
    assert (found["text"].worst.a, found["text"].worst.b) == ("b", "c")


EXOTIC = [
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.int4,
    ml_dtypes.uint4,
    ml_dtypes.int2,
]


def test_types_that_npz_lacks(tmp_path: Path) -> None:
    for dtype in EXOTIC:
        values = np.array([0, 1, -1, 1] if dtype is not ml_dtypes.uint4 else [0, 1, 9, 15]).astype(dtype)
        other = values.copy()
        other[2] = values[1]
        paths = [tmp_path / name for name in ("a.npz", "b.npz")]
        for path, array in zip(paths, (values, other), strict=True):
            save(str(path), {}, {"y": array})
        (pair,) = compare_npz(*paths, EXACT).pairs
        assert pair.difference is not None
        assert (pair.difference.differing, pair.difference.first) == (1, (2,)), dtype
        assert compare_npz(paths[0], paths[0], EXACT).equal, dtype


def test_types_that_numpy_writes_without_a_name(tmp_path: Path) -> None:
    values = np.array([1, 2, 3], ml_dtypes.bfloat16)
    found = compared_npz(tmp_path, {"y": values}, {"y": values[[0, 1, 1]]})
    assert found.pairs[0].a == "uint16 [3]"
    assert found.pairs[0].difference.differing == 1
    saved = tmp_path / "saved.npz"
    save(str(saved), {}, {"y": values})
    assert compare_npz(tmp_path / "a.npz", saved, EXACT).equal


def hostile() -> dict[str, tuple[bytes, str]]:
    def zipped(*members: tuple[str, bytes]) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, data in members:
                archive.writestr(name, data)
        return stream.getvalue()

    def npy(array: Any) -> bytes:
        stream = io.BytesIO()
        write_npy(stream, array)
        return stream.getvalue()

    pickled = io.BytesIO()
    np.savez(pickled, x=np.array([None, 1], dtype=object))
    whole = zipped(("x.npy", npy(np.arange(1000))))
    damaged = bytearray(whole)
    damaged[300] ^= 1
    huge = npy(np.zeros(4, np.float32)).replace(b"(4,), }" + b" " * 12, b"(4000000000000,), }")
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = zipped(("x.npy", npy(np.zeros(1))), ("x.npy", npy(np.ones(1))))
    return {
        "not a zip": (b"PK no zip at all", "not a zip"),
        "empty": (b"", "not a zip"),
        "npy": (npy(np.zeros(3)), "not a zip"),
        "pickled": (pickled.getvalue(), "pickled Python objects"),
        "truncated": (whole[: len(whole) // 2], "not a zip"),
        "damaged": (bytes(damaged), "CRC"),
        "huge": (zipped(("x.npy", huge)), "after the header"),
        "twice": (twice, "'x' twice"),
        "no npy": (zipped(("x.npy", b"hello")), "starts with"),
        "short": (zipped(("x.npy", npy(np.zeros(9))[:-8])), "after the header"),
    }


def test_hostile(tmp_path: Path) -> None:
    good, bad = written(tmp_path / "good.npz", x=np.arange(1000)), tmp_path / "bad.npz"
    for case, (data, said) in hostile().items():
        bad.write_bytes(data)
        for pair in ((bad, good), (good, bad)):
            with pytest.raises(CallError) as error:
                compare_npz(*pair, EXACT)
            assert "bad.npz" in error.value.where[0], case
            assert any(said in value for _, value in error.value.facts), (case, error.value.facts)


def test_missing_and_too_large(tmp_path: Path) -> None:
    good = written(tmp_path / "good.npz", x=np.zeros(10**5))
    with pytest.raises(CallError, match="cannot read") as error:
        compare_npz(good, tmp_path / "goood.npz", EXACT)
    assert "good.npz" in error.value.fixes[0]
    with pytest.raises(CallError, match="cannot read"):
        compare_npz(tmp_path, good, EXACT)
    with pytest.raises(MemoryLimitError):
        compare_npz(good, good, EXACT, max_memory=5 * 10**6)
    assert compare_npz(good, good, EXACT, max_memory=10**7).equal


def test_one_pair_at_a_time(tmp_path: Path) -> None:
    arrays = {f"x{n}": np.zeros(10**4) for n in range(50)}
    assert compared_npz(tmp_path, arrays, arrays, max_memory=10**6).equal


def test_random_bytes(tmp_path: Path) -> None:
    """Whatever is changed in a file, it is compared or refused."""
    stream = io.BytesIO()
    write_npz(stream, {"x": np.arange(20, dtype=np.float32), "y": np.arange(4, dtype=np.uint8)})
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    good.write_bytes(stream.getvalue())
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    for _ in range(300):
        data = bytearray(stream.getvalue())
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            data[place] = rng.integers(256)
        bad.write_bytes(bytes(data))
        try:
            compare_npz(good, bad, EXACT)
        except (CallError, MemoryLimitError):
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


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
    assert found.nodes[0].note == "3 nodes, 1 before"
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
        "differ: the models or inputs are not the same, so the times cannot be compared: 9.41 ms before, 1.04 ms after."
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


def test_documents_that_qrun_writes(saved: dict[str, Path]) -> None:
    for name in ("run", "profile", "check"):
        same = compare_saved(saved[name], saved[name])
        assert (same.equal, same.settings) == (True, ()), name
        assert call("compare", saved[name], saved[name]).code == 0, name
    found = compare_saved(saved["run"], saved["run2"])
    assert isinstance(found, SavedArrays)
    assert not found.equal
    assert [s.name for s in found.settings] == ["input image sha256"]
    assert found.pairs[0].a == found.pairs[0].b
    assert call("compare", saved["run"], saved["run2"]).code == 1
    profiles = compare_saved(saved["profile"], saved["profile"])
    assert isinstance(profiles, SavedProfiles)
    assert [n.change.relative for n in profiles.nodes] == [0]


def test_one_of_each_kind(saved: dict[str, Path]) -> None:
    with pytest.raises(CallError, match="a saved run and a saved check cannot be compared") as error:
        compare_saved(saved["run"], saved["check"])
    assert "two profiles, two runs or two checks" in dict(error.value.facts)["expected"]
    (fix,) = error.value.fixes
    assert fix.startswith("qrun run MODEL --json > OTHER.json"), "no file of the user's is to be written over"
    assert call("compare", saved["run"], saved["check"]).code == 2


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

DAMAGED = {
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


def test_damaged(tmp_path: Path) -> None:
    for case, (content, said) in DAMAGED.items():
        path = put(tmp_path / "bad.json", content)
        with pytest.raises(CallError) as error:
            compare_saved(path, path)
        assert error.value.where == (str(path),), case
        assert any(said in value for _, value in error.value.facts), (case, error.value.facts)


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


ODD = "a|b`c`[d](e)<f>&@g:h,i%j\x00\x1b[31m\nk\u202e\ud800\\_*[/bold]:x:"
A, B = Path("a.file"), Path("b.file")
SETTINGS = (Setting("model sha256", "1" * 64, "2" * 64), Setting(ODD, ODD, "-"))


def shown(
    found: Files, width: int | None = None, *, top: int | None = 10, quiet: bool = False, markdown: bool = False
) -> str:
    return sheet_text(files_sheet(found, top), width, markdown, quiet)


def archives(folder: Path) -> SavedArrays:
    rng = np.random.default_rng(0)
    arrays = {
        f"/model/layers.{n}/some/long/path/of/names/{n}": rng.integers(0, 255, (4, 4)).astype(np.uint8)
        for n in range(12)
    }
    np.savez(folder / "a.npz", **arrays, form=np.zeros(3), gone=np.zeros(1), same=np.zeros(1))
    np.savez(
        folder / "b.npz",
        **{k: v + np.eye(4, dtype=np.uint8) for k, v in arrays.items()},
        form=np.zeros(4),
        same=np.zeros(1),
    )
    return compare_npz(folder / "a.npz", folder / "b.npz", EXACT)


def records(name: str = ODD) -> RecordComparison:
    node = Node(3, "n", "", "QLinearConv", 10, ("x",), (name,))
    a = np.arange(100, dtype=np.uint8)
    b = a.copy()
    b[5] = 9
    f = np.float32([1, np.nan, 3])
    pairs = [(a, a), (a, b), (a, b.astype(np.int8)), (f, np.float32([1, 2, np.inf]))]
    changes = [
        judge(*(fill(RecordEntry.bare(name, x, node), x, node, None) for x in pair), Tolerance(), ((ODD, place == 1),))
        for place, pair in enumerate(pairs)
    ]
    return RecordComparison(Path("rec"), ODD, "now 1.0", SETTINGS, Tolerance(), tuple(changes), (ODD,), ("new",))


def profiles() -> SavedProfiles:
    slower, few = Change(1.0, 2.0, "slower"), Change(0.0, 1.0, "few runs")
    nodes = (NodeChange(0, ODD, "Conv", few), NodeChange(7, "", "Add", slower, "2 nodes, 1 before"))
    return SavedProfiles(A, B, SETTINGS, slower, nodes, (Lone(1, ODD, "Pad", 0.1),), (Lone(2, "n", "Pad", 0.1),))


def runs() -> SavedArrays:
    first = ElementPair((1,), float("nan"), 1.0)
    odd = Difference(2, 1, float("inf"), (1,), (1,))
    pairs = (ArrayPair("same", "float32 [2]", "float32 [2]", True, Difference(2)),
             ArrayPair(ODD, "float32 [2]", "float32 [2]", False, odd, first, first, low=(0.0, 1.0)),
             ArrayPair("values left out", "float32 [2]", "float32 [2]", False, None),
             ArrayPair("far", "uint8 [9]", "int8 [9]", False, Difference(9, form=("uint8 [9]", "int8 [9]"))))  # fmt: skip
    return SavedArrays("runs", A, B, pairs, (ODD,), (), None, SETTINGS)


def checks() -> SavedChecks:
    finding = Found("m.onnx", "QR301", "scale-shape", "error", ODD, ODD, ODD)
    return SavedChecks(A, B, SETTINGS, (finding,), (finding, finding), 4, (("m.onnx", "set", "passed", "failed"),))


@pytest.mark.parametrize("kind", ["npz", "record", "profiles", "runs", "checks"])
def test_reports_on_every_stream(tmp_path: Path, kind: str) -> None:
    """Within the width, one line when quiet; in Markdown every row has its cells and no name is markup outside code."""
    made: dict[str, Any] = {"record": records, "profiles": profiles, "runs": runs, "checks": checks}
    found: Files = archives(tmp_path) if kind == "npz" else made[kind]()
    for width in (80, 120):
        for line in shown(found, width).splitlines():
            assert len(line) <= width or " " not in line.strip(), line
    assert len(shown(found, quiet=True).splitlines()) == 1
    text, piped = shown(found, markdown=True), shown(found)
    assert not {"─", "\x1b", "\x00"} & set(piped)
    (piped + text).encode()
    assert text.startswith("### qrun compare: ")
    assert "\n\n\n" not in text
    assert "\x1b" not in text
    outside = re.sub(r"(`+).*?\1", "", re.sub(r"\\.", "", text))
    assert not re.search(r"[<@\[]", outside)
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert tables
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
    fields = json.loads(document("compare", [], files_fields(found)), parse_constant=pytest.fail)
    assert (fields["equal"], fields["files"]) == (found.equal, kind)


def test_archives(tmp_path: Path) -> None:
    found = archives(tmp_path)
    text = shown(found, top=3)
    assert "differ: 13 of 14 arrays, first /model/layers.0/some/long/path/of/names/0; 1 array in one file only." in text
    assert "9 more arrays   --top all" in text
    assert "float64 [3]  float64 [4]" in text
    assert "Only in the first" in text
    every = shown(found, top=None)
    assert "more arrays" not in every
    assert "4 of 16" in every
    assert shown(compare_npz(tmp_path / "a.npz", tmp_path / "a.npz", EXACT)).startswith("equal: 15 arrays.\n")


def test_record_names_the_first_difference() -> None:
    text = shown(records("conv1"))
    assert "differ: first at node 3, conv1; 3 of 4 tensors with different bits." in text
    assert "uint8 [100]" in text
    assert "at least 1 element, one by at least 1 step\n" in text
    assert "equal bit for bit" in text
    assert "2" * 12 in text
    assert "2" * 13 not in text, "hashes are cut"
    fields = files_fields(records("conv1"))
    assert list(fields["tensors"][0]) == ["name", "node", "op", "verdict"]
    assert fields["tensors"][1]["recorded"]["sha256"] != fields["tensors"][1]["now"]["sha256"]
    assert {"min", "max", "mean"} <= fields["tensors"][1]["now"].keys()


def test_profile() -> None:
    text = shown(profiles())
    assert "slower: 1.00 ms before, 2.00 ms after (+100.0 %); 1 node slower." in text
    assert "below 10 runs" in text
    assert "Add_7" in text
    in_order = shown(profiles(), top=None)
    assert in_order.index("Conv") < in_order.index("Add_7")


def test_profile_of_nodes_that_changed_while_the_run_did_not() -> None:
    same, faster = Change(1.0, 1.0, "same"), Change(2.0, 1.0, "faster")
    nodes = tuple(NodeChange(at, f"n{at}", "Conv", c) for at, c in enumerate((same, faster, faster)))
    text = shown(SavedProfiles(A, B, (), same, nodes, (), ()))
    assert text.startswith("no measurable change: 1.00 ms before, 1.00 ms after (+0.0 %); 2 nodes faster.\n")
    assert "Nodes that changed most, by the change of the median\n" in text
    assert text.index("n1") < text.index("n0")


def test_record_that_cannot_tell() -> None:
    """Of 100 floats 16 are recorded, so others may be beyond the tolerance: that is no success."""
    node = Node(3, "n", "", "Relu", 10, ("x",), ("y",))
    a = np.linspace(1, 2, 100, dtype=np.float32)
    entries = [fill(RecordEntry.bare("y", x, node), x, node, None) for x in (a, a * np.float32(1 + 1e-6))]
    found = RecordComparison(Path("rec"), "a", "b", (), Tolerance(), (judge(*entries, Tolerance()),), (), ())
    assert not found.equal
    text = shown(found)
    assert "inconclusive: 1 of 1 tensor with different bits; the record cannot tell whether 1 tensor is within" in text
    assert "no recorded fact is beyond the tolerance, but the other elements are not recorded" in text


def test_checks() -> None:
    text = shown(checks())
    assert "differ: 1 new finding, 2 gone; 1 vector with a different status." in text


def test_recorded() -> None:
    made = Recorded(Path("rec"), 76, 88_367)
    assert sheet_text(recorded_sheet(made)) == "recorded 76 tensors in rec (88.4 kB)\n"
    assert recorded_fields(made) == {"record": {"path": "rec", "tensors": 76, "bytes": 88_367}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """m.onnx, x.npy and y.npy; the working directory."""
    rng = np.random.default_rng(0)
    onnx.save(conv_model(), tmp_path / "m.onnx")
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", rng.integers(0, 256, (1, 3, 8, 8)).astype(np.uint8))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_npz() -> None:
    for name in ("x", "y"):
        assert call("m.onnx", "-i", f"{name}.npy", "-o", f"{name}.npz").code == 0
    assert call("compare", "x.npz", "x.npz").code == 0
    differ = call("compare", "x.npz", "y.npz")
    assert differ.code == 1
    assert "differ: 1 of 1 array, first y." in differ.out
    report = call("compare", "x.npz", "y.npz", "--json")
    assert report.code == report.json["exit_code"] == 1
    assert (report.json["files"], report.json["equal"]) == ("npz", False)
    assert call("compare", "x.npz", "y.npz", "--lsb", "255").code == 0
    assert "### qrun compare: differ" in call("compare", "x.npz", "y.npz", "--format", "markdown").out


def test_record_and_compare(folder: Path) -> None:
    made = call("compare", "m.onnx", "-i", "x.npy", "--record", "golden")
    assert made.code == 0, made.err
    assert "recorded 1 tensor in golden" in made.out
    same = call("compare", "m.onnx", "-i", "x.npy", "golden")
    assert same.code == 0, same.err
    assert "equal: 1 tensor, bit for bit." in same.out
    other = call("compare", "m.onnx", "-i", "y.npy", "golden")
    assert other.code == 2
    assert "differs from the recorded one" in other.err
    document = json.loads((folder / "golden/record.json").read_text())
    document["tensors"][0]["sha256"] = "0" * 64
    (folder / "golden/record.json").write_text(json.dumps(document))
    differ = call("compare", "m.onnx", "-i", "x.npy", "golden", "--json")
    assert differ.code == 1
    assert differ.json["tensors"][0]["verdict"] == "differs"
    assert call("compare", "m.onnx", "-i", "x.npy", "--record", ".").code == 2
    assert "not a record" in call("compare", "m.onnx", "-i", "x.npy", str(folder)).err


def test_record_of_another_runtime(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    made = call("compare", "m.onnx", "-i", "x.npy", "--against", "ort", "--record", "golden")
    assert made.code == 0, made.err
    found = read_record(folder / "golden")
    assert "onnxruntime" in found.head.label
    assert found.entries["y"].ties is not None, "known for other runtimes too"
    assert call("compare", "m.onnx", "-i", "x.npy", "golden", "--against", "ort").code == 0
