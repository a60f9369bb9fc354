"""QR206 to QR218: what is reported of operators, types and windows, compared with what onnxruntime refuses."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from helpers.graphs import random_graph
from helpers.node_cases import cases
from helpers.support import MS, node_model, run_ort
from onnx import helper, numpy_helper

import qrun
from qrun.checking.rules import RULES, Finding
from qrun.checking.rules._ort import contrib, cpu_kernels, known_schema, runtime
from qrun.errors import QrunError
from qrun.ir import Node

U8, I8, F32 = np.uint8, np.int8, np.float32
S, Z = F32(0.5), U8(0)


def ort_refuses(model: onnx.ModelProto, feeds: dict[str, Any] | None = None) -> str:
    """The message with which onnxruntime refuses to load the model, or to run it where there are feeds."""
    ort = pytest.importorskip("onnxruntime")
    if f"onnxruntime {ort.__version__}" != runtime():
        pytest.skip(f"another onnxruntime than {runtime()}")
    try:
        if feeds is not None:
            run_ort(model, feeds)
        else:
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error) or "no text"
    return ""


def loud(model: onnx.ModelProto) -> list[Finding]:
    return [f for f in qrun.check(model) if f.level != "note"]


def found(model: onnx.ModelProto) -> list[str]:
    return [f.rule for f in loud(model)]


# Windows

X, W = np.ones((1, 2, 5, 5), U8), np.ones((4, 2, 3, 3), U8)


def conv(op_type: str, attributes: dict[str, Any], x: np.ndarray, w: np.ndarray) -> tuple[onnx.ModelProto, Any]:
    if op_type == "Conv":
        return node_model("Conv", [x.astype(F32), w.astype(F32)], attributes, constants=[1])
    if op_type == "ConvInteger":
        return node_model("ConvInteger", [x, w], attributes, outputs=[np.int32], constants=[1])
    return node_model("QLinearConv", [x, S, Z, w, S, Z, S, Z], attributes, outputs=[U8], constants=range(1, 8))


GOOD: list[dict[str, Any]] = [
    {}, {"pads": [1, 1, 1, 1]}, {"pads": [0, 0, 0, 0]}, {"kernel_shape": [3, 3]}, {"strides": [2, 3]},
    {"auto_pad": "SAME_UPPER"}, {"auto_pad": "VALID"}, {"auto_pad": "NOTSET", "pads": [1, 0, 0, 1]},
    {"dilations": [2, 2]}, {"dilations": [3, 2], "pads": [1, 0, 1, 0]}, {"group": 1},
]  # fmt: skip
BAD: list[tuple[dict[str, Any], str]] = [
    ({"kernel_shape": [5, 5]}, "QR214"), ({"kernel_shape": [3]}, "QR214"),
    ({"pads": [1, 1, 1, 1], "auto_pad": "SAME_UPPER"}, "QR215"),
    ({"pads": [0, 0, 0, 0], "auto_pad": "VALID"}, "QR215"),
    ({"pads": [-1, 0, 0, 0]}, "QR216"), ({"pads": [1, 1]}, "QR216"), ({"strides": [0, 1]}, "QR216"),
    ({"strides": [1]}, "QR216"), ({"dilations": [1, 0]}, "QR216"), ({"auto_pad": "SAME"}, "QR216"),
    ({"dilations": [3, 1]}, "QR206"), ({"group": 2}, "QR207"), ({"group": 3}, "QR207"),
    ({"group": 0}, "QR207"), ({"dilations": [2, 2], "auto_pad": "SAME_LOWER"}, "QR218"),
]  # fmt: skip


@pytest.mark.parametrize("op_type", ["Conv", "ConvInteger", "QLinearConv"])
def test_windows_of_convolutions(op_type: str) -> None:
    for attributes in GOOD:
        model, feeds = conv(op_type, attributes, X, W)
        assert found(model) == [], (op_type, attributes)
        assert not ort_refuses(model, feeds), (op_type, attributes)
    for attributes, rule in BAD:
        model, feeds = conv(op_type, attributes, X, W)
        assert found(model) == [rule], (op_type, attributes, found(model))
        if attributes not in ({"group": 0}, {"dilations": [1, 0]}):
            assert ort_refuses(model, feeds), (op_type, attributes)


def test_wide_windows_and_channels() -> None:
    for x, w, attributes, rule in [
        ((1, 2, 2, 5), (4, 2, 3, 3), {}, "QR206"), ((1, 2, 2, 5), (4, 2, 3, 3), {"pads": [1, 0, 0, 0]}, ""),
        ((1, 2, 2, 5), (4, 2, 3, 3), {"auto_pad": "SAME_UPPER"}, ""), ((1, 5, 5, 2), (4, 2, 3, 3), {}, "QR206 QR207"),
        ((1, 3, 5, 5), (4, 2, 3, 3), {}, "QR207"), ((1, 4, 5, 5), (4, 2, 3, 3), {"group": 2}, ""),
        ((1, 4, 5, 5), (4, 1, 3, 3), {"group": 4}, ""), ((1, 4, 5, 5), (6, 1, 3, 3), {"group": 4}, "QR207"),
        ((1, 2, 5), (4, 2, 3, 3), {}, "QR208"), ((0, 2, 5, 5), (4, 2, 3, 3), {}, ""),
    ]:  # fmt: skip
        model, feeds = conv("QLinearConv", attributes, np.ones(x, U8), np.ones(w, U8))
        assert found(model) == rule.split(), (x, w, attributes, loud(model))
        try:
            qrun.Session(model).run(feeds)
            code = ""
        except QrunError as error:
            code = error.code
        assert bool(code) == bool(rule), (x, w, attributes, code)


def test_channels_come_from_the_convolution_before() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[1,2,n,m] x) => (float[1,c,h,v] y)
        <float[4,2,1,1] w = {1, 1, 1, 1, 1, 1, 1, 1}, float[2,GROUPED,1,1] u = {VALUES}>
        {
            a = Conv(x, w)
            b = Relu(a)
            p = MaxPool<kernel_shape = [2, 2]>(b)
            y = Conv<group = 2>(p, u)
        }
        """
    for size, rules in [(2, []), (4, ["QR207"])]:
        values = ", ".join(["1"] * 2 * size)
        model = onnx.parser.parse_model(text.replace("GROUPED", str(size)).replace("VALUES", values))
        assert found(model) == rules
        assert bool(ort_refuses(model, {"x": np.ones((1, 2, 3, 3), F32)})) == bool(rules)


