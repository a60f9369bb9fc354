"""Nodes that differ in constants only, with ever new sizes: their kernels take sizes from the first of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS, OBJECTS, engine, every_isa, thin
from helpers.support import MS, assert_equal
from onnx import ModelProto, TensorProto, helper, numpy_helper

import qrun
from qrun.declare.memo import Memo
from qrun.native.kernels.point import Point
from qrun.native.machine.compile import Kernels
from qrun.native.plan.listing import portable
from qrun.running.twins import Twins

F, U8, S8 = np.float32, np.uint8, np.int8
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SIZES = [(1, 5), (2, 9), (1, 17), (1, 1), (3, 40), (0, 4), (2, 1), (1, 33), (2, 9), (5, 2)]
WIDTH, LAYERS = 20, 3


class Net:
    """Layers of the same nodes, each with constants of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def constant(self, array: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.tensors)}"))
        return str(self.tensors[-1].name)

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> list[str]:
        names = [f"v{len(self.nodes)}.{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names

    def scale(self, low: float = 0.01, high: float = 0.05, shape: Any = ()) -> str:
        return self.constant(self.rng.uniform(low, high, shape).astype(F))

    def zero(self, kind: Any = U8) -> str:
        return self.constant(np.array(self.rng.integers(1, 100), kind))

    def weights(self, *shape: int, kind: Any = S8) -> str:
        info = np.iinfo(kind)
        return self.constant(self.rng.integers(info.min, info.max + 1, shape).astype(kind))

    def model(self, y: str, width: int = WIDTH) -> ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "length", width])
        outputs = [helper.make_value_info(y, helper.make_tensor_type_proto(TensorProto.FLOAT, None))]
        graph = helper.make_graph(self.nodes, "g", [x], outputs, self.tensors)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)


def quantized(seed: int, per_channel: bool, kind: Any) -> ModelProto:
    """Quantization, products, sums with a constant and with another tensor, tables, normalization,
    all with parameters."""
    net, y = Net(seed), "x"
    for _ in range(LAYERS):
        s, z = net.scale(), net.zero(kind)
        (q,) = net.add("QuantizeLinear", y, s, z)
        channels = (WIDTH,) if per_channel else ()
        own = net.scale(0.002, 0.01, channels), net.constant(np.zeros(channels, S8))
        t, u = net.scale(), net.zero(kind)
        (p,) = net.add("QLinearMatMul", q, s, z, net.weights(WIDTH, WIDTH), *own, t, u)
        bias = net.weights(WIDTH, kind=kind), net.scale(), net.zero(kind)
        a, b = net.scale(), net.zero(kind)
        (p,) = net.add("QLinearAdd", p, t, u, *bias, a, b, domain=MS)
        c, d = net.scale(), net.zero(kind)
        (p,) = net.add("QLinearAdd", p, a, b, q, s, z, c, d, domain=MS)
        first = (net.constant(np.array([n])) for n in (0, 1, 1))
        (start,) = net.add("Slice", q, *first)
        g, h = net.scale(), net.zero(kind)
        (p,) = net.add("QLinearAdd", p, c, d, start, s, z, g, h, domain=MS)
        e, f = net.scale(), net.zero(kind)
        (p,) = net.add("QLinearLeakyRelu", p, g, h, e, f, domain=MS, alpha=0.1)
        (y,) = net.add("DequantizeLinear", p, e, f)
        (y,) = net.add("LayerNormalization", y, net.scale(0.5, 2, WIDTH), net.scale(-1, 1, WIDTH))
    return net.model(y)


def dynamic(seed: int, _: bool, kind: Any) -> ModelProto:
    """Products with a zero point of the run, and what follows them."""
    net, y = Net(seed), "x"
    for _ in range(LAYERS):
        q, s, z = net.add("DynamicQuantizeLinear", y, outputs=3)
        (p,) = net.add("MatMulInteger", q, net.weights(WIDTH, WIDTH), z, net.constant(np.array(0, S8)))
        (p,) = net.add("Cast", p, to=TensorProto.FLOAT)
        (m,) = net.add("Mul", s, net.scale())
        (p,) = net.add("Mul", p, m)
        (p,) = net.add("Add", p, net.scale(-1, 1, WIDTH))
        (y,) = net.add("LayerNormalization", p, net.scale(0.5, 2, WIDTH), net.scale(-1, 1, WIDTH), axis=-1)
    return net.model(y)


