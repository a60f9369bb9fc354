"""``qrun compare`` with files, as a user calls it: exit codes, messages, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cli import call, conv_model

from qrun.comparing.records.record import read_record


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


def test_saved_results(folder: Path) -> None:
    for command, name in (("run", "x"), ("run", "y"), ("profile", "x"), ("check", "x")):
        words = ["m.onnx"] if command == "check" else ["m.onnx", "-i", f"{name}.npy"]
        form = ["--format", "json"] if command == "check" else ["--json"]
        (folder / f"{command}-{name}.json").write_text(call(command, *words, *form).out)
    assert call("compare", "run-x.json", "run-x.json").code == 0
    assert call("compare", "run-x.json", "run-y.json").code == 1
    assert call("compare", "profile-x.json", "profile-x.json").code == 0
    assert call("compare", "check-x.json", "check-x.json").code == 0
    mixed = call("compare", "run-x.json", "check-x.json")
    assert mixed.code == 2
    assert "a saved run and a saved check cannot be compared" in mixed.err
    (folder / "odd.json").write_text("{")
    assert call("compare", "odd.json", "run-x.json").code == 2


def test_record_and_compare(folder: Path) -> None:
    made = call("compare", "m.onnx", "-i", "x.npy", "--record", "golden")
    assert made.code == 0, made.err
    assert "recorded 1 tensor in golden" in made.out
    same = call("compare", "m.onnx", "-i", "x.npy", "golden")
    assert same.code == 0, same.err
    assert "equal: 1 tensor, bit for bit." in same.out
    other = call("compare", "m.onnx", "-i", "y.npy", "golden")
    assert other.code == 2
    assert "is not the one that was recorded" in other.err
    document = json.loads((folder / "golden/record.json").read_text())
    document["tensors"][0]["sha256"] = "0" * 64
    (folder / "golden/record.json").write_text(json.dumps(document))
    differ = call("compare", "m.onnx", "-i", "x.npy", "golden", "--json")
    assert differ.code == 1
    assert differ.json["tensors"][0]["verdict"] == "differs"
    assert call("compare", "m.onnx", "-i", "x.npy", "--record", ".").code == 2
    assert "no record" in call("compare", "m.onnx", "-i", "x.npy", str(folder)).err


def test_record_of_another_runtime(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    made = call("compare", "m.onnx", "-i", "x.npy", "--against", "ort", "--record", "golden")
    assert made.code == 0, made.err
    found = read_record(folder / "golden")
    assert "onnxruntime" in found.head.label
    assert found.entries["y"].ties is not None, "known for other runtimes too"
    assert call("compare", "m.onnx", "-i", "x.npy", "golden", "--against", "ort").code == 0