def test_channels_last() -> None:
    values = [np.ones((1, 5, 5, 2), U8), S, Z, W, S, Z, S, Z]
    last, _ = node_model("QLinearConv", values, {"channels_last": 1}, domain=MS, outputs=[U8], constants=range(1, 8))
    assert found(last) == []
    first, _ = node_model("QLinearConv", values, domain=MS, outputs=[U8], constants=range(1, 8))
    assert found(first) == ["QR206", "QR207"]


def test_conv_transpose_has_its_own_weight_order() -> None:
    x = np.ones((1, 4, 2, 2), F32)
    for shape, group, rule in [((4, 6, 3, 3), 1, ""), ((4, 3, 5, 5), 2, ""), ((6, 4, 3, 3), 1, "QR207"),
                               ((4, 3, 3, 3), 3, "QR207")]:  # fmt: skip
        model, feeds = node_model("ConvTranspose", [x, np.ones(shape, F32)], {"group": group})
        assert found(model) == rule.split(), (shape, group)
        assert bool(ort_refuses(model, feeds)) == bool(rule), (shape, group)


def test_windows_of_pools() -> None:
    x = np.ones((1, 2, 5, 5), F32)
    for op_type, (attributes, rule, refused) in itertools.product(
        ("MaxPool", "AveragePool"),
        [
            ({"kernel_shape": [5, 5]}, "", False), ({"kernel_shape": [7, 5]}, "QR206", True),
            ({"kernel_shape": [7, 5], "pads": [1, 0, 1, 0]}, "", False), ({"kernel_shape": [3]}, "QR216", True),
            ({"kernel_shape": [0, 3]}, "QR216", True), ({"kernel_shape": [3, 3], "pads": [3, 3, 3, 3]}, "QR218", True),
            ({"kernel_shape": [3, 3], "pads": [-1, 0, 0, 0]}, "QR216", True),
            ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "auto_pad": "SAME_UPPER"}, "QR215", False),
            ({"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "dilations": [2, 2]}, "", False),
        ],
    ):  # fmt: skip
        model, feeds = node_model(op_type, [x], attributes)
        assert found(model) == rule.split(), (op_type, attributes, loud(model))
        if attributes["kernel_shape"] != [7, 5] or not rule:
            assert bool(ort_refuses(model, feeds)) == refused, (op_type, attributes)