def attention(seed: int, per_channel: bool, kind: Any) -> ModelProto:
    """Products of two activations, of which the length of texts is K or N, and what they are weighed with."""
    net, y = Net(seed), "x"
    for layer in range(LAYERS):
        s, z = net.scale(), net.constant(np.array(3, kind)) if per_channel and layer else net.zero(kind)
        (q,) = net.add("QuantizeLinear", y, s, z)
        (turned,) = net.add("Transpose", q, perm=[0, 2, 1])
        t, u = net.scale(0.05, 0.4), net.zero(kind)
        (p,) = net.add("QLinearMatMul", q, s, z, turned, s, z, t, u)
        c, d = net.constant(np.array(1 / 256, F)), net.constant(np.array(np.iinfo(kind).min, kind))
        (p,) = net.add("QLinearSoftmax", p, t, u, c, d, domain=MS, axis=-1, opset=13)
        e, f = net.scale(0.01, 0.06), net.zero(kind)
        (p,) = net.add("QLinearMatMul", p, c, d, q, s, z, e, f)
        (y,) = net.add("DequantizeLinear", p, e, f)
    return net.model(y)


def compared(session: qrun.Session, model: ModelProto, sizes: list[tuple[int, int]] = SIZES) -> None:
    reference, rng = qrun.Session(model, backend="reference"), np.random.default_rng(3)
    (name,) = (value.name for value in model.graph.output)
    for n, length in sizes:
        x = {"x": rng.normal(0, 2, (n, length, WIDTH)).astype(F)}
        want = reference.run(x)[name]
        for _ in range(3):
            assert_equal(session.run(x)[name], want, f"{n} x {length}")


@thin(*itertools.product((quantized, dynamic, attention), (U8, S8)), other=2, name="case")
def test_layers_of_the_same_nodes(isa: str, case: tuple[Any, Any]) -> None:
    make, kind = case
    for number in range(2):
        model = make(number, bool(number), kind)
        for fuse in (True, False):
            session = qrun.Session(model, isa=isa, cache=OBJECTS, threads=1 + number, fuse=fuse)
            compared(session, model, SIZES if fuse else SIZES[:5])


def planned(session: qrun.Session, x: Any) -> list[Any]:
    """All numbers of the program for this input, with what its calls point to."""
    for _ in range(3):
        session.run({"x": x})
    found = [made for p in session._runs.plans.values() if p.programs for made in p.programs._made.values()]
    program = next(made.program for made in found if made and made.program.listing.given["x"].shape == x.shape)
    made = portable(program.schedule, program.listing)
    listing, arrays = made.listing, [array.tobytes() for array in made.arrays]
    held = [(call, word, arrays[number][start:]) for call, word, number, start in made.held.tolist()]
    pointers = {key: sorted(rows.tolist()) for key, rows in listing.pointers.items()}
    return [
        listing.structs.tolist(), made.specs, held, pointers, listing.counts.tolist(), listing.arena, listing.scratch,
        dict(listing.views), dict(listing.room), listing.segments,
    ]  # fmt: skip


@pytest.mark.parametrize("make", [quantized, dynamic, attention])
def test_programs_of_new_sizes_are_those_made_afresh(make: Any) -> None:
    model, rng = make(5, True, U8), np.random.default_rng(4)
    session = qrun.Session(model, cache=OBJECTS, threads=2)
    for length in (7, *rng.integers(2, 200, 4).tolist()):
        x = np.ones((2, length, WIDTH), F)
        found, wanted = planned(session, x), planned(qrun.Session(model, cache=OBJECTS, threads=2), x)
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert one == other, (length, place)


def sizes_taken(monkeypatch: pytest.MonkeyPatch, model: ModelProto, sizes: list[tuple[int, int]]) -> list[str]:
    """What the last stages are of the kernels that took their sizes from others, of a run with each of these."""
    taken, sized = [], Twins.with_leader_sizes

    def noted(self: Twins, index: int, other: Any) -> Any:
        found = sized(self, index, other)
        if found[0] is not None:
            taken.append(type(found[0].stages[-1].operation).__name__)
        return found

    monkeypatch.setattr(Twins, "with_leader_sizes", noted)
    session = qrun.Session(model, cache=False, fuse=False)
    for n, length in sizes:
        session.run({"x": np.ones((n, length, WIDTH), F)})
    return taken


