"""Options that do not go together, values that an option does not take, arguments too many:
each is refused, none is ignored."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import ROOT, call, fixes, npy, process, save, sum_model
from onnx import TensorProto


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(sum_model(("x",), TensorProto.FLOAT, ("N",)), folder / "m.onnx")
    npy(folder / "x.npy", np.zeros(3, np.float32))


def test_an_input_without_its_option() -> None:
    ended = call("m.onnx", "x.npy")
    assert fixes(ended, 2, "QR000") == ["did you mean -i x.npy?", "qrun run -h"]
    assert "Got unexpected extra argument (x.npy).\n   =  fix: did you mean -i x.npy?" in ended.err
    assert "did you mean -i x.npy -i y.npy?" in call("profile", "m.onnx", "x.npy", "y.npy").err
    assert "did you mean a separate call, qrun profile other.onnx?" in call("profile", "m.onnx", "other.onnx").err
    assert "did you mean" not in call("inspect", "m.onnx", "x.npy").err


@pytest.mark.parametrize("backend", ["ort", "onnx-ref"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((command, option) for command in ("run", "profile", "report")
          for option in ("--arith exact", "--arith ort", "--fuse", "--no-fuse")),
        *(("check", option) for option in ("--arith exact", "--arith onnx-ref")),
    ],
)  # fmt: skip
def test_options_that_another_runtime_does_not_heed(command: str, option: str, backend: str) -> None:
    for words in (["--backend", backend, *option.split()], [*option.split(), "--backend", backend]):
        assert fixes(call(command, "m.onnx", *words), 2, "QR005") == [f"omit {option} or --backend {backend}"]


def test_options_of_own_backends_are_heeded() -> None:
    assert call("m.onnx", "-i", "x.npy", "--backend", "reference", "--arith", "exact", "--fuse").code == 0


def test_what_is_no_more_than_a_default_does_not_contradict(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.qrun]\narith = "exact"\n[tool.qrun.run]\nfuse = false\n')
    assert call("m.onnx", "-i", "x.npy", "--backend", "onnx-ref").code == 0


@pytest.mark.parametrize("words", [("--json", "--format", "text"), ("--format", "text", "--json")])
@pytest.mark.parametrize("command", [("run", "m.onnx"), ("inspect", "m.onnx"), ("ops",), ("profile", "m.onnx")])
def test_two_formats(command: tuple[str, ...], words: tuple[str, ...]) -> None:
    ended = call(*command, *words)
    assert fixes(ended, 2, "QR005") == ["omit --json or --format text"]
    assert ended.json["error"]["code"] == "QR005"
    assert call("ops", "Abs", "--json", "--format", "json").json["exit_code"] == 0


def test_the_command_line_decides_between_formats(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.qrun.check]\njson = true\n")
    assert call("check", "m.onnx", "--format", "concise").out.startswith("passed: ")
    assert call("check", "m.onnx").json["exit_code"] == 0
    (folder / "pyproject.toml").write_text('[tool.qrun.check]\nformat = "concise"\n')
    assert call("check", "m.onnx", "--json").json["exit_code"] == 0


@pytest.mark.parametrize(
    ("text", "key", "got"),
    [
        ('[tool.qrun]\nmax-memory = "lots"', "max-memory", "'lots' is not a size"),
        ('[tool.qrun.run]\nthreads = "x"', "run.threads", "'x' is not a whole number from 1 to 4096"),
        ("[tool.qrun.run]\nseed = -1", "run.seed", "'-1' is not a whole number"),
        ('[tool.qrun.run]\nbackend = "foo"', "run.backend", "'foo' is not one of"),
    ],
)
def test_values_in_pyproject(folder: Path, text: str, key: str, got: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    ended = call("m.onnx")
    assert fixes(ended, 2, "QR009") == ["--config none ignores the file"]
    assert f"{folder / 'pyproject.toml'}  [tool.qrun] {key}" in ended.err
    assert got in ended.err
    assert call("m.onnx", "--config", "none").code == 0


def test_the_version_of_a_runtime_that_cannot_be_imported(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    broken = folder / "site" / "onnxruntime"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libfoo.so: cannot open')")
    line = process("-V", env={"PYTHONPATH": f"{broken.parent}{os.pathsep}{ROOT}"}).out.splitlines()[-1]
    assert (
        line == f"onnxruntime {version('onnxruntime')}, which cannot be imported: ImportError: libfoo.so: cannot open"
    )
    assert process("-V").out.splitlines()[-1] == f"onnxruntime {version('onnxruntime')}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("profile", "m.onnx", "-n", "0"), "'0' is not a whole number from 1 to 1000000."),
        (("profile", "m.onnx", "-n", "many"), "'many' is not a whole number from 1 to 1000000."),
        (("compare", "m.onnx", "--lsb", "x"), "'x' is not a whole number of 0 or more."),
        (("compare", "m.onnx", "--rtol", "-1"), "'-1' is not a number of 0 or more."),
        (("compare", "m.onnx", "--rtol", "nan"), "'nan' is not a number of 0 or more."),
    ],
)
def test_limits_of_numbers_are_told_in_words(arguments: tuple[str, ...], message: str) -> None:
    ended = call(*arguments)
    assert ended.code == 2
    assert message in " ".join(ended.err.split())


def test_a_slip_in_an_option_of_qrun_itself() -> None:
    assert fixes(call("--versoin"), 2, "QR000")[0] == "did you mean '--version'?"
    assert fixes(call("--hlep"), 2, "QR000")[0] == "did you mean '--help'?"
    assert "--version" not in call("--verbsoe").err
