"""scripts/bench.py: what it measures fits together, and it times neither wrong results nor dead engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from onnx import helper

import qrun
from qrun.native.emit.isa import available

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import _bench_cases  # noqa: E402
import _bench_lengths  # noqa: E402
import _bench_processes  # noqa: E402
import _engines  # noqa: E402
import _peak  # noqa: E402
import _workers  # noqa: E402

Array = np.ndarray[Any, Any]
MACS = 8 * 8 * 16 * 4 * 3 * 3
needs_native = pytest.mark.skipif(not available(), reason="no native kernels for this machine")


def write(folder: Path, name: str = "tiny", mean: bool = False) -> None:
    """A quantized convolution 4 -> 16 channels of 8x8, reshaped to a row; if `mean`, less its mean over the batch.

    Its weights have 7 bits: onnxruntime saturates products with more on CPUs without VNNI.
    """
    rng = np.random.default_rng(7)
    weights = rng.integers(-64, 65, (16, 4, 3, 3)).astype(np.int8)
    tensors = {"s": np.float32(0.02), "z": np.uint8(128), "w": weights, "ws": np.float32(0.01), "wz": np.int8(0)}
    tensors |= {"ys": np.float32(0.05), "yz": np.uint8(120), "row": np.array([1, -1], np.int64)}
    quantized = ["q", "s", "z", "w", "ws", "wz", "ys", "yz"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearConv", quantized, ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("DequantizeLinear", ["c", "ys", "yz"], ["f"]),
        helper.make_node("Reshape", ["f", "row"], ["y"]),
    ]
    if mean:
        nodes += [helper.make_node("ReduceMean", ["y"], ["m"], axes=[0]), helper.make_node("Sub", ["y", "m"], ["d"])]
    model = make_model(nodes, {"x": [1, 4, 8, 8]}, {"d" if mean else "y": [1, 1024]}, tensors, opset=17)
    onnx.save(model, folder / f"{name}-qop.onnx")
    np.save(folder / f"{name}-x.npy", rng.standard_normal((1, 4, 8, 8)).astype(np.float32))


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPTS / "bench.py", folder, "--formats", "qop", "--threads", "1", *words]
    return subprocess.run([str(w) for w in command], capture_output=True, text=True, timeout=120, cwd=folder)


@needs_native
def test_times_and_ratios_fit_together(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    write(tmp_path)
    words = ("--models", "tiny", "--engines", "qrun,ort,openvino", "--batch", "1,2", "--rounds", "2")
    done = bench(tmp_path, *words, "--json", "b.json", "--markdown")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["machine"]["isa"] == available()[0].name
    assert found["versions"]["qrun"] == qrun.__version__
    assert [(r["model"], r["format"], r["threads"], r["batch"]) for r in found["results"]] == [
        ("tiny", "qop", 1, 1),
        ("tiny", "qop", 1, 2),
    ]
    for result in found["results"]:
        ours, theirs = result["engines"]["qrun"], result["engines"]["ort"]
        assert result["macs"] == MACS * result["batch"]
        assert result["peak_gmacs"] > 1
        assert result["engines"]["openvino"]["state"] in ("no file", "not installed")
        for engine in (ours, theirs):
            assert engine["state"] == "ok"
            assert engine["runs"] >= 2 * _bench_cases.BURST
            assert 0 < engine["min_ms"] <= engine["median_ms"]
            assert engine["gmacs"] == pytest.approx(result["macs"] / engine["min_ms"] / 1e6)
            assert engine["peak_share"] == pytest.approx(engine["gmacs"] / result["peak_gmacs"])
        for kind in ("min", "median"):
            assert result["ratios"]["ort"][kind] == pytest.approx(ours[f"{kind}_ms"] / theirs[f"{kind}_ms"])
    lines = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| tiny")]
    assert [line[:4] for line in lines] == [["| tiny", "qop", "1", "1"], ["| tiny", "qop", "1", "2"]]


@needs_native
def test_startup_and_memory(tmp_path: Path) -> None:
    write(tmp_path)
    words = ("--models", "tiny", "--engines", "qrun", "--rounds", "0", "--startup", "--memory", "--times", "1")
    done = bench(tmp_path, *words, "--json", "b.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "b.json").read_text())
    empty, filled = found["startup"]
    assert (empty["cache"], filled["cache"]) == ("empty cache", "filled cache")
    for row in (empty, filled):
        once = row["create_ms"] + row["first_run_ms"] - row["later_run_ms"]
        assert row["setup_ms"] == pytest.approx(once)
        assert row["process_ms"] > row["imports_ms"] + row["create_ms"] + row["first_run_ms"]
    started = {(row["job"], row["process"]): row for row in found["processes"]}
    check = "qrun check, one small model"
    python = "tiny qop, session and first run"
    assert [job for job, _ in started] == [*["digits qop"] * 2, "digits qop, session and first run", *["tiny qop"] * 2,
                                           python, "qrun --help", "qrun explain QR301", "qrun ops", check, check]  # fmt: skip
    for kind in ("wall", "cpu"):
        assert started["tiny qop", "qrun, empty cache"][f"{kind}_ms"] > started["qrun --help", "qrun"][f"{kind}_ms"] > 1
        assert 0 < started[python, "qrun"][f"{kind}_ms"] < started["tiny qop", "qrun"][f"{kind}_ms"]
        ours, theirs = started[check, "qrun"], started[check, "import onnx"]
        assert ours[f"{kind}_ratio"] == pytest.approx(ours[f"{kind}_ms"] / theirs[f"{kind}_ms"])
        assert f"{kind}_ratio" not in theirs
    (memory,) = found["memory"]
    assert 5 < memory["imports_mib"] <= memory["peak_mib"] < 1000


def test_a_batch_that_mixes_images_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "mixed", mean=True)
    done = bench(tmp_path, "--models", "mixed", "--engines", "reference", "--batch", "2", "--rounds", "1")
    assert done.returncode == 2
    assert done.stderr == (
        "bench.py: error: mixed-qop-b2.onnx: a batch of 2 gives other outputs than 2 single images\n"
    )


def test_errors_are_one_line(tmp_path: Path) -> None:
    done = bench(tmp_path, "--models", "nosuch", "--rounds", "1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no nosuch-qop.onnx" in done.stderr


def truth(wrong: str = "") -> _bench_cases.Truth:
    return _bench_cases.Truth([np.array([[0.0, 1.0, -2.0]], np.float32), np.array([3, 4], np.uint8)], 1, wrong)


@pytest.mark.parametrize(
    ("engine", "floats", "integers", "wrong"),
    [
        ("qrun", [0, 1, -2], [3, 4], False),
        ("qrun", [0, 1, -2], [3, 5], True),
        ("qrun", [0, 1.1, -2], [3, 4], True),
        ("reference", [0, 1, -2], [2, 4], True),
        ("ort", [0.3, 1, -2], [3, 5], False),
        ("openvino", [3, 1, -2], [3, 4], True),
    ],
)
def test_wrong_results_are_found(engine: str, floats: list[float], integers: list[int], wrong: bool) -> None:
    outputs: list[Array] = [np.array([floats], np.float32), np.array(integers, np.uint8)]
    assert bool(_bench_cases.judge(engine, outputs, truth())[2]) == wrong


def test_a_wrong_tensor_inside_is_found() -> None:
    reason = "conv1 is not what the reference backend computes"
    assert _bench_cases.judge("qrun", truth().outputs, truth(reason))[2] == reason
    assert _bench_cases.judge("ort", truth().outputs, truth(reason))[2] == ""
    assert _bench_cases.judge("qrun", [np.zeros(4), np.zeros(2)], truth())[2] == "another shape"


@needs_native
def test_one_wrong_bit_of_an_inner_tensor_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    checker = _engines.Checker(tmp_path / "tiny-qop.onnx", np.load(tmp_path / "tiny-x.npy"), str(tmp_path))
    assert checker.macs() == MACS
    assert checker.native(1) == ""
    run = qrun.Session.run

    def flipped(session: qrun.Session, *arguments: Any) -> dict[str, Array]:
        made = {name: array.copy() for name, array in run(session, *arguments).items()}
        if session.backend == "native":
            made["c"][0, 5, 3, 2] ^= 1
        return made

    monkeypatch.setattr(qrun.Session, "run", flipped)
    assert checker.native(1) == "c is not what the reference backend computes"


@needs_native
def test_models_of_several_inputs(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    feeds = {"a": np.full((2, 3), 5, np.float32), "b": np.full((2, 3), 1, np.float32)}
    model = make_model([helper.make_node("Sub", ["a", "b"], ["y"])], feeds, "y", opset=17)
    onnx.save(model, tmp_path / "two-qop.onnx")
    np.savez(tmp_path / "two-x.npz", b=feeds["b"], a=feeds["a"])
    networks = _bench_cases.Networks(tmp_path, tmp_path)
    for engine in ("qrun", "ort"):
        call = _engines.create(engine, networks.path("two", "qop"), 1, str(tmp_path / "cache"))
        np.testing.assert_array_equal(call(networks.input("two"))[0], np.full((2, 3), 4))
    done = bench(
        tmp_path, "--models", "two", "--engines", "qrun,ort", "--batch", "1", "--rounds", "1", "--json", "b.json"
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads((tmp_path / "b.json").read_text())["results"]
    assert {found["state"] for found in result["engines"].values()} == {"ok"}


class Mortal:
    def __init__(self, start: bool = True) -> None:
        if not start:
            self.die()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def fail(self) -> None:
        raise ValueError("\n  no such thing\nat line 3")

    def burst(self, times: int) -> list[float]:
        self.die()
        return [0.0] * times


@pytest.mark.skipif(os.name == "nt", reason="signals end processes on Unix only")
def test_dead_workers_are_told() -> None:
    with pytest.raises(_workers.WorkerError, match="ended by SIGSEGV") as caught:
        _workers.Worker(Mortal, False)
    assert caught.value.dead
    with _workers.Worker(Mortal) as worker:
        assert _bench_cases.interleaved({"one": worker}, 2) == ({}, {"one": "ended by SIGSEGV"})
    with _workers.Worker(Mortal) as worker, pytest.raises(_workers.WorkerError, match=r"^no such thing$") as caught:
        worker.ask("fail")
    assert not caught.value.dead


@needs_native
def test_a_peak_for_every_instruction_set() -> None:
    speeds = []
    for isa in available():
        peak = _peak.Peak(isa.name)
        speeds.append(max(peak.burst(2)))
    assert all(speed > 1e9 for speed in speeds), speeds


def test_networks_of_one_size_are_not_batched(tmp_path: Path) -> None:
    networks = _bench_cases.Networks(None, tmp_path)
    asked = [
        ("resnet50", "qop"),
        ("resnet50", "dynamic"),
        ("encoder-1x16", "qdq"),
        ("small-nodes", "float"),
        ("x", "y"),
    ]
    assert [networks.takes(name, kind, 8) for name, kind in asked] == [True, False, False, False, True]
    assert all(networks.takes(name, kind, 1) for name, kind in asked)


@needs_native
def test_floats_and_formats_that_are_there(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    words = ("--models", "small-nodes", "--engines", "reference,ort-precise", "--rounds", "1", "--batch", "1,8")
    done = bench(tmp_path, *words, "--formats", "qop,float", "--json", "b.json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads((tmp_path / "b.json").read_text())["results"]
    assert (result["format"], result["batch"]) == ("float", 1)
    assert [found["state"] for found in result["engines"].values()] == ["ok", "ok"]


def test_a_process_that_fails_is_no_time(tmp_path: Path) -> None:
    failing = _bench_processes.Process("the job", "the process", ["-c", "import sys; sys.exit('what went wrong')"])
    with pytest.raises(_bench_cases.BenchError, match=r"^the job, the process: what went wrong$"):
        _bench_processes.Processes(str(tmp_path)).measure([failing], 1)


def test_a_process_is_compared_with_onnxruntime_by_minima() -> None:
    taken = {("job", "qrun"): [(3.0, 2.0), (2.0, 3.0)], ("job", _bench_processes.PEER): [(4.0, 1.0), (5.0, 9.0)]}
    found = _bench_processes.Processes("", taken)
    assert found.row(_bench_processes.Process("job", "qrun", []), 2) == {
        "job": "job", "process": "qrun", "rounds": 2, "wall_ms": 2000.0, "wall_ratio": 0.5, "cpu_ms": 2000.0, "cpu_ratio": 2.0
    }  # fmt: skip


def test_a_halved_network_takes_and_gives_float32() -> None:
    import _halved
    from _transformer import Encoder

    model = Encoder(1, 64, 2, 8, np.random.default_rng(1)).model(17)
    made = _halved.halved(model)
    x = np.random.default_rng(2).standard_normal((1, 8, 64)).astype(np.float32)
    whole, half = (qrun.Session(network, backend="reference").execute({"x": x}) for network in (model, made))
    inside = {info.dtype for event in half.events[1:-1] for info in event.outputs if info.dtype.kind == "f"}
    assert inside == {np.dtype(np.float16)}
    for name, want in whole.outputs.items():
        assert half.outputs[name].dtype == np.float32
        assert np.abs(half.outputs[name] - want).max() < 0.02 * np.abs(want).max()


@needs_native
def test_new_sizes_are_told_of_both_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of the decoder has a cache of its own length, and both engines make the same of it."""
    monkeypatch.setattr(_bench_lengths, "STEPS", 3)
    model = _bench_lengths.decoder()
    given = list(_bench_lengths.steps(model))
    assert [feeds["k0"].shape[2] for feeds in given] == list(range(_bench_lengths.WARM + 3))
    calls = dict(_bench_lengths._calls(model, 1, str(tmp_path)))
    names = [value.name for value in model.graph.output]
    for feeds in given:
        made = calls["qrun"](feeds)
        for name, array in zip(names, calls["ort"](feeds), strict=True):
            np.testing.assert_allclose(made[name], array, rtol=1e-4, atol=1e-5)
    row = _bench_lengths.new_sizes("decoder", model, iter(given), 1, str(tmp_path))
    assert row["engines"].keys() == {"qrun", "ort"}
    head, lines = _bench_lengths.sizes_table([row])
    assert [len(line) for line in lines] == [len(head)] * 2
    texts = [x["x"] for x in _bench_lengths.texts(encoder_of(8), 2)]
    assert len(texts) == _bench_lengths.WARM + _bench_lengths.COUNT
    assert {(x.shape[0], x.shape[2]) for x in texts} == {(2, 8)}


def encoder_of(width: int) -> onnx.ModelProto:
    shape = ["batch", "length", width]
    return make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})


@pytest.mark.parametrize(("each", "runs"), [(1.0, 3), (0.0025, 8)])
def test_a_burst_of_short_runs_has_more_of_them(each: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    runner = object.__new__(_engines.Runner)
    monkeypatch.setattr(_engines, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(_engines, "settle", lambda: None)
    monkeypatch.setattr(_engines, "FULL", 0.02)
    runner._call = lambda x: clock.__setitem__(0, clock[0] + x)
    runner._x = each
    assert len(runner.burst(3)) == runs
