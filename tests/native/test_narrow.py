"""Native float16 and bfloat16: the bits of the reference, and sums of products that are the real ones rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float32 import UNARY
from helpers.models import make_model, typed
from helpers.native import ISAS, OBJECTS, Array
from helpers.placed import reference_nodes, same_runs, schedules
from helpers.support import assert_equal, node_model
from helpers.widths import every_width, thin_width
from onnx import ModelProto, TensorProto, helper
from oracle.cast import nearest
from oracle.chains import ordered_product

import qrun
from qrun.native.emit.conversions import FORMATS
from qrun.native.kernels.elementwise import Expression

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
HALF, BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
TYPES = {HALF: (TensorProto.FLOAT16, "f16"), BRAIN: (TensorProto.BFLOAT16, "bf16")}
narrow_types = pytest.mark.parametrize("dtype", TYPES, ids=str)


def every_number(dtype: np.dtype[Any]) -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def random_numbers(dtype: np.dtype[Any], rng: np.random.Generator, *shape: int) -> Array:
    """Half of them of all sizes, infinities and NaN among them."""
    bits = rng.integers(0, 1 << 16, shape).astype(np.uint16).view(dtype)
    return np.where(rng.random(shape) < 0.5, bits, rng.normal(0, 3, shape).astype(dtype))


def same(model: ModelProto, feeds: dict[str, Array], isa: str, **options: Any) -> qrun.Session:
    """A session whose steps, and then its program, gave the bits of the reference; all of them ran natively."""
    session = same_runs(model, feeds, times=2, isa=isa, **options)
    assert not reference_nodes(session)
    return session


def one(op_type: str, inputs: Sequence[Any], isa: str, dtype: np.dtype[Any], **attributes: Any) -> qrun.Session:
    constants = attributes.pop("constants", False)
    model, feeds = node_model(op_type, inputs, attributes, opset=22, outputs=[dtype], constants=constants)
    return same(model, feeds, isa)


@thin_width(*(name for name in UNARY if name not in ("swish", "celu", "shrink")), other=6, name="name")
@narrow_types
def test_functions_of_every_number(isa: str, name: str, dtype: np.dtype[Any]) -> None:
    op_type, attributes = UNARY[name]
    one(op_type, [every_number(dtype)], isa, dtype, **attributes)


@every_width
@narrow_types
def test_limits_powers_and_swish(isa: str, dtype: np.dtype[Any]) -> None:
    x = every_number(dtype)
    for limits in ((None, None), (0.1, 6.0), (-2.0, None), (3.0, -3.0)):
        ends = [None if end is None else np.array(end, dtype) for end in limits]
        one("Clip", [x, *ends], isa, dtype, constants=[1, 2])
    for power in (2.0, 3.0, 0.5, -1.5, 5.0):
        one("Pow", [x, np.array(power, dtype)], isa, dtype, constants=[1])
    for op_type in ("IsNaN", "IsInf"):
        model, feeds = node_model(op_type, [x], opset=22, outputs=[np.bool_])
        same(model, feeds, isa)
    if dtype == HALF:
        one("Shrink", [x], isa, dtype, lambd=0.4, bias=1.7)
        model, feeds = node_model("QuickGelu", [x], {"alpha": 1.702}, domain="com.microsoft", outputs=[dtype])
        same(model, feeds, isa)
        model, feeds = node_model("Clip", [x], {"min": 0.1}, opset=10, outputs=[dtype])
        same(model, feeds, isa)


@thin_width("Add", "Sub", "Mul", "Div", other=2, name="op_type")
@narrow_types
def test_arithmetic_is_rounded_once(isa: str, op_type: str, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(1)
    for shapes in (((40, 1000), (40, 1000)), ((3, 7, 33), (33,)), ((5, 1), (1, 9))):
        one(op_type, [random_numbers(dtype, rng, *shape) for shape in shapes], isa, dtype)


@every_width
@narrow_types
def test_choices_and_comparisons(isa: str, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(2)
    x, y = (random_numbers(dtype, rng, 5, 40) for _ in range(2))
    one("Where", [rng.random((5, 40)) < 0.5, x, y], isa, dtype)
    model, feeds = node_model("Greater", [x, y], opset=22, outputs=[np.bool_])
    same(model, feeds, isa)


@every_width
def test_casts(isa: str) -> None:
    """Between all of them, of numbers beside the middle of two, and beyond the greatest."""
    rng = np.random.default_rng(3)
    for dtype, (_, name) in TYPES.items():
        form = FORMATS[name]
        x = every_number(dtype).astype(np.float32)
        x = x[np.isfinite(x)]
        middle = (np.sort(x)[:-1].astype("d") + np.sort(x)[1:]) / 2
        singles = middle.astype(np.float32)
        beside = [np.nextafter(singles, np.float32(end), dtype=np.float32) for end in (-np.inf, np.inf)]
        numbers = np.concatenate([singles, *beside, rng.integers(0, 1 << 32, 5000, np.uint64).astype("u4").view("f")])
        assert (np.abs(singles) > form.least).any()
        sources = [numbers, *map(every_number, TYPES), np.arange(-128, 128).astype(np.int8), np.array([True, False])]
        if dtype == HALF:
            sources.append(np.concatenate([np.arange(-70000, 70000), [2**31 - 1, -(2**31)]]).astype(np.int32))
        for source in sources:
            one("Cast", [source], isa, dtype, to=TYPES[dtype][0])
    for dtype in TYPES:
        one("Cast", [every_number(dtype)], isa, np.dtype(np.float32), to=TensorProto.FLOAT)


def beside_middles(dtype: np.dtype[Any], m: int, k: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows whose sums are the middle of two numbers, a hair beside it,
    or so near that a float32 between would be the middle."""
    digits = FORMATS[TYPES[dtype][1]].digits
    unit = 2.0**-digits
    hairs = [[1, unit], [1, unit, 2.0**-14 * unit], [1, unit, -(2.0**-14) * unit], [1, 3 * unit, -(2.0**-13) * unit]]
    a = rng.integers(-3, 4, (m, k)) * rng.choice([0, 1], (m, 1)) * 1.0
    for row in range(0, m, 2):
        hair = np.array(hairs[row // 2 % len(hairs)]) * rng.choice([-1, 1])
        a[row] = 0
        a[row, : len(hair)] = hair
    b = np.exp2(rng.integers(-3, 4, n)) * rng.choice([-1, 1], n)
    return a.astype(dtype), np.broadcast_to(b, (k, n)).astype(dtype)


@every_width
@narrow_types
def test_products_against_the_definition(isa: str, dtype: np.dtype[Any]) -> None:
    rng, name = np.random.default_rng(4), TYPES[dtype][1]
    for m, k, n in ((8, 5, 9), (18, 140, 9), (1, 40, 17)):
        small = rng.integers(-9, 10, (m, k)) * FORMATS[name].unit
        cases = [beside_middles(dtype, m, k, n, rng), (small.astype(dtype), np.ones((k, n), dtype))]
        cases.append(tuple(rng.integers(-40, 41, shape).astype(dtype) for shape in ((m, k), (k, n))))
        for a, b in cases:
            sums = ordered_product(a, b).astype(np.float64).tolist()
            want = np.array([[nearest(Fraction(total), dtype) for total in row] for row in sums]).astype(dtype)
            for constants in (False, [1]):
                model, feeds = node_model("MatMul", [a, b], outputs=[dtype], constants=constants)
                session = same(model, feeds, isa)
                assert_equal(session.run(feeds)["y0"], want, f"{m}x{k}x{n}", signed_zeros=False)


@every_width
@narrow_types
def test_products_of_all_kinds_of_numbers(isa: str, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(5)
    for m, k, n in ((3, 40, 50), (30, 40, 50), (20, 300, 20)):
        a, b, c = (random_numbers(dtype, rng, *shape) for shape in ((m, k), (k, n), (n,)))
        a[::2], b[:, ::3] = rng.normal(0, 1, a[::2].shape), rng.normal(0, 1, b[:, ::3].shape)
        one("MatMul", [a, b], isa, dtype)
        one("Gemm", [a, b, c], isa, dtype, constants=[1, 2], alpha=0.3, beta=-1.7)
        one("Gemm", [a, b.T.copy(), c], isa, dtype, constants=[1, 2], transB=1)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 9, 8), (21, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 16, 5, 5), (40, 16, 1, 1), {}),
    ((1, 20, 7, 6), (17, 20, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 64, 12, 12), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 20, 6, 11), (20, 1, 3, 3), {"group": 20, "pads": [1, 1, 1, 1]}),
    ((2, 8, 20), (8, 4, 3), {"group": 2}),
]


