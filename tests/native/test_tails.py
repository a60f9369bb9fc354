"""Operations of float32 made in the kernels of the sums that they follow: the bits of the nodes one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from helpers.native import ISAS, OBJECTS, Array, codes, every_isa
from helpers.placed import reference_nodes, same_runs, schedules
from helpers.sums import assert_bits
from helpers.widths import every_width
from onnx import ModelProto, TensorProto, helper, numpy_helper

import qrun
from qrun.native.kernels.elementwise import Elementwise

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3e38, -3e38, 1, -1e-3], F)
LAYERS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 9, 8), (21, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 16, 5, 5), (70, 16, 1, 1), {}),
    ((1, 64, 7, 6), (64, 1, 3, 3), {"group": 64, "pads": [1, 1, 1, 1]}),
    ((1, 20, 6, 6), (20, 1, 3, 3), {"group": 20, "pads": [1, 1, 1, 1]}),
    ((2, 8, 20), (12, 4, 3), {"group": 2}),
    ((3, 17, 40), (40, 33), {}),
    ((5, 24), (24, 130), {}),
]


class Layer:
    """DynamicQuantizeLinear, a product, and what follows it, node by node."""

    def __init__(self, which: int, rng: np.random.Generator) -> None:
        shape, weights, options = LAYERS[which]
        self.rng, self.shape = rng, shape
        self.conv = len(weights) > 2
        self.channels = weights[0] if self.conv else weights[1]
        self.rank = len(shape)
        self.tensors: list[Any] = []
        self.nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
        w = self.constant(codes(rng, weights, ("u8", "s8")[which % 2]))
        self.last = self.add("ConvInteger" if self.conv else "MatMulInteger", "q", w, "z", **options)
        self.made = [self.last]

    def constant(self, array: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.tensors)}"))
        return f"c{len(self.tensors) - 1}"

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [f"t{len(self.nodes)}"], **attributes))
        return f"t{len(self.nodes) - 1}"

    def operand(self) -> str:
        """One number, one for each channel, or the scale of the run."""
        kind = self.rng.integers(4)
        if kind == 0:
            return "s"
        values = self.rng.normal(0, 30, self.channels if kind > 1 else 1).astype(F)
        if kind == 3:
            values[: len(SPECIAL)] = self.rng.permutation(SPECIAL)[: len(values)]
        shape = (-1, *(1,) * (self.rank - 2)) if self.conv else (-1,)
        return self.constant(values.reshape(shape if self.rng.random() < 0.5 else (1, *shape)))

    def step(self) -> None:
        kind = ("Mul", "Add", "Relu", "Clip")[self.rng.integers(4)]
        if kind in ("Mul", "Add"):
            inputs = [self.last, self.operand()]
            self.last = self.add(kind, *(inputs if self.rng.random() < 0.7 else inputs[::-1]))
        elif kind == "Clip":
            low, high = np.sort(self.rng.normal(0, 1000, 2)).astype(F)
            self.last = self.add(kind, self.last, self.constant(low), self.constant(high))
        else:
            self.last = self.add(kind, self.last)
        self.made.append(self.last)

    def model(self) -> ModelProto:
        return make_model(self.nodes, {"x": [None] * self.rank}, {self.last: None}, self.tensors, opset=17)

    def same(self, names: list[str], **options: Any) -> qrun.Session:
        feeds = ({"x": (self.rng.normal(0.3, 1, self.shape) * scale).astype(F)} for scale in (1, 30, 1, 1e-3))
        session = same_runs(self.model(), feeds, names, times=1, **options)
        assert reference_nodes(session) == []
        return session


def kinds(session: qrun.Session) -> list[str]:
    """Of the kernel calls of the session's last program, but for those that prepare and quantize."""
    compiled = [made for p in session._runs.plans.values() if p.programs for made in p.programs._made.values() if made]
    calls = [call.section.spec.kind for call in compiled[-1].program.schedule.calls]
    return [
        kind for kind in calls if kind not in ("prepare", "range", "parameters", "codes", "runs", "elements", "blocks")
    ]


@every_isa
def test_every_kind_of_product(isa: str) -> None:
    for which in range(len(LAYERS)):
        layer = Layer(which, np.random.default_rng(which))
        layer.last = layer.add("Cast", layer.last, to=TensorProto.FLOAT)
        layer.last = layer.add("Mul", layer.last, "s")
        bias = np.linspace(-9, 9, layer.channels, dtype=F).reshape(-1, *(1,) * (layer.rank - 2) * layer.conv)
        layer.last = layer.add("Add", layer.last, layer.constant(bias))
        layer.last = layer.add("Clip", layer.last, layer.constant(F(-3)), layer.constant(F(60)))
        session = layer.same([layer.last], isa=isa, threads=1 + which % 2)
        assert "elementwise" not in kinds(session)