# Shapes


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [((2, 3), (3, 4), 1), ((2, 3), (2, 3), 0), ((3,), (3,), 1), ((2, 3), (3,), 1), ((3,), (3, 2), 1), ((), (3,), 0),
     ((5, 2, 3), (3, 4), 1), ((5, 2, 3), (5, 3, 4), 1), ((5, 2, 3), (1, 3, 4), 1), ((5, 2, 3), (4, 3, 4), 0)],
)  # fmt: skip
def test_matrices(a: tuple[int, ...], b: tuple[int, ...], fits: int) -> None:
    model, feeds = node_model("MatMul", [np.ones(a, F32), np.ones(b, F32)])
    assert found(model) == ["QR208"] * (1 - fits)
    assert bool(ort_refuses(model, feeds)) == (not fits)


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [((2, 40), (3, 2, 16), 1), ((40,), (3, 2, 16), 1), ((2, 41), (3, 2, 16), 0), ((2, 40), (3, 1, 16), 0),
     ((2, 40), (3, 2, 8), 0), ((2, 40), (3, 32), 0), ((2, 40), (2, 2, 16), 0)],
)  # fmt: skip
def test_matrices_of_four_bits(a: tuple[int, ...], b: tuple[int, ...], fits: int) -> None:
    values = [np.ones(a, F32), np.ones(b, U8), np.ones((3, 2), F32)]
    model, feeds = node_model("MatMulNBits", values, {"K": 40, "N": 3, "block_size": 32}, domain=MS)
    assert found(model) == ["QR208"] * (1 - fits)
    assert bool(ort_refuses(model, feeds)) == (not fits)


@pytest.mark.parametrize(("a", "b", "fits"), [((2, 3), (3,), 1), ((2, 1), (1, 3), 1), ((2, 3), (2,), 0),
                                             ((2, 3), (), 1), ((0, 3), (1, 3), 1), ((0, 3), (2, 3), 0)])  # fmt: skip
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...], fits: int) -> None:
    values = [np.ones(a, U8), S, Z, np.ones(b, U8), S, Z, S, Z]
    model, feeds = node_model("QLinearAdd", values, domain=MS, outputs=[U8])
    assert found(model) == ["QR208"] * (1 - fits)
    assert bool(ort_refuses(model, feeds)) == (not fits)
    model, _ = node_model("Add", [np.ones(a, F32), np.ones(b, F32)])
    assert found(model) == ["QR208"] * (1 - fits)


def test_unknown_sizes_are_not_judged() -> None:
    for value in ("n", None):
        model, _ = node_model("MatMul", [np.ones((2, 3), F32), np.ones((4, 5), F32)])
        size = model.graph.input[0].type.tensor_type.shape.dim[1]
        size.Clear()
        if value:
            size.dim_param = value
        assert found(model) == []
        model, _ = conv("QLinearConv", {}, X, W)
        for size in model.graph.input[0].type.tensor_type.shape.dim:
            size.Clear()
        assert found(model) == []


# Operators


