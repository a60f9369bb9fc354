"""Elementwise functions of 8-bit tensors as tables: the bits of the literal graph, in every arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.passes import ARITHS, MS, Graph, assert_same, codes, ops, reasons, rewritten, run, zero

from qrun.errors import OperatorError
from qrun.ir.schema import QUARK, VAI
from qrun.ops import REGISTRY, find
from qrun.passes.tabulate import tabulate

F, U8, S8 = np.float32, np.uint8, np.int8
SHAPE = (2, 3, 4, 5)
Build = Callable[[Graph, str], str]


def channels(*values: float) -> np.ndarray:
    return np.array(values, F)


def normalized(g: Graph, t: str) -> str:
    numbers = [channels(1, -2, 0.5), channels(0.1, 0, -3), channels(0.2, 5, -1), channels(1, 0.25, 2)]
    return str(g.node("BatchNormalization", t, *(g.const(n) for n in numbers)))


def limited(g: Graph, t: str) -> str:
    return str(g.node("Clip", t, g.const(F(-0.5)), g.const(F(1.5))))


def requantized(g: Graph, t: str) -> str:
    return g.dq(g.q(t, [0.1, 0.5, 0.02], np.array([1, 128, 255], U8)), [0.1, 0.5, 0.02], np.array([1, 128, 255], U8))


def as_integers(g: Graph, t: str) -> str:
    return str(g.node("Cast", g.node("Cast", t, to=6), to=1))


def microsoft(op_type: str, **attributes: Any) -> Build:
    def build(g: Graph, t: str) -> str:
        codes8 = g.q(t, 0.05, U8(100))
        y = g.node(op_type, codes8, *g.params(0.05, U8(100)), *g.params(0.01, U8(3)), domain=MS, **attributes)
        return g.dq(y, 0.01, U8(3))

    return build


def pair(domain: str, prefix: str) -> Build:
    """A quantizer's own QuantizeLinear and DequantizeLinear."""

    def build(g: Graph, t: str) -> str:
        made = g.node(f"{prefix}QuantizeLinear", t, *g.params(0.05, U8(100)), domain=domain)
        return str(g.node(f"{prefix}DequantizeLinear", made, *g.params(0.05, U8(100)), domain=domain))

    return build


THRESHOLD = {"threshold": 2.0, "signed": 1, "num_bits": 6}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "ActivationPOTQuantizer": THRESHOLD,
    "ActivationSymmetricQuantizer": THRESHOLD,
    "ActivationUniformQuantizer": {"num_bits": 6, "min_range": -1.0, "max_range": 2.5},
}
"""Attributes that an operator needs."""
POINTWISE: dict[str, Build] = {
    **{f"Extended{name}Linear": pair(QUARK, "Extended") for name in ("Quantize", "Dequantize")},
    **{f"Vitis{name}Linear": pair(VAI, "Vitis") for name in ("Quantize", "Dequantize")},
    "BatchNormalization": normalized, "Clip": limited, "QuantizeLinear": requantized, "DequantizeLinear": requantized,
    "Cast": as_integers, "QLinearSigmoid": microsoft("QLinearSigmoid"),
    "QLinearLeakyRelu": microsoft("QLinearLeakyRelu", alpha=0.3),
}  # fmt: skip


PARTIAL = ("Acos", "Acosh", "Asin", "Atanh", "Log", "Sqrt")
"""Those that have no value for some numbers; tested from 0 to 1, and Acosh from 1 to 2."""


def declared(form: str) -> list[tuple[str, str]]:
    return sorted(key for key, versions in REGISTRY.items() if any(d.form == form for d in versions))


