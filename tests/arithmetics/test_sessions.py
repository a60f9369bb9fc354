"""Models in the arithmetic of integer engines, node by node against plain integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from onnx import helper
from oracle import engines as oracle

import qrun
from qrun.arithmetics import ENGINES, Scales
from qrun.errors import QrunError

f32, i8 = np.float32, np.int8
MS = "com.microsoft"
RNG = np.random.default_rng(44)
ENGINE_NAMES = ("tfl-double", "tfl-halfup2", "tfl-single", "rndnu", "xnnpack", "ort-arm", "fp32", "q15-away")
SCALES = {
    "x": (0.0625, 3),
    "y1": (0.043, -5),
    "y2": (0.03125, 7),
    "y3": (0.03125, 7),
    "y4": (0.011, -128),
    "y5": (0.04, 1),
    "y6": (0.037, 20),
    "y7": (0.037, 20),
    "y8": (0.06, -9),
    "y9": (0.021, 4),
}
SHAPES = {"w1": (4, 3, 3, 3), "w2": (4, 1, 3, 3), "w8": (5, 8), "w9": (5, 3)}


def _stored() -> dict[str, Any]:
    """Scales, zero points and weights."""
    rng, made = np.random.default_rng(7), dict[str, Any]()
    for name, (scale, zero) in SCALES.items():
        made |= {f"{name}_s": f32(scale), f"{name}_z": i8(zero)}
    for name, shape in SHAPES.items():
        made[name] = rng.integers(-128, 128, shape).astype(i8)
        count = 1 if name == "w9" else shape[0]
        made[f"{name}_s"] = rng.uniform(0.001, 0.004, count).astype(f32).reshape(() if count == 1 else -1)
        made[f"{name}_z"] = np.zeros(made[f"{name}_s"].shape, i8)
        made[f"{name}_b"] = rng.integers(-900, 900, count).astype(np.int32)
    made["w2_z"] = rng.integers(-4, 4, 4).astype(i8)
    return {**made, "flat": np.array([-1, 8])}


STORED = _stored()


def _node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """A node; ``y1`` in its inputs stands for the tensor, its scale and zero point, ``@y1`` for the last two."""
    names = []
    for word in inputs.split():
        full = word.lstrip("@=")
        names += [full] if word[0] == "=" else [*([] if word[0] == "@" else [full]), f"{full}_s", f"{full}_z"]
    domain = "" if op in ("QLinearConv", "QLinearMatMul", "Reshape") else MS
    return helper.make_node(op, names, [output], domain=domain, **attributes)


def network() -> onnx.ModelProto:
    nodes = [
        _node("QLinearConv", "x w1 @y1 =w1_b", "y1", pads=[1] * 4),
        _node("QLinearConv", "y1 w2 @y2 =w2_b", "y2", pads=[1] * 4, strides=[2, 2], group=4),
        _node("QLinearAveragePool", "y2 @y3", "y3", kernel_shape=[2, 2], pads=[1, 0, 0, 0]),
        _node("QLinearMul", "y3 y3 @y4", "y4"),
        _node("QLinearAdd", "y3 y4 @y5", "y5"),
        _node("QLinearConcat", "@y6 y5 y4", "y6", axis=1),
        _node("QLinearGlobalAveragePool", "y6 @y7", "y7"),
        _node("Reshape", "=y7 =flat", "flat7"),
        helper.make_node(
            "QGemm",
            ["flat7", "y7_s", "y7_z", "w8", "w8_s", "w8_z", "w8_b", "y8_s", "y8_z"],
            ["y8"],
            domain=MS,
            transB=1,
        ),
        _node("QLinearMatMul", "y8 w9 @y9", "y9"),
    ]
    outputs = {f"y{n}": typed(i8) for n in range(1, 10)}
    return make_model(nodes, {"x": typed(i8, ["N", 3, 6, 6])}, outputs, STORED, opset=13)


def due(engine: str, x: Any) -> dict[str, Any]:
    """All results in plain integers; what the engine does not define is left to qrun's exact arithmetic: None."""
    known, t = ENGINES[engine], {name: (f32(scale), zero) for name, (scale, zero) in SCALES.items()}
    y: dict[str, Any] = {"x": x}
    for name, source, more in (("1", "x", (1, 1, 1)), ("2", "y1", (1, 2, 4))):
        w = [STORED[f"w{name}{part}"] for part in ("", "_b", "_s", "_z")]
        y[f"y{name}"] = oracle.conv(engine, y[source], w[0], w[1], t[source], w[2], w[3], t[f"y{name}"], *more)
    if known.codes:
        y["y3"] = np.zeros((*x.shape[:2], 3, 2), i8)[:, :1].repeat(4, 1)
        for n, c, r, k in np.ndindex(*y["y3"].shape):
            y["y3"][n, c, r, k] = oracle.averaged(
                [int(v) for v in y["y2"][n, c, max(r - 1, 0) : r + 1, k : k + 2].flat]
            )
    return y