@pytest.mark.parametrize("seed", range(40))
def test_random_tails(seed: int) -> None:
    """Of many steps; some results in between are asked for, or read twice."""
    rng = np.random.default_rng(100 + seed)
    layer = Layer(seed % len(LAYERS), rng)
    layer.last = layer.add("Cast", layer.last, to=TensorProto.FLOAT)
    layer.made.append(layer.last)
    for _ in range(rng.integers(0, 9)):
        layer.step()
    if rng.random() < 0.3:
        layer.last = layer.add("Mul", layer.last, rng.choice(layer.made[1:]))
    names = [layer.last, *(name for name in layer.made if name != layer.last and rng.random() < 0.1)]
    with np.errstate(all="ignore"):
        layer.same(names, isa=ISAS[seed % len(ISAS)])


def test_a_scale_that_is_made_after_the_sums() -> None:
    layer = Layer(1, np.random.default_rng(3))
    layer.last = layer.add("Cast", layer.last, to=TensorProto.FLOAT)
    scale = layer.add("Mul", "s", layer.constant(F(0.5)))
    layer.last = layer.add("Mul", layer.last, scale)
    assert "elementwise" in kinds(layer.same([layer.last]))


LIMITED: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("Conv", (1, 3, 9, 8), (21, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("Conv", (2, 16, 5, 5), (40, 16, 1, 1), {}),
    ("Conv", (1, 20, 7, 6), (17, 20, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("Conv", (1, 20, 6, 11), (20, 1, 3, 3), {"group": 20, "pads": [1, 1, 1, 1]}),
    ("Conv", (2, 8, 20), (8, 4, 3), {"group": 2}),
    ("Gemm", (17, 40), (40, 33), {"alpha": 0.5}),
    ("MatMul", (2, 3, 24), (24, 30), {}),
]
LIMITS: list[tuple[float, ...] | None] = [None, (0.0, 6.0), (-0.0, 0.5), (-1.0,), (3.0, -3.0), (np.nan, 1.0)]
"""None for Relu."""


def model_of(number: int, limits: tuple[float, ...] | None, w: Array, bias: Array | None) -> ModelProto:
    op, x_shape, _, options = LIMITED[number]
    tensors = {"w": w} if bias is None or op == "MatMul" else {"w": w, "bias": bias}
    ends = {f"limit{n}": F(limit) for n, limit in enumerate(limits or ())}
    nodes = [
        helper.make_node(op, ["x", *tensors], ["sums"], **options),
        helper.make_node("Relu" if limits is None else "Clip", ["sums", *ends], ["y"]),
    ]
    return make_model(nodes, {"x": x_shape}, "y", {**tensors, **ends}, opset=17)


def same(number: int, limits: tuple[float, ...] | None, x: Array, w: Array, bias: Array | None, isa: str) -> None:
    session = same_runs(model_of(number, limits, w, bias), {"x": x}, isa=isa, threads=1 + number % 2)
    assert not any(isinstance(p.operation, Elementwise) for s in schedules(session) for p in s.placement.placed)


def drawn(number: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    _, x_shape, w_shape, _ = LIMITED[number]
    columns = w_shape[0] if len(x_shape) == len(w_shape) and LIMITED[number][0] == "Conv" else w_shape[-1]
    return tuple(rng.normal(0, 1, shape).astype(F) for shape in (x_shape, w_shape, (columns,)))  # type: ignore[return-value]


@every_width
def test_limits_behind_every_kind_of_product(isa: str) -> None:
    for number in range(len(LIMITED)):
        x, w, bias = drawn(number, np.random.default_rng(number))
        for limits in (LIMITS[0], LIMITS[1], LIMITS[2 + number % 4], (3.0, -3.0)):
            same(number, limits, x, w, bias if number % 2 else None, isa)


@every_width
def test_numbers_that_are_special(isa: str) -> None:
    rng = np.random.default_rng(5)
    for number in range(len(LIMITED)):
        x, w, bias = drawn(number, rng)
        flat = x.reshape(-1)
        flat[rng.choice(flat.size, len(SPECIAL), replace=False)] = SPECIAL
        with np.errstate(all="ignore"):
            for limits in (None, (0.0, 6.0)):
                same(number, limits, x, w, bias, isa)


@every_width
def test_sums_that_round_to_a_zero(isa: str) -> None:
    """Relu makes 0 of -0, and Clip leaves each zero that equals a limit."""
    for number in range(len(LIMITED)):
        x, w, bias = drawn(number, np.random.default_rng(number))
        for limits in (None, (0.0, 6.0), (-0.0, 0.5), (-1.0, 0.0)):
            same(number, limits, x * F(1e-30), w * F(1e-30), None if number % 2 else bias * F(0), isa)


def test_limits_of_what_is_limited() -> None:
    x, w, bias = drawn(1, np.random.default_rng(1))
    model = model_of(1, (-1.0, 2.0), w, bias)
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    for names in (["z"], ["z", "y"], ["z", "sums"], ["sums"]):
        same_runs(model, {"x": x}, names)


HEADER = '<ir_version: 8, opset_import: ["" : 17]> main (float[2, 24, 7, 6] x, float[2, 40, 7, 6] r) => (y)'
STORED = {
    "w": (40, 24, 3, 3), "b": (40,), "k": (40, 24, 1, 1), "g": (40, 12, 3, 3), "h": (40, 40, 3, 3), "q": (40, 1, 1),
    "p": (1, 40, 1, 1), "one": (1,), "row": (6,), "d": (24, 1, 3, 3), "f": (24, 1, 1),
}  # fmt: skip
CASES = {
    "factor": ("c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Mul(c, q)", "factor"),
    "term, from the left": ("c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Add(p, c)", "term"),
    "a normalization": ("c = Conv<pads = [1, 1, 1, 1]>(x, w, b) m = Mul(c, q) a = Add(m, p) y = Relu(a)", "factor+term+limits"),
    "term, then factor": ("c = Conv(x, k) a = Add(c, p) m = Mul(q, a) y = Clip(m, one)", "term+factor+limits"),
    "an input": ("c = Conv(x, k, b) a = Add(c, r) y = Relu(a)", "residual+limits"),
    "all": ("c = Conv<pads = [1, 1, 1, 1]>(x, w) m = Mul(c, q) a = Add(m, q) s = Add(r, a) y = Relu(s)", "factor+term+residual+limits"),
    "an earlier result": (
        "c = Conv<pads = [1, 1, 1, 1]>(x, w) t = Relu(c) e = Conv<pads = [1, 1, 1, 1]>(t, h) s = Add(e, t) y = Relu(s)",
        "residual+limits"),
    "a later result": ("e = Conv(x, k) c = Conv<pads = [1, 1, 1, 1]>(x, w) s = Add(e, c) y = Relu(s)", "residual+limits"),
    "groups": ("c = Conv<pads = [1, 1, 1, 1], group = 2>(x, g, b) m = Mul(c, q) s = Add(m, r) y = Relu(s)", "factor+residual+limits"),
    "a part of a concatenation": ("c = Conv(x, k, b) s = Add(c, r) t = Relu(s) y = Concat<axis = 1>(t, r, t)", "residual+limits"),
    "a part of one is added": (
        "c = Conv(x, k) e = Conv(x, k, b) z = Concat<axis = 1>(c, e) s = Add(c, e) y = Concat<axis = 1>(z, s)", ""),
    "twice the same": ("c = Conv(x, k) y = Add(c, c)", ""),
    "read twice": ("c = Conv(x, k) m = Mul(c, q) y = Sub(m, c)", ""),
    "one number": ("c = Conv(x, k) y = Mul(c, one)", ""),
    "rows": ("c = Conv(x, k) y = Mul(c, row)", ""),
    "behind a Relu": ("c = Conv(x, k) t = Relu(c) y = Mul(t, q)", "limits"),
    "one channel each": ("c = Conv<pads = [1, 1, 1, 1], group = 24>(x, d) y = Mul(c, f)", ""),
}  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_nodes(name: str, isa: str) -> None:
    text, tail = CASES[name]
    rng = np.random.default_rng(7)
    proto = onnx.parser.parse_model(f"{HEADER} {{ {text} }}")
    for stored, shape in STORED.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), stored))
    feeds = {
        "x": rng.normal(size=(2, 24, 7, 6)).astype(np.float32),
        "r": rng.normal(size=(2, 40, 7, 6)).astype(np.float32),
    }
    feeds["x"][0, 3, 2, 2], feeds["r"][1, 7, 0, 0] = np.inf, -np.inf
    model = qrun.load(proto)
    want = qrun.Session(model, backend="reference").run(feeds)["y"]
    for threads in (1, 2):
        session = qrun.Session(model, isa=isa, threads=threads, cache=OBJECTS)
        for _ in range(3):
            assert_bits(session.run(feeds)["y"], want)
        forms = [row.section.spec.form for schedule in schedules(session) for row in schedule.rows]
        fused = [form.partition("+")[2] for form in forms if form.partition("+")[0] in ("sum", "bias")]
        assert tail in fused, forms
        assert not any(part in form for form in fused for part in ("factor", "term", "residual") if not tail)