@pytest.mark.parametrize(
    ("domain", "op_type", "opset", "fix"),
    [("", "Reluu", 13, "did you mean Relu?"), ("", "Gelu", 13, "import opset 20 or later"),
     ("", "Upsample", 13, "import opset 9, or use its replacement"), ("", "QLinearAdd", 13, "set node.domain"),
     (MS, "Frobnicate", 13, "correct the name"), (MS, "Relu", 13, "set node.domain")],
)  # fmt: skip
def test_unknown_operators(domain: str, op_type: str, opset: int, fix: str) -> None:
    model, _ = node_model(op_type, [np.ones(2, F32)], opset=opset, domain=domain)
    (only,) = qrun.check(model)
    assert (only.rule, only.node) == ("QR211", "n")
    assert fix in only.fix
    assert ort_refuses(model)


def test_custom_domains_are_not_judged() -> None:
    model, _ = node_model("Frobnicate", [np.ones(2, F32)], domain="com.acme")
    assert [f.rule for f in qrun.check(model)] == ["QR201"]


@pytest.mark.parametrize(
    ("values", "attributes", "rule"),
    [([np.ones(2, F32)], {"alpha": 1.5}, ""), ([np.ones(2, F32)], {"alhpa": 1.5}, "QR204"),
     ([np.ones(2, F32)] * 2, {}, "QR205"), ([np.ones(2, I8)], {}, "QR203")],
)  # fmt: skip
def test_contrib_operators_that_qrun_does_not_run(values: Any, attributes: Any, rule: str) -> None:
    model, _ = node_model("QuickGelu", values, attributes, domain=MS)
    assert found(model) == rule.split()
    assert bool(ort_refuses(model)) == bool(rule)


def test_outputs() -> None:
    for change, rule in [(["y0"], ""), (["y0", "u"], "QR212"), ([], "QR212"), ([""], "QR212")]:
        model, _ = node_model("QLinearSigmoid", [np.ones(2, U8), S, Z, S, Z], domain=MS, outputs=[U8])
        node = model.graph.node.add()
        node.CopyFrom(model.graph.node[0])
        node.name = "m"
        del node.output[:]
        node.output.extend(["v" if name == "y0" else name for name in change])
        assert found(model) == rule.split(), change
        assert bool(ort_refuses(model)) == bool(rule), change


# Types


@pytest.mark.parametrize(
    ("op_type", "values", "attributes", "stated", "rule"),
    [("QuantizeLinear", [np.ones(2, F32), S], {}, U8, ""), ("QuantizeLinear", [np.ones(2, F32), S], {}, I8, "QR213"),
     ("QuantizeLinear", [np.ones(2, F32), S], {"output_dtype": 3}, I8, ""),
     ("QuantizeLinear", [np.ones(2, F32), S], {"output_dtype": 3}, U8, "QR213"),
     ("QuantizeLinear", [np.ones(2, F32), S, U8(0)], {}, I8, "QR303"),
     ("QuantizeLinear", [np.ones(2, F32), S, U8(0)], {"output_dtype": 3}, U8, "QR303"),
     ("DequantizeLinear", [np.ones(2, U8), S], {}, F32, ""), ("DequantizeLinear", [np.ones(2, U8), S], {}, U8, "QR213"),
     ("Relu", [np.ones(2, F32)], {}, np.float16, "QR213"), ("Cast", [np.ones(2, F32)], {"to": 7}, np.int32, "QR213"),
     ("Cast", [np.ones(2, F32)], {"to": 7}, np.int64, ""), ("MatMulInteger", [np.ones((2, 2), U8)] * 2, {}, F32, "QR213"),
     ("Equal", [np.ones(2, F32)] * 2, {}, F32, "QR213"), ("Shape", [np.ones(2, F32)], {}, np.int64, "")],
)  # fmt: skip
def test_stated_output_types(op_type: str, values: Any, attributes: Any, stated: Any, rule: str) -> None:
    model, _ = node_model(op_type, values, attributes, outputs=[stated])
    assert found(model) == rule.split()
    assert bool(ort_refuses(model)) == bool(rule)


def no_kernel(model: onnx.ModelProto) -> None:
    """QR217 says the same as onnxruntime."""
    rule = bool(list(RULES["QR217"].find(qrun.load(model), None)))
    message = ort_refuses(model)
    assert rule == ("NOT_IMPLEMENTED" in message), (message, qrun.check(model))