def test_all_but_the_first_layer_take_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = sizes_taken(monkeypatch, quantized(7, True, U8), [(1, 5), (1, 9)])
    wanted = ["Quantize", "Gemm", "Point", "PairLookup", "PairLookup", "Point", "Dequantize", "LayerNorm"]
    assert taken == wanted * (LAYERS - 1)
    monkeypatch.undo()
    taken = sizes_taken(monkeypatch, dynamic(7, True, U8), [(1, 5), (1, 9)])
    assert taken == ["DynamicSums", "LayerNorm"] * (LAYERS - 1)
    monkeypatch.undo()
    taken = sizes_taken(monkeypatch, attention(7, True, U8), [(2, 5), (2, 9), (2, 70)])
    assert taken == ["Quantize", "StackProduct", "Softmax", "StackProduct", "Dequantize"] * (LAYERS - 1) * 2


@pytest.mark.parametrize("make", [quantized, dynamic, attention])
def test_calls_of_new_sizes_are_planned_for_one_layer(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """The other layers take them, with constants of their own."""
    planned, call = [0, 0], Kernels.call
    for number, layers in enumerate((2, 5)):
        monkeypatch.setitem(globals(), "LAYERS", layers)
        session = qrun.Session(make(7, True, U8), cache=OBJECTS, fuse=False)
        for length in (5, 9):
            session.run({"x": np.ones((1, length, WIDTH), F)})

        def counted(*args: Any, number: int = number, **more: Any) -> Any:
            # Those have words that follow from both, or serve some layers only, for their zero points.
            planned[number] += args[1].kind not in ("runs", "softmax", "clipped")
            return call(*args, **more)

        monkeypatch.setattr(Kernels, "call", counted)
        session.run({"x": np.ones((1, 12, WIDTH), F)})
        monkeypatch.setattr(Kernels, "call", call)
    assert planned[0] == planned[1] > 0


@every_isa
def test_columns_with_lines_are_each_layers_own(isa: str) -> None:
    """Tables of two layers, as many columns of which have lines, but others."""
    rng, width = np.random.default_rng(2), 200
    native, u8 = engine(isa), np.dtype(np.uint8)

    def tables(lines: slice) -> Any:
        made = rng.integers(0, 256, (width, 256)).astype(u8)
        made[lines] = np.clip(np.rint(np.arange(256) * rng.uniform(0.3, 0.9) + 7), 0, 255)
        return made

    first, own = tables(slice(0, 128)), tables(slice(0, 100))
    leader = Point(native, (9, width), first, x_type=u8, axis=-1)
    made = Point(native, (4, width), own, x_type=u8, axis=-1).with_sizes_of(leader, Memo())
    assert made is not None
    x = rng.integers(0, 256, (9, width)).astype(u8)
    assert_equal(native.run(made, [x]), own[np.arange(width), x])


def test_sizes_of_one_and_none_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """They broadcast, or leave nothing to do."""
    assert sizes_taken(monkeypatch, quantized(8, False, U8), [(2, 5), (1, 5), (2, 1), (0, 5)]) == []


def test_a_profile_names_the_kernels_of_the_new_sizes() -> None:
    model, (short, long) = quantized(9, True, U8), [{"x": np.ones((2, n, WIDTH), F)} for n in (2, 40)]
    session, alone = (qrun.Session(model, cache=False, fuse=False) for _ in range(2))
    for feeds in (short, long):
        session.run(feeds)
    found, wanted = (s.execute(long, observe=False).events for s in (session, alone))
    assert [event.sections for event in found] == [event.sections for event in wanted]
    assert [event.observations for event in found] == [event.observations for event in wanted]


def test_constants_of_other_types_are_no_twins() -> None:
    """A layer with unsigned weights between layers with signed ones."""
    net, y = Net(11), "x"
    for weights in (S8, U8, S8):
        s, z, t, u = net.scale(), net.zero(), net.scale(), net.zero()
        (q,) = net.add("QuantizeLinear", y, s, z)
        own = net.weights(WIDTH, WIDTH, kind=weights), net.scale(0.002, 0.01), net.constant(np.array(0, weights))
        (q,) = net.add("QLinearMatMul", q, s, z, *own, t, u)
        (y,) = net.add("DequantizeLinear", q, t, u)
    compared(qrun.Session(net.model(y), cache=OBJECTS), net.model(y))
