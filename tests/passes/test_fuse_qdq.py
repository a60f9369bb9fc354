"""Groups of DequantizeLinear, a float operator and QuantizeLinear: the exact value of the graph, and every refusal."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.native import OBJECTS
from helpers.passes import Graph, codes, ops, reasons, rewritten, run, zero
from oracle import ms, qdq

import qrun

F = np.float32
U8, S8 = np.uint8, np.int8
TYPES = (U8, S8)
POWERS = (F(2.0**-7), F(2.0**-5), F(0.25), F(1))
"""With these the float32 graph computes exactly too, and many quotients are ties."""
ODD = (F(0.1), F(1 / 90), F(1 / 255), F(0.0235), F(0.0047))


def scale_of(rng: np.random.Generator, exactly: bool) -> Any:
    return rng.choice(POWERS) if exactly else F(rng.choice(ODD) * rng.choice([1, 1, rng.uniform(0.5, 2)]))


def check(graph: Graph, fused: str, message: str, exactly: bool, units: dict[str, Any] | None = None,
          native: bool = True) -> None:  # fmt: skip
    """One integer operator instead of the group, with the codes of the real graph; the literal run is near it."""
    done = rewritten(graph)
    left = [op for op in ops(done) if op != "Table"]
    assert left == [fused], f"{message}: {left}, {reasons(done)}"
    (name,) = (v.name for v in graph.outputs)
    (got,), (literal,) = run(done.model, graph), run(graph.model(), graph)
    want = qdq.evaluate(graph.proto(), graph.feeds, units)[name]
    np.testing.assert_array_equal(got, want, message)
    assert got.dtype == literal.dtype == want.dtype, message
    if native:
        runs_natively(graph, fused, message)
    step = np.abs(got.astype(int) - literal.astype(int)).max(initial=0)
    assert step <= (0 if exactly else 1), f"{message}: {step} from the literal graph"


def runs_natively(graph: Graph, fused: str, message: str) -> None:
    """A group is only made one operator if that has a native kernel: the float operators would be faster."""
    session = qrun.Session(graph.proto(), backend="native", cache=OBJECTS)
    found = [event for event in session.execute(graph.feeds).events if event.node and event.node.op_type == fused]
    assert [event.backend for event in found] == ["native"] * len(found), f"{message}: {found[0].why}"


def seeds(count: int) -> Any:
    return pytest.mark.parametrize("seed", range(count))


def finish(graph: Graph, rng: np.random.Generator, y: str, dtype: Any, scale: Any, clamps: int) -> None:
    """Perhaps Relu or Clip, then QuantizeLinear."""
    if clamps == 1:
        y = graph.node("Relu", y)
    elif clamps == 2:
        y = graph.node("Clip", y, graph.const(F(-1)), graph.const(F(rng.choice([0.5, 6]))))
    elif clamps == 3:
        y = graph.node("Relu", graph.node("Clip", y, "", graph.const(F(2))))
    graph.output(graph.q(y, scale, zero(rng, dtype)))


@seeds(40)
def test_conv(seed: int) -> None:
    rng = np.random.default_rng(seed)
    exactly = bool(rng.integers(2))
    xt, wt, yt = rng.choice(TYPES, 3)
    group, m, c, spatial = int(rng.choice([1, 2])), 4, int(rng.integers(1, 4)), int(rng.choice([1, 2]))
    g = Graph()
    xs = scale_of(rng, exactly)
    x = g.dq(g.feed(codes(rng, xt, (2, c * group, 5, 4)[: 2 + spatial])), xs, zero(rng, xt))
    channels = [(), (1,), (m,)][rng.integers(3)]
    ws = np.array([scale_of(rng, exactly) for _ in range(m if channels == (m,) else 1)], F).reshape(channels)
    wz = np.array([zero(rng, wt) for _ in range(ws.size)], wt).reshape(channels)
    shape = (m, c, *[int(rng.integers(1, 4)) for _ in range(spatial)])
    w = g.dq(g.const(codes(rng, wt, shape)), ws, wz, axis=int(rng.choice([0, -len(shape)])))
    inputs, units = [x, w], {}
    if rng.integers(2):
        bias = g.const(rng.integers(-5000, 5000, m).astype(np.int32))
        per = np.broadcast_to(ws.reshape(-1), m).copy() if rng.integers(2) or ws.size > 1 else ws.reshape(())
        unit, nothing = g.params(F(xs) * per, np.zeros(per.shape, np.int32))
        units[unit] = qdq.fractions(per) * Fraction(float(xs))
        inputs.append(g.node("DequantizeLinear", bias, unit, nothing, axis=0))
    attributes: dict[str, Any] = {"group": group} if group > 1 else {}
    if rng.integers(2):
        attributes["strides"] = [int(n) for n in rng.integers(1, 3, spatial)]
    if rng.integers(2):
        attributes["pads"] = [int(n) for n in rng.integers(0, 3, 2 * spatial)]
    elif rng.integers(2):
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    y = g.node("Conv", *inputs, **attributes)
    finish(g, rng, y, yt, F(scale_of(rng, exactly) * (1 if exactly else 8)), int(rng.integers(4)))
    check(g, "QLinearConv", f"seed {seed}", exactly, units)


def biased(bias: list[int], scales: list[float], scale: float, op_type: str = "Conv") -> tuple[Graph, dict[str, Any]]:
    """Channels whose sums lie within 4 * 3 * 135 of their bias."""
    rng, g, many = np.random.default_rng(3), Graph(), len(bias)
    conv = op_type == "Conv"
    x = g.dq(g.feed(codes(rng, U8, (1, 4, 2, 3) if conv else (6, 4))), F(0.02), U8(120))
    per = np.array(scales, F)
    weights = rng.integers(-3, 4, (many, 4, 1, 1) if conv else (4, many)).astype(S8)
    w = g.dq(g.const(weights), per, np.zeros(many, S8), axis=0 if conv else 1)
    unit, nothing = g.params(F(0.02) * per, np.zeros(many, np.int32))
    added = g.node("DequantizeLinear", g.const(np.array(bias, np.int32)), unit, nothing, axis=0)
    g.output(g.q(g.node(op_type, x, w, added, label="n"), F(scale), U8(100)))
    return g, {unit: qdq.fractions(per) * Fraction(float(F(0.02)))}


@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_channels_whose_bias_leaves_no_room_for_their_products(op_type: str) -> None:
    """Far from a tie, or beyond the type: such channels give one code, whatever the products are."""
    ends, fused = [2**31 - 1, -(2**31), 77, 2**31 - 1000, -(2**31) + 1500], {"Conv": "QLinearConv", "Gemm": "QGemm"}
    g, units = biased(ends, [1e-9, 1e-9, 0.01, 1e-5, 1e-5], 0.3, op_type)
    check(g, fused[op_type], "biases at the ends", False, units)


def test_a_bias_whose_products_decide_the_code_stays_in_float() -> None:
    """Of the first channel: the bias alone is 2 / scale, and the products move that by up to 2**-20 of it."""
    for scale, refused in ((0.8, True), (0.81, False)):
        g, _ = biased([2**31 - 1, 5], [2.0**-30 / float(F(0.02)), 0.01], scale)
        assert reasons(rewritten(g)) == ({"n": "its sums may not fit int32"} if refused else {})
    assert reasons(rewritten(g, "ort")) == {"n": "its sums may not fit int32"}


@seeds(20)
def test_gemm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    exactly = bool(rng.integers(2))
    at, bt, yt = rng.choice(TYPES, 3)
    m, k, n, ta, tb = 3, 6, 4, int(rng.integers(2)), int(rng.integers(2))
    g = Graph()
    xs = scale_of(rng, exactly)
    a = g.dq(g.feed(codes(rng, at, (k, m) if ta else (m, k))), xs, zero(rng, at))
    per = n if rng.integers(2) else 1
    ws = np.array([scale_of(rng, exactly) for _ in range(per)], F).reshape((per,) if per > 1 else ())
    wz = np.array([zero(rng, bt) for _ in range(per)], bt).reshape(ws.shape)
    b = g.dq(g.const(codes(rng, bt, (n, k) if tb else (k, n))), ws, wz, axis=0 if tb else 1)
    inputs, units = [a, b], {}
    if rng.integers(2):
        row = int(rng.integers(2))
        bias = g.const(rng.integers(-999, 999, (1, n) if row else n).astype(np.int32))
        unit, nothing = g.params(F(xs) * ws, np.zeros(ws.shape, np.int32))
        units[unit] = qdq.fractions(ws) * Fraction(float(xs))
        inputs.append(g.node("DequantizeLinear", bias, unit, nothing, axis=row))
    y = g.node("Gemm", *inputs, transA=ta, transB=tb)
    finish(g, rng, y, yt, F(scale_of(rng, exactly) * (1 if exactly else 8)), int(rng.integers(4)))
    check(g, "QGemm", f"seed {seed}", exactly, units)


@seeds(20)
def test_matmul(seed: int) -> None:
    rng = np.random.default_rng(seed)
    exactly = bool(rng.integers(2))
    at, bt, yt = rng.choice(TYPES, 3)
    lead = [(), (2,), (2, 3)][rng.integers(3)]
    g = Graph()
    a = g.dq(g.feed(codes(rng, at, (*lead, 3, 5))), scale_of(rng, exactly), zero(rng, at))
    kind = rng.integers(3)
    if kind == 0:
        b = g.dq(g.const(codes(rng, bt, (5, 4))), np.array([scale_of(rng, exactly) for _ in range(4)], F),
                 np.array([zero(rng, bt) for _ in range(4)], bt), axis=int(rng.choice([1, -1])))  # fmt: skip
    else:
        shape = (*lead[1:], 5, 4)
        held = g.const(codes(rng, bt, shape)) if kind == 1 else g.feed(codes(rng, bt, shape))
        b = g.dq(held, [scale_of(rng, exactly)], [zero(rng, bt)])
    y = g.node("MatMul", a, b)
    finish(g, rng, y, yt, F(scale_of(rng, exactly) * (1 if exactly else 8)), int(rng.integers(4)))
    check(g, "QLinearMatMul", f"seed {seed}", exactly)


@pytest.mark.parametrize("k", [1, 7, 33025, 33026, 40000])
@pytest.mark.parametrize("kinds", [(U8, U8), (S8, U8)])
def test_matmul_whose_depth_the_run_tells(k: int, kinds: tuple[Any, Any]) -> None:
    """Sums that leave int32 where codes are extreme, from K = 33026 on."""
    rng = np.random.default_rng(k)
    g = Graph()
    ends = [(0, np.iinfo(kind).max, np.iinfo(kind).min) for kind in kinds]
    a, b = (
        g.dq(g.feed(np.full(shape, end[1], kind), [None, None]), F(0.5), kind(end[2]))
        for shape, kind, end in zip(((2, k), (k, 3)), kinds, ends, strict=True)
    )
    for array in g.feeds.values():
        array[tuple(rng.integers(0, n) for n in array.shape)] = 3
    g.output(g.q(g.node("MatMul", a, b), F(k * 100.3), U8(7)))
    check(g, "QLinearMatMul", f"K = {k}", False, native=k < 33026)


@seeds(20)
@pytest.mark.parametrize("op_type", ["Add", "Mul"])
def test_binary(seed: int, op_type: str) -> None:
    rng = np.random.default_rng(seed)
    exactly = bool(rng.integers(2))
    dtype = rng.choice(TYPES)
    g = Graph()
    shapes = [[(2, 3, 4), (2, 3, 4)], [(2, 3, 4), (3, 1)], [(1, 4), (2, 3, 1)], [(), (2, 2)]][rng.integers(4)]
    a, b = (g.dq(g.feed(codes(rng, dtype, s)), scale_of(rng, exactly), zero(rng, dtype)) for s in shapes)
    finish(g, rng, g.node(op_type, a, b), dtype, scale_of(rng, exactly), int(rng.integers(4)))
    check(g, f"QLinear{op_type}", f"seed {seed}", exactly)


@seeds(15)
def test_concat(seed: int) -> None:
    rng = np.random.default_rng(seed)
    exactly = bool(rng.integers(2))
    g = Graph()
    parts = []
    for n in rng.integers(0, 4, rng.integers(1, 4)):
        dtype = rng.choice(TYPES)
        values = codes(rng, dtype, (2, int(n), 3))
        held = g.const(values) if rng.integers(4) == 0 else g.feed(values)
        parts.append(g.dq(held, scale_of(rng, exactly), zero(rng, dtype)))
    parts.append(g.dq(g.feed(codes(rng, U8, (2, 2, 3))), scale_of(rng, exactly), zero(rng, U8)))
    y = g.node("Concat", *parts, axis=int(rng.choice([1, -2])))
    finish(g, rng, y, rng.choice(TYPES), scale_of(rng, exactly), int(rng.integers(4)))
    check(g, "QLinearConcat", f"seed {seed}", exactly)


@seeds(25)
def test_average_pool(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = rng.choice(TYPES)
    spatial = int(rng.integers(1, 3))
    g = Graph()
    x = g.dq(g.feed(codes(rng, dtype, (2, 2, 6, 5)[: 2 + spatial])), scale_of(rng, False), zero(rng, dtype))
    kernel = [int(k) for k in rng.integers(1, 4, spatial)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [int(s) for s in rng.integers(1, 3, spatial)]}
    if rng.integers(2):
        sums = [(int(b), int(rng.integers(0, k - b))) for k in kernel for b in [rng.integers(0, k)]]
        attributes["pads"] = [b for b, _ in sums] + [e for _, e in sums]
    elif rng.integers(2):
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    attributes |= {"ceil_mode": int(rng.integers(2)), "count_include_pad": int(rng.integers(2))}
    finish(g, rng, g.node("AveragePool", x, **attributes), dtype, scale_of(rng, False), int(rng.integers(4)))
    check(g, "QLinearAveragePool", f"seed {seed} {attributes}", False)


@seeds(24)
def test_softmax(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype, opset = rng.choice(TYPES), int(rng.choice([11, 13, 17]))
    shape = (2, 3, 4, 5)[: rng.integers(1, 5)]
    attributes = {"axis": int(rng.integers(-len(shape), len(shape)))} if rng.integers(4) and len(shape) > 1 else {}
    axis = attributes.get("axis", 1 if opset < 13 else -1)
    if not -len(shape) <= axis < len(shape):
        shape, axis = (4, 5), 1
    g = Graph(opset)
    x, xs, xz = codes(rng, dtype, shape), scale_of(rng, False), zero(rng, dtype)
    ys, yz = F(rng.choice([1 / 256, 1 / 255, 0.01])), zero(rng, dtype)
    g.output(g.q(g.node("Softmax", g.dq(g.feed(x), xs, xz), **attributes), ys, yz))
    done = rewritten(g)
    assert ops(done) == ["QLinearSoftmax"], reasons(done)
    (got,), (literal,) = run(done.model, g), run(g.model(), g)
    runs_natively(g, "QLinearSoftmax", f"seed {seed}")
    want = ms.qlinear_softmax(x, np.array(F(xs)), xz, np.array(ys), yz, opset=opset, axis=axis)
    np.testing.assert_array_equal(got, want, f"seed {seed}")
    assert np.abs(got.astype(int) - literal.astype(int)).max(initial=0) <= 1, f"seed {seed}"


@seeds(8)
def test_global_average_pool(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = rng.choice(TYPES)
    g = Graph()
    x = g.dq(g.feed(codes(rng, dtype, (2, 3, 3, 5)[: rng.integers(3, 5)])), scale_of(rng, False), zero(rng, dtype))
    finish(g, rng, g.node("GlobalAveragePool", x), dtype, scale_of(rng, False), int(rng.integers(4)))
    check(g, "QLinearGlobalAveragePool", f"seed {seed}", False)