@thin_width(*range(len(CONVOLUTIONS)), other=2, name="number")
@pytest.mark.parametrize("kind", ["middles", "all"])
def test_convolutions(isa: str, number: int, kind: str) -> None:
    """Float16 alone: sums beside the middle of two numbers, and numbers of all kinds."""
    (shape, w_shape, options), rng = CONVOLUTIONS[number], np.random.default_rng(number)
    if kind == "all":
        x, w, bias = (random_numbers(HALF, rng, *s) for s in (shape, w_shape, w_shape[:1]))
        x, w = (np.where(rng.random(v.shape) < 0.9, rng.normal(0, 1, v.shape).astype(HALF), v) for v in (x, w))
    else:
        x = rng.choice([0, 1, 2.0**-11, 2.0**-24], shape).astype(HALF)
        w, bias = rng.choice([-1, 1, 0.5], w_shape).astype(HALF), rng.integers(-3, 4, w_shape[0]).astype(HALF)
    one("Conv", [x, w, bias], isa, HALF, constants=[1, 2], **options)
    if number == 2:
        one(
            "ConvTranspose", [x, rng.normal(0, 1, (20, 7, 3, 2)).astype(HALF)], isa, HALF, constants=[1], strides=[2, 1]
        )


@every_width
@narrow_types
def test_rows_and_pools(isa: str, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(6)
    for shape in ((2, 3, 4, 5), (1, 20, 6, 40)):
        x, scale, bias = (rng.normal(0, 2, s).astype(dtype) for s in (shape, shape[-1:], shape[-1:]))
        whole = rng.integers(-9, 10, shape).astype(dtype)
        for numbers in (x, whole, random_numbers(dtype, rng, *shape)):
            one("Softmax", [numbers], isa, dtype)
            one("LayerNormalization", [numbers, scale, bias], isa, dtype, constants=[1, 2])
            one("ReduceMean", [numbers, np.array([3])], isa, dtype, constants=[1])
            one("GlobalAveragePool", [numbers], isa, dtype)
            one("AveragePool", [numbers], isa, dtype, kernel_shape=[2, 2], pads=[1, 1, 0, 0])
            one("MaxPool", [numbers], isa, dtype, kernel_shape=[2, 2])
        drawn = [rng.uniform(0.5, 1.5, shape[1]).astype(dtype) for _ in range(4)]
        if dtype == HALF:
            one("BatchNormalization", [x, *drawn], isa, dtype, constants=[1, 2, 3, 4])


def network(dtype: np.dtype[Any], nodes: Sequence[tuple[str, list[str], str, dict[str, Any]]], shape: Sequence[int],
            constants: dict[str, Array], outputs: Sequence[str]) -> ModelProto:  # fmt: skip
    number = TYPES[dtype][0]
    tensors = [
        helper.make_tensor(name, number, a.shape, a.astype(dtype).tobytes(), raw=True) for name, a in constants.items()
    ]
    return make_model(
        [helper.make_node(op, names, [output], **more) for op, names, output, more in nodes],
        {"x": typed(number, shape)},
        {name: typed(number) for name in outputs},
        tensors,
        opset=22,
    )


def operations(session: qrun.Session) -> list[Any]:
    return [placed.operation for schedule in schedules(session) for placed in schedule.placement.placed]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", ISAS[:1])
@narrow_types
def test_values_between_nodes_stay_float32(isa: str, threads: int, dtype: np.dtype[Any]) -> None:
    """One conversion at the beginning, one at the end, although two nodes read the input; functions are one kernel."""
    rng = np.random.default_rng(7)
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Conv", ["x", "w"], "a", {"pads": [1, 1, 1, 1]}),
        ("Relu", ["a"], "b", {}),
        ("Add", ["b", "x"], "c", {}),
        ("Sigmoid", ["c"], "d", {}),
        ("Mul", ["c", "d"], "e", {}),
        ("Transpose", ["e"], "f", {"perm": [0, 2, 3, 1]}),
        ("MatMul", ["f", "m"], "y", {}),
    ]
    constants = {"w": rng.normal(0, 0.2, (16, 16, 3, 3)), "m": rng.normal(0, 0.3, (16, 24))}
    model = network(dtype, nodes, (1, 16, 9, 8), constants, ["y"])
    session = same(model, {"x": rng.normal(0, 1, (1, 16, 9, 8)).astype(dtype)}, isa, threads=threads)
    made = operations(session)
    functions = [[step.function for step in o.steps] for o in made if isinstance(o, Expression)]
    assert functions == [["cast"], ["add", "sigmoid", "mul"], [f"to_{TYPES[dtype][1]}"]]
    assert [o.result.dtype for o in made if o.result.dtype == dtype] == [dtype]


