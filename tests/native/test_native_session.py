"""Sessions with native kernels: what runs natively and why not, reuse, threads, memory, and where it cannot work."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, OBJECTS
from helpers.placed import same_refusal
from helpers.support import MS, node_model
from onnx import helper

import qrun
from qrun.checking.rules import check
from qrun.checking.rules.values import SHARE
from qrun.ops._complete import ENDS_SHARE
from qrun.running import programs
from qrun.running.dispatch import VARIANTS

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def conv_inputs(**changes: Any) -> list[Any]:
    rng = np.random.default_rng(1)
    values = {
        "x": rng.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8), "x_scale": np.array(F(0.02)),
        "x_zero_point": np.array(3, np.uint8), "w": rng.integers(-99, 99, (8, 4, 3, 3)).astype(np.int8),
        "w_scale": np.array(F(0.01)), "w_zero_point": np.array(0, np.int8), "y_scale": np.array(F(0.4)),
        "y_zero_point": np.array(100, np.uint8), "B": np.arange(8, dtype=np.int32),
    } | changes  # fmt: skip
    return list(values.values())


def event_of(model: onnx.ModelProto, feeds: Any, **options: Any) -> qrun.NodeEvent:
    """The only node's event; the outputs equal the reference's."""
    want = qrun.Session(model, arith=options.get("arith", "exact"), backend="reference").execute(feeds)
    got = qrun.Session(model, backend="native", cache=OBJECTS, **options).execute(feeds)
    assert [(k, v.tobytes()) for k, v in got.outputs.items()] == [(k, v.tobytes()) for k, v in want.outputs.items()]
    assert check(qrun.load(model), got) == check(qrun.load(model), want)
    ours, theirs = (sorted({(o.kind, o.param, o.detail) for o in r.events[-1].observations if o.kind != "saturated"})
                    for r in (got, want))  # fmt: skip
    assert ours == theirs
    return got.events[-1]


def conv_model(constants: Any = range(1, 9), **changes: Any) -> Any:
    return node_model("QLinearConv", conv_inputs(**changes), constants=constants, outputs=[np.uint8])


@pytest.mark.parametrize("place", range(1, 9))
def test_parameters_that_may_change_are_left_to_the_reference(place: int) -> None:
    names = ["x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B"]
    event = event_of(*conv_model([p for p in range(1, 9) if p != place]))
    assert (event.backend, event.why, event.sections) == ("reference", f"{names[place - 1]} is not constant", ())


def test_a_native_node_tells_its_kernels() -> None:
    event = event_of(*conv_model())
    assert (event.backend, event.why) == ("native", "")
    assert [(s.form, s.first, s.channels) for s in event.sections] == [("y32", 0, 8)]


def one(op_type: str, inputs: list[Any], fixed: Any, **attributes: Any) -> tuple[Any, Any]:
    domain = MS if op_type == "QGemm" else ""
    y = np.int32 if op_type.endswith("Integer") else next(i.dtype for i in inputs[::-1] if i is not None)
    return node_model(op_type, inputs, attributes, domain=domain, outputs=[y], constants=fixed)


A, B = np.ones((2, 3), np.uint8), np.ones((3, 4), np.int8)
Z, S = np.zeros((), np.uint8), np.array(F(0.5))
BZ = np.zeros((), np.int8)


def test_each_arithmetic_is_that_of_the_session() -> None:
    a, b = np.arange(256, dtype=np.uint8)[:, None], np.array([[1, 3, 7, 127]], np.int8)
    differ = 0
    for y_scale in (6, 41, 82, 90, 92, 255, 1000):
        model, feeds = one(
            "QLinearMatMul", [a, S * 0 + F(1), Z, b, S * 0 + F(1.7), BZ, np.array(F(1.7 * y_scale)), Z], range(1, 8)
        )
        for arith in ("exact", "ort"):
            assert event_of(model, feeds, arith=arith).backend == "native"
        exact, ort = (qrun.Session(model, arith=arith).run(feeds)["y0"] for arith in ("exact", "ort"))
        differ += int(np.count_nonzero(exact != ort))
    assert differ


def test_onnx_ref_arithmetic_is_declined() -> None:
    event = event_of(*conv_model(), arith="onnx-ref")
    assert event.why == "no native kernels for onnx-ref arithmetic"
    model = one("MatMulInteger", [A, B], [1])
    assert event_of(*model, arith="onnx-ref").backend == "native"


def test_the_reference_session_names_no_reason() -> None:
    model, feeds = conv_model()
    (event,) = qrun.Session(model, backend="reference").execute(feeds).events
    assert (event.backend, event.why, event.sections) == ("reference", "", ())


def test_a_default_is_constant_until_it_is_replaced() -> None:
    model, feeds = conv_model()
    w = next(t for t in model.graph.initializer if t.name == "i3")
    model.graph.input.append(helper.make_tensor_value_info("i3", w.data_type, w.dims))
    session = qrun.Session(model, backend="native", cache=OBJECTS)
    (event,) = session.execute(feeds).events
    assert event.why == ""
    (event,) = session.execute({**feeds, "i3": onnx.numpy_helper.to_array(w)}).events
    assert event.why == "w is not constant"


def test_weights_from_a_constant_node_are_constant() -> None:
    w = onnx.numpy_helper.from_array(B, "w")
    nodes = [helper.make_node("Constant", [], ["b"], value=w), helper.make_node("MatMulInteger", ["a", "b"], ["y"])]
    model = make_model(nodes, {"a": A}, {"y": typed(np.int32)}, opset=17)
    assert event_of(model, {"a": A}).backend == "native"


CHECKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "saturated": {"y_scale": np.array(F(0.0004))},
    "few saturated": {"y_scale": np.array(F(0.05))},
    "wrap": {"B": np.full(8, 2**31 - 1, np.int32)},
    "nan scale": {"w_scale": np.array(F(np.nan))},
    "zero by zero": {"x_scale": np.array(F(0)), "y_scale": np.array(F(0))},
    "infinite": {"y_scale": np.array(F(0))},
    "negative": {"w_scale": np.array(F(-0.01))},
    "mixed": {"w_scale": np.full(8, 0.01, F)},
}


@pytest.mark.parametrize("arith", ["exact", "ort"])
@pytest.mark.parametrize("name", CHECKED)
def test_checks_find_what_the_reference_finds(name: str, arith: str) -> None:
    assert event_of(*conv_model(**CHECKED[name]), arith=arith).backend == "native"


def test_saturation_that_a_rule_reports_is_counted() -> None:
    assert 1 / ENDS_SHARE <= SHARE
    model, feeds = conv_model(**CHECKED["saturated"])
    session = qrun.Session(model, backend="native", cache=OBJECTS)
    assert "QR402" in {f.rule for f in check(session.model, session.execute(feeds))}


def test_refusals_are_those_of_the_reference() -> None:
    for change in ({"B": np.zeros(7, np.int32)}, {"w_scale": np.ones(3, F)}, {"w": np.ones((8, 5, 3, 3), np.int8)},
                   {"w_zero_point": np.zeros((), np.uint8)}, {"w": np.ones((8, 4, 9, 9), np.int8)}):  # fmt: skip
        model, feeds = conv_model(**change)
        same_refusal(model, feeds)


def open_model() -> onnx.ModelProto:
    """MatMulInteger of any number of rows."""
    model, _ = one("MatMulInteger", [A, B], [1])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return model


def test_no_program_of_too_many_nodes_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError

    monkeypatch.setattr("qrun.running.runs.KEPT_STEPS", 0)
    monkeypatch.setattr("qrun.running.runs.Runs._keep_observed", refuse)
    qrun.Session(open_model(), backend="native", cache=OBJECTS).run_observed({"i0": A})


def test_kernels_are_reused_and_bounded() -> None:
    session = qrun.Session(open_model(), backend="native", cache=OBJECTS)
    assert session.execute({"i0": A}).aside_ns > 0
    natives = session._runs.prepare((), False).natives
    assert natives is not None
    (made,) = natives._bound[0].values()
    session.execute({"i0": A}, ["y0"])
    (kept,) = natives._bound[0].values()
    assert kept is made
    for rows in (*range(VARIANTS + 3), 2):
        a = np.full((rows, 3), rows, np.uint8)
        assert np.array_equal(session.run({"i0": a})["y0"], a.astype(np.int32) @ B)
        assert len(natives._bound[0]) <= VARIANTS


def test_nodes_whose_attributes_are_zeros_of_other_signs_are_not_alike() -> None:
    nodes = [helper.make_node("Clip", ["x"], [f"y{n}"], min=zero) for n, zero in enumerate((0.0, -0.0))]
    feeds = {"x": np.array([-1, -0.0, 2], F)}
    model = make_model(nodes, feeds, "y0 y1", opset=10)
    event_of(model, feeds)
    made = qrun.Session(model, backend="native", cache=OBJECTS).run(feeds)
    assert [np.signbit(y).tolist() for y in made.values()] == [[False, True, False], [True, True, False]]


def test_nodes_whose_constants_differ_in_values_share_a_kernel_that_does_not_look_at_them() -> None:
    constants = [np.array([1, 2, 3], F), np.array([4, 5, -0.0], F), np.array([[7], [8]], F)]
    nodes = [helper.make_node("Add", ["x", f"c{n}"], [f"y{n}"]) for n in range(3)]
    given = np.arange(6, dtype=F).reshape(2, 3)
    model = make_model(nodes, {"x": given}, "y0 y1 y2", {f"c{n}": c for n, c in enumerate(constants)}, opset=14)
    session = qrun.Session(model, backend="native", cache=OBJECTS)
    for _ in range(3):
        made = session.run({"x": given})
        assert [y.tolist() for y in made.values()] == [(given + c).tolist() for c in constants]
    natives = session._runs.prepare((), False).natives
    assert natives is not None
    first, second, other = (next(iter(natives._bound[n].values())) for n in range(3))
    assert first is second
    assert first is not other


def test_programs_are_kept_by_use_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    session = qrun.Session(open_model(), backend="native", cache=OBJECTS)

    def run(rows: int) -> None:
        a = np.full((rows, 3), rows % 256, np.uint8)
        assert np.array_equal(session.run({"i0": a})["y0"], a.astype(np.int32) @ B)

    def kept() -> list[int]:
        found = session._runs.prepare((), False).programs
        assert found is not None
        return [key[1][0][1][0] for key, made in found._made.items() if made]

    def once() -> list[int]:
        found = session._runs.prepare((), False).programs
        assert found is not None
        return [key[1][0][1][0] for key in found._ahead]

    monkeypatch.setattr(programs, "KEPT", 3)
    for rows in (1, 1, 2, 2, 3, 3, 1, 4, 4):
        run(rows)
    assert kept() == [3, 1, 4], "the one that was used longest ago goes"
    for rows in (7, 8, 9, 10):
        run(rows)
    assert kept() == [3, 1, 4], "what ran once displaces nothing that came again"
    assert once() == [7, 8, 9, 10]
    run(11)
    assert once() == [7, 8, 9, 10], "as none came again, no more are made ahead"
    run(9)
    assert kept() == [1, 4, 9], "the second run takes the program of the first"
    run(12)
    assert once() == [7, 8, 10, 12]
    run(11)
    assert kept() == [4, 9, 11]
    monkeypatch.setattr(programs, "KEPT_BYTES", 0)
    for rows in (5, 5, 6, 6):
        run(rows)
    assert kept() == [6]


def test_further_shapes_run_as_programs_at_once() -> None:
    """Once some have come again; what only computing tells, as here how many codes are not 0, is not tried for each."""
    lengths = helper.make_node("NonZero", ["i0"], ["z"])
    for model, foretold in ((open_model(), True), (open_model(), False)):
        if not foretold:
            model.graph.node.append(lengths)
            model.graph.output.append(helper.make_value_info("z", onnx.TypeProto()))
        session, reference = qrun.Session(model, backend="native"), qrun.Session(model, backend="reference")
        for rows, made in ((1, []), (1, [1]), (3, [1]), (4, [1]), (4, [1, 4]), (3, [1, 4, 3])):
            a = np.full((rows, 3), rows, np.uint8)
            got = session.run({"i0": a})
            for name, array in reference.run({"i0": a}).items():
                np.testing.assert_array_equal(got[name], array)
            found = session._runs.prepare((), False).programs
            assert found is not None
            assert [key[1][0][1][0] for key, program in found._made.items() if program] == made
        assert found.foretold == foretold


def test_a_session_is_safe_to_share_between_threads() -> None:
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 256, (n, 4, 6, 6)).astype(np.uint8) for n in (1, 2, 3) for _ in range(20)]
    model, _ = conv_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    reference = qrun.Session(model, backend="reference")
    wanted = [reference.run({"i0": x})["y0"] for x in images]
    for threads in (1, 2):
        session = qrun.Session(model, backend="native", threads=threads, cache=OBJECTS)
        with ThreadPoolExecutor(6) as pool:
            for _ in range(3):
                results = list(pool.map(session.run, [{"i0": x} for x in images]))
                assert all(np.array_equal(a["y0"], b) for a, b in zip(results, wanted, strict=True))


def test_memory_is_claimed_before_each_run() -> None:
    session = qrun.Session(open_model(), backend="native", cache=OBJECTS, max_memory=10**7)
    session.run({"i0": A})
    session.max_memory = 40
    with pytest.raises(qrun.MemoryLimitError):
        session.run({"i0": A})


def test_tables_that_need_too_much_memory_are_left_to_the_reference() -> None:
    model, feeds = one("ConvInteger", [np.ones((1, 1, 150, 150), np.uint8), np.ones((1, 1, 3, 3), np.int8)], [1])
    session = qrun.Session(model, backend="native", cache=OBJECTS, max_memory=3 * 10**6)
    (event,) = session.execute(feeds).events
    assert event.why == "its tables need more memory than is allowed"


def test_inputs_are_never_written() -> None:
    model, feeds = conv_model()
    feeds["i0"].flags.writeable = False
    qrun.Session(model, backend="native", cache=OBJECTS).run(feeds)


def test_compiled_kernels_are_kept_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = conv_model()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    qrun.Session(model, backend="native", cache=False).run(feeds)
    assert not (tmp_path / "home").exists()
    qrun.Session(model, backend="native", cache=tmp_path / "own").run(feeds)
    assert len(list((tmp_path / "own").iterdir())) == 1
    qrun.Session(model, backend="native").run(feeds)
    assert len(list((tmp_path / "home/qrun/kernels").iterdir())) == 1


def test_the_environment_names_cache_and_instruction_set_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, feeds = conv_model()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("QRUN_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("QRUN_ISA", ISAS[-1])
    event = qrun.Session(model, backend="native").execute(feeds).events[-1]
    assert all(f"-{ISAS[-1]}-" in kernel.kernel for kernel in event.sections)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert not (tmp_path / "home").exists()
    qrun.Session(model, backend="native", cache=tmp_path / "own").run(feeds)
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(qrun.CallError, match="'sse9' cannot be used here") as refused:
        qrun.Session(open_model(), backend="native", isa="sse9")
    assert refused.value.fixes == ("omit isa=",)


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_threads_are_counted(threads: Any) -> None:
    with pytest.raises(qrun.CallError, match="threads is not valid"):
        qrun.Session(open_model(), backend="native", threads=threads)


def test_without_llvmlite_native_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.delitem(sys.modules, "llvmlite.binding", raising=False)
    with pytest.raises(qrun.UnsupportedError, match="needs llvmlite") as caught:
        qrun.Session(open_model(), backend="native")
    assert (caught.value.code, caught.value.exit_code) == ("QR014", 4)
    qrun.Session(open_model()).run({"i0": A})


def test_without_kernels_for_the_machine_native_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(qrun.UnsupportedError, match="no kernels for this machine") as caught:
        qrun.Session(open_model(), backend="native")
    assert "no native kernels for riscv64" in str(caught.value)
