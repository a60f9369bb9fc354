"""qrun without arguments, files after the Tab key, and the names that dir(qrun) lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli import ESCAPE, ROOT, call, process, terminal

import qrun
from qrun.cli._base import COMMANDS


def test_qrun_alone_prints_its_help(folder: Path) -> None:
    alone, asked = process(cwd=folder), process("--help", cwd=folder)
    assert alone.code == 0
    assert alone.out == asked.out
    assert len(alone.out.splitlines()) > 20
    assert alone.err == ""
    assert call().out == call("-h").out


FILE, FOLDER = "file", "dir"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["mod"], FILE), (["./m"], FILE), (["models/"], FILE), (["run", "m"], FILE), (["check", ""], FILE), (["check", "a.onnx", "b"], FILE),
        (["profile", "m"], FILE), (["inspect", "m"], FILE), (["report", "m"], FILE), (["compare", "a"], FILE),
        (["compare", "a.onnx", "b"], FILE), (["m.onnx", "-i", "x"], FILE), (["m.onnx", "--inputs", ""], FILE),
        (["m.onnx", "-o", "y"], FILE), (["m.onnx", "--trace", "t"], FILE), (["m.onnx", "--config", "q"], FILE),
        (["check", "m.onnx", "-o", "r"], FILE), (["check", "m.onnx", "--data", "d"], FOLDER),
        (["report", "m.onnx", "-o", "r"], FILE), (["compare", "m.onnx", "--record", "g"], FOLDER),
        (["m.onnx", "--shape", "x"], ""), (["m.onnx", "--max-memory", "8"], ""), (["m.onnx", "--backend", "z"], ""), (["ops", "C"], ""),
    ],
)  # fmt: skip
def test_the_tab_key_completes_files(folder: Path, words: list[str], kind: str) -> None:
    env = {"_QRUN_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["qrun", *words]), "COMP_CWORD": str(len(words))}
    kinds = {line.partition(",")[0] for line in call(env=env).out.splitlines()}
    assert kinds & {FILE, FOLDER} == ({kind} if kind else set())


def test_the_first_word_is_a_command_or_a_file(folder: Path) -> None:
    """In bash a file among the answers takes away those before it, so it comes first."""
    lines = call(env={"_QRUN_COMPLETE": "bash_complete", "COMP_WORDS": "qrun ", "COMP_CWORD": "1"}).out.splitlines()
    assert lines[0].startswith("file,")
    assert "plain,profile" in lines[1:]


def test_bash_completes_a_model(tmp_path: Path) -> None:
    import shutil

    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    (tmp_path / "some-model.onnx").touch()
    made = process(env={"_QRUN_COMPLETE": "bash_source"}).out
    (tmp_path / "qrun").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qrun "$@"\n')
    (tmp_path / "qrun").chmod(0o755)
    probe = (
        f"{made}\ncompopt() {{ echo asked $*; }}\nCOMP_WORDS=(qrun some-m)\nCOMP_CWORD=1\n_qrun_completion qrun\n"
        "echo ${#COMPREPLY[@]}\n"
    )
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.stdout.splitlines() == ["asked -o default", "0"], done.stderr


def test_dir_lists_the_public_names() -> None:
    code = "import qrun, sys\nmissing = set(qrun.__all__) - set(dir(qrun))\nassert not missing, missing\nassert 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert dir(qrun) == sorted(set(dir(qrun)))


def test_help_breaks_lines_between_words_and_has_colour_on_a_terminal() -> None:
    """Every word of a line of help is a word of its text: no hyphen ends a line, and nothing is wider than 80."""
    for name in COMMANDS:
        plain = call(name, "-h").out
        shown = terminal(name, "-h", only="out")
        assert ESCAPE.sub("", shown) == plain
        assert "\x1b[36m--json\x1b[0m" in shown or name not in ("run", "check")
        assert "\x1b[1mGeneral:\x1b[0m" in shown
        assert not [line for line in plain.splitlines() if line.endswith("-") or len(line) > 80]
        assert "\x1b" not in terminal(name, "-h", only="out", NO_COLOR="1") + plain
