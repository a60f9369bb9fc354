"""``--backend native``: what the screens and the JSON say, the cache, and the instruction set."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import ROOT, call, deep_model, npy, save, says
from helpers.models import make_model, typed
from helpers.native import ISAS
from onnx import helper

from qrun.errors import UnsupportedError
from qrun.report.nodes import MOVED

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
RUN = ("deep.onnx", "-i", "x.npy", "-b", "native")


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(deep_model(), folder / "deep.onnx")
    npy(folder / "x.npy", np.zeros((1, 3, 8, 8), np.uint8))


def test_outputs_are_those_of_the_reference() -> None:
    native, reference = (call(*RUN[:4], backend, "--json").json for backend in ("native", "reference"))
    assert native["outputs"] == reference["outputs"]
    assert native["findings"] == reference["findings"]
    assert native["environment"]["backend"] == "native"


def test_json_tells_the_kernels_of_each_node() -> None:
    nodes = call(*RUN, "--json").json["nodes"]
    native = [n for n in nodes if n["backend"] == "native"]
    assert native
    for node in native:
        assert node["why"] == ""
        assert all(k["form"] and k["channels"] > 0 and f"-{ISAS[0]}-" in k["kernel"] for k in node["kernels"])
    declined = call(*RUN, "--arith", "onnx-ref", "--json").json["nodes"]
    assert {n["why"] for n in declined} == {"no native kernels for onnx-ref arithmetic"}
    assert all(n["backend"] == "reference" and n["kernels"] == [] for n in declined)
    profiled = call("profile", *RUN, "-n", "2", "--json").json["nodes"]
    assert [(n["backend"], n["kernels"]) for n in profiled] == [(n["backend"], n["kernels"]) for n in nodes]


def test_times_are_those_of_plain_runs() -> None:
    found = call(*RUN, "--json").json
    assert found["runs"] > 1
    assert found["first_ms"] > 0
    assert all(node["time_ms"] >= 0 for node in found["nodes"])
    if found["overhead_ms"]:
        spent = sum(node["time_ms"] for node in found["nodes"]) + found["overhead_ms"]
        assert spent == pytest.approx(found["time_ms"], rel=1e-6)
    assert re.search(r"a run  (median of [\d,]+ plain runs|one plain run), \d+ threads?; first run ", call(*RUN).out)


def test_a_run_that_would_take_long_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qrun.running.profiling.PATIENCE_STEPS", 0)
    assert call(*RUN, "--json").json["runs"] == 0
    assert "s  the first run only, in which qrun also checks the values" in call(*RUN).out


def test_observations_are_those_of_the_first_run(folder: Path) -> None:
    """Saturation is seen though the timed program does not look for it."""
    npy(folder / "x.npy", np.full((1, 3, 8, 8), 255, np.uint8))
    native, reference = (call(*RUN[:4], backend, "--json", "-v").json for backend in ("native", "reference"))
    assert native["findings"] == reference["findings"]


def test_verbose_tells_the_kernels_of_each_node() -> None:
    shown = call(*RUN, "-v").out
    assert "kernel" in shown
    assert "native y32" in shown
    assert "of compiling and checking not included" in shown
    assert "native y32" not in call(*RUN).out
    assert "kernel" not in call("deep.onnx", "-i", "x.npy", "-v", "--backend", "reference").out


def test_the_environment_picks_instruction_set_and_cache(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    env = {"QRUN_ISA": ISAS[-1], "QRUN_CACHE_DIR": str(kept), "XDG_CACHE_HOME": str(tmp_path / "home")}
    kernels = [k for n in call(*RUN, "--json", env=env).json["nodes"] for k in n["kernels"]]
    assert kernels
    assert all(f"-{ISAS[-1]}-" in k["kernel"] for k in kernels)
    assert len(list(kept.iterdir())) >= len({k["kernel"] for k in kernels})
    for path in kept.iterdir():
        path.unlink()
    assert call(*RUN, "--no-cache", env=env).code == 0
    assert not list(kept.iterdir())
    assert not (tmp_path / "home").exists()


def test_a_cache_that_is_not_private_is_named(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    ended = call(*RUN, env={"QRUN_CACHE_DIR": str(shared)})
    says(ended, 0, f"compiled kernels are not saved: {shared} is open to other users")
    assert not list(shared.iterdir())


def test_threads_give_the_same_result() -> None:
    one, two = (call(*RUN, "--threads", n, "--json").json["outputs"] for n in ("1", "2"))
    assert one == two


def test_an_unknown_instruction_set_is_a_wrong_call() -> None:
    says(call(*RUN, env={"QRUN_ISA": "sse9"}), 2, f"expected {', '.join(ISAS)}", "fix: unset QRUN_ISA")


def test_without_llvmlite_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.delitem(sys.modules, "llvmlite.binding", raising=False)
    says(call(*RUN), 4, "QR014 native-unavailable", "fix: pip install llvmlite")


@pytest.mark.parametrize(("arith", "backend"), [("exact", "native"), ("onnx-ref", "reference")])
def test_the_trace_names_what_ran_each_node(arith: str, backend: str) -> None:
    assert call(*RUN, "--arith", arith, "--trace", "t.json").code == 0
    events = [e for e in json.loads(Path("t.json").read_text()) if e["cat"] == "Node"]
    assert {e["args"]["backend"].rpartition(" ")[2] for e in events} == {backend}


QDQ = (str(ROOT / "models/digits/qdq/model.onnx"), "-i", str(ROOT / "models/digits/x.npy"))


def test_the_header_counts_fused_groups() -> None:
    fused, written = call(*QDQ), call(*QDQ, "--no-fuse")
    assert "QDQ int8, 7 groups fused" in fused.out
    assert "QDQ int8, as written" in written.out
    assert call(*QDQ, "--json").json["environment"]["fused_groups"] == 7
    assert call(*QDQ, "--no-fuse", "--json").json["environment"]["fused_groups"] == 0
    assert "as written" not in call(*RUN).out


def test_a_result_does_not_depend_on_whether_native_kernels_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = call(*QDQ, "--json").json["outputs"]
    assert call(*QDQ, "--no-fuse", "--json").json["outputs"] != wanted
    monkeypatch.setattr("qrun.running.session.make_engine", _no_engine)
    ended = call(*QDQ, "--json")
    assert ended.json["environment"]["backend"] == "reference"
    assert ended.json["outputs"] == wanted
    assert "native kernels cannot run here" in ended.err


def _no_engine(*_: object) -> None:
    raise UnsupportedError("QR014", "no native kernels", facts=[("got", "no llvmlite")])


def test_showing_a_tensor_inside_a_group_is_said() -> None:
    assert "ran as written" not in call(*QDQ, "-t", "c1_QuantizeLinear_Output").err
    ended = call(*QDQ, "-t", "mean")
    assert "node 30 AveragePool_mean ran as written, because -t shows tensors inside fused groups" in ended.err
    assert "ran as written" not in call(*QDQ, "-t", "mean", "--no-fuse").err


def test_nodes_that_ran_elsewhere_are_marked(folder: Path) -> None:
    """MaxPool runs on codes; its results have another scale, so the nodes around it do not vanish."""
    constants = {"s": np.float32(0.5), "t": np.float32(0.25), "z": np.uint8(3)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["real"], "pw_DequantizeLinear"),
        helper.make_node("MaxPool", ["real"], ["most"], "pool", kernel_shape=[2, 2]),
        helper.make_node("QuantizeLinear", ["most", "t", "z"], ["y"], "pool_QuantizeLinear"),
    ]
    ends = {"x": typed(np.uint8, [1, 3, 8, 8])}, {"y": typed(np.uint8, [1, 3, 7, 7])}
    save(make_model(nodes, *ends, constants, opset=13), folder / "pool.onnx")
    run = ("pool.onnx", "-i", "x.npy", "-v")
    shown = call(*run).out
    (line,) = (line for line in shown.splitlines() if " pw_DequantizeLinear " in line and "us" in line)
    assert re.search(r"DequantizeLinear (\+\d )?moved", line)
    assert MOVED in " ".join(shown.split())
    assert " moved" not in call(*run, "--no-fuse").out
