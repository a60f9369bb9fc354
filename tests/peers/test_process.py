"""The child process: what it is given and gives back, that nothing of it stays, and that a crash ends nothing else."""

from __future__ import annotations

import _thread
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes as md
import numpy as np
import onnx
import pytest
from helpers import faulty_runtime
from helpers.cli import call, says
from helpers.disagreements import CASES
from helpers.models import make_model, typed
from helpers.support import node_model
from onnx import helper

import qrun
from qrun.child import Failed, current_child, process, serve
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide
from qrun.errors import MemoryLimitError, RunError, UnsupportedError
from qrun.ir.types import DTYPES, NUMBERS
from qrun.peers import Nodes, Peer
from qrun.peers._peer import ORT_TYPES

TESTS = Path(__file__).resolve().parents[1]
f32 = np.float32
X = np.array([1, -2, 3], f32)
posix = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")


def binary(dtype: np.dtype[Any]) -> np.ndarray:
    """Zeros and ones of a type; strings that are not all ASCII."""
    if dtype.kind == "O":
        return np.array([["a", "ü"], ["", "b"]], object)
    return np.array([[0, 1], [1, 0]], f32).astype(dtype)


def identity(array: np.ndarray, name: str = "n", opset: int = 25) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    proto, feeds = node_model("Identity", [array], opset=opset, outputs=(array.dtype,))
    proto.graph.node[0].name = name
    return proto, feeds


def peer_of(name: str = "n", array: np.ndarray = X) -> Peer:
    data = identity(array, name)[0].SerializeToString()
    return Peer(qrun.load(data), "onnx-ref", data=data)


# What crosses the pipe


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_arrays_of_every_type_cross_the_pipe(dtype: np.dtype[Any]) -> None:
    for shape in ((), (0, 3), (2, 3), (5,)):
        array = np.ones(shape, f32).astype(dtype) if dtype.kind != "O" else np.full(shape, "wörd", object)
        for given in (array, array.T, array[::2] if shape else array):
            stream = io.BytesIO()
            serve.write(stream, {"x": given})
            stream.seek(0)
            got = serve.read(stream)["x"]
            assert (got.dtype, got.shape) == (given.dtype, given.shape)
            assert got.tolist() == given.tolist()
            if dtype.kind != "O":
                assert got.tobytes() == given.tobytes()


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if NUMBERS[d] < 24], ids=str)
def test_onnx_reference_gives_back_what_it_is_fed(dtype: np.dtype[Any]) -> None:
    array = binary(dtype)
    got = peer_of(array=array).execute({"i0": array}).outputs["y0"]
    assert got.dtype == dtype
    assert got.tolist() == array.tolist()


@pytest.mark.parametrize(
    "dtype", [*sorted(ORT_TYPES, key=str), *map(np.dtype, (md.bfloat16, md.float8_e4m3fn, md.float8_e5m2))], ids=str
)
def test_onnxruntime_gives_back_what_it_is_fed(dtype: np.dtype[Any]) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    array = binary(dtype)
    proto, feeds = identity(array, opset=21)
    data = proto.SerializeToString()
    got = Peer(qrun.load(data), "ort", data=data).execute(feeds).outputs["y0"]
    assert got.dtype == dtype
    assert got.tolist() == array.tolist()


def test_large_arrays_and_ones_that_can_be_written_to() -> None:
    array = np.arange(3 * 2**20, dtype=f32)
    got = peer_of(array=array).execute({"i0": array}).outputs["y0"]
    assert (got == array).all()
    got[0] = 7


def test_what_is_no_longer_used_is_forgotten() -> None:
    first, other = peer_of(), peer_of()
    handle = first._loaded.remote.handle
    del first
    gc.collect()
    with pytest.raises(Failed, match="KeyError"):
        current_child().ask("run", handle, None, {"i0": X}, True, ["y0"])
    assert other.execute({"i0": X}).outputs["y0"].tolist() == X.tolist()


def test_a_feed_is_the_array_of_its_run_and_held_feeds_stay() -> None:
    """An array that is changed between two runs is sent anew, unless it is held for many runs."""
    one, x = peer_of(), X.copy()
    runner = one.runner({"i0": x})
    x[0] = 9
    assert one.execute({"i0": x}).outputs["y0"][0] == 9
    assert len(runner.burst(3).run_ns) == 3