@narrow_types
def test_what_only_moves_elements_moves_narrow_ones(dtype: np.dtype[Any]) -> None:
    x = random_numbers(dtype, np.random.default_rng(8), 5, 7)
    for node in (("Transpose", ["x"], "y", {"perm": [1, 0]}), ("Concat", ["x", "c"], "y", {"axis": 1})):
        session = same(network(dtype, [node], x.shape, {"c": x[::-1].copy()}, ["y"]), {"x": x}, ISAS[0])
        assert [[operand.dtype for operand in o.operands] for o in operations(session)] in (
            [[dtype] * 2],
            [[dtype] * 3],
        )


def test_other_floats_beside_narrow_ones_are_left_to_the_reference() -> None:
    x, scale = np.arange(24).reshape(3, 8).astype(HALF), np.ones(8, np.float32)
    model, feeds = node_model("LayerNormalization", [x, scale], opset=16, outputs=[np.float32], constants=[1])
    want = qrun.Session(model, backend="reference").run(feeds)
    assert_equal(qrun.Session(model, cache=OBJECTS).run(feeds)["y0"], want["y0"])


@pytest.mark.parametrize("code", [np.uint16, np.int16, np.uint8, np.int8], ids=lambda t: np.dtype(t).name)
@narrow_types
def test_dequantize_makes_the_type_that_it_states(dtype: np.dtype[Any], code: type) -> None:
    """A narrow scale does not round what output_dtype states to be float32; without output_dtype it does."""
    info = np.iinfo(code)
    x = np.linspace(info.min, info.max, 1000).astype(code)
    for scale in (np.array(1, dtype), np.array(0.37, dtype)):
        inputs = [x, scale, np.array(3, code)]
        exact = (x.astype(np.int64) - 3) * np.float64(scale)
        for stated, made in ((TensorProto.FLOAT, np.dtype(np.float32)), (0, dtype)):
            more = {"output_dtype": stated} if stated else {}
            model, feeds = node_model("DequantizeLinear", inputs, more, opset=23, outputs=[made], constants=[1, 2])
            session = same_runs(model, feeds)
            with np.errstate(over="ignore"):
                want = exact.astype(np.float32).astype(made)
            assert_equal(session.run(feeds)["y0"], want, str(stated))
            assert not stated or not reference_nodes(session)


@narrow_types
def test_a_fed_narrow_scale_gives_the_same_in_every_run(dtype: np.dtype[Any]) -> None:
    """Runs that feed the same scale again take it for a constant: of the same float32 values as before."""
    inputs = [np.array([2999, 30001], np.uint16), np.array(1, dtype)]
    made = np.dtype(np.float32)
    model, feeds = node_model("DequantizeLinear", inputs, {"output_dtype": 1}, opset=23, outputs=[made])
    model.graph.node.append(helper.make_node("Cast", ["y0"], ["whole"], to=TensorProto.INT32))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("whole", TensorProto.INT32, None))
    session = qrun.Session(model, cache=OBJECTS)
    for _ in range(6):
        assert session.run(feeds)["whole"].tolist() == [2999, 30001]
