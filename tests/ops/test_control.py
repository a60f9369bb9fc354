"""If, Loop and Scan: bodies with names from outside, nested, quantized, of changing shapes;
on all backends and onnxruntime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.cli import call
from helpers.placed import same_everywhere
from helpers.support import assert_equal, run_ort

import qrun
from qrun.errors import MemoryLimitError, QrunError

F32, I64 = np.float32, np.int64
HEAD = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
X = np.arange(6, dtype=F32).reshape(2, 3) - 2


def model(text: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(HEAD + text)
    onnx.checker.check_model(made)
    return made


CHOICE = """main (float[2,3] x, bool c) => (float[2,3] y, float[N] z)
<float[3] w = {1, 2, 3}>
{
    d = Mul(x, w)
    y, z = If(c) <
        then_branch = a () => (float[2,3] ay, float[N] az) { ay = Add(d, w)  az = Identity(w) },
        else_branch = b () => (float[2,3] by, float[N] bz)
            <float[2] k = {5, 6}> { t = Neg(d)  by = Relu(t)  bz = Identity(k) }
    >
}"""
GROWING = """main (float[2,3] x, int64 n) => (float[M,3] y, float[K,2,3] s)
{
    y, s = Loop(n, , x) <body = b (int64 i, bool c, float[M,3] v) => (bool o, float[L,3] u, float[2,3] e)
        <float two = {2}>
        {
            o = Identity(c)
            u = Concat<axis = 0>(v, x)
            f = Cast<to = 1>(i)
            g = Mul(f, two)
            e = Add(x, g)
        }>
}"""
WHILE = """main (float[2,3] x, float limit) => (float[2,3] y)
{
    yes = Constant<value = bool {1}>()
    y = Loop( , yes, x) <body = b (int64 i, bool c, float[2,3] v) => (bool o, float[2,3] u)
        <float two = {2}>
        {
            u = Mul(v, two)
            m = ReduceMax<keepdims = 0>(u)
            o = Less(m, limit)
        }>
}"""
NESTED = """main (float[2,3] x, int64 n, bool c) => (float[2,3] y)
<float[3] w = {1, -2, 3}>
{
    y = Loop(n, , x) <body = b (int64 i, bool c0, float[2,3] v) => (bool o, float[2,3] u)
        {
            o = Identity(c0)
            u = If(c) <
                then_branch = t () => (float[2,3] ty) {
                    ty = Loop(n, c0, v) <body = inner (int64 j, bool c1, float[2,3] q) => (bool p, float[2,3] r) {
                        p = Identity(c1)
                        a = Add(q, w)
                        b2 = Add(a, x)
                        r = Mul(b2, v)
                    }>
                },
                else_branch = e () => (float[2,3] ey) { ey = Sub(v, w) }
            >
        }>
}"""
CELL = """main (float[4,2,3] x, float[2,3] h) => (float[2,3] last, float[2,4,3] y)
<float[3,3] r = {0.1, 0.2, 0.3, -0.4, 0.5, -0.6, 0.7, 0.8, -0.9}>
{
    last, y = Scan<num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1], scan_output_directions = [1],
        body = b (float[2,3] s, float[2,3] e) => (float[2,3] t, float[2,3] o) {
            p = MatMul(s, r)
            q = Add(p, e)
            t = Relu(q)
            o = Identity(t)
        }>(h, x)
}"""
QUANTIZED = """main (float[2,3] x, bool c) => (float[2,2] y)
<float s = {0.5}, uint8 z = {3}, int8[3,2] w = {1, -2, 3, 4, -5, 6}, int8 wz = {0}, float ws = {0.25}>
{
    q = QuantizeLinear(x, s, z)
    y = If(c) <
        then_branch = a () => (float[2,2] ay) {
            p = QLinearMatMul(q, s, z, w, ws, wz, s, z)
            ay = DequantizeLinear(p, s, z)
        },
        else_branch = b () => (float[2,2] by) {
            d = DequantizeLinear(q, s, z)
            f = DequantizeLinear(w, ws, wz)
            by = MatMul(d, f)
        }
    >
}"""
N = np.array
CASES: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "then": (CHOICE, {"x": X, "c": N(True)}),
    "else": (CHOICE, {"x": X, "c": N(False)}),
    "growing": (GROWING, {"x": X, "n": N(3, I64)}),
    "not once": (GROWING, {"x": X, "n": N(0, I64)}),
    "while": (WHILE, {"x": X, "limit": N(500, F32)}),
    "nested": (NESTED, {"x": X, "n": N(2, I64), "c": N(True)}),
    "nested else": (NESTED, {"x": X, "n": N(2, I64), "c": N(False)}),
    "scan": (CELL, {"x": np.linspace(-2, 2, 24, dtype=F32).reshape(4, 2, 3), "h": X * F32(0.1)}),
    "quantized": (QUANTIZED, {"x": X, "c": N(True)}),
    "dequantized": (QUANTIZED, {"x": X, "c": N(False)}),
}


@pytest.mark.parametrize("name", CASES)
def test_all_backends_and_onnxruntime(name: str) -> None:
    text, feeds = CASES[name]
    made = model(text)
    result = same_everywhere(made, feeds)
    for got, want in zip(result.outputs.values(), run_ort(made, feeds), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_numbers_by_hand() -> None:
    y, s = qrun.Session(model(GROWING)).run({"x": X, "n": N(2, I64)}).values()
    assert_equal(y, np.concatenate([X, X, X]))
    assert_equal(s, np.stack([X, X + 2]))
    (y,) = qrun.Session(model(WHILE)).run({"x": X, "limit": N(20, F32)}).values()
    assert_equal(y, X * 8)


def test_the_same_session_with_other_conditions_and_counts() -> None:
    """Shapes stay, values change: a program must not keep what a condition chose."""
    session = qrun.Session(model(CHOICE))
    for c in (True, True, False, False, True):
        y, z = session.run({"x": X, "c": N(c)}).values()
        w = np.array([1, 2, 3], F32)
        assert_equal(y, X * w + w if c else np.maximum(-(X * w), F32(0)) + F32(0))
        assert len(z) == (3 if c else 2)
    session = qrun.Session(model(GROWING))
    for n in (1, 1, 3, 0, 2):
        assert session.run({"x": X, "n": N(n, I64)})["y"].shape == (2 * n + 2, 3)


def test_scans_of_a_batch() -> None:
    text = """main (int64[2] lens, float[2,3] h, float[2,4,3] x) => (float[2,3] last, float[2,4,3] y)
    { last, y = Scan<num_scan_inputs = 1, directions = [1],
        body = b (float[3] s, float[3] e) => (float[3] t, float[3] o) { t = Add(s, e)  o = Mul(t, e) }>(lens, h, x) }"""
    made = onnx.parser.parse_model(HEAD.replace('"" : 17', '"" : 8') + text)
    x = np.arange(24, dtype=F32).reshape(2, 4, 3)
    feeds = {"lens": N([4, 2], I64), "h": np.ones((2, 3), F32), "x": x}
    last, y = same_everywhere(made, feeds).outputs.values()
    assert_equal(last, np.stack([1 + x[0].sum(0), 1 + x[1, :2].sum(0)]).astype(F32))
    assert_equal(y[1, 0], (1 + x[1, 1]) * x[1, 1])
    assert not y[1, 2:].any()


def test_weights_taken_from_outside_are_constants_of_the_body() -> None:
    """So that the nodes inside are native."""
    session = qrun.Session(model(QUANTIZED), backend="native")
    session.execute({"x": X, "c": N(True)})
    natives = next(p.natives for p in session._runs.plans.values() if p.natives)
    (inside,) = natives._inside.values()
    assert [bound.kernel is not None for kept in inside._bound.values() for bound in kept.values()] == [True, True]


def test_inputs_of_graphs_that_have_initializers_are_constants() -> None:
    """As exporters listed them until IR version 4."""
    for made, feeds in ((model(WHILE), {"x": X + 3, "limit": N(50, F32)}), (model(CHOICE), {"x": X, "c": N(False)})):
        want = qrun.Session(made).run(feeds)
        listed = 0
        for attribute in made.graph.node[-1].attribute:
            for stored in attribute.g.initializer:
                listed += 1
                attribute.g.input.append(onnx.helper.make_tensor_value_info(stored.name, stored.data_type, stored.dims))
        assert listed
        same_everywhere(made, feeds)
        for got, other in zip(qrun.Session(made).run(feeds).values(), run_ort(made, feeds), strict=True):
            assert_equal(got, other, signed_zeros=False)
        assert_equal(qrun.Session(made).run(feeds)["y"], want["y"])


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_memory_is_counted_inside(backend: str) -> None:
    text = """main (float[N] x) => (float[M] y)
    { y = Loop( , , x) <body = b (int64 i, bool c, float[K] v) => (bool o, float[L] u)
        { o = Identity(c)  u = Concat<axis = 0>(v, v) }> }"""
    stacked = """main (float[N] x) => (float[K,N] y)
    { y = Loop( , ) <body = b (int64 i, bool c) => (bool o, float[N] u) { o = Identity(c)  u = Neg(x) }> }"""
    for source in (text, stacked):
        session = qrun.Session(onnx.parser.parse_model(HEAD + source), backend=backend, max_memory=10 << 20)
        for _ in range(2):
            with pytest.raises(MemoryLimitError) as caught:
                session.run({"x": np.ones(1000, F32)})
            assert "Loop" in str(caught.value.where)
    session = qrun.Session(model(GROWING), backend=backend)
    result = session.execute({"x": X, "n": N(50, I64)})
    assert result.peak_bytes < 3 * sum(a.nbytes for a in result.outputs.values())


def refused(text: str, feeds: dict[str, Any]) -> QrunError:
    with pytest.raises(QrunError) as caught:
        qrun.Session(onnx.parser.parse_model(HEAD + text)).run(feeds)
    return caught.value


def test_refusals_name_the_place_inside() -> None:
    inside = CHOICE.replace("t = Neg(d)  by = Relu(t)", "t = Reshape(d, d)  by = Relu(t)")
    error = refused(inside, {"x": X, "c": N(False)})
    assert error.where[0].endswith(": If_1/else_branch")
    assert error.where[1].startswith("node 0 Reshape_0")
    many = CHOICE.replace("bool c)", "bool[2] c)")
    assert refused(many, {"x": X, "c": N([True, False])}).code == "QR208"
    other = GROWING.replace("e = Add(x, g)", "e = Identity(u)").replace("float[2,3] e)", "float[J,3] e)")
    assert "another shape" in refused(other, {"x": X, "n": N(2, I64)}).message
    few = GROWING.replace("float[M,3] v)", "float[M,3] v, float v2)")
    assert "takes 4 inputs" in refused(few, {"x": X, "n": N(2, I64)}).message
    scans = CELL.replace("num_scan_inputs = 1", "num_scan_inputs = 5")
    assert refused(scans, {"x": np.zeros((4, 2, 3), F32), "h": X}).code == "QR204"
    turned = CELL.replace("scan_input_directions = [1]", "scan_input_directions = [2]")
    assert "0 or 1" in str(refused(turned, {"x": np.zeros((4, 2, 3), F32), "h": X}).facts)


@pytest.mark.parametrize("n", [0, 2])
def test_graphs_that_do_not_fit_their_node_are_refused_also_where_they_do_not_run(n: int) -> None:
    def looped(takes: str, makes: str, outputs: str = "y") -> QrunError:
        body = f"b (int64 i{takes}) => (bool o{makes})"
        nodes = "o = Less(i, n)  u = Neg(x)  e = Abs(x)"
        text = f"main (float[2,3] x, int64 n) => (float[2,3] y) {{ {outputs} = Loop(n, , x) <body = {body} {{ {nodes} }}> }}"
        return refused(text, {"x": X, "n": N(n, I64)})

    v, u, e = ", bool c, float[2,3] v", ", float[2,3] u", ", float[2,3] e"
    for error, words in (
        (looped("", u), "body takes 1 inputs"),
        (looped(v, ""), "body makes 1 outputs"),
        (looped(v, u, "y, z"), "body makes 2 outputs"),
        (looped(v, u + e, "y, z, t"), "body makes 3 outputs"),
    ):
        assert (error.code, error.message) == ("QR205", words)
    cell = CELL.replace("(h, x)", "(h, x, x)").replace("float[4,2,3]", "float[S,2,3]")
    assert refused(cell, {"x": np.zeros((n, 2, 3), F32), "h": X}).message == "body takes 2 inputs"


def test_values_that_are_left_out_are_refused() -> None:
    rows = np.zeros((4, 2, 3), F32)
    for text, feeds, name in (
        (GROWING.replace("Loop(n, , x)", "Loop(n, , h0)"), {"x": X, "n": N(1, I64)}, "v_initial"),
        (CELL.replace("(h, x)", "(h0, x)"), {"x": rows, "h": X}, "initial_state_and_scan_inputs"),
    ):
        made = onnx.parser.parse_model(HEAD + text)
        for node in made.graph.node:
            node.input[:] = ["" if name == "h0" else name for name in node.input]
        with pytest.raises(QrunError, match=f"{name}.0. is missing") as caught:
            qrun.Session(made).run(feeds)
        assert caught.value.code == "QR205"


def test_a_condition_is_a_bool() -> None:
    text = WHILE.replace("o = Less(m, limit)", "p = Less(m, limit)  o = Cast<to = 7>(p)").replace("(bool o", "(int64 o")
    error = refused(text, {"x": X, "limit": N(20, F32)})
    assert (error.code, error.message) == ("QR203", "the condition that body makes is int64")


BATCHED = """main (float[B,S,3] x, float[B,3] h, int64[B] n) => (float[B,3] y, float[B,S,3] z)
{
    y, z = Scan<num_scan_inputs = 1, body = b (float[3] v, float[3] e) => (float[3] u, float[3] w) {
        u = Add(v, e)
        w = Neg(u)
    }>(n, h, x)
}"""


def test_scan_8_refuses_batches_that_do_not_fit_and_takes_none() -> None:
    def run(x: tuple[int, ...], h: tuple[int, ...], text: str = BATCHED) -> list[tuple[int, ...]]:
        made = onnx.parser.parse_model(HEAD.replace(": 17", ": 8") + text)
        feeds = {"x": np.ones(x, F32), "h": np.ones(h, F32), "n": np.arange(x[0])}
        return [array.shape for array in qrun.Session(made).run(feeds).values()]

    assert run((2, 4, 3), (2, 3)) == [(2, 3), (2, 4, 3)]
    assert run((0, 4, 3), (0, 3)) == [(0, 3), (0, 4, 3)]
    with pytest.raises(QrunError, match="other batches"):
        run((2, 4, 3), (1, 3), BATCHED.replace("float[B,3] h", "float[C,3] h"))
    with pytest.raises(QrunError, match="no batch"):
        run((2, 4, 3), (), BATCHED.replace("float[B,3] h", "float h"))
    both = BATCHED.replace("num_scan_inputs = 1", "num_scan_inputs = 2").replace("float[B,3] h", "float[B,T,3] h")
    with pytest.raises(QrunError, match="other batches or sequences"):
        run((2, 4, 3), (2, 3, 3), both)
    growing = BATCHED.replace("u = Add(v, e)", "u = Concat<axis = 0>(v, e)").replace("w = Neg(u)", "w = Neg(e)")
    with pytest.raises(QrunError, match="element 1 of the batch makes another shape"):
        run((2, 4, 3), (2, 3), growing)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_nodes_inside_have_names_and_times(backend: str) -> None:
    """In a run step by step, and in one of the program."""
    text, feeds = CASES["nested"]
    session = qrun.Session(model(text), backend=backend)
    for result in (session.execute(feeds), *(session.execute(feeds, observe=False) for _ in range(3))):
        runs = {event.path: (event.op, event.runs) for event in result.inside}
        assert runs == {
            "Loop_0/body/Identity_0": ("Identity", 2),
            "Loop_0/body/If_1": ("If", 2),
            "Loop_0/body/If_1/then_branch/Loop_0": ("Loop", 2),
            **{
                f"Loop_0/body/If_1/then_branch/Loop_0/body/{name}": (name.partition("_")[0], 4)
                for name in ("Identity_0", "Add_1", "Add_2", "Mul_3")
            },
        }
        times = {event.path: event.duration_ns for event in result.inside}
        assert times["Loop_0/body/If_1"] > times["Loop_0/body/If_1/then_branch/Loop_0"] > 0
        assert sum(times[f"Loop_0/body/{name}"] for name in ("Identity_0", "If_1")) <= result.events[0].duration_ns
        kernels = {event.backend for event in result.inside if event.op == "Add"}
        assert kernels == {backend}
    assert not qrun.Session(model(text), backend=backend).execute({**feeds, "n": N(0, I64)}).inside


def test_screens_and_documents_show_nodes_inside(tmp_path: Path) -> None:
    text, _ = CASES["nested"]
    path = tmp_path / "nested.onnx"
    onnx.save(model(text), path)
    given = ["-i", "x=[[1,2,3],[4,5,6]]", "-i", "n=2", "-i", "c=true"]
    add = "Loop_0/body/If_1/then_branch/Loop_0/body/Add_1"
    for command in (["run", path, "-v"], ["profile", path, "-n", "2", "--top", "all"]):
        assert re.search(rf"{add} +Add +4 ", call(*command, *given).out)
        (found,) = [row for row in call(*command, *given, "--json").json["inside"] if row["path"] == add]
        assert (found["op"], found["runs"], found["backend"]) == ("Add", 4, "native")
        assert found["time_ms"] > 0
    page = tmp_path / "m.html"
    assert call("report", path, *given, "-o", page).code == 0
    assert re.search(rf"<td[^>]*>{add}</td><td[^>]*>Add</td><td[^>]*>4</td>", page.read_text().replace("<wbr>", ""))
    assert "more nodes inside" not in call("run", path, "-v", *given).out
    assert "… 2 more nodes inside   -v" in call("run", path, *given).out
    assert "… 4 more nodes inside   --top all" in call("profile", path, "-n", "2", "--top", "3", *given).out