@pytest.mark.parametrize(("domain", "op_type"), declared("pointwise"))
@pytest.mark.parametrize("arith", ARITHS)
def test_every_pointwise_operator(domain: str, op_type: str, arith: Any) -> None:
    rng = np.random.default_rng(3)
    for dtype, scale in ((U8, 0.03), (S8, 0.011)):
        g = Graph(24)
        x = g.feed(codes(rng, dtype, SHAPE))
        build = POINTWISE.get(
            op_type, lambda g, t: str(g.node(op_type, t, domain=domain, **ATTRIBUTES.get(op_type, {})))
        )
        if op_type not in PARTIAL:
            t = g.dq(x, scale, zero(rng, dtype))
        else:
            t = g.node("Add", g.dq(x, 1 / 256, dtype(np.iinfo(dtype).min)), g.const(F(op_type == "Acosh")))
        done = assert_same(g.output(g.q(build(g, t), 0.02, zero(rng, dtype))), arith, message=op_type)
        assert ops(done) == ["Table"]
        (table,) = done.model.constants.values()
        assert table.shape == (
            (3, 256) if op_type in ("BatchNormalization", "QuantizeLinear", "DequantizeLinear") else (256,)
        )


@pytest.mark.parametrize(("domain", "op_type"), declared("broadcast"))
@pytest.mark.parametrize("arith", ARITHS)
def test_every_operator_that_broadcasts(domain: str, op_type: str, arith: Any) -> None:
    rng = np.random.default_rng(4)
    for shape, rows in (
        ((), 1),
        ((1,), 1),
        ((1, 1, 1, 1), 1),
        ((3, 1, 1), 3),
        ((1, 3, 1, 1), 3),
        ((5,), 5),
        ((2, 1, 1, 1), 2),
    ):
        for swapped in (False, True) if op_type != "PRelu" else (False,):
            g = Graph(24)
            x = g.feed(codes(rng, U8, SHAPE))
            z = zero(rng, U8)
            if op_type.startswith("QLinear"):
                other = g.const(codes(rng, U8, shape))
                pairs = [(x, *g.params(0.03, z)), (other, *g.params(0.01, U8(77)))]
                a, b = pairs[::-1] if swapped else pairs
                y = g.node(op_type, *a, *b, *g.params(0.02, U8(5)), domain=domain)
                y = g.node("Abs", g.dq(y, 0.02, U8(5)))
            else:
                t, other = g.node("Abs", g.dq(x, 0.03, z)), g.const(rng.uniform(0.1, 2, shape).astype(F))
                t = g.node("Add", t, g.const(F(0.01)))
                attributes = {"fmod": 1} if op_type == "Mod" else {}
                more = [g.const(F(number)) for number in {"IntQuant": (0, 4), "Quant": (0, 4)}.get(op_type, ())]
                y = g.node(op_type, *((other, t) if swapped else (t, other)), *more, domain=domain, **attributes)
            done = assert_same(g.output(g.q(y, 0.02, U8(9))), arith, message=f"{op_type} {shape} {swapped}")
            assert ops(done) == ["Table"], f"{shape} {swapped} {reasons(done)}"
            (table,) = done.model.constants.values()
            assert table.shape in ((256,), (rows, 256)), "one row, where all are equal"


def test_declared_forms_hold() -> None:
    """Reversing x, which nothing else may notice, reverses the result."""
    rng = np.random.default_rng(5)
    for (domain, op_type), versions in REGISTRY.items():
        for definition in versions:
            plain = [p for p in definition.inputs if not p.optional]
            if definition.form == "pointwise" and len(plain) == 1 and op_type != "Cast":
                x = rng.normal(0, 2, (3, 50)).astype(F)
                more = ATTRIBUTES.get(op_type, {})
                made, turned = definition(x, **more), definition(x[..., ::-1], **more)
                np.testing.assert_array_equal(made[..., ::-1], turned, f"{domain} {op_type}")
    definition = find("", "BatchNormalization", 15)
    assert definition is not None
    x, numbers = rng.normal(0, 2, (3, 4, 5)).astype(F), [rng.uniform(1, 2, 4).astype(F) for _ in range(4)]
    np.testing.assert_array_equal(definition(x, *numbers)[0][::-1, :, ::-1], definition(x[::-1, :, ::-1], *numbers)[0])


def test_one_tensor_read_twice() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, SHAPE))
    t = g.dq(x, 0.04, U8(130))
    gate = g.dq(g.q(g.node("Sigmoid", t), 1 / 256, U8(0)), 1 / 256, U8(0))
    y = g.q(g.node("Mul", t, gate), 0.03, U8(9))
    square = g.dq(y, 0.03, U8(9))
    assert ops(assert_same(g.output(g.q(g.node("Mul", square, square), 0.1, U8(0))))) == ["Table"]