def rows(engine: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The results of the later nodes from qrun's own inputs of each node, one element at a time."""
    known, t = ENGINES[engine], {name: (f32(scale), zero) for name, (scale, zero) in SCALES.items()}
    y: dict[str, Any] = {}
    pairs = {
        name: list(zip(given[a].flat, given[b].flat, strict=True))
        for name, a, b in (("y4", "y3", "y3"), ("y5", "y3", "y4"))
    }
    for name, rule, parts in (
        ("y4", known.multiply and oracle.multiplied, "y3 y3 y4"),
        ("y5", known.add and oracle.added, "y3 y4 y5"),
    ):
        if rule:
            made = [
                rule(engine, [int(a)], [int(b)], *(t[part] for part in parts.split()))[0][0] for a, b in pairs[name]
            ]
            y[name] = [oracle.cut(v, t[name][1]) for v in made]
    if known.requantize:
        joined = {
            part: oracle.rescaled(engine, [int(v) for v in given[part].flat], t[part], t["y6"]) for part in ("y5", "y4")
        }
        shaped = [np.reshape(joined[part], given[part].shape) for part in ("y5", "y4")]
        y["y6"] = [oracle.cut(int(v), t["y6"][1]) for v in np.concatenate(shaped, 1).flat]
    if known.codes:
        y["y7"] = [oracle.averaged([int(v) for v in plane]) for plane in given["y6"].reshape(-1, 6)]
    for name, source, weights, columns in (
        ("y8", "y7", STORED["w8"], STORED["w8_s"]),
        ("y9", "y8", STORED["w9"].T, [STORED["w9_s"]] * 3),
    ):
        rules = [oracle.requantized(engine, t[source][0], column, t[name][0]) for column in columns]
        bias = STORED["w8_b"] if name == "y8" else [0] * 3
        y[name] = [
            oracle.cut(
                rule(int(b) + sum((int(a) - t[source][1]) * int(v) for a, v in zip(row, weight, strict=True))),
                t[name][1],
            )
            for row in given[source].reshape(len(given[source]), -1)
            for rule, weight, b in zip(rules, weights, bias, strict=True)
        ]
    return y


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_network_is_computed_as_in_integers(engine: str) -> None:
    model = network()
    sessions = [qrun.Session(model, backend=backend, arith=engine) for backend in ("native", "reference")]
    for _ in range(3):
        x = RNG.integers(-128, 128, (2, 3, 6, 6)).astype(i8)
        got, same = (session.run({"x": x}) for session in sessions)
        assert all(np.array_equal(got[name], same[name]) for name in got)
        for name, want in due(engine, x).items():
            assert name == "x" or np.array_equal(got[name], want), name
        for name, codes in rows(engine, got).items():
            assert got[name].reshape(-1).tolist() == codes, name
        seen = sessions[0].execute({"x": x}).outputs
        assert all(np.array_equal(got[name], seen[name]) for name in got)


def test_what_an_engine_does_not_define_is_exact() -> None:
    """With ncnn only sums of products are not exact; they never give -128."""
    model, x = network(), RNG.integers(-128, 128, (1, 3, 6, 6)).astype(i8)
    got = qrun.Session(model, arith="ncnn").run({"x": x})
    assert min(got[name].min() for name in ("y1", "y2", "y8", "y9")) >= -127
    for number in (3, 4, 5, 6, 7):
        name = f"y{number}"
        part = onnx.utils.Extractor(model).extract_model(
            [n for n in ("y2", "y3", "y4", "y5", "y6") if n < name], [name]
        )
        feeds = {v.name: got[v.name] for v in part.graph.input}
        assert np.array_equal(qrun.Session(part).run(feeds)[name], got[name])


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize(("op", "kind"), [("QLinearMatMul", np.int8), ("QGemm", np.uint8), ("QLinearConv", np.int8)])
def test_a_node_of_each_engine(engine: str, op: str, kind: Any) -> None:
    """The scales are powers of two: many sums are ties, and most arithmetics differ from the exact one."""
    a, b = RNG.integers(0, 100, (40, 30)).astype(kind), RNG.integers(0, 100, (30, 11)).astype(kind)
    sa, sb, sy = f32(2**-4), f32(2.0) ** RNG.integers(-9, -4, 11).astype(f32), f32(2)
    stored = {"sa": sa, "za": kind(40), "b": b, "sb": sb, "zb": np.full(11, 50, kind), "sy": sy, "zy": kind(9)}
    names, domain = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"], MS if op == "QGemm" else ""
    if op == "QGemm":
        names.insert(6, "")
    if op == "QLinearConv":
        stored["b"] = b.T.reshape(11, 30, 1).copy()
    node = helper.make_node(op, names, ["y"], domain=domain)
    x = a.reshape(40, 30, 1) if op == "QLinearConv" else a
    model = make_model([node], {"a": x}, {"y": typed(kind)}, stored)
    sums = (a.astype(np.int64) - 40) @ (b.astype(np.int64) - 50)
    info = np.iinfo(kind)
    want = ENGINES[engine].family.codes(sums, Scales(sa, sb, sy), 9, int(info.min), int(info.max))
    for backend in ("native", "reference"):
        got = qrun.Session(model, arith=engine, backend=backend).run({"a": x})["y"]
        assert got.dtype == kind
        assert np.array_equal(got.reshape(want.shape), want)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_nothing_in_gives_nothing_out(backend: str) -> None:
    got = qrun.Session(network(), arith="tfl-double", backend=backend).run({"x": np.zeros((0, 3, 6, 6), i8)})
    assert {name: array.shape[0] for name, array in got.items()} == {f"y{n}": 0 for n in range(1, 10)}


def quantized_groups() -> onnx.ModelProto:
    """Conv and Relu, a new scale, a Sigmoid, and a Gemm with Clip, each between DequantizeLinear and QuantizeLinear."""
    nodes, stored = [], dict[str, Any]()

    def pair(name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_q"]))
        return dequantized(f"{name}_q", name)

    def dequantized(codes: str, name: str, **attributes: Any) -> str:
        nodes.append(
            helper.make_node("DequantizeLinear", [codes, f"{name}_s", f"{name}_z"], [f"{codes}_d"], **attributes)
        )
        return f"{codes}_d"

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    for name, scale, zero in (
        ("x", 0.0625, 3),
        ("c", 0.05, -128),
        ("m", 0.07, 2),
        ("s", 1 / 256, -128),
        ("g", 0.09, -20),
    ):
        stored |= {f"{name}_s": f32(scale), f"{name}_z": i8(zero)}
    stored |= {"w_q": STORED["w1"], "w_s": STORED["w1_s"], "w_z": STORED["w1_z"]}
    stored |= {"b_q": STORED["w1_b"], "b_s": (f32(0.0625) * STORED["w1_s"]).astype(f32), "b_z": np.zeros(4, np.int32)}
    stored |= {"v_q": STORED["w8"][:, :4], "v_s": f32(0.003), "v_z": i8(0), "low": f32(-1), "high": f32(6)}
    x, w, b = pair("x"), dequantized("w_q", "w", axis=0), dequantized("b_q", "b", axis=0)
    add("Relu", [add("Conv", [x, w, b], "c0", pads=[1] * 4)], "c")
    add("Identity", [pair("c")], "m")
    add("Sigmoid", [pair("m")], "s")
    add("Flatten", [add("MaxPool", [pair("s")], "pooled", kernel_shape=[6, 6])], "flat")
    gemm = add("Gemm", ["flat", dequantized("v_q", "v")], "g0", transB=1)
    add("Clip", [gemm, "low", "high"], "g")
    pair("g")
    names = ("x_q", "c_q", "m_q", "s_q", "g_q")
    model = make_model(nodes, {"x": ["N", 3, 6, 6]}, {name: typed(i8) for name in names}, stored, opset=17)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


@pytest.mark.parametrize("engine", ["tfl-double", "tfl-single", "xnnpack"])
def test_groups_are_computed_as_in_integers(engine: str) -> None:
    model = quantized_groups()
    for backend in ("native", "reference"):
        session = qrun.Session(model, arith=engine, backend=backend)
        for _ in range(2):
            x = RNG.uniform(-8, 8, (2, 3, 6, 6)).astype(f32)
            got = session.run({"x": x})
            of_x, of_c, of_m = (f32(0.0625), 3), (f32(0.05), -128), (f32(0.07), 2)
            w = [STORED[f"w1{part}"] for part in ("", "_b", "_s", "_z")]
            c = oracle.conv(engine, got["x_q"], w[0], w[1], of_x, w[2], w[3], of_c, 1, 1, 1)
            assert np.array_equal(got["c_q"], c)
            m = [oracle.cut(v, 2) for v in oracle.rescaled(engine, [int(v) for v in c.flat], of_c, of_m)]
            assert got["m_q"].reshape(-1).tolist() == m
            s = got["s_q"].max((2, 3)).astype(np.int64) + 128
            rule = oracle.requantized(engine, f32(1 / 256), f32(0.003), f32(0.09))
            low, high = -20 - 11, -20 + 67
            g = [
                [oracle.cut(rule(int(v)), -20, low, high) for v in row]
                for row in s @ STORED["w8"][:, :4].astype(np.int64).T
            ]
            assert got["g_q"].tolist() == g
            seen = session.execute({"x": x}).outputs
            assert all(np.array_equal(got[name], seen[name]) for name in got)
    told = session.coverage()
    assert told is not None
    assert str(told) == f"3 of 3 quantized nodes computed in {engine}; in float: Sigmoid"


def test_coverage_counts_what_an_engine_does_not_define() -> None:
    def told(engine: str) -> str:
        return str(qrun.Session(network(), arith=engine).coverage())

    assert told("tfl-double") == "9 of 9 quantized nodes computed in tfl-double"
    assert told("ncnn") == (
        "4 of 9 quantized nodes computed in ncnn; computed exactly: QLinearAdd, QLinearAveragePool, QLinearConcat, "
        "QLinearGlobalAveragePool, QLinearMul"
    )
    assert qrun.Session(network()).coverage() is None
    plain = make_model([helper.make_node("Abs", ["x"], ["y"])], "x", "y")
    assert str(qrun.Session(plain, arith="ncnn").coverage()) == "nothing computed in ncnn: no quantized operator"


def test_selection_and_scaled_products_stay_exact() -> None:
    x, y = RNG.integers(-128, 128, (2, 400)).astype(i8)
    parameters = ["X", "xs", "xz", "Y", "xs", "xz", "zs", "xz"]
    stored = {"xs": f32(0.5), "xz": i8(1), "zs": f32(1)}
    node = helper.make_node("QLinearWhere", ["c", *parameters], ["z"], domain=MS)
    where = make_model([node], {"c": typed(np.bool_, [400]), "X": x, "Y": y}, {"z": typed(i8)}, stored)
    feeds = {"c": x < y, "X": x, "Y": y}
    found = [qrun.Session(where, arith=arith).run(feeds)["z"] for arith in ("exact", "tfl-double")]
    assert np.array_equal(*found)
    parameters = ["a", "xs", "xz", "b", "xs", "xz", "", "zs", "xz"]
    node = helper.make_node("QGemm", parameters, ["z"], domain=MS, alpha=0.25)
    a = x.reshape(20, 20)
    gemm = make_model([node], {"a": a}, {"z": typed(i8)}, stored | {"b": y.reshape(20, 20)})
    found = [qrun.Session(gemm, arith=arith).run({"a": a})["z"] for arith in ("exact", "tfl-double")]
    assert np.array_equal(*found)
    for model, op in ((where, "QLinearWhere"), (gemm, "QGemm")):
        told = qrun.Session(model, arith="tfl-double").coverage()
        assert told is not None
        assert (told.computed, told.exact) == (0, {op: 1})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(QrunError) as caught:
        qrun.Session(network(), arith="tfl-duble")
    assert "did you mean 'tfl-double'?" in str(caught.value.fixes)
    assert "qrun explain arithmetics" in str(caught.value.fixes)