@pytest.mark.parametrize("types", list(itertools.product((U8, I8), repeat=3)), ids=str)
def test_kernels_of_8_bit_products(types: tuple[Any, Any, Any]) -> None:
    a, b, y = types
    parts = [S, a(0)], [S, b(0)], [S, y(0)]
    for op_type, left, right in [("QLinearMatMul", (2, 2), (2, 2)), ("QLinearConv", (1, 1, 2, 2), (1, 1, 1, 1))]:
        values = [np.ones(left, a), *parts[0], np.ones(right, b), *parts[1], *parts[2]]
        no_kernel(node_model(op_type, values, outputs=[y])[0])
    for op_type, left, right in [("MatMulInteger", (2, 2), (2, 2)), ("ConvInteger", (1, 1, 2, 2), (1, 1, 1, 1))]:
        no_kernel(node_model(op_type, [np.ones(left, a), np.ones(right, b)], outputs=[np.int32])[0])


KINDS = (np.int32, np.float16, F32, ml_dtypes.bfloat16)
CODES = (U8, I8, np.uint16, np.int16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn)


@pytest.mark.parametrize("opset", [13, 19, 21, 23, 25])
def test_kernels_of_quantize_and_dequantize(opset: int) -> None:
    judged = 0
    for kind, code in itertools.product(KINDS, CODES):
        scale = np.ones((), F32 if kind == np.int32 else kind)
        quantize, _ = node_model(
            "QuantizeLinear", [np.ones(2, kind), scale, np.zeros((), code)], opset=opset, outputs=[code]
        )
        dequantize, _ = node_model(
            "DequantizeLinear", [np.ones(2, code), scale, np.zeros((), code)], opset=opset, outputs=[scale.dtype]
        )
        for model in (quantize, dequantize):
            if not {f.rule for f in qrun.check(model) if f.level == "error"}:
                no_kernel(model)
                judged += 1
    assert judged > 3


@pytest.mark.parametrize("op_type", ["Add", "Relu", "MaxPool", "Transpose", "Sigmoid", "Erf", "Clip", "TopK"])
@pytest.mark.parametrize("dtype", [U8, I8, np.int16, np.float16, F32, ml_dtypes.bfloat16], ids=lambda t: t.__name__)
def test_kernels_of_other_operators(op_type: str, dtype: Any) -> None:
    x = np.ones((1, 1, 2, 2), dtype)
    more = {"Add": [x], "TopK": [np.array([1])]}.get(op_type, [])
    attributes = {"MaxPool": {"kernel_shape": [1, 1]}}.get(op_type, {})
    outputs = [dtype, np.int64] if op_type == "TopK" else [dtype]
    model, _ = node_model(op_type, [x, *more], attributes, opset=17, outputs=outputs)
    if not [f for f in qrun.check(model) if f.level == "error"]:
        no_kernel(model)


def test_kernels_of_random_networks() -> None:
    for seed in range(12):
        no_kernel(random_graph(seed))


FORMS: list[tuple[str, str, list[Any], dict[str, Any], bool]] = [
    ("ConvInteger", "", [X, W, Z, np.zeros(4, U8)], {}, True), ("ConvInteger", "", [X, W, Z, np.zeros(1, U8)], {}, False),
    ("MatMulInteger", "", [np.ones((2, 2), U8)] * 2 + [np.zeros(2, U8)], {}, True),
    ("MatMulInteger", "", [np.ones((2, 2), U8)] * 2 + [Z, np.zeros(2, U8)], {}, False),
    ("QLinearAdd", MS, [X, S, None, X, S, Z, S, Z], {}, True), ("QLinearAdd", MS, [X, S, Z, X, S, None, S, Z], {}, True),
    ("QLinearMul", MS, [X, S, Z, X, S, Z, S], {}, False), ("QLinearSigmoid", MS, [X, S, None, S, Z], {}, False),
    ("QLinearAveragePool", MS, [X, S, None, S, Z], {"kernel_shape": [2, 2]}, True),
    ("QLinearAveragePool", MS, [X, S, Z, S], {"kernel_shape": [2, 2]}, False),
    ("QLinearConcat", MS, [S, Z, X, S, Z, X.view(I8), S, Z.view(I8)], {"axis": 1}, True),
    ("QLinearConcat", MS, [S, Z, X, S, Z, X, S, Z], {"axis": 1}, False),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "domain", "values", "attributes", "refused"), FORMS)
