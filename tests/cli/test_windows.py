"""Commands work without what Windows lacks: forks, flock, positioned reads, affinity, /proc, and a console of UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import ROOT

pytest.importorskip("llvmlite")
SIMULATION = ROOT / "tests/helpers/windows.py"
DIGITS = ROOT / "models/digits"
FLOAT, QDQ, X = (str(DIGITS / name) for name in ("float/model.onnx", "qdq/model.onnx", "x.npy"))


def call(folder: Path, *words: str, console: str = "cp1252") -> subprocess.CompletedProcess[str]:
    """Run the command as on Windows, in a folder of its own, with its cache there."""
    env = {**os.environ, "CONSOLE": console, "QRUN_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SIMULATION), *words]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, encoding=console, timeout=300)


COMMANDS = {
    "version": (("--version",), 0, "instructions "),
    "run": ((QDQ, "-i", X, "-o", "y.npz"), 0, "logits"),
    "check": (("check", QDQ, "-o", "r.sarif"), 0, "QR409"),
    "inspect": (("inspect", QDQ), 0, "runs here"),
    "compare": (("compare", FLOAT, QDQ, "-i", X), 0, "dB SQNR"),
    "profile": (("profile", QDQ, "-i", X, "-n", "3", "--trace", "t.json"), 0, "Whole model"),
    "eval": (("eval", QDQ, "-i", X, "--against", FLOAT), 0, "8 samples"),
    "report": (("report", QDQ, "-i", X, "-o", "r.html"), 0, "r.html"),
    "convert": (("convert", QDQ, "-o", "c.onnx", "--to", "qoperator"), 0, "c.onnx"),
    "export": (("export", QDQ, "-i", X, "-o", "layers", "--as", "raw"), 0, "layers"),
    "conform": (("conform", "--select", "QLinearMatMul", "-q"), 0, "exact"),
    "program": (("conform", "--runtime", "batch:p", "-q"), 2, "Windows, where qrun cannot wait"),
    "cache": (("cache",), 0, "cache"),
    "explain": (("explain", "arithmetics"), 0, "tfl"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_run_without_what_windows_lacks(name: str, tmp_path: Path) -> None:
    words, code, shown = COMMANDS[name]
    ended = call(tmp_path, *words)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert shown in ended.stdout + ended.stderr
    assert not list(tmp_path.glob(".qrun-new-*"))


def test_outputs_are_the_same_bits(tmp_path: Path) -> None:
    """In a later run too, which finds the kernels of the first one in the cache."""
    for _ in range(2):
        assert call(tmp_path, QDQ, "-i", X, "-o", "y.npz").returncode == 0
    command = [sys.executable, "-m", "qrun", QDQ, "-i", X, "-o", "here.npz", "-q"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})
    here, there = (np.load(tmp_path / name)["logits"] for name in ("here.npz", "y.npz"))
    assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("console", ["cp437", "cp932"])
def test_a_console_without_utf_8_shows_what_it_can(console: str, tmp_path: Path) -> None:
    for words in ((QDQ, "-i", X, "-v"), ("compare", QDQ, "-i", X, "--emulate", "avx2"), ("explain", "QR409")):
        ended = call(tmp_path, *words, console=console)
        assert "Error" not in ended.stderr, ended.stderr
        assert ended.stdout


def test_samples_from_stdin_need_no_second_handle_of_a_temporary_file(tmp_path: Path) -> None:
    env = {**os.environ, "CONSOLE": "cp1252", "QRUN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SIMULATION), "eval", QDQ, "-i", "-", "--against", FLOAT]
    ended = subprocess.run(command, env=env, cwd=tmp_path, input=Path(X).read_bytes(), capture_output=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert b"8 samples" in ended.stdout
