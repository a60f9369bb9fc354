"""Every exit code, on every kind of end; JSON stays one document; nothing shows a traceback unasked."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import ROOT, call, conv_model, deep_model, npy, quantize_model, save, says, sum_model
from helpers.models import make_model
from onnx import TensorProto, helper


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(deep_model(3), folder / "m.onnx")
    npy(folder / "x.npy", np.zeros((1, 3, 8, 8), np.uint8))


def failures(folder: Path) -> dict[str, tuple[int, list[str]]]:
    save(conv_model(w_scale=np.ones(3, np.float32)), folder / "bad.onnx")
    odd = helper.make_node("MaxPoolX", ["x"], ["y"], domain="com.acme", name="pool")
    save(make_model([odd], {"x": (1,)}, {"y": (1,)}), folder / "custom.onnx")
    (folder / "text.onnx").write_text("<html>")
    return {
        "no such model": (2, ["nothing.onnx"]),
        "missing input": (2, ["m.onnx", "-i", "nothing.npy"]),
        "unknown option": (2, ["m.onnx", "--nonsense"]),
        "bad choice": (2, ["m.onnx", "--backend", "none"]),
        "bad size": (2, ["m.onnx", "--max-memory", "much"]),
        "not a model": (3, ["text.onnx"]),
        "custom operator": (4, ["custom.onnx"]),
        "refused by a node": (5, ["bad.onnx"]),
        "memory": (5, ["m.onnx", "--max-memory", "100"]),
    }


def test_codes_in_text_and_json(folder: Path) -> None:
    for name, (code, words) in failures(folder).items():
        text = call(*words)
        assert text.code == code, (name, text.err)
        assert text.out == "", name
        assert "Traceback" not in text.err, name
        for flag in (["--json"], ["--format", "json"], ["--format=json"]):
            ended = call(*words, *flag)
            assert ended.code == code, name
            document = ended.json
            assert document["schema"] == "qrun/run/1.0"
            assert document["exit_code"] == code
            assert document["error"]["message"], name
            assert set(document["error"]) == {"code", "name", "message", "where", "facts", "why", "fixes"}, name
            assert ended.err, name
        assert call("profile", *words, "--json").json["schema"] == "qrun/profile/1.0"


def test_success_and_findings(folder: Path) -> None:
    assert call("m.onnx", "-i", "x.npy").code == 0
    save(quantize_model(), folder / "q.onnx")
    nan = ["q.onnx", "-i", "x=[NaN, 1]"]
    ended = call(*nan, "--json")
    assert [f["rule"] for f in ended.json["findings"]] == ["QR401"]
    assert ended.json["exit_code"] == ended.code == 0
    assert call(*nan, "--fail-on", "error").code == 0
    quiet = says(call(*nan, "--fail-on", "warning", "-q"), 1, "QR401 warning  node 0 quant: ")
    assert "QR401" not in quiet.out
    assert "  --> q.onnx  node 0 quant" in call(*nan, "--fail-on", "warning", "-q", "-v").err
    assert "QR401" in call(*nan, "--fail-on", "warning", "-o", "-").err
    assert "QR401" in call(*nan, "--fail-on", "warning", "--json").err
    assert "QR401" not in call(*nan, "--fail-on", "error", "-q").err
    assert "QR401" not in call(*nan, "--fail-on", "warning").err, "the report has it"
    assert call(*nan, "--fail-on", "warning", "--json").json["exit_code"] == 1


def test_a_bug_leaves_a_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("boom \x1b[31m")

    (folder / "tmp").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder / "tmp"))
    monkeypatch.setattr("qrun.running.execution.run_step", fail)
    ended = call("m.onnx", "--json", "--no-cache")
    assert ended.code == 70
    assert ended.json["error"]["code"] == "internal"
    assert "this is a bug in qrun" in ended.err
    assert "ZeroDivisionError in qrun/running/execution.py" in ended.err
    assert "Traceback" not in ended.err
    assert "\x1b" not in ended.err
    report = next((folder / "tmp").glob("qrun-crash-*.txt"))
    assert report.name in ended.err
    assert "Traceback" in report.read_text()
    assert "qrun m.onnx --json --no-cache" in report.read_text()
    assert "Traceback" in call("m.onnx", "-vv", "--no-cache").err


def test_a_kernel_bug_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("no")

    monkeypatch.setattr("qrun.running.steps.check_types", fail)
    says(call("m.onnx", "--no-cache"), 70, "qrun failed on node 0 /features/features.0/")


def test_report_goes_to_the_current_folder_if_need_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qrun.cli._main import write_report

    monkeypatch.chdir(folder)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder / "missing"))
    assert (folder / write_report(["m.onnx"], ValueError("x"))).is_file()


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr("qrun.io.inputs.read_inputs", fail)
    ended = call("m.onnx", "--json")
    assert ended.code == 5
    assert ended.json["error"]["code"] == "QR010"


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qrun.io.inputs.read_inputs", stop)
    ended = call("m.onnx", "--json")
    assert ended.code == 130
    assert ended.json["exit_code"] == 130
    assert "interrupted" in ended.err


def test_ctrl_c_in_a_real_profile(folder: Path) -> None:
    command = [sys.executable, "-m", "qrun", "profile", "m.onnx", "-n", "1000000"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as running:
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert running.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    if "interrupted after" in err:
        assert "of 1000000 runs" in err
        assert "Whole model" in out


def shell(folder: Path, words: str, around: str = "{}") -> subprocess.CompletedProcess[str]:
    """``qrun WORDS`` as bash runs it."""
    line = around.format(f"{shlex.quote(sys.executable)} -m qrun {words}")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=folder, env=env, timeout=60)


def test_closed_pipe_is_quiet(folder: Path) -> None:
    done = shell(folder, "m.onnx -i x.npy -t '*' -v", "({}; echo $? >&2) | true")
    assert done.stderr.strip().splitlines()[-1] == "141", done.stderr
    assert "Error" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk(folder: Path) -> None:
    done = shell(folder, "-V >/dev/full")
    assert done.returncode == 2
    assert "cannot write to stdout: No space left on device" in done.stderr
    assert "fix: make room there, or write elsewhere" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        "run --nosuch 2>/dev/full", "run --nosuch >&-", "run nofile.onnx 2>/dev/full >&-",
        "run nofile.onnx --json >&-", "run nofile.onnx --json >/dev/full 2>/dev/full",
    ],
)  # fmt: skip
def test_exit_code_survives_messages_that_nobody_takes(folder: Path, words: str) -> None:
    done = shell(folder, words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(folder: Path, closed: str) -> None:
    done = shell(folder, f"m.onnx {closed}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_backends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(conv_model(), folder / "conv.onnx")
    mine = call("conv.onnx", "-i", "x.npy", "--json").json["outputs"]
    pytest.importorskip("onnxruntime")
    for backend in ("ort", "onnx-ref"):
        ended = call("conv.onnx", "-i", "x.npy", "--backend", backend, "--json")
        assert ended.code == 0, ended.err
        assert ended.json["environment"]["backend"] == backend
        assert ended.json["outputs"] == mine, backend
        assert ended.json["nodes"] == []
        text = call("conv.onnx", "-i", "x.npy", "--backend", backend)
        assert "qrun profile shows the time per node of other runtimes" in text.out
    assert (
        call("m.onnx", "-i", "x.npy", "-b", "ort", "-t", "*features.0*", "--json")
        .json["outputs"][1]["name"]
        .startswith("/f")
    )
    assert call("conv.onnx", "-b", "ort", "--arith", "ort").code == 2
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    says(call("conv.onnx", "-i", "x.npy", "--backend", "ort", "--json"), 4, "pip install 'onnx-qrun[ort]'")
    profile = call("profile", "conv.onnx", "-b", "onnx-ref", "-n", "2")
    assert profile.code == 0
    assert "per-node time is not available" in profile.out


def test_backend_that_fails(folder: Path) -> None:
    save(conv_model(w_scale=np.ones(3, np.float32)), folder / "bad.onnx")
    ended = call("bad.onnx", "-b", "onnx-ref", "--json")
    assert ended.code in (4, 5)
    assert ended.json["error"]["code"] in ("QR011", "QR013")


def test_usage_errors_have_a_code(folder: Path) -> None:
    ended = call("m.onnx", "--nonsense", "--json")
    error = ended.json["error"]
    assert (error["code"], error["name"], error["fixes"][-1]) == ("QR000", "usage", "qrun run -h")
    first, meant, last = ended.err.splitlines()
    assert first == "error QR000 usage: No such option '--nonsense'."
    assert meant.startswith("   =  fix: did you mean one of: '--")
    assert meant.endswith("'?")
    assert last == "   =  fix: qrun run -h"
    assert call("profile", "m.onnx", "-n", "x").err.splitlines()[1:] == ["   =  fix: qrun profile -h"]
    assert call("chekc", "m.onnx").err.splitlines() == [
        "error QR000 usage: No such command 'chekc'.", "   =  fix: did you mean 'check'?", "   =  fix: qrun -h",
    ]  # fmt: skip


def test_qrun_is_recommended_only_where_it_can_run(folder: Path) -> None:
    model = sum_model()
    model.graph.node[0].op_type = "QLinearCnov"
    save(model, folder / "typo.onnx")
    for backend in ("ort", "onnx-ref"):
        if backend == "ort":
            pytest.importorskip("onnxruntime")
        ended = call("typo.onnx", "--backend", backend)
        assert "QR013" in ended.err
        assert "--backend reference" not in ended.err


def test_messages_name_the_model_as_it_was_typed(folder: Path) -> None:
    (folder / "sub").mkdir()
    save(deep_model(2), folder / "sub" / "model.onnx")
    assert "  --> sub/model.onnx  input" in call("sub/model.onnx", "-i", "image=[1]").err
    assert call("sub/model.onnx").out.startswith("sub/model.onnx  opset 13")
    (folder / "sub" / "model.onnx").write_bytes(b"<html>")
    assert "sub/model.onnx is an HTML" in call("sub/model.onnx").err
    data = (folder / "m.onnx").read_bytes()
    assert "  --> stdin  input" in call("-", "-i", "image=[1]", stdin=data).err
    assert call("-", stdin=data).out.startswith("stdin  opset 13")
    assert "stdin is an HTML" in call("-", stdin=b"<html>").err
    assert "  file       stdin, " in call("inspect", "-", stdin=data).out


def test_arith_is_passed_on(folder: Path) -> None:
    save(sum_model(), folder / "s.onnx")
    for arith in ("exact", "ort", "onnx-ref"):
        assert call("s.onnx", "--arith", arith, "--json").json["environment"]["arith"] == arith


def test_json_is_strict(folder: Path) -> None:
    save(sum_model(["x"], TensorProto.FLOAT, (4,)), folder / "s.onnx")
    document = call("s.onnx", "-i", "x=[NaN, Infinity, -Infinity, 1]", "--json").json
    output = document["outputs"][0]
    assert output["values"] == ["nan", "inf", "-inf", 1.0]
    assert (output["nan"], output["inf"], output["min"], output["max"], output["mean"]) == (1, 2, "-inf", "inf", 1.0)
    assert json.dumps(document, allow_nan=False)


GONE = "import os, sys, json\nos.rmdir(os.getcwd())\nfrom qrun.cli import main\n"
WORDS = ["run M -i X", "check M", "run M -o out.npz", "run M -o out/", "run M --trace t.json", "report M -o r.html",
         "eval M -i X -o out", "check M -o c.sarif"]  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a folder that is in use cannot be removed")
def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    """Nothing of it is needed where paths are absolute; and nothing is written into it. The first call has a process
    of its own, as that is where the folder is looked at first."""
    files = {"M": str(Path("m.onnx").resolve()), "X": str(Path("x.npy").resolve())}
    calls = [[files.get(word, word) for word in words.split()] for words in WORDS]
    for words in (calls[:1], calls[1:]):
        (tmp_path / "gone").mkdir()
        code = f"{GONE}for words in json.loads(sys.argv[1]):\n    print('CODE', main(words), flush=True)"
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(words)], cwd=tmp_path / "gone", capture_output=True, text=True
        )
        codes = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("CODE ")]
        assert codes == [0 if " -o " not in line and "--trace" not in line else 2 for line in map(" ".join, words)], (
            words
        )
        assert done.stderr.count("the current folder was removed") == codes.count(2), done.stderr
