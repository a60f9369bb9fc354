"""QR608 to QR613 and QR317: what the rules foretell of onnxruntime's default session happens, compare proves why, and
other models have no finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.models import make_model, typed
from helpers.support import pairs_saturate
from onnx import TensorProto, helper

import qrun
from qrun.checking.check import Settings, check_model, runner_maker
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide

ort = pytest.importorskip("onnxruntime")
VERSION = tuple(map(int, ort.__version__.split(".")[:2]))
ROOT = Path(__file__).resolve().parents[2]
F32, U8, I8, I32 = np.float32, np.uint8, np.int8, np.int32
FORETOLD = ("QR317", "QR608", "QR609", "QR610", "QR611", "QR612", "QR613")
SEED = 20
ZERO = np.uint8(128)


class Draft:
    """Nodes and stored tensors, in the order in which they are asked for.

    most: the largest code of weights; two products of 8 bits saturate at int16 in onnxruntime on CPUs without VNNI.
    zero: the zero point of activations.
    """

    most = 63
    zero: Any = ZERO

    def __init__(self, opset: int = 21) -> None:
        self.opset, self.rng = opset, np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, Any] = {}
        self.feeds: dict[str, Any] = {}

    def __call__(self, op_type: str, *inputs: Any, count: int = 1, **attributes: Any) -> Any:
        names = [each if isinstance(each, str) else self.store(each) for each in inputs]
        made = [f"t{len(self.nodes)}.{place}" for place in range(count)]
        self.nodes.append(helper.make_node(op_type, names, made, name=f"n{len(self.nodes)}", **attributes))
        return made[0] if count == 1 else made

    def store(self, value: Any) -> str:
        name = f"c{len(self.stored)}"
        self.stored[name] = np.asarray(value)
        return name

    def fed(self, value: Any) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = np.asarray(value)
        return name

    def pair(self, x: str, scale: Any = 0.03, zero: Any = None, **attributes: Any) -> str:
        scale, zero = self.store(F32(scale)), self.store(self.zero if zero is None else zero)
        return self("DequantizeLinear", self("QuantizeLinear", x, scale, zero, **attributes), scale, zero, **attributes)

    def activation(self, *shape: int, **more: Any) -> str:
        return self.pair(self.fed((self.rng.standard_normal(shape) * 2).astype(F32)), **more)

    def weights(self, shape: tuple[int, ...], axis: int | None = None, scale: float = 0.006, kind: Any = I8) -> str:
        codes = self.rng.integers(-self.most if kind is I8 else 1, self.most + 1, shape).astype(kind)
        if axis is None:
            return self("DequantizeLinear", codes, F32(scale), kind(0))
        scales = self.rng.uniform(0.002, 0.04, shape[axis]).astype(F32)
        return self("DequantizeLinear", codes, scales, np.zeros(shape[axis], kind), axis=axis)

    def model(self, *outputs: str) -> bytes:
        made = make_model(
            self.nodes,
            {name: typed(value.dtype, list(value.shape)) for name, value in self.feeds.items()},
            {name: typed(F32, None) for name in outputs},
            self.stored,
            opset=self.opset,
        )
        return made.SerializeToString()


Built = tuple[bytes, dict[str, Any]]


def conv(
    scale: float = 0.006, bias: float | None = None, axis: int | None = None, shape: Any = (4, 4, 3, 3), **more: Any
) -> Built:
    d = Draft(more.pop("opset", 17))
    x = d.activation(1, shape[1], 6, 6)
    b = [] if bias is None else [np.linspace(-bias, bias, shape[0]).astype(F32)]
    made = d("Conv", x, d.weights(shape, axis, scale), *b)
    between = more.pop("between", None)
    made = d(between, made) if between else made
    return d.model(d.pair(made, 0.02)) if more.pop("quantized", True) else d.model(made), d.feeds


def gemm(
    op_type: str,
    axis: int | None,
    columns: int = 4,
    bias: float = 0,
    quantized: bool = True,
    scale: float = 0.006,
    **attributes: Any,
) -> Built:
    d = Draft(17)
    shape = (columns, 4) if attributes.get("transB") else (4, columns)
    b = [np.linspace(-bias, bias, columns).astype(F32)] if bias else []
    made = d(op_type, d.activation(3, 4), d.weights(shape, axis, scale), *b, **attributes)
    return d.model(d.pair(made, 0.02) if quantized else made), d.feeds


def weight_only(
    op_type: str,
    kind: Any,
    block: int | str,
    *,
    bias: bool = False,
    depth: int = 64,
    given: Any = None,
    before: tuple[Any, ...] = (),
    then: tuple[Any, ...] = (),
    **attributes: Any,
) -> Built:
    """given: the zero point of quantized activations, if they are. before: operators between them and the product.
    then: what reads the product: operators, with what else they read, and zero points of pairs."""
    d = Draft(21)
    codes = d.rng.integers(0, 7, (depth, 8)).astype(kind)
    shape = (
        {"tensor": (), "column": (8,), "row": (depth,)}.get(str(block))
        if isinstance(block, str)
        else (depth // block, 8)
    )
    axis = {"column": 1, "row": 0}.get(str(block), 0)
    along: dict[str, Any] = {"axis": axis} | ({} if isinstance(block, str) else {"block_size": block})
    w = d("DequantizeLinear", codes, d.rng.uniform(0.01, 0.05, shape).astype(F32), **along)
    b = [d.rng.standard_normal(8).astype(F32)] if bias else []
    x = d.fed(d.rng.standard_normal((4, depth)).astype(F32))
    if given is not None:
        x = d.pair(x, 8 / np.iinfo(given.dtype).max, given)
    for op in before:
        x = d(op[0], x, *op[1:])
    made = d(op_type, x, w, *b, **attributes)
    for step in then:
        made = d(step[0], made, *step[1:]) if isinstance(step, tuple) else d.pair(made, 0.02, step)
    return d.model(made), d.feeds


def matmul_add(scale: float, between: str = "") -> Built:
    """A product of quantized tensors and a float vector that is added to it."""
    d = Draft(17)
    made = d("Add", d("MatMul", d.activation(3, 4), d.weights((4, 6), None, scale)), np.linspace(-20, 20, 6, dtype=F32))
    return d.model(d.pair(d(between, made) if between else made, 0.02)), d.feeds


def pairs(*parameters: tuple[float, Any]) -> Built:
    d = Draft(21)
    y = d.fed((d.rng.standard_normal((4, 64)) * 3).astype(F32))
    for scale, zero in parameters:
        y = d.pair(y, scale, zero)
    return d.model(d("Relu", y)), d.feeds


def moved(op_type: str, zero: Any, *more: Any, **attributes: Any) -> Built:
    d = Draft(17)
    codes = d.fed(np.arange(-300, 340, 40, dtype=I32).reshape(1, 1, 4, 4))
    made = d("DequantizeLinear", codes, F32(0.01), *([] if zero is None else [zero]))
    return d.model(d("Abs", d(op_type, made, *more, **attributes))), d.feeds


def sliced(op_type: str, before: bool, **attributes: Any) -> Built:
    d = Draft(17)
    scales, zeros = np.linspace(0.01, 0.05, 4), np.full(4, 128, U8)
    x = d.activation(1, 4, 4, 4, scale=scales, zero=zeros, axis=1) if before else d.activation(1, 4, 4, 4)
    more = {"Where": [np.ones((1, 1, 1, 4), bool), x], "Conv": []}.get(op_type, [])
    made = d(op_type, *more, x, *([d.weights((4, 4, 1, 1))] if op_type == "Conv" else []), **attributes)
    return d.model(d.pair(made, 0.05) if before else d.pair(made, scales, zeros, axis=1)), d.feeds


def sliced_product() -> Built:
    d = Draft(17)
    x = d.activation(3, 4, scale=np.linspace(0.01, 0.05, 4), zero=np.full(4, 128, U8), axis=1)
    return d.model(d("MatMul", x, d.weights((4, 4)))), d.feeds


def transposed(bias: bool = False) -> Built:
    """Scales are powers of two, so that float sums are exact in any order."""
    d = Draft(17)
    w = d.rng.uniform(-2, 127 / 64, (4, 4, 3, 3)).astype(F32)
    w[0, 0, 0, :2] = -2, 127 / 64
    made = d(
        "ConvTranspose",
        d.activation(1, 4, 4, 4, scale=1 / 32),
        w,
        *([np.linspace(-1, 1, 4).astype(F32)] if bias else []),
    )
    return d.model(d.pair(made, 0.05)), d.feeds


def written_twice(zero: Any) -> Built:
    d = Draft(21)
    scale, zero = d.store(F32(0.05)), d.store(zero)
    codes = d("QuantizeLinear", d.fed(np.linspace(-3, 3, 16, dtype=F32)), scale, zero, output_dtype=TensorProto.INT8)
    return d.model(d("DequantizeLinear", codes, scale, zero)), d.feeds


def pool(**attributes: Any) -> Built:
    d = Draft(19)
    made = d("AveragePool", d.activation(1, 2, 8, 8), kernel_shape=[2, 2], **attributes)
    return d.model(d.pair(made, 0.05)), d.feeds


CHANGED: Mapping[str, tuple[str, Callable[[], Built]]] = {
    "bias of Conv": ("QR608", lambda: conv(bias=20, scale=2.1e-7)),
    "bias that overflows": ("QR608", lambda: conv(bias=20, scale=1e-10)),
    "bias before Relu": ("QR608", lambda: conv(bias=20, scale=1e-10, between="Relu")),
    "bias of Gemm": ("QR608", lambda: gemm("Gemm", None, bias=20, scale=1e-10)),
    "bias of Gemm, transposed": ("QR608", lambda: gemm("Gemm", None, bias=20, scale=1e-10, transB=1)),
    "bias added to MatMul": ("QR608", lambda: matmul_add(2.1e-7)),
    "bias added to MatMul that overflows": ("QR608", lambda: matmul_add(1e-10)),
    "bias added to MatMul before Relu": ("QR608", lambda: matmul_add(1e-10, "Relu")),
    "axis of Conv": ("QR317", lambda: conv(axis=1)),
    "axis of Gemm": ("QR317", lambda: gemm("Gemm", 0)),
    "axis of Gemm, transposed": ("QR317", lambda: gemm("Gemm", 1, transB=1)),
    "axis of Gemm, float": ("QR317", lambda: gemm("Gemm", 0, quantized=False)),
    "axis of MatMul, float": ("QR317", lambda: gemm("MatMul", 0, quantized=False)),
    "MatMul of int4 blocks": ("QR610", lambda: weight_only("MatMul", ml_dtypes.int4, 32)),
    "MatMul of uint4 blocks": ("QR610", lambda: weight_only("MatMul", ml_dtypes.uint4, 16)),
    "MatMul of int4 columns": ("QR610", lambda: weight_only("MatMul", ml_dtypes.int4, "column", depth=80)),
    "MatMul of int8": ("QR610", lambda: weight_only("MatMul", I8, "tensor")),
    "Gemm of int4 blocks": ("QR610", lambda: weight_only("Gemm", ml_dtypes.int4, 32)),
    "Gemm of uint8 columns and a bias": ("QR610", lambda: weight_only("Gemm", U8, "column", bias=True)),
    "MatMul of uint16 and int8": ("QR610", lambda: weight_only("MatMul", I8, "column", given=np.uint16(32768))),
    "MatMul of int8 before Neg": ("QR610", lambda: weight_only("MatMul", I8, "column", then=(("Neg",), ZERO))),
    "MatMul of int8 and int16 codes of it": ("QR610", lambda: weight_only("MatMul", I8, "column", then=(np.int16(0),))),
    "MatMul of int8, Relu and int16 codes of it": (
        "QR610", lambda: weight_only("MatMul", I8, "column", then=(("Relu",), np.int16(-32768)))),
    "two pairs": ("QR611", lambda: pairs((0.03, U8(128)), (0.05, U8(120)))),
    "two pairs that overlap": ("QR611", lambda: pairs((0.03, U8(10)), (0.02, U8(128)))),
    "three pairs": ("QR611", lambda: pairs((0.05, U8(128)), (0.01, U8(131)), (0.03, U8(0)))),
    "two pairs of int8": ("QR611", lambda: pairs((0.03, I8(0)), (0.05, I8(3)))),
    "two pairs of uint16": ("QR611", lambda: pairs((3e-4, np.uint16(30000)), (5e-4, np.uint16(32120)))),
    "codes before Reshape": ("QR612", lambda: moved("Reshape", None, np.array([16]))),
    "float weights of ConvTranspose": ("QR608", transposed),
    "float weights and bias of ConvTranspose": ("QR608", lambda: transposed(bias=True)),
    "slices behind Softmax": ("QR613", lambda: sliced("Softmax", False)),
    "codes before Transpose": ("QR612", lambda: moved("Transpose", None)),
}  # fmt: skip
FAILING: Mapping[str, Callable[[], Built]] = {
    "axis of Conv": lambda: conv(axis=1, shape=(4, 2, 3, 3)),
    "axis of MatMul": lambda: gemm("MatMul", 0, 6, quantized=False),
    "Reshape": lambda: moved("Reshape", I32(0), np.array([16])),
    "Transpose": lambda: moved("Transpose", I32(5)),
    "Squeeze": lambda: moved("Squeeze", I32(0), np.array([0])),
    "Unsqueeze": lambda: moved("Unsqueeze", I32(0), np.array([0])),
    "Slice": lambda: moved("Slice", I32(0), np.array([0]), np.array([1])),
    "MaxPool": lambda: moved("MaxPool", I32(0), kernel_shape=[2, 2]),
    "slices before MatMul in float": sliced_product,
    "output_dtype": lambda: written_twice(I8(0)),
    "dilations": lambda: pool(dilations=[2, 2]), "dilations of 1": lambda: pool(dilations=[1, 1]),
    **{f"slices before {op}": lambda op=op, a=a: sliced(op, True, **a) for op, a in (
        ("Conv", {}), ("Sigmoid", {}), ("LeakyRelu", {}), ("AveragePool", {"kernel_shape": [2, 2]}),
        ("GlobalAveragePool", {}), ("Where", {}))},
    **{f"slices behind {op}": lambda op=op, a=a: sliced(op, False, **a) for op, a in (
        ("Conv", {}), ("Sigmoid", {}), ("LeakyRelu", {}), ("AveragePool", {"kernel_shape": [2, 2]}),
        ("GlobalAveragePool", {}), ("Where", {}))},
}  # fmt: skip
PLAIN: Mapping[str, Callable[[], Built]] = {
    "Conv": conv, "Conv in float": lambda: conv(bias=20, quantized=False), "Conv, channels": lambda: conv(axis=0),
    "bias before Sigmoid": lambda: conv(bias=20, between="Sigmoid"), "Gemm": lambda: gemm("Gemm", 1),
    "Gemm, transposed": lambda: gemm("Gemm", 0, transB=1), "MatMul": lambda: gemm("MatMul", 1),
    "MatMul in float": lambda: gemm("MatMul", 1, quantized=False),
    "one scale per row": lambda: weight_only("MatMul", I8, "row"),
    "blocks of 8": lambda: weight_only("MatMul", ml_dtypes.int4, 8),
    "blocks of 24": lambda: weight_only("MatMul", ml_dtypes.int4, 24, depth=48),
    "a factor": lambda: weight_only("Gemm", ml_dtypes.int4, 32, alpha=0.5),
    **{f"float times int8, {name}": lambda then=then: weight_only("MatMul", I8, "column", then=then) for name, then in (
        ("quantized", (ZERO,)), ("Relu", (("Relu",), ZERO)), ("Relu and 16 bits", (("Relu",), np.int16(5))),
        ("Clip and 16 bits", (("Clip", F32(0), F32(6)), np.int16(-32768))),
        ("moved", (("Transpose",), ZERO)), ("a sum", (("Add", np.ones(8, F32)), ZERO)))},
    "moved codes times int8": lambda: weight_only(
        "MatMul", I8, "column", given=ZERO, before=(("Reshape", np.array([2, 128])), ("Reshape", np.array([4, 64])))),
    "one pair": lambda: pairs((0.03, U8(128))), "two equal pairs": lambda: pairs((0.03, U8(128)), (0.03, U8(128))),
    "pairs of two types": lambda: pairs((0.03, U8(128)), (0.05, I8(0))),
    "codes before Flatten": lambda: moved("Flatten", I32(0)), "codes before Gather": lambda: moved("Gather", I32(0), np.array([0])),
    "pool": pool,
}  # fmt: skip
"""Models that the default session runs as written, or as integer operators of the same groups."""


def foretold(data: bytes) -> list[str]:
    return [f.rule for f in qrun.check(qrun.load(data)) if f.rule in FORETOLD]


def outputs(data: bytes, feeds: dict[str, Any], *, optimize: bool) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds))


newest = pytest.mark.skipif(VERSION != (1, 32), reason="the forms are those of onnxruntime 1.32")


@newest
@pytest.mark.parametrize("name", CHANGED)
def test_changed_results_are_foretold_and_proved(name: str) -> None:
    code, build = CHANGED[name]
    data, feeds = build()
    assert set(foretold(data)) == {code}
    (plain,), (changed,) = (outputs(data, feeds, optimize=on) for on in (False, True))
    assert np.abs(plain.astype(np.float64) - changed).max() > 1e-4
    model = qrun.load(data)
    found = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data, optimize=True), feeds)
    reasons = [t.guilt.reason for t in found.tensors if t.guilt]
    assert {r.cause for r in reasons} == {"session-rewrite"}, reasons
    first = found.first.guilt
    assert first is not None
    exact = code != "QR610"
    assert (first.reason.explained == first.pair.difference.differing > 0) == exact
    assert ("the order of float32 sums" in first.reason.text) != exact


@newest
@pytest.mark.parametrize("zero", [U8(128), I8(3)], ids=["uint8", "int8"])
@pytest.mark.parametrize("name", [name for name, (code, _) in CHANGED.items() if code in ("QR317", "QR608")])
def test_rewrites_of_8_bits_are_proved_where_pairs_saturate_too(
    name: str, zero: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Draft, "most", 127)
    monkeypatch.setattr(Draft, "zero", zero)
    data, feeds = CHANGED[name][1]()
    model = qrun.load(data)
    found = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data, optimize=True), feeds)
    reasons = [t.guilt.reason for t in found.tensors if t.guilt]
    assert {r.cause for r in reasons} == {"session-rewrite"}, reasons
    saturate = ["saturate in int16" in r.text for r in reasons]
    assert not any(saturate) or pairs_saturate(), reasons


@newest
@pytest.mark.parametrize("zero", [U8(128), I8(3)], ids=["uint8", "int8"])
@pytest.mark.parametrize("axis", [None, 0])
def test_groups_of_8_bits_differ_only_where_pairs_saturate(
    axis: int | None, zero: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """int8 activations become uint8 in the session, so that the pairs of theirs saturate as well."""
    monkeypatch.setattr(Draft, "most", 127)
    monkeypatch.setattr(Draft, "zero", zero)
    data, feeds = conv(axis=axis, shape=(16, 8, 3, 3))
    feeds = {name: value * F32(3) for name, value in feeds.items()}
    model = qrun.load(data)
    found = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data, optimize=True), feeds)
    causes = {t.guilt.reason.cause for t in found.tensors if t.guilt}
    assert causes - {"fused-requantization"} == ({"pair-saturation"} if pairs_saturate() else set())


EARLIER: Mapping[str, tuple[Any, ...]] = {
    "MaxPool": (), "Reshape": (np.array([1, 2, 32]),), "Transpose": (), "Squeeze": (np.array([0]),),
    "Unsqueeze": (np.array([0]),), "Slice": (np.array([0]), np.array([1]), np.array([1])),
}  # fmt: skip


@newest
@pytest.mark.parametrize("op_type", EARLIER)
def test_a_tensor_that_is_quantized_earlier_is_proved(op_type: str) -> None:
    """The session quantizes before the operator; what comes after it is the same. uint8 codes would move without it."""
    d = Draft()
    x = d("HardSigmoid", d.fed((d.rng.standard_normal((1, 2, 4, 8)) * 2).astype(F32)))
    attributes = {"kernel_shape": [2, 2]} if op_type == "MaxPool" else {}
    of_codes = F32(1 / 255), I8(-128)
    codes = d("QuantizeLinear", d(op_type, x, *EARLIER[op_type], **attributes), *of_codes)
    added = d("QLinearAdd", codes, *of_codes, codes, *of_codes, F32(2 / 255), I8(-128), domain="com.microsoft")
    data = d.model(d("DequantizeLinear", added, F32(2 / 255), I8(-128)))
    model = qrun.load(data)
    found = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data, optimize=True), d.feeds)
    reasons = [t.guilt.reason for t in found.tensors if t.guilt]
    assert [r.cause for r in reasons] == ["session-rewrite"]
    assert "quantizes before n1" in reasons[0].text
    assert all(pair.identical for _, pair in found.outputs)


@newest
def test_codes_of_float_steps_that_end_beside_a_tie() -> None:
    """Each fifth value of HardSigmoid is next to the middle of two codes; the session quantizes before MaxPool."""
    d, scale = Draft(), F32(1 / 255)
    x = d("HardSigmoid", d.fed((np.arange(256, dtype=F32) * F32(6 / 255)).reshape(1, 1, 16, 16)))
    codes = d("QuantizeLinear", d("MaxPool", x, kernel_shape=[1, 1]), scale, U8(0))
    added = d("QLinearAdd", codes, scale, U8(0), codes, scale, U8(0), F32(2 / 255), U8(0), domain="com.microsoft")
    data = d.model(d("DequantizeLinear", added, F32(2 / 255), U8(0)))
    model = qrun.load(data)
    found = compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data, optimize=True), d.feeds)
    reasons = [t.guilt.reason for t in found.tensors if t.guilt]
    assert [r.cause for r in reasons] == ["float-steps"]
    assert "every code is within the rounding-error bound" in reasons[0].text


@newest
@pytest.mark.parametrize("name", FAILING)
def test_failures_are_foretold(name: str, tmp_path: Path) -> None:
    data, feeds = FAILING[name]()
    assert foretold(data) == ["QR609"]
    (tmp_path / "m.onnx").write_bytes(data)
    checked = check_model(tmp_path / "m.onnx", Settings(frozenset()), runner_maker("native", "exact"))
    assert checked.integers is None, "no node of a session that fails is computed in integers"
    outputs(data, feeds, optimize=False)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        outputs(data, feeds, optimize=True)


@newest
@pytest.mark.parametrize("name", PLAIN)
def test_other_models_have_no_finding(name: str) -> None:
    data, feeds = PLAIN[name]()
    plain, optimized = (outputs(data, feeds, optimize=on)[0] for on in (False, True))
    steps = np.abs(plain.astype(np.float64) - optimized).max() / 0.02
    assert steps < 2.6
    assert set(foretold(data)) <= ({"QR317"} if name == "one scale per row" else set())


@newest
def test_the_fixes_work() -> None:
    """What the fixes name: the session options."""
    for name, (code, build) in CHANGED.items():
        data, feeds = build()
        options = ort.SessionOptions()
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if code != "QR610":
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        (told,) = {f.fix for f in qrun.check(qrun.load(data)) if f.rule == code} or {""}
        if code in ("QR611", "QR317"):
            continue
        assert "add_session_config_entry" in told, name
        got = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        np.testing.assert_allclose(got, outputs(data, feeds, optimize=False)[0], rtol=1e-5, atol=1e-5, err_msg=name)


def test_committed_models_have_no_finding() -> None:
    for path in sorted((ROOT / "models").rglob("model.onnx")):
        assert foretold(path.read_bytes()) == [], path