@pytest.mark.usefixtures("faulty")
def test_the_duration_is_that_of_the_run() -> None:
    one = peer_of("slow")
    assert one.execute({"i0": X}).duration_ns > 0
    big = np.zeros(2**22, f32)
    two, begin = peer_of(array=big), time.perf_counter_ns()
    assert two.execute({"i0": big}).duration_ns < time.perf_counter_ns() - begin


def test_threads_share_the_child() -> None:
    peers, found = [peer_of() for _ in range(4)], []

    def work(place: int) -> None:
        for turn in range(10):
            array = X * (10 * place + turn)
            found.append((peers[place].execute({"i0": array}).outputs["y0"] == array).all())

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert all(found)


@posix
@pytest.mark.usefixtures("faulty")
def test_an_answer_that_nobody_waited_for_is_passed_over() -> None:
    slow, other = peer_of("slow"), peer_of("n", X[:2])
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        slow.execute({"i0": X})
    assert other.execute({"i0": X[:2]}).outputs["y0"].shape == (2,)
    assert slow.execute({"i0": X}).outputs["y0"].shape == (3,)


# What does not stay, and what is not disturbed


def script(text: str, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
    """A program without a guard for its main module, with the faulty runtime."""
    lines = [
        "from helpers import faulty_runtime",
        "from qrun.child import process",
        "process.SERVER = faulty_runtime.SERVER",
        text,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    return subprocess.Popen([sys.executable, "-c", "\n".join(lines), *arguments], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **more)  # fmt: skip


def gone(pid: int) -> bool:
    """Is a process gone, or only not waited for yet, in at most ten seconds?"""
    for _ in range(200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


PROGRAM = """
import os, sys, numpy as np, qrun
from qrun.child import current_child
from qrun.peers import Peer
data = open(sys.argv[1], "rb").read()
peer_of = Peer(qrun.load(data), "onnx-ref", data=data)
print(current_child().pid, flush=True)
"""


@posix
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)", "raise ValueError", "endless"])
def test_the_child_ends_with_the_process(end: str, tmp_path: Path) -> None:
    onnx.save(identity(X, "endless")[0], tmp_path / "m.onnx")
    run = "peer_of.execute({'i0': np.zeros(3, np.float32)})"
    program = script(PROGRAM + (run if end == "endless" else end), str(tmp_path / "m.onnx"))
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    if end == "endless":
        time.sleep(0.3)
        program.kill()
    program.communicate(timeout=60)
    assert gone(pid)


@posix
def test_with_a_closed_stdin(tmp_path: Path) -> None:
    onnx.save(identity(X)[0], tmp_path / "m.onnx")
    text = PROGRAM + "print(peer_of.execute({'i0': np.ones(3, np.float32)}).outputs['y0'].tolist())"
    program = script(text, str(tmp_path / "m.onnx"), preexec_fn=lambda: os.close(0))
    out, err = program.communicate(timeout=60)
    assert (out.split(b"\n", 1)[1], err, program.returncode) == (b"[1.0, 1.0, 1.0]\n", b"", 0)


@pytest.mark.usefixtures("faulty")
def test_nothing_that_a_runtime_prints_is_in_the_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx.save(identity(X, "noisy")[0], tmp_path / "m.onnx")
    told = call(tmp_path / "m.onnx", "-i", "i0=[1,2,3]", "--backend", "onnx-ref", "--json")
    assert told.json["outputs"][0]["values"] == [1, 2, 3]
    assert "noise" not in told.out + told.err + "".join(capfd.readouterr())


INTERRUPTED = """
import sys
from qrun.cli import main
sys.exit(main(["run", sys.argv[1], "-i", sys.argv[2], "--backend", "onnx-ref"]))
"""


@posix
def test_ctrl_c_is_one_clean_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal sends the signal to both processes."""
    onnx.save(identity(X, "endless")[0], tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", X)
    monkeypatch.setenv(faulty_runtime.STARTED, str(tmp_path / "started"))
    program = script(INTERRUPTED, str(tmp_path / "m.onnx"), str(tmp_path / "x.npy"), start_new_session=True)
    while not (tmp_path / "started").exists():
        assert program.poll() is None
        time.sleep(0.02)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert (out, err, program.returncode) == (b"", b"interrupted\n", 130)


@posix
def test_nothing_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    onnx.save(identity(X, "crash while running")[0], tmp_path / "m.onnx")
    text = (
        PROGRAM
        + "try: peer_of.execute({'i0': np.ones(3, np.float32)})\nexcept qrun.RunError as error: print(error.code)"
    )
    program = script(text, str(tmp_path / "m.onnx"), cwd=tmp_path / "tmp")
    out, _ = program.communicate(timeout=60)
    assert out.endswith(b"QR015\n")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_has_a_child_of_its_own() -> None:
    one, other = peer_of(), peer_of()
    pid = current_child().pid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forked = os.fork()
    if not forked:
        try:
            del other
            gc.collect()
            same = one.execute({"i0": X}).outputs["y0"].tolist() == X.tolist()
            os._exit(0 if same and current_child().pid != pid else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert other.execute({"i0": X}).outputs["y0"].tolist() == X.tolist()
    assert current_child().pid == pid


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_does_not_hold_the_child_of_its_parent() -> None:
    """It ends with its parent, though a process that was forked from that lives on."""
    code = (
        "import os, sys, time\nfrom qrun.child import current_child\nchild = current_child()\n"
        "if not os.fork():\n    print(child.pid, os.getpid(), flush=True)\n    time.sleep(60)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, forked = map(int, parent.stdout.readline().split())
    try:
        parent.kill()
        parent.wait()
        assert gone(child)
    finally:
        os.kill(forked, signal.SIGKILL)
        parent.stdout.close()


def test_threads_share_one_child() -> None:
    """Also where it has just ended: that is no crash of theirs."""
    one = peer_of()
    for _ in range(3):
        current_child().close()
        results: list[Any] = []
        start = threading.Barrier(6)

        def ask(results: list[Any] = results, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                results.append(one.execute({"i0": X}).outputs["y0"].tolist() == X.tolist() and current_child().pid)
            except Exception as error:
                results.append(error)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [current_child().pid] * 6


# Memory


def large() -> onnx.ModelProto:
    """The largest element of as many ones as the input says, made by adding two tensors."""
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("ReduceMax", ["b"], ["y"], keepdims=0),
    ]
    return make_model(nodes, {"x": [1], "n": typed(np.int64, [1])}, {"y": []}, opset=13)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits address space in this way")
def test_little_address_space_is_enough(tmp_path: Path) -> None:
    model, feeds = identity(X)
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", feeds["i0"])
    code = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_AS, (1_800_000_000,) * 2)\n"
        "from qrun.cli import main\nsys.exit(main())"
    )
    arguments = ["run", tmp_path / "m.onnx", "-i", tmp_path / "x.npy", "--backend", "onnx-ref"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process in this way")
@pytest.mark.parametrize("backend", ["ort", "onnx-ref"])
def test_a_limit_on_memory(backend: str, tmp_path: Path) -> None:
    if backend == "ort":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    onnx.save(large(), tmp_path / "m.onnx")
    model = qrun.load(tmp_path / "m.onnx")
    one = Peer(model, backend, max_memory=2**26)
    with pytest.raises(MemoryLimitError) as caught:
        one.execute({"x": np.ones(1, f32), "n": np.array([2**27])})
    assert (caught.value.code, caught.value.exit_code) == ("QR010", 5)
    assert dict(caught.value.facts)["allowed"] == "64.0 MiB on top of the runtime and its weights"
    assert float(one.execute({"x": np.ones(1, f32), "n": np.array([2**20])}).outputs["y"]) == -1
    says(
        call(tmp_path / "m.onnx", "-i", "x=[1]", "-i", f"n=[{2**27}]", "--backend", backend, "--max-memory", "64MiB"),
        5,
        "QR010 memory-limit",
    )


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
    old = current_child()
    os.kill(old.pid, signal.SIGKILL)
    while old.alive:
        time.sleep(0.01)
    assert good.execute({"t0": X}).outputs["t1"].tolist() == [1, 0, 3]
    assert current_child().pid != old.pid


@posix
@pytest.mark.usefixtures("faulty")
def test_a_child_that_is_killed_while_it_runs() -> None:
    endless = peer("endless")
    killer = threading.Timer(0.3, os.kill, (current_child().pid, signal.SIGKILL))
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
    verdict = "not compared in full: onnx-ref crashes on the nodes of 1 of 3 tensors, first at node 1; the other 2 are equal bit for bit.\n"
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