def test_tensors_on_the_way_that_are_asked_for_or_read_by_others_are_there() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, (1, 3, 4, 4)))
    a = g.q(g.node("Tanh", g.dq(x, 0.04, U8(130))), 0.01, U8(100))
    t = g.dq(a, 0.01, U8(100))
    exp = g.node("Exp", t)
    b = g.q(exp, 0.02, U8(0))
    w = g.dq(g.const(codes(np.random.default_rng(2), S8, (2, 3, 1, 1))), 0.1, S8(0))
    conv = g.q(g.node("Conv", t, w), 0.1, U8(128))
    g.output(b, conv)
    assert ops(assert_same(g)) == ["Table", "Table", "QLinearConv"]
    assert ops(assert_same(g, keep=(a,))) == ["Table", "Table", "QLinearConv"]
    assert ops(assert_same(g, keep=(exp, a))).count("Table") == 2
    kept = assert_same(g, keep=(exp,))
    assert sorted(ops(kept)) == ["DequantizeLinear", "Exp", "QLinearConv", "Table", "Table"]


def test_equal_parameters_leave_nothing() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), S8, SHAPE))
    y = x
    for _ in range(3):
        y = g.q(g.dq(y, 0.1, S8(-7)), 0.1, S8(-7))
    relu = g.q(g.node("Relu", g.dq(y, 0.1, S8(-128))), 0.1, S8(-128))
    done = assert_same(g.output(y, relu))
    assert ops(done) == ["Identity", "Identity"], "for the two graph outputs"
    assert done.model.constants == {}


def test_tables_of_tables_are_one_table() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, SHAPE))
    y = x
    for scale in (0.1, 0.2, 0.05, 0.3):
        y = g.q(g.node("Add", g.dq(y, 0.1, U8(99)), g.const(channels(1, 2, 3).reshape(3, 1, 1))), scale, U8(77))
    done = assert_same(g.output(y))
    assert ops(done) == ["Table"]
    again = tabulate(done.model, (), "exact")
    assert again.model is done.model


def test_a_chain_has_an_end() -> None:
    g = Graph()
    y = g.feed(codes(np.random.default_rng(1), U8, (4, 4)))
    for _ in range(50):
        y = g.q(g.node("Neg", g.dq(y, 0.1, U8(99))), 0.1, U8(98))
    assert ops(assert_same(g.output(y))) == ["Table"], "tables of 64 nodes, and then one of them"
    assert [n.op_type for n in tabulate(g.model(), (), "exact").model.nodes] == ["Table"] * 3


def test_a_single_integer_operator_stays_but_not_with_constants_per_channel() -> None:
    for other, left in ((U8(200), ["QLinearMul"]), (np.array([[[0]], [[200]], [[9]]], U8), ["Table"])):
        g = Graph()
        x = g.feed(codes(np.random.default_rng(1), U8, SHAPE))
        sides = (*g.params(0.05, U8(100)), g.const(other), *g.params(0.01, U8(3)), *g.params(0.02, U8(3)))
        assert ops(assert_same(g.output(g.node("QLinearMul", x, *sides, domain=MS)))) == left


def ending(g: Graph, y: str, label: str = "") -> Graph:
    return g.output(g.q(y, 0.1, U8(9)))


def start(g: Graph, shape: Any = SHAPE, **options: Any) -> str:
    return g.dq(g.feed(codes(np.random.default_rng(1), U8, shape), **options), 0.1, U8(99))


