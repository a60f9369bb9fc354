"""A runtime that crashes ends its own process: it becomes an error, or a finding, and everything else goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cli import call
from helpers.disagreements import CASES
from helpers.models import make_model
from helpers.support import node_model
from onnx import helper

import qrun
from qrun.child import process, running
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide
from qrun.errors import RunError, UnsupportedError
from qrun.peers import Nodes, Peer

f32 = np.float32
X = np.array([1, -2, 3], f32)
posix = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")


def chain(*names: str) -> onnx.ModelProto:
    """Relu, Neg, Relu, Neg ... with these names."""
    nodes = [
        helper.make_node("Relu" if place % 2 == 0 else "Neg", [f"t{place}"], [f"t{place + 1}"], name)
        for place, name in enumerate(names)
    ]
    return make_model(nodes, {"t0": [3]}, {f"t{len(names)}": [3]}, opset=13)


def peer(*names: str) -> Peer:
    data = chain(*names).SerializeToString()
    return Peer(qrun.load(data, source="m.onnx"), "onnx-ref", data=data)


def works() -> bool:
    return peer("fine").execute({"t0": X}).outputs["t1"].tolist() == [1, 0, 3]


@posix
@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("doing", ["loading", "running"])
def test_a_crash_is_an_error_and_the_next_model_runs(doing: str) -> None:
    with pytest.raises(RunError) as caught:
        peer(f"crash while {doing}").execute({"t0": X})
    error = caught.value
    assert (error.code, error.name, error.exit_code) == ("QR015", "backend-crashed", 5)
    assert error.message == f"onnx.reference {onnx.__version__} crashed (SIGSEGV) while {doing} this model"
    assert error.where == ("m.onnx",)
    assert dict(error.facts) == {"got": "SIGSEGV: last word"}
    assert error.fixes[0] == "--backend reference runs the model with qrun"
    assert works()


@pytest.mark.usefixtures("faulty")
def test_an_end_without_a_signal_is_told_by_its_code() -> None:
    with pytest.raises(RunError, match=r"ended \(exit code 3\) while running"):
        peer("exit").execute({"t0": X})


@posix
@pytest.mark.usefixtures("faulty")
def test_a_model_is_loaded_again_after_another_has_crashed() -> None:
    good = peer("fine")
    runner = good.runner({"t0": X})
    with pytest.raises(RunError, match="QR015"):
        peer("crash while running").execute({"t0": X})
    assert good.execute({"t0": X}).outputs["t1"].tolist() == [1, 0, 3]
    assert runner.burst(1).run_ns[0] > 0


@posix
def test_a_child_that_was_killed_between_two_runs_is_replaced() -> None:
    good = peer("fine")
    old = running()
    os.kill(old.pid, signal.SIGKILL)
    while old.alive:
        time.sleep(0.01)
    assert good.execute({"t0": X}).outputs["t1"].tolist() == [1, 0, 3]
    assert running().pid != old.pid


@posix
@pytest.mark.usefixtures("faulty")
def test_a_child_that_is_killed_while_it_runs() -> None:
    endless = peer("endless")
    killer = threading.Timer(0.3, os.kill, (running().pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(RunError, match=r"was killed \(SIGKILL\) while running"):
        endless.execute({"t0": X})
    killer.join()
    assert works()


@posix
@pytest.mark.usefixtures("faulty")
def test_a_lone_node_that_crashes() -> None:
    data = chain("a", "crash while running", "c").SerializeToString()
    model = qrun.load(data)
    nodes = Nodes(model, data)
    with pytest.raises(RunError, match="QR015"):
        nodes.alone(model.nodes[1], {"t1": X}, "onnx-ref")
    assert nodes.alone(model.nodes[2], {"t2": X}, "onnx-ref")[0].tolist() == [1, 0, 3]


@posix
@pytest.mark.usefixtures("faulty")
def test_compare_names_the_node_and_compares_the_others(tmp_path: Path) -> None:
    proto = chain("a", "crash while running", "c")
    data = proto.SerializeToString()
    model = qrun.load(data)
    found = compare_runtimes(QrunSide(model), PeerSide(model, "onnx-ref", data=data), {"t0": X})
    assert [(t.name, t.pair.equal, t.crashed) for t in found.tensors] == [
        ("t1", True, False), ("t2", False, True), ("t3", True, False),
    ]  # fmt: skip
    guilt = found.tensors[1].guilt
    assert guilt is not None
    assert (guilt.reason.cause, guilt.reason.text) == ("crashed", "SIGSEGV: last word")
    onnx.save(proto, tmp_path / "m.onnx")
    told = call("compare", tmp_path / "m.onnx", "-i", "t0=[1,-2,3]", "--against", "onnx-ref")
    assert told.code == 1
    for line in (
        "The whole model crashes onnx-ref\n",
        "First crash  node 1 of 3 nodes\n",
        "Tensors that onnx-ref crashes on\n",
    ):
        assert line in told.out
    verdict = "not compared in full: onnx-ref crashes on 1 of 3 tensors, first at node 1; the other 2 are equal bit for bit.\n"
    assert told.out.startswith(verdict)


@posix
@pytest.mark.usefixtures("faulty")
def test_check_goes_on_with_the_next_model(tmp_path: Path) -> None:
    for folder, name in (("1", "crash while loading"), ("2", "crash while running"), ("3", "fine")):
        (tmp_path / folder).mkdir()
        onnx.save(chain(name), tmp_path / folder / "m.onnx")
        model = tmp_path / folder / "m.onnx"
        for vector in ("test_data_set_0", "test_data_set_1"):
            made = call("run", model, "-i", "t0=[1,-2,3]", "-o", f"{tmp_path / folder / vector}/", "-q")
            assert made.code == 0
    told = call("check", tmp_path, "--backend", "onnx-ref", "--json")
    assert told.code == 1
    models = told.json["models"]
    assert [[v["status"] for v in m["vectors"]] for m in models] == [["failed"] * 2, ["failed"] * 2, ["passed"] * 2]
    assert [[f["rule"] for f in m["findings"]] for m in models] == [["QR015", "QR505"]] * 2 + [[]]


@posix
@pytest.mark.usefixtures("faulty")
def test_a_command_ends_with_its_exit_code(tmp_path: Path) -> None:
    onnx.save(chain("crash while loading"), tmp_path / "m.onnx")
    for command in (("run",), ("profile", "-n", "3")):
        told = call(*command, tmp_path / "m.onnx", "--backend", "onnx-ref", "--json")
        assert (told.code, told.json["error"]["code"]) == (5, "QR015")
        assert "error QR015 backend-crashed: onnx.reference" in told.err


def test_the_runtime_s_own_errors_keep_their_fields() -> None:
    proto, feeds = node_model("Relu", [X])
    proto.graph.node[0].op_type = "NoSuchOperator"
    data = proto.SerializeToString()
    with pytest.raises(UnsupportedError) as refused:
        Peer(qrun.load(data, source="m.onnx"), "onnx-ref", data=data).execute(feeds)
    assert (refused.value.code, refused.value.where, refused.value.exit_code) == ("QR013", ("m.onnx",), 4)
    assert "NoSuchOperator" in dict(refused.value.facts)["got"]
    good = peer("fine")
    with pytest.raises(RunError) as failed:
        good.execute({"t0": np.array(["a"], object)})
    assert (failed.value.code, failed.value.where, failed.value.exit_code) == ("QR011", ("m.onnx",), 5)
    assert dict(failed.value.facts)["got"].split(":")[0].endswith(("Error", "TypeError"))
    assert failed.value.fixes


CRASHING = ("O2", "O14", "O27", "O28")


@pytest.mark.parametrize("id", CRASHING)
def test_onnxruntime_crashes_alone(id: str) -> None:
    """Whatever onnxruntime makes of these models, on this CPU and in this version, qrun is there afterwards."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    case = next(case for case in CASES if case.id == id)
    proto, feeds = node_model(
        case.op, case.inputs, case.attributes, opset=case.opset, domain=case.domain, outputs=case.types
    )
    data = proto.SerializeToString()
    model = qrun.load(data)
    told = []
    try:
        Peer(model, "ort", data=data).execute(feeds)
    except (RunError, UnsupportedError) as error:
        told.append(error.code)
    assert told in ([], ["QR011"], ["QR013"], ["QR015"])
    relu, fed = node_model("Relu", [X])
    small = relu.SerializeToString()
    assert Peer(qrun.load(small), "ort", data=small).execute(fed).outputs["y0"].tolist() == [1, 0, 3]


@posix
@pytest.mark.parametrize(
    ("code", "want"),
    [
        (-11, ("crashed", "SIGSEGV")), (-9, ("was killed", "SIGKILL")), (-64, ("crashed", "SIGRTMAX")),
        (-200, ("crashed", "signal 200")), (1, ("ended", "exit code 1")), (0, ("ended", "exit code 0")),
        (0xC0000005, ("crashed", "exit code 0xc0000005")),
    ],
)  # fmt: skip
def test_exit_codes_in_words(code: int, want: tuple[str, str]) -> None:
    assert process._how(code) == want
