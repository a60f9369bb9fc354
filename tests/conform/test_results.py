"""What a saved answer says about the machine, the suite and the runtime."""

from __future__ import annotations

import json
import platform
import re
from importlib.resources import files
from pathlib import Path

import onnxruntime
import pytest
from helpers.cli import call
from jsonschema import Draft202012Validator

import qrun
from qrun.conform.results import read_judgement
from qrun.conform.suite import Suite
from qrun.conform.worker import wheel_hash

SCHEMA = json.loads(files("qrun").joinpath("schemas/conform-1.0.json").read_text())
ADDED = {"archive_sha256", "date", "cpu", "isa", "python", "wheel", "options"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "ort.json"
    call("conform", "--runtime", "ort", "--runtime", "native", "--select", "known/qgemm-o3", "-o", str(path))
    return path


def test_a_saved_answer_names_what_it_depends_on(saved: Path) -> None:
    document = json.loads(saved.read_text())
    Draft202012Validator(SCHEMA).validate(document)
    found = read_judgement(str(saved))
    assert found.archive_sha256 == Suite().sha256
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found.date)
    assert found.qrun == document["qrun"] == qrun.__version__
    assert found.cpu
    assert found.isa
    ort, native = found.runtimes
    assert (ort.version, ort.python) == (onnxruntime.__version__, platform.python_version())
    assert ort.options == {"intra_op_num_threads": "1", "graph_optimization_level": "ORT_DISABLE_ALL"}
    assert native.options["backend"] == "native"
    assert re.fullmatch(r"[0-9a-f]{64}", ort.wheel)


def test_answers_of_older_versions_are_read(saved: Path, tmp_path: Path) -> None:
    document = json.loads(saved.read_text())
    runtimes = [{k: v for k, v in each.items() if k not in ADDED} for each in document["runtimes"]]
    older = {**{k: v for k, v in document.items() if k not in ADDED}, "runtimes": runtimes}
    Draft202012Validator(SCHEMA).validate(older)
    path = tmp_path / "older.json"
    path.write_text(json.dumps(older))
    found = read_judgement(str(path))
    assert (found.archive_sha256, found.runtimes[0].wheel, found.runtimes[0].options) == ("", "", {})
    board = tmp_path / "board.md"
    assert call("conform", "scoreboard", str(path), "-o", str(board)).code == 0


def test_a_scoreboard_says_how_each_was_judged(saved: Path, tmp_path: Path) -> None:
    for name in ("board.md", "board.html"):
        assert call("conform", "scoreboard", str(saved), "-o", str(tmp_path / name)).code == 0
        text = (tmp_path / name).read_text().replace("\\", "")
        wheel = json.loads(saved.read_text())["runtimes"][0]["wheel"]
        for part in (
            f"archive {Suite().sha256[:12]}",
            f"wheel {wheel[:12]}",
            "graph_optimization_level=ORT_DISABLE_ALL",
        ):
            assert part in text


def test_an_answer_to_a_forbidden_model_has_no_time_limit_for_a_cause(tmp_path: Path) -> None:
    saved, board = tmp_path / "ref.json", tmp_path / "board.md"
    call("conform", "--runtime", "onnx-ref", "--select", "known/qlinearmatmul-r13", "-o", str(saved))
    assert call("conform", "scoreboard", str(saved), "-o", str(board)).code == 0
    assert "- **accepts-invalid** QLinearMatMul, forbidden model (1 case, 1 proved): returns" in board.read_text()


def test_a_program_has_no_wheel(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    call("conform", "--runtime", "cmd:false {model} {inputs} {outputs}", "--select", "known/qgemm-o3", "-o", str(path))
    (found,) = read_judgement(str(path)).runtimes
    assert (found.python, found.wheel, found.options) == ("", "", {})


def test_the_hash_of_a_wheel_depends_on_its_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def hash_of(record: str, direct_url: str = "") -> str:
        (info / "RECORD").write_text(record)
        (info / "direct_url.json").write_text(direct_url)
        return wheel_hash(["mine", "no-such-package"])

    files = "mine/a.py,sha256=AAA,1\nmine/b.so,sha256=BBB,2\n"
    first = hash_of(files)
    assert re.fullmatch(r"[0-9a-f]{64}", first)
    pip = "../../../bin/mine,sha256=X,9\nmine-1.0.dist-info/INSTALLER,sha256=Y,4\nmine/__pycache__/a.pyc,,\n"
    assert hash_of(pip + "".join(reversed(files.splitlines(keepends=True)))) == first
    assert hash_of(files.replace("BBB", "CCC")) != first
    assert hash_of(files, '{"dir_info": {"editable": true}}') == ""
    assert wheel_hash(["no-such-package"]) == ""