def test_constants_along_two_axes() -> None:
    g = Graph()
    t = g.node("Mul", start(g), g.const(channels(1, 2, 3).reshape(3, 1, 1)))
    g.output(g.q(g.node("Add", t, g.const(np.arange(5).astype(F)), label="n"), 0.1, U8(9)))
    done = assert_same(g)
    assert ops(done) == ["DequantizeLinear", "Mul", "Add", "QuantizeLinear"]
    assert reasons(done)["n"] == "its constants vary along more than one axis"
    h = Graph()
    done = assert_same(ending(h, h.node("Mul", start(h), h.const(np.ones((3, 4, 1), F)), label="n")))
    assert reasons(done)["n"] == "its constants vary along more than one axis"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"known": False}, "its rank is not known"),
        ({"dims": ["N", "C", "H", "W"]}, "axis 1 is not known to have 3 elements"),
    ],
)
def test_unknown_shapes(options: Any, reason: str) -> None:
    for shape in (SHAPE, (2, 1, 4, 5)):
        g = Graph()
        y = g.node("Mul", start(g, shape, **options), g.const(channels(1, 2, 3).reshape(3, 1, 1)), label="n")
        done = assert_same(ending(g, y))
        assert reasons(done)["n"] == reason
    g = Graph()
    assert ops(assert_same(ending(g, normalized(g, start(g, **options))))) == ["Table"], "parameters say their axis"
    g = Graph()
    assert ops(assert_same(ending(g, g.node("Mul", start(g, **options), g.const(F(3)))))) == ["Table"]


def test_constants_that_repeat_the_tensor() -> None:
    g = Graph()
    y = g.node("Mul", start(g, (2, 1, 4, 5)), g.const(channels(1, 2, 3).reshape(3, 1, 1)), label="n")
    assert reasons(assert_same(ending(g, y)))["n"] == "axis 1 is not known to have 3 elements"
    g = Graph()
    y = g.node("Mul", start(g, (4,)), g.const(np.full((1, 1), 2, F)), label="n")
    assert reasons(assert_same(ending(g, y)))["n"] == "its constants may have more axes than it"


def test_shapes_are_known_behind_convolutions_and_concatenations() -> None:
    rng = np.random.default_rng(1)
    g = Graph()
    w = g.dq(g.const(codes(rng, S8, (3, 2, 1, 1))), 0.1, S8(0))
    x = g.q(g.node("Conv", start(g, (1, 2, 4, 4), known=False), w), 0.1, U8(128))
    y = g.q(g.node("Concat", g.dq(x, 0.1, U8(128)), g.dq(x, 0.1, U8(128)), axis=1), 0.1, U8(128))
    six = g.const(rng.uniform(0, 1, (1, 6, 1, 1)).astype(F))
    g.output(g.q(g.node("Mul", g.dq(y, 0.1, U8(128)), six), 0.1, U8(0)))
    assert ops(rewritten(g)) == ["QLinearConv", "QLinearConcat", "Table"]


def test_nothing_is_assumed_about_training_or_blocks() -> None:
    g = Graph(21)
    numbers = [g.const(channels(1, 2, 3)) for _ in range(4)]
    y = g.node("BatchNormalization", start(g), *numbers, training_mode=1)
    assert "BatchNormalization" in ops(assert_same(ending(g, y)))
    g = Graph(21)
    x = g.feed(codes(np.random.default_rng(1), U8, (2, 6)))
    scale, zeros = g.params(np.full((2, 2), 0.1), np.zeros((2, 2), U8))
    y = g.node("DequantizeLinear", x, scale, zeros, axis=1, block_size=3)
    assert ops(assert_same(ending(g, y))) == ["DequantizeLinear", "QuantizeLinear"]


def test_parameters_that_are_fed_may_change() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, SHAPE))
    t = g.node("DequantizeLinear", x, g.feed(F(0.3)), g.const(U8(3)))
    assert ops(assert_same(ending(g, t))) == ["DequantizeLinear", "QuantizeLinear"]
    proto = g.proto()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.3, F), t_scale := proto.graph.input[1].name))
    assert t_scale in {v.name for v in proto.graph.input}


def test_a_default_that_may_be_fed_is_no_constant() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, SHAPE))
    scale = g.feed(F(0.3))
    ending(g, g.node("DequantizeLinear", x, scale, g.const(U8(3))))
    g.initializers.append(onnx.numpy_helper.from_array(np.array(0.3, F), scale))
    done = assert_same(g)
    assert ops(done) == ["DequantizeLinear", "QuantizeLinear"]
    g.feeds[scale] = np.array(0.7, F)
    np.testing.assert_array_equal(run(done.model, g)[0], run(g.model(), g)[0])


