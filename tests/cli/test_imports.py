"""What a command imports: little, and nothing that it does not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qrun
from qrun.native.emit.isa import choose

ROOT = Path(__file__).resolve().parents[2]
MODEL = "models/digits/qoperator/model.onnx"
SCRIPT = """
import contextlib, io, json, sys
from qrun.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""
UNUSED = ("concurrent.futures", "difflib", "google.protobuf", "importlib.resources", "jsonschema", "llvmlite", "logging", "numpy.ma", "onnx",
          "qrun.comparing", "qrun.peers", "qrun.report.html", "tempfile", "zipfile")  # fmt: skip
EMITTERS = "qrun.native.emit.kernel"


def imported(folder: Path, *arguments: str) -> list[str]:
    """The modules that a process of its own has imported at the end of a call that succeeds."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    made = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT, env=environment, capture_output=True,
                          text=True, check=True, timeout=300)  # fmt: skip
    code, names = json.loads(made.stdout)
    assert code == 0, made.stderr
    return list(names)


OPERATORS = len(list((Path(qrun.__file__).parent / "ops").rglob("*.py")))
"""Modules of operators, all of which are listed."""


def own(names: list[str]) -> list[str]:
    return [name for name in names if name.partition(".")[0] == "qrun"]


@pytest.mark.parametrize(
    ("call", "most", "without"),
    [
        ("--help", 18, ("numpy", "onnx", "rich")),
        ("explain QR003", 40, ("onnx", "qrun.native", "qrun.passes", "qrun.running")),
        ("explain QR109", 40, ("onnx", "qrun.native", "qrun.passes", "qrun.running")),
        ("explain QR301", 42, ("onnx", "qrun.native", "qrun.passes", "qrun.running")),  # it lists quantized operators
        ("explain QR401", 42, ("onnx", "qrun.native", "qrun.passes", "qrun.running")),
        ("ops", OPERATORS + 85, ("onnx", EMITTERS, "qrun.native.machine")),
        ("ops QLinearConv", OPERATORS + 85, ("onnx", EMITTERS, "qrun.native.machine")),
    ],
)
def test_a_look_up_imports_little(call: str, most: int, without: tuple[str, ...], tmp_path: Path) -> None:
    names = imported(tmp_path, *call.split())
    assert len(own(names)) <= most, own(names)
    assert [name for name in without if name in names] == []


@pytest.mark.parametrize("inputs", [("--inputs", "models/digits/x.npy"), ()])
def test_a_run_imports_what_its_model_needs(inputs: tuple[str, ...], tmp_path: Path) -> None:
    """The second run, for which all kernels are in the cache.

    Instruction sets with tiles, or with products of 16 bits only, have more products,
    planned with their emitters' sizes.
    """
    more = choose().tiles or choose().widens
    imported(tmp_path, MODEL, *inputs)
    names = imported(tmp_path, MODEL, *inputs)
    assert len(own(names)) < (180 if more else 160), own(names)
    assert [name for name in (*UNUSED, *[EMITTERS] * (not more)) if name in names] == []
    assert "qrun.ops.qlinearconv" in names
    assert "qrun.ops.resize" not in names


def test_a_check_imports_what_it_needs(tmp_path: Path) -> None:
    """The second check of a model with vectors, for which all kernels are in the cache."""
    imported(tmp_path, "check", MODEL)
    names = imported(tmp_path, "check", MODEL)
    unused = ("jsonschema", "llvmlite", "numpy.ma", "onnx", "qrun.comparing.compare", "qrun.peers", "qrun.report.html")
    assert [name for name in unused if name in names] == []
