"""The Python API: what a session takes, returns and refuses."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers.models import make_model, typed
from helpers.support import MS, node_model
from onnx import TensorProto, helper

import qrun
import qrun.errors

ROOT = Path(__file__).resolve().parent.parent


def conv_model(**attributes: object):
    x = np.arange(9, dtype=np.uint8).reshape(1, 1, 3, 3)
    w = np.ones((1, 1, 2, 2), np.uint8)
    return node_model("ConvInteger", [x, w], attributes, opset=10, outputs=[np.int32])


def test_path_bytes_and_proto_give_the_same(tmp_path: Path) -> None:
    model, feeds = conv_model()
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    forms = (model, model.SerializeToString(), path, str(path), qrun.load(path))
    results = [qrun.Session(form).run(feeds)["y0"].tolist() for form in forms]
    assert results == [[[[[8, 12], [20, 24]]]]] * 5


def test_inputs_and_outputs_are_typed() -> None:
    session = qrun.Session(conv_model()[0])
    assert [(v.name, str(v)) for v in session.inputs] == [("i0", "uint8 [1,1,3,3]"), ("i1", "uint8 [1,1,2,2]")]
    assert [v.name for v in session.outputs] == ["y0"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda f: f.pop("i1"), "QR001", "'i1': array"),
        (lambda f: f.__setitem__("i_1", f.pop("i1")), "QR002", "did you mean 'i1'?"),
        (lambda f: f.__setitem__("i0", f["i0"].astype(np.float64)), "QR003", "convert it: "),
        (lambda f: f.__setitem__("i0", f["i0"][0]), "QR003", "x[None]"),
        (lambda f: f.__setitem__("i0", f["i0"][..., :2]), "QR003", "uint8 [1,1,3,2]"),
    ],
)
def test_feeds_that_do_not_fit(change, code: str, words: str) -> None:
    model, feeds = conv_model()
    change(feeds)
    with pytest.raises(qrun.CallError) as caught:
        qrun.Session(model).run(feeds)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_a_symbol_has_one_value() -> None:
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    model = make_model(
        [node], {n: typed(TensorProto.UINT8, ["N", "N"]) for n in ("a", "b")}, {"y": typed(TensorProto.INT32)}, opset=10
    )
    session = qrun.Session(model)
    assert session.run({"a": np.ones((2, 2), np.uint8), "b": np.ones((2, 2), np.uint8)})["y"].tolist() == [[2, 2]] * 2
    with pytest.raises(qrun.CallError, match="N = 2 as in a"):
        session.run({"a": np.ones((2, 2), np.uint8), "b": np.ones((3, 3), np.uint8)})


def test_an_unsupported_operator_names_all_of_them() -> None:
    nodes = [
        helper.make_node(op, ["x"], [f"y{i}"], domain=MS if op == "AttnLSTM" else "")
        for i, op in enumerate(["Frobnicate", "AttnLSTM", "Frobnicate"])
    ]
    model = make_model(nodes, {"x": [2]}, {f"y{i}": typed(TensorProto.INT64) for i in range(3)})
    with pytest.raises(qrun.UnsupportedError) as caught:
        qrun.Session(model)
    text = str(caught.value)
    assert caught.value.exit_code == 4
    assert "cannot run 2 operators" in text
    assert "Frobnicate              2 nodes, first Frobnicate_0" in text
    assert "com.microsoft::AttnLSTM 1 node, first AttnLSTM_1" in text


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"group": 2.5}, "expected an int"),
        ({"strides": [1]}, "2 numbers of at least 1"),
        ({"strides": [0, 1]}, "2 numbers of at least 1"),
        ({"pads": [-1, 0, 0, 0]}, "4 numbers of at least 0"),
        ({"pads": [0, 0, 0, 0], "auto_pad": "SAME_UPPER"}, "cannot be used simultaneously"),
        ({"auto_pad": "ROUND"}, "NOTSET, SAME_UPPER, SAME_LOWER or VALID"),
        ({"dilations": [3, 1]}, "larger than the padded input"),
        ({"kernel_shape": [3, 3]}, "kernel_shape differs from w"),
        ({"group": 2}, "channels do not fit the groups"),
        ({"unheard": 1}, "no attribute 'unheard'"),
    ],
)
def test_a_refusal_names_node_and_facts(attributes: dict[str, object], words: str) -> None:
    model, feeds = conv_model(**attributes)
    with pytest.raises(qrun.RunError) as caught:
        qrun.Session(model).run(feeds)
    text = str(caught.value)
    assert words in text
    assert "node 0 n (ConvInteger-10)" in text


def test_types_are_checked_against_the_operator() -> None:
    model, feeds = node_model(
        "ConvInteger", [np.zeros((1, 1, 1), np.int16), np.ones((1, 1, 1), np.uint8)], opset=10, outputs=[np.int32]
    )
    with pytest.raises(qrun.OperatorError) as caught:
        qrun.Session(model).run(feeds)
    assert caught.value.code == "QR203"
    assert "tensor i0 (input 0, x)" in str(caught.value)
    assert "expected int8, uint8" in str(caught.value)


@pytest.mark.parametrize("option", [{"backend": "gpu"}, {"arith": "fast"}])
def test_unknown_options(option: dict[str, str]) -> None:
    with pytest.raises(qrun.CallError, match="does not exist"):
        qrun.Session(conv_model()[0], **option)


def test_events_describe_every_node() -> None:
    model, feeds = conv_model()
    result = qrun.Session(model).execute(feeds)
    (event,) = result.events
    assert event.macs == 4 * 4
    assert event.duration_ns > 0
    assert [(t.name, t.dtype, t.shape) for t in event.outputs] == [("y0", np.dtype(np.int32), (1, 1, 2, 2))]
    assert result.peak_bytes >= 9 + 4 + 16


def test_profile_counts_runs() -> None:
    model, feeds = conv_model()
    profile = qrun.Session(model).profile(feeds, runs=7, warmup=2)
    assert profile.node_ns.shape == (1, 7)
    assert (len(profile.run_ns), len(profile.warmup_ns)) == (7, 2)


def test_inputs_are_never_written() -> None:
    model, feeds = conv_model()
    for array in feeds.values():
        array.flags.writeable = False
    qrun.Session(model).run(feeds)


def test_a_session_is_safe_to_share_between_threads() -> None:
    session = qrun.Session(conv_model()[0])
    feeds = [{"i0": np.full((1, 1, 3, 3), k, np.uint8), "i1": np.ones((1, 1, 2, 2), np.uint8)} for k in range(64)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda f: session.run(f)["y0"], feeds))
    assert [int(r[0, 0, 0, 0]) for r in results] == [4 * k for k in range(64)]


def test_every_error_derives_from_qrun_error() -> None:
    for kind in (qrun.CallError, qrun.ModelError, qrun.UnsupportedError, qrun.RunError, qrun.OperatorError):
        assert issubclass(kind, qrun.QrunError)
    assert [k.exit_code for k in (qrun.CallError, qrun.ModelError, qrun.UnsupportedError, qrun.RunError)] == [
        2,
        3,
        4,
        5,
    ]


def test_public_names_exist() -> None:
    for name in qrun.__all__:
        assert getattr(qrun, name) is not None


@pytest.mark.parametrize(
    "call",
    [
        lambda s, f: s.run(np.zeros(3)),
        lambda s, f: s.run(None, None),
        lambda s, f: s.run(),
        lambda s, f: s.run(output_names=["y0"]),
        lambda s, f: s.run_observed(None),
        lambda s, f: s.watch(None, print),
        lambda s, f: s.profile(f, runs=0),
        lambda s, f: qrun.Session(None),
        lambda s, f: qrun.Session(s.model, max_memory="1KB"),
    ],
)
def test_wrong_arguments_are_call_errors(call) -> None:
    model, feeds = conv_model()
    with pytest.raises(qrun.CallError, match=r"is not valid|must be a dict"):
        call(qrun.Session(model), feeds)


def test_one_output_may_be_named_alone() -> None:
    model, feeds = conv_model()
    assert list(qrun.Session(model).run(feeds, "y0")) == ["y0"]


def test_calls_of_onnxruntime_work() -> None:
    model, feeds = conv_model()
    session = qrun.Session(model)
    want = session.run(feeds)["y0"]
    calls = [
        session.run(None, feeds),
        session.run(["y0"], feeds),
        session.run(input_feed=feeds),
        session.run(output_names=None, input_feed=feeds),
        session.run(output_names=["y0"], input_feed=feeds, run_options=None),
    ]
    for (got,) in calls:
        np.testing.assert_array_equal(got, want)


def test_errors_cross_process_borders() -> None:
    model, feeds = conv_model(group=2)
    with pytest.raises(qrun.OperatorError) as caught:
        qrun.Session(model).run(feeds)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert (type(again), again.exit_code, again.param) == (qrun.OperatorError, 5, caught.value.param)


def test_a_zero_point_of_another_type_has_the_rules_code() -> None:
    x, w = np.ones((1, 1, 1), np.uint8), np.ones((1, 1, 1), np.uint8)
    model, feeds = node_model("ConvInteger", [x, w, np.int8(0)], opset=10, outputs=[np.int32])
    with pytest.raises(qrun.OperatorError) as caught:
        qrun.Session(model).run(feeds)
    assert caught.value.code == "QR303"


def test_every_error_ends_with_something_to_type() -> None:
    model, feeds = conv_model(grop=2)
    with pytest.raises(qrun.OperatorError, match=r"did you mean group\?"):
        qrun.Session(model).run(feeds)
    assert qrun.RunError("QR210", "it failed").fixes == ("qrun explain QR210",)


def test_an_output_has_the_declared_type() -> None:
    model, feeds = conv_model()
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    with pytest.raises(qrun.RunError, match="'y0' is int32, but the graph declares int8"):
        qrun.Session(model).run(feeds)


def test_surplus_outputs_are_refused_before_the_run() -> None:
    model, _ = conv_model()
    model.graph.node[0].output.append("more")
    with pytest.raises(qrun.OperatorError, match="has 2 outputs") as caught:
        qrun.Session(model)
    assert caught.value.code == "QR205"


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_of_nothing_is_nothing(auto_pad: str) -> None:
    x, w = np.zeros((1, 1, 0, 4), np.uint8), np.ones((2, 1, 3, 3), np.uint8)
    attributes = {"auto_pad": auto_pad, "strides": [2, 2]}
    model, feeds = node_model("ConvInteger", [x, w], attributes, opset=10, outputs=[np.int32])
    assert qrun.Session(model).run(feeds)["y0"].shape == (1, 2, 0, 2)


@pytest.mark.parametrize("element", ["DOUBLE", "FLOAT", "INT64"])
def test_inputs_of_another_type_are_refused(element: str) -> None:
    number = getattr(TensorProto, element)
    identity = helper.make_node("Identity", ["x"], ["y"])
    model = make_model([identity], {"x": typed(number, [2])}, {"y": typed(number, [2])}, opset=17)
    session = qrun.Session(model)
    dtype = helper.tensor_dtype_to_np_dtype(number)
    assert session.run({"x": np.ones(2, dtype)})["y"].dtype == dtype
    for other in (np.float32, np.float64, np.int8, np.int64, np.bool_):
        if other != dtype:
            with pytest.raises(qrun.errors.CallError, match="QR003"):
                session.run({"x": np.ones(2, other)})


def test_an_output_of_another_type_than_the_graph_declares_is_refused() -> None:
    model = make_model(
        [helper.make_node("Neg", ["x"], ["y"])], {"x": [2]}, {"y": typed(TensorProto.DOUBLE, [2])}, opset=17
    )
    with pytest.raises(qrun.errors.RunError, match="QR203"):
        qrun.Session(model).run({"x": np.ones(2, np.float32)})


@pytest.mark.parametrize("op", ["Identity", "ConstantOfShape"])
@pytest.mark.parametrize("backend", ["reference", "native"])
def test_the_node_of_such_an_output_is_named_as_the_file_has_it(op: str, backend: str) -> None:
    """Also where the graph that runs has a constant, or another node, in its place."""
    nodes = [helper.make_node(op, ["x" if op == "Identity" else "n"], ["y"], name="last")]
    model = make_model(nodes, {"x": [2]}, {"y": typed(TensorProto.DOUBLE, [2])}, {"n": np.array([2])}, opset=14)
    with pytest.raises(qrun.errors.RunError, match=rf"node 0 last \({op}-(14|9)\)"):
        qrun.Session(model, backend=backend).run({"x": np.ones(2, np.float32)})


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_outputs_are_in_c_order(backend: str) -> None:
    """Also those of a first run that goes step by step, behind a node without a native kernel, and of the reference."""
    nodes = [
        helper.make_node("Det", ["q"], ["d"]),
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Mul", ["c", "d"], ["y"]),
        helper.make_node("Transpose", ["y"], ["t"], perm=[0, 2, 3, 1]),
    ]
    weights = {"w": np.ones((5, 3, 1, 1), np.float32)}
    model = make_model(nodes, {"x": [1, 3, 4, 6], "q": [2, 2]}, "c t", weights, opset=17)
    feeds = {"x": np.ones((1, 3, 4, 6), np.float32), "q": np.eye(2, dtype=np.float32)}
    session = qrun.Session(model, backend=backend)
    for _ in range(3):
        for name, array in session.run(feeds).items():
            assert array.flags.c_contiguous, name
            assert array.flags.writeable


def test_observed_keeps_the_program_and_gives_what_run_gives() -> None:
    session = qrun.Session(ROOT / "models/digits/qoperator/model.onnx")
    feeds = {session.inputs[0].name: np.load(ROOT / "models/digits/x.npy")}
    results = [session.run_observed(feeds) for _ in range(3)]
    wanted = session.run(feeds)
    for result in results:
        for name, array in wanted.items():
            assert np.array_equal(result.outputs[name], array)
        assert len(result.events) == len(results[0].events)


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda s, f: s.run({1: f["i0"]}), "QR002", "the model has no input 1"),
        (lambda s, f: s.run({None: f["i0"]}), "QR002", "the model has no input None"),
        (lambda s, f: s.run(f, [1]), "QR005", "outputs is not valid"),
        (lambda s, f: s.run(f, 1), "QR005", "outputs is not valid"),
        (lambda s, f: s.run(f, [["y0"]]), "QR005", "outputs is not valid"),
        (lambda s, f: s.execute(f, [1]), "QR005", "outputs is not valid"),
        (lambda s, f: s.run([f["i0"]], [f["i0"]]), "QR005", "session.run({'i0': array, 'i1': array})"),
        (lambda s, f: s.profile(f, runs="3"), "QR005", "runs is not valid"),
        (lambda s, f: s.profile(f, warmup=-1), "QR005", "warmup is not valid"),
        (lambda s, f: s.profile(f, seconds="1"), "QR005", "seconds is not valid"),
        (lambda s, f: qrun.Session(s.model, cache=1), "QR005", "cache is not valid"),
        (lambda s, f: qrun.Session(s.model, cache=""), "QR005", "cache is not valid"),
        (lambda s, f: qrun.Session(s.model, cache=None), "QR005", "cache is not valid"),
        (lambda s, f: qrun.load(1), "QR005", "not a model"),
        (lambda s, f: qrun.check(1), "QR005", "not a model"),
    ],
)
def test_calls_of_the_wrong_type_are_told(call, code: str, words: str) -> None:
    model, feeds = conv_model()
    with pytest.raises(qrun.CallError) as caught:
        call(qrun.Session(model), feeds)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_a_mask_is_not_lost_in_silence() -> None:
    """Neither in the first run nor later, when feeds of known forms are no longer looked at."""
    model, feeds = conv_model()
    session = qrun.Session(model)
    masked = {**feeds, "i0": np.ma.masked_equal(feeds["i0"], 4)}
    whole = {**feeds, "i0": np.ma.masked_array(feeds["i0"])}
    for _ in range(4):
        with pytest.raises(qrun.CallError, match="1 of its 9 elements are masked"):
            session.run(masked)
        assert session.run(whole)["y0"].tolist() == session.run(feeds)["y0"].tolist()


def test_a_closed_session_says_so() -> None:
    model, feeds = conv_model()
    with qrun.Session(model, threads=2) as session:
        session.run(feeds)
    for call in (session.run, session.execute, session.values, session.profile):
        with pytest.raises(qrun.CallError, match="this session is closed"):
            call(feeds)
    session.close()
    assert [value.name for value in session.inputs] == ["i0", "i1"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
@pytest.mark.parametrize("drop", ["del", "close"])
def test_a_session_that_ends_keeps_no_thread_and_no_file(drop: str, tmp_path: Path) -> None:
    """At once, not when Python next collects circles of objects; files only where the session is closed."""
    models = sorted((ROOT / "models").glob("*/*.onnx")) + sorted((ROOT / "models").glob("*/*/model.onnx"))

    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), sum(t.name == "qrun" for t in threading.enumerate() if t.is_alive())

    def use(path: Path) -> qrun.Session:
        session = qrun.Session(path, threads=2, cache=tmp_path)
        feeds = {v.name: np.zeros([d if isinstance(d, int) else 2 for d in v.shape], v.dtype) for v in session.inputs}
        for _ in range(3):
            session.run(feeds)
        return session

    chosen = models[:: len(models) // 8]
    for path in chosen * 2:  # what the process itself keeps, and what it finds kept
        use(path).close()
    before, closed = count(), []
    gc.disable()
    try:
        for path in chosen:
            session = use(path)
            if drop == "close":
                session.close()
                closed.append(session)
            del session
        end = time.monotonic() + 20
        while count()[1] > before[1] and time.monotonic() < end:
            time.sleep(0.01)  # threads end by themselves
        files, threads = count()
    finally:
        gc.enable()
    assert threads <= before[1]
    assert drop == "del" or files <= before[0] + len(closed)  # each still has its model, which may be mapped