@pytest.mark.parametrize("scale", [0.0, -0.1, np.inf, np.nan])
def test_odd_scales_are_left_to_the_run_which_reports_them(scale: float) -> None:
    for arith in ARITHS:
        g = Graph()
        x = g.feed(codes(np.random.default_rng(1), U8, SHAPE))
        y = g.node("Relu", g.dq(x, scale, U8(100)))
        assert "Table" not in ops(assert_same(g.output(g.q(y, 0.1, U8(3)), g.q(y, scale, S8(3))), arith))


@pytest.mark.parametrize("scale", [1e-45, 3e38])
def test_scales_at_the_ends_of_float32(scale: float) -> None:
    for arith in ARITHS:
        g = Graph()
        x = g.feed(codes(np.random.default_rng(1), U8, SHAPE))
        y = g.node("Relu", g.dq(x, scale, U8(100)))
        assert ops(assert_same(g.output(g.q(y, 0.1, U8(3)), g.q(y, scale, S8(3))), arith)) == ["Table", "Table"]


def test_nan_is_left_to_the_run_which_reports_it() -> None:
    g = Graph()
    y = g.node("Log", start(g))
    assert ops(assert_same(ending(g, y))) == ["DequantizeLinear", "Log", "QuantizeLinear"]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (1, 1, 1, 1), (7,)])
@pytest.mark.parametrize("arith", ARITHS)
def test_small_tensors(shape: Any, arith: Any) -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, shape))
    y = g.node(
        "QLinearAdd",
        g.const(U8(7)),
        *g.params(0.1, U8(3)),
        x,
        *g.params(0.07, U8(200)),
        *g.params(0.3, U8(90)),
        domain=MS,
    )
    done = assert_same(g.output(g.q(g.node("Exp", g.dq(y, 0.3, U8(90))), 0.9, U8(3))), arith)
    assert ops(done) == ["Table"]


def test_a_tensor_on_the_way_that_only_the_caller_reads() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, (1, 3, 4, 4)))
    a = g.q(g.node("Tanh", g.dq(x, 0.04, U8(130))), 0.01, U8(100))
    g.output(g.q(g.node("Exp", g.dq(a, 0.01, U8(100))), 0.02, U8(0)))
    assert ops(assert_same(g)) == ["Table"]
    assert ops(assert_same(g, keep=(a,))) == ["Table", "Table"]


@pytest.mark.parametrize("shape", [(1, 256), (256, 1)])
def test_results_that_depend_on_the_place_are_no_table(shape: Any) -> None:
    """onnxruntime's sum rounds in another order where a scalar operand is folded."""
    g = Graph()
    x = g.feed(np.arange(256).astype(U8).reshape(shape))
    a, b, y = (g.params(*p) for p in ((0.021679964, U8(69)), (0.03613327, U8(22)), (0.043359928, U8(81))))
    t = g.node("QLinearAdd", g.const(U8(101)), *a, x, *b, *y, domain=MS)
    g.output(g.q(g.node("Relu", g.dq(t, 0.04, U8(81))), 0.04, U8(81)))
    assert "Table" not in ops(assert_same(g, "ort"))
    assert ops(assert_same(g, "exact")) == ["Table"]


def test_the_same_bits_of_another_type_are_a_table() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, SHAPE))
    g.output(g.node("Cast", g.node("Cast", x, to=6), to=3))
    assert ops(assert_same(g)) == ["Table"]


def test_a_zero_point_of_another_type_is_still_refused() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), S8, SHAPE))
    ending(g, g.node("Relu", g.dq(x, 0.1, U8(3))))
    done = rewritten(g)
    for model in (g.model(), done.model):
        with pytest.raises(OperatorError, match="int8"):
            run(model, g)


def test_vector_of_channels() -> None:
    g = Graph()
    y = g.node("Mul", start(g, (3,)), g.const(channels(1, 2, 3)))
    assert ops(assert_same(ending(g, y))) == ["DequantizeLinear", "Mul", "QuantizeLinear"]


def test_one_tensor_many_times_over() -> None:
    """A node's inputs are looked at once each, however often they come: squares of this number would not end."""
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, (2,)))
    g.output(g.q(g.node("Max", *[g.dq(x, 0.1, U8(3))] * 30_000, g.const(F(1))), 0.1, U8(3)))
    assert ops(rewritten(g)) == ["Table"]
