"""The hook and the action that CI systems read: their commands run, and inputs never become script text."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import ROOT, call, conv_model, quantize_model, save

ACTION = ROOT / "action.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"


def scripts() -> list[str]:
    """The text of every ``run: |`` block."""
    found = re.findall(r"^( +)run: \|\n((?:\1  .*\n|\n)+)", ACTION.read_text(encoding="utf-8"), re.M)
    return [textwrap.dedent(text) for _, text in found]


def test_the_hook_checks_the_files_it_is_given(folder: Path) -> None:
    entry = re.search(r"^  entry: (.*)$", HOOKS.read_text(encoding="utf-8"), re.M)
    files = re.search(r"^  files: '(.*)'$", HOOKS.read_text(encoding="utf-8"), re.M)
    assert entry is not None
    assert files is not None
    assert re.search(files[1], "models/m.onnx")
    assert not re.search(files[1], "m.onnx.md")
    program, *words = shlex.split(entry[1])
    assert program == "qrun"
    save(quantize_model(), folder / "good.onnx")
    save(conv_model(w_scale=np.full(3, 0.01, np.float32)), folder / "bad.onnx")
    assert call(*words, "good.onnx").code == 0
    ended = call(*words, "good.onnx", "bad.onnx")
    assert ended.code == 1
    assert ended.out.startswith("bad.onnx: /stem/conv: error QR301")
    assert ended.out.endswith("\nfailed: 1 error in 2 models\n")


def test_inputs_of_the_action_go_through_the_environment() -> None:
    assert len(scripts()) == 2
    assert not any("${{" in script for script in scripts())


@pytest.mark.skipif(os.name == "nt", reason="the action's script is for bash")
def test_the_action_checks(folder: Path) -> None:
    (folder / "models").mkdir()
    save(conv_model(w_scale=np.full(3, 0.01, np.float32)), folder / "models" / "bad.onnx")
    program = folder / "qrun" / "bin" / "qrun"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m qrun "$@"\n')
    program.chmod(0o755)

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(folder), "QRUN_PATHS": "models", "QRUN_ARGS": "",
               "QRUN_SARIF": "", "QRUN_JUNIT": "", **more}  # fmt: skip
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", scripts()[1]]
        return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)

    found = run(QRUN_SARIF="a.sarif", QRUN_JUNIT="b.xml")
    assert found.returncode == 1, found.stderr
    assert "::error title=qrun QR301" in found.stdout
    assert (folder / "a.sarif").exists()
    assert (folder / "b.xml").exists()
    assert run(QRUN_ARGS="--fail-on never --select QR3").returncode == 0
    save(quantize_model(), folder / "good.onnx")
    save(conv_model(w_scale=np.full(3, 0.01, np.float32)), folder / "a bad one.onnx")
    assert run(QRUN_PATHS="good.onnx").returncode == 0
    assert run(QRUN_PATHS="good.onnx\nmodels/bad.onnx\n").returncode == 1
    assert run(QRUN_PATHS="good.onnx\n\n  'a bad one.onnx'").returncode == 1
    assert run(QRUN_PATHS='good.onnx "a bad one.onnx"', QRUN_ARGS="--fail-on\n  never\n").returncode == 0
    assert run(QRUN_PATHS="good.onnx\nmodels/bad.onnx", QRUN_ARGS="-q\n--select QR4").returncode == 0
    assert run(QRUN_PATHS="good.onnx\n'open").returncode != 0
    hostile = run(QRUN_PATHS="models $(touch${IFS}gotcha) ; touch gotcha")
    assert hostile.returncode == 2
    assert not (folder / "gotcha").exists()