def test_forms_that_onnxruntime_refuses(op_type: str, domain: str, values: Any, attributes: Any, refused: bool) -> None:
    output = np.int32 if op_type.endswith("Integer") else U8
    model, feeds = node_model(op_type, values, attributes, opset=21, domain=domain, outputs=[output])
    assert ("QR218" in found(model)) == refused
    assert bool(ort_refuses(model, feeds)) == refused


def test_a_form_that_only_older_versions_refuse() -> None:
    model, feeds = node_model("QuantizeLinear", [np.ones(2, F32), np.float16(1), Z], opset=23, outputs=[U8])
    (refused,) = [f for f in qrun.check(model) if f.rule == "QR218"]
    assert refused.message == "onnxruntime before 1.32 refuses QuantizeLinear with x float32 and y_scale float16"
    assert bool(ort_refuses(model, feeds)) == (pytest.importorskip("onnxruntime").__version__ < "1.32")


# The table, hostile attributes, conformance cases


def test_the_table_of_onnxruntime() -> None:
    add = contrib("QLinearAdd")
    assert add is not None
    assert (add.min_inputs, add.max_inputs, add.max_outputs) == (7, 8, 1)
    assert [f.name for f in add.inputs if f.option == "Optional"] == ["A_zero_point", "B_zero_point", "C_zero_point"]
    assert add.inputs[0].types == {np.dtype(U8), np.dtype(I8)}
    kernels = cpu_kernels("", "QLinearMatMul")
    assert kernels is not None
    assert [len(list(kernels.of(version))) for version in (1, 10, 21, 22)] == [0, 2, 2, 0]
    assert cpu_kernels(MS, "QLinearReduceMean") is None
    assert known_schema(Node(0, "", "com.acme", "Add", 1, (), ())) is None
    if f"onnxruntime {pytest.importorskip('onnxruntime').__version__}" != runtime():
        return
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    for s in state.get_all_operator_schema():
        if s.domain == MS:
            defined = contrib(s.name)
            assert defined is not None, s.name
            assert defined.attributes == frozenset(s.attributes), s.name


@pytest.mark.parametrize(
    "value", [1, 1.5, "x", b"\xff", [1.5], ["x"], [2**62, -(2**62)], [], np.ones(3, F32)], ids=repr
)
def test_hostile_attributes_do_no_harm(value: Any) -> None:
    names = ("pads", "strides", "dilations", "kernel_shape", "auto_pad", "group", "channels_last", "output_dtype", "to")
    for name in names:
        model, _ = conv("QLinearConv", {}, X, W)
        attribute = numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        kind = onnx.AttributeProto.INTS if isinstance(value, list) and not value else None
        model.graph.node[0].attribute.append(helper.make_attribute(name, attribute, attr_type=kind))
        qrun.check(model)


def test_no_errors_on_node_cases_of_onnx() -> None:
    """No error from a static rule on any of ONNX's own node cases; warnings only of what onnxruntime does not run."""
    wrong: dict[str, Any] = {}
    judged = 0
    for case in itertools.chain.from_iterable(cases().values()):
        try:
            model = qrun.load(case.model)
        except QrunError as error:
            if error.code not in ("QR106", "QR203"):
                wrong[case.name] = error
            continue
        judged += 1
        mine = [f for f in qrun.check(model) if f.rule[:3] in ("QR1", "QR2") and f.level != "note"]
        if any(f.level == "error" or f.rule not in ("QR217", "QR218") for f in mine):
            wrong[case.name] = mine
    assert not wrong, wrong
    assert judged > 1800
