"""Random nodes, their parameters constant or fed: the native backend against the reference, bit for bit."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from helpers.native import ISAS, OBJECTS, THOROUGH, codes, nearest32, thin
from helpers.support import MS, assert_equal, node_model, with_all_outputs
from onnx import helper, numpy_helper

import qrun
from qrun.checking.rules import check

F, U, S = np.float32, np.uint8, np.int8
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
Rng = np.random.Generator
Shape = tuple[int, ...]
Node = tuple[str, str, list[Any], dict[str, Any], list[Any]]
"""Operator, domain, inputs, attributes and types of the outputs."""


def pick(rng: Rng, *values: Any) -> Any:
    return values[int(rng.integers(0, len(values)))]


def eight(rng: Rng, shape: Shape, dtype: Any) -> np.ndarray:
    return codes(rng, shape, "u8" if dtype == U else "s8")


def scales(rng: Rng, shape: Shape) -> np.ndarray:
    """Often powers of two, which make ties; rarely zero, negative, subnormal, huge or not finite."""
    values = np.array(
        np.exp2(rng.integers(-9, -5, shape)) if rng.random() < 0.4 else rng.uniform(0.002, 0.02, shape), F
    )
    if rng.random() < 0.12 and values.size:
        values.reshape(-1)[rng.integers(0, values.size)] = pick(rng, 0, -0.01, np.inf, np.nan, 1e-40, 1e38)
    return values


def shapes(rng: Rng) -> tuple[Shape, Shape]:
    m, k, n = pick(rng, 1, 4, 5, 6, 9), pick(rng, 1, 3, 16, 20, 64, 65), pick(rng, 1, 5, 16, 17, 64, 70)
    if rng.random() < 0.15:
        m, k, n = pick(rng, (0, k, n), (m, 0, n), (m, k, 0))
    la, lb = pick(rng, ((), ()), ((), ()), ((3,), ()), ((), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0,), (1,)))
    a, b = (*la, m, k), (*lb, k, n)
    return (k,) if rng.random() < 0.1 else a, (k,) if rng.random() < 0.1 else b


def row(rng: Rng, a: Shape, dtype: Any, scalar: bool = False) -> np.ndarray:
    forms = [(), (1,)] + [(a[0],)] * (len(a) == 2) + [(*a[:-1], 1)] * (len(a) > 1)
    return eight(rng, pick(rng, *forms[: 2 if scalar else 4]), dtype)


def column(rng: Rng, b: Shape, lifted: bool = False) -> Shape:
    forms = [(), (1,)] + [(b[-1],)] * (len(b) == 2 or (lifted and len(b) > 1)) + [(*b[:-2], 1, b[-1])] * (len(b) > 1)
    return pick(rng, *forms, *[(*[1] * (len(b) - 2), 1, b[-1])] * (len(b) > 2))


def real(rng: Rng, shape: Shape) -> np.ndarray:
    x = np.asarray(rng.normal(0, 10 ** rng.uniform(-3, 3), shape), F)
    kind = rng.random()
    if x.size and kind < 0.2:
        x.reshape(-1)[rng.integers(0, x.size)] = pick(rng, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45)
    return np.asarray(np.abs(x) if kind > 0.9 else x * 0 if kind > 0.85 else np.rint(x * 8) / 8 if kind > 0.7 else x, F)


def integer_product(rng: Rng) -> Node:
    (a, b), ta, tb = shapes(rng), pick(rng, U, S), pick(rng, U, S)
    inputs = [eight(rng, a, ta), eight(rng, b, tb), row(rng, a, ta), eight(rng, column(rng, b), tb)]
    return "MatMulInteger", "", inputs[: pick(rng, 2, 3, 4, 4)], {}, [np.int32]


def quantized_product(rng: Rng) -> Node:
    (a, b), ta, tb, ty = shapes(rng), pick(rng, U, S), pick(rng, U, S), pick(rng, U, S)
    inputs = [eight(rng, a, ta), scales(rng, ()), row(rng, a, ta), eight(rng, b, tb), scales(rng, column(rng, b)),
              eight(rng, column(rng, b), tb), np.array(F(0.4)), eight(rng, (), ty)]  # fmt: skip
    return "QLinearMatMul", "", inputs, {}, [ty]


def float_product(rng: Rng) -> Node:
    (a, b), ta, tb = shapes(rng), pick(rng, U, S), pick(rng, U, S)
    inputs = [eight(rng, a, ta), eight(rng, b, tb), scales(rng, (1,)), scales(rng, column(rng, b, True)),
              row(rng, a, ta, True), eight(rng, column(rng, b, True), tb),
              np.asarray(rng.normal(0, 10, b[-1] if len(b) > 1 else 1), F)]  # fmt: skip
    return "MatMulIntegerToFloat", MS, inputs[: pick(rng, 4, 5, 6, 7)], {}, [F]


def dynamic_product(rng: Rng) -> Node:
    (a, b), tb = shapes(rng), pick(rng, U, S)
    inputs = [real(rng, a), eight(rng, b, tb), scales(rng, column(rng, b, True)), eight(rng, column(rng, b, True), tb),
              np.asarray(rng.normal(0, 10, b[-1] if len(b) > 1 else 1), F)]  # fmt: skip
    return "DynamicQuantizeMatMul", MS, inputs[: pick(rng, 3, 4, 5)], {}, [F]


def dynamic_codes(rng: Rng) -> Node:
    return "DynamicQuantizeLinear", "", [real(rng, shapes(rng)[0])], {}, [U, F, U]


def gemm(rng: Rng) -> Node:
    m, k, n = pick(rng, 1, 4, 9), pick(rng, 0, 1, 8, 65), pick(rng, 1, 7, 40, 64)
    ta, tb, ty = pick(rng, U, S), pick(rng, U, S), pick(rng, U, S)
    ends = pick(rng, 4000, 2**31 - 1)
    inputs = [eight(rng, pick(rng, (m, k), (m, k)), ta), scales(rng, ()), eight(rng, (), ta), eight(rng, (k, n), tb),
              scales(rng, column(rng, (k, n))[-1:]), eight(rng, column(rng, (k, n))[-1:], tb),
              rng.integers(-ends, ends, pick(rng, (), (n,), (1, n))).astype(np.int32),
              np.array(F(0.3)), eight(rng, (), ty)]  # fmt: skip
    if rng.random() < 0.4:
        inputs[6] = None
    attributes: dict[str, Any] = {"alpha": float(pick(rng, 1, 1, 0.5, -2, 0.3))}
    for place, name in ((0, "transA"), (3, "transB")):
        if rng.random() < 0.5:
            attributes[name] = 1
            inputs[place] = np.ascontiguousarray(inputs[place].T)
    inputs = inputs[: pick(rng, 6, 7, 8, 9)]
    while inputs[-1] is None:
        inputs.pop()
    return "QGemm", MS, inputs, attributes, [ty if len(inputs) == 9 else F]


def conv(rng: Rng, integer: bool) -> Node:
    axes, group = pick(rng, 1, 2, 2, 3), pick(rng, 1, 1, 2, 5)
    c, m, n = group * pick(rng, 1, 3, 4, 16), group * pick(rng, 1, 2, 17), pick(rng, 0, 1, 2, 3)
    kernel = tuple(int(k) for k in rng.integers(1, 4, axes))
    size = tuple(int(k + rng.integers(0, 6)) for k in kernel)
    tx, tw, ty = pick(rng, U, S), pick(rng, U, S), pick(rng, U, S)
    attributes: dict[str, Any] = {"group": group, "strides": [int(s) for s in rng.integers(1, 3, axes)]}
    if rng.random() < 0.3:
        attributes["auto_pad"] = pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attributes["pads"] = [int(p) for p in rng.integers(0, 3, 2 * axes)]
    domain, x = MS if not integer and rng.random() < 0.5 else "", eight(rng, (n, c, *size), tx)
    if domain and rng.random() < 0.6:
        attributes["channels_last"] = 1
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    w, xz, wz = eight(rng, (m, c // group, *kernel), tw), eight(rng, (), tx), eight(rng, pick(rng, (), (1,), (m,)), tw)
    if integer:
        return "ConvInteger", "", [x, w, xz, wz][: pick(rng, 2, 3, 4)], attributes, [np.int32]
    inputs = [x, scales(rng, ()), xz, w, scales(rng, pick(rng, (), (1,), (m,))), wz, np.array(F(0.7)),
              eight(rng, (1,), ty), rng.integers(-4000, 4000, m).astype(np.int32)]  # fmt: skip
    return "QLinearConv", domain, inputs[: pick(rng, 8, 9)], attributes, [ty]


def quantized_conv(rng: Rng) -> Node:
    return conv(rng, integer=False)


def integer_conv(rng: Rng) -> Node:
    return conv(rng, integer=True)


def outcome(model: Any, feeds: Any, runs: int, **options: Any) -> tuple[str, Any, Any]:
    """The text of a refusal, or the last result with its findings."""
    session = qrun.Session(model, **options)
    try:
        for _ in range(runs):
            result = session.execute(feeds)
    except qrun.RunError as error:
        return str(error), None, None
    return "", result, check(session.model, result)


def observed(result: Any) -> list[Any]:
    return sorted((o.kind, o.param, o.count, o.total, o.first, o.detail)
                  for o in result.events[-1].observations if o.kind != "saturated")  # fmt: skip


MAKERS = (
    integer_product,
    quantized_product,
    float_product,
    dynamic_product,
    dynamic_codes,
    gemm,
    quantized_conv,
    integer_conv,
)
NEEDED = {"QLinearMatMul": {1, 4, 6, 7}, "QGemm": {1, 4, 6, 7, 8}}
"""Inputs without which a node that requantizes is not lowered unless they are constant."""
DECLINED = (
    "alpha * a_scale is not", "an empty product", "an empty tensor", "zero_point has several values",
    "b_scale differs from matrix to matrix", "C is not constant", "3 spatial axes (native kernels take 1 or 2)",
)  # fmt: skip
"""Why a node may run on the reference kernel."""


@pytest.mark.parametrize("arith", ["exact", "ort"])
@thin(*MAKERS, best=1, other=2, name="make", products=True)
def test_random_nodes(isa: str, make: Any, arith: str) -> None:
    seed = 31
    rng = np.random.default_rng(seed)
    native = 0
    for number in range(60 if isa in THOROUGH else 20):
        op_type, domain, inputs, attributes, types = make(rng)
        share = 1.0 if "Conv" in op_type else pick(rng, 0.0, 0.5, 0.9, 1.0)
        constants = {p for p in range(1, len(inputs)) if inputs[p] is not None and rng.random() < share}
        if types != [F] or op_type == "QLinearMatMul":
            constants |= {p for p in NEEDED.get(op_type, ()) if p < len(inputs) and inputs[p] is not None}
        model, feeds = node_model(
            op_type, inputs, attributes, domain=domain, outputs=types, constants=sorted(constants)
        )
        case = f"seed {seed} case {number} {op_type} {[getattr(i, 'shape', None) for i in inputs]} {sorted(constants)}"
        refused, want, findings = outcome(model, feeds, 1, arith=arith, backend="reference")
        error, got, found = outcome(model, feeds, 2, arith=arith, backend="native", isa=isa, cache=OBJECTS)
        assert error == refused, case
        if want is None:
            continue
        for name, array in want.outputs.items():
            assert_equal(got.outputs[name], array, f"{case} {name}")
        assert found == findings, case
        assert observed(got) == observed(want), case
        (event,) = got.events
        assert event.backend == "native" or any(why in event.why for why in DECLINED), (case, event.why)
        native += event.backend == "native"
    assert native >= 6


A, B = np.arange(6, dtype=U).reshape(2, 3), np.arange(12, dtype=S).reshape(3, 4)
ONE, ZERO = np.array(F(0.5)), np.zeros((), U)


HALF, STACK = np.array(0.5, np.float16), np.arange(1, 19, dtype=U).reshape(2, 3, 3)


@pytest.mark.parametrize("lead", [(3,), (2, 2)])
def test_scales_of_each_matrix(lead: Shape) -> None:
    rng = np.random.default_rng(1)
    a, b = eight(rng, (*lead, 4, 8), U), eight(rng, (*lead, 8, 20), S)
    scale, zero = rng.uniform(0.01, 1, (*lead, 1, 20)).astype(F), np.full((*lead, 1, 20), 7, S)
    model, feeds = node_model("QLinearMatMul", [a, ONE, ZERO, b, scale, zero, np.array(F(9)), ZERO],
                              outputs=[U], constants=[1, 4, 5, 6, 7])  # fmt: skip
    result = qrun.Session(model, backend="native", cache=OBJECTS).execute(feeds)
    assert result.events[0].backend == "native"
    assert_equal(result.outputs["y0"], qrun.Session(model, backend="reference").run(feeds)["y0"])


def hard_scales(rng: Rng, codes_product: int, alpha: int) -> np.ndarray:
    """float32 [.., 2]: scales whose product with both integers is closer to a tie of float32 than float64 resolves."""
    found: list[tuple[int, int]] = []
    dropped = (codes_product * alpha).bit_length() + 24
    near = np.arange(1, 2 ** (dropped - 29 - 1), dtype=np.uint64)
    while len(found) < 24:
        right = int(rng.integers(2**23, 2**24)) | 1
        inverse = pow(codes_product * alpha * right, -1, 2**dropped)
        for residue in (2 ** (dropped - 1) + near, 2 ** (dropped - 1) - near):
            left = residue * np.uint64(inverse) & np.uint64(2**dropped - 1)
            found += [(int(value), right) for value in left[(left >= 2**23) & (left < 2**24)]]
    return np.array(found, F)


@pytest.mark.parametrize("alpha", [1, 251])
def test_ties_that_float64_cannot_tell(alpha: int) -> None:
    rng = np.random.default_rng(4)
    scales_found = hard_scales(rng, 255 * 255, alpha)
    a, b, zero = np.full((1, 1), 255, U), np.full((1, len(scales_found)), 255, U), np.zeros((), U)
    wrong = 0
    for left in np.unique(scales_found[:, 0]):
        right = scales_found[:, 1]
        inputs = [a, np.array(left), zero, b, right, zero]
        model, feeds = node_model("QGemm", inputs, {"alpha": float(alpha)}, domain=MS)
        got = qrun.Session(model, backend="native", cache=OBJECTS).run(feeds)["y0"]
        exact = [255 * 255 * alpha * Fraction(float(left)) * Fraction(float(value)) for value in right]
        want = np.array([[nearest32(value) for value in exact]])
        assert np.array_equal(got, want)
        wrong += int(np.count_nonzero(want != np.array([[F(float(value)) for value in exact]])))
        wrong += int(np.count_nonzero(want != (np.float64(255 * 255 * alpha * float(left)) * right).astype(F)))
    assert wrong


def test_a_bias_that_float64_cannot_carry() -> None:
    left, right, bias = F(2**-12 * (1 + 2**-15)), F(2**-12 * (1 - 2**-15)), F(1 + 2**-23)
    one = np.ones((1, 1), U)
    model, feeds = node_model(
        "MatMulIntegerToFloat", [one, one, np.array(left), np.array(right), None, None, np.array([bias])], domain=MS
    )
    got = qrun.Session(model, backend="native", cache=OBJECTS).run(feeds)["y0"]
    exact = Fraction(float(left)) * Fraction(float(right)) + Fraction(float(bias))
    assert got == nearest32(exact) != F(float(left) * float(right) + float(bias))


def test_a_scale_that_turns_bad_is_observed() -> None:
    model, feeds = node_model("MatMulIntegerToFloat", [A, B, ONE, ONE], domain=MS, outputs=[F])
    session = qrun.Session(model, backend="native", cache=OBJECTS)
    kinds = []
    for scale in (0.5, -0.5, 0.25, np.inf):
        result = session.execute(feeds | {"i3": np.array(F(scale))})
        kinds.append([o.kind for o in result.events[0].observations])
        want = qrun.Session(model, backend="reference").run(feeds | {"i3": np.array(F(scale))})
        assert_equal(result.outputs["y0"], want["y0"])
    assert kinds == [[], ["bad-scale"], [], ["bad-scale"]]


def test_parameters_may_change_in_place() -> None:
    rng = np.random.default_rng(2)
    bias, zero = np.asarray(rng.normal(0, 1, 4), F), np.zeros(4, S)
    model, feeds = node_model(
        "DynamicQuantizeMatMul", [rng.normal(0, 1, (2, 3)).astype(F), B, ONE, zero, bias], domain=MS
    )
    session = qrun.Session(model, backend="native", cache=OBJECTS)
    reference = qrun.Session(model, backend="reference")
    for step in range(3):
        bias += 1
        zero -= S(step)
        changed = feeds | {"i3": zero, "i4": bias}
        assert_equal(session.run(changed)["y0"], reference.run(changed)["y0"])


def test_the_form_of_float_results_is_shown() -> None:
    model, feeds = node_model("MatMulIntegerToFloat", [A, B, ONE, ONE], domain=MS, outputs=[F])
    for arith, form in (("exact", "real"), ("ort", "ort"), ("onnx-ref", "real")):
        (event,) = qrun.Session(model, backend="native", cache=OBJECTS, arith=arith).execute(feeds).events
        assert {s.form for s in event.sections} == {"i32", form}


def transformer_block(rng: Rng, length: int = 7, width: int = 24, heads: int = 3) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def const(value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(constants)}"))
        return constants[-1].name

    def node(op_type: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"t{len(nodes)}"], name=f"n{len(nodes)}", **attributes))
        return str(nodes[-1].output[0])

    def dense(x: str, k: int, n: int) -> str:
        w = const((rng.normal(0, 1, (k, n)) / np.sqrt(k)).astype(F))
        return node("Add", node("MatMul", x, w), const(rng.normal(0, 0.1, n).astype(F)))

    split, joined = const(np.array([0, 0, heads, -1], np.int64)), const(np.array([0, 0, width], np.int64))
    q, k, v = (
        node("Transpose", node("Reshape", dense("x", width, width), split), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    weights = node("Softmax", node("Mul", node("MatMul", q, k), const(F(0.35))), axis=-1)
    mixed = node("Reshape", node("Transpose", node("MatMul", weights, v), perm=[0, 2, 1, 3]), joined)
    y = node("LayerNormalization", node("Add", dense(mixed, width, width), "x"), const(np.ones(width, F)), axis=-1)
    y = node("Add", dense(node("Relu", dense(y, width, 40)), 40, width), y)
    return make_model(nodes, {"x": [2, length, width]}, {y: None}, constants, opset=17)


@pytest.mark.parametrize("run_time_weights", [False, True])
@pytest.mark.parametrize("unsigned", [False, True])
def test_a_dynamically_quantized_transformer_block(unsigned: bool, run_time_weights: bool, tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    rng = np.random.default_rng(7)
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(transformer_block(rng), source)
    kind = quantization.QuantType.QUInt8 if unsigned else quantization.QuantType.QInt8
    quantization.quantize_dynamic(
        source, target, weight_type=kind, per_channel=not unsigned,
        extra_options={"MatMulConstBOnly": not run_time_weights},
    )  # fmt: skip
    model = with_all_outputs(onnx.load(target))
    for arith in ("exact", "ort"):
        reference = qrun.Session(model, arith=arith, backend="reference")
        native = qrun.Session(model, arith=arith, backend="native", cache=OBJECTS)
        for _ in range(3):
            feeds = {"x": rng.normal(0, 1, (2, 7, 24)).astype(F)}
            want, got = reference.execute(feeds), native.execute(feeds)
            for name, array in want.outputs.items():
                assert_equal(got.outputs[name], array, f"{arith} {name}")
        quantized = [
            e for e in got.events if model.graph.node[e.index].op_type in ("MatMulInteger", "DynamicQuantizeLinear")
        ]
        assert len(quantized) == (16 if run_time_weights else 10)
        assert {e.backend for e in quantized} == {"native"}
