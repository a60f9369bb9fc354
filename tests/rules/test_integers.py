"""QR606, QR607 and what `qrun check` says of onnxruntime's integers, against the model that onnxruntime runs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.quantized_graphs import random_quantized
from helpers.small_networks import NETWORKS, Net, image

import qrun
from qrun.checking.rules import Finding
from qrun.checking.targets import find, integers, names, target
from qrun.ir import Model, Node
from qrun.ir.load import load
from qrun.peers.ortnodes import covers, on_codes, with_marks

ort = pytest.importorskip("onnxruntime")
SEEDS, CHUNK = 200, 20
"""Random models; those of a test."""
REFUSED = (
    "output_dtype INT8 does not match y_zero_point type UINT8",
    "of operator (QLinearConcat)",
    "of operator (ReduceM",
    "Failed to find kernel for DepthToSpace(1)",
)
"""onnxruntime 1.32.0 does not load some models of opset 21 with int8 tensors, to which it adds QuantizeLinear; none
with a float16 Concat, which it makes a QLinearConcat; and none with an operator that it runs on 8-bit integers, though
its version in an old opset takes none."""


def optimized(model: Model, data: bytes) -> onnx.ModelProto | None:
    """What onnxruntime makes of the model, with marks; None if it refuses the model."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        marked = with_marks(model, onnx.load_from_string(data)).SerializeToString()
        try:
            ort.InferenceSession(marked, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if any(words in str(error) for words in REFUSED):
                return None
            raise
        return onnx.load(options.optimized_model_filepath)


def refused(model: Model) -> bool:
    found = integers(model)
    return found is not None and any(cause.rule.otherwise == "refused" for cause in found.causes)


def judged(proto: onnx.ModelProto) -> Sequence[tuple[Node, bool, bool]] | None:
    """Each node that onnxruntime keeps: does check say that it runs in integers, and does it?"""
    data = proto.SerializeToString()
    model = load(data)
    made = optimized(model, data)
    if made is None:
        assert refused(model)
        return None
    assert not refused(model)
    ran = on_codes(model, made.graph, covers(model, list(made.graph.node)))
    found = target("onnxruntime-cpu").judge(model)
    return [(j.node, j.integer, ran[j.node.index]) for j in found if j.node.index in ran]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
@pytest.mark.parametrize("real", [np.float32, np.float16])
def test_random_models(real: type[np.floating[Any]], first: int) -> None:
    """98 of 100 nodes; seeds are shown where they differ. Models that onnxruntime does not load are few."""
    seeds = range(first, first + CHUNK)
    made = {seed: judged(random_quantized(seed, real)) for seed in seeds}
    told = [(seed, node.label, said, ran) for seed, nodes in made.items() for node, said, ran in nodes or ()]
    wrong = [entry for entry in told if entry[2] != entry[3]]
    assert sum(nodes is None for nodes in made.values()) <= CHUNK // 2
    assert len(told) > 6 * CHUNK
    assert 0.1 < np.mean([ran for *_, ran in told]) < 0.8
    assert len(wrong) <= 0.02 * len(told), wrong


def silu() -> tuple[Net, str]:
    n, x, channels = image(), "x", 3
    for _ in range(3):
        made = n.conv(x, channels, 8)
        x, channels = n.add("Mul", made, n.add("Sigmoid", made)), 8
    return n, x


BUILD = {**NETWORKS, "silu": silu}


def quantized(name: str, activations: str, folder: Path, **extra: bool) -> onnx.ModelProto:
    """What quantize_static makes of a network."""
    from onnxruntime import quantization as q

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]
        feeds = iter([{"x": BUILD[name]()[0].sample(seed)} for seed in (1, 2)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    net, y = BUILD[name]()
    kinds = {"activation_type": getattr(q.QuantType, activations), "weight_type": q.QuantType.QInt8}
    q.quantize_static(net.model(y), folder / "q.onnx", Reader(), **kinds, extra_options=extra)
    return onnx.load(folder / "q.onnx")


@pytest.mark.parametrize("extra", [{}, {"DedicatedQDQPair": True}, {"QuantizeBias": False}], ids=str)
@pytest.mark.parametrize("activations", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("name", BUILD)
def test_quantizer(name: str, activations: str, extra: dict[str, bool], tmp_path: Path) -> None:
    """Every node of what quantize_static writes."""
    found = judged(quantized(name, activations, tmp_path, **extra))
    assert found
    assert [node.label for node, said, ran in found if said != ran] == []


def test_float_nodes_beside_integer_operators() -> None:
    """A float node before QuantizeLinear, or behind DequantizeLinear, is nothing that the file asks to run in integers:
    no count names it. One between both is counted."""
    head = """main (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float m = {0.5}, float s = {0.1}, uint8 z = {128}, int8[1,1,1,1] w = {1}, int8 wz = {0}, float ws = {0.1}>"""
    plain = f"""<ir_version: 9, opset_import: ["":17]> {head} {{
        d = Sub(x, m)
        q = QuantizeLinear(d, s, z)
        c = QLinearConv(q, s, z, w, ws, wz, s, z)
        f = DequantizeLinear(c, s, z)
        y = Softmax(f)
    }}"""
    asked = plain.replace("y = Softmax(f)", "e = Elu(f)\n p = QuantizeLinear(e, s, z)\n y = DequantizeLinear(p, s, z)")
    assert integers(load(onnx.parser.parse_model(plain).SerializeToString())) is None
    assert str(integers(load(onnx.parser.parse_model(asked).SerializeToString()))) == "0 of 1 Elu"


def ours(model: onnx.ModelProto) -> list[Finding]:
    return [f for f in qrun.check(model) if f.rule in ("QR606", "QR607")]


@pytest.mark.parametrize("dedicated", [False, True])
def test_int8_of_several_readers(dedicated: bool, tmp_path: Path) -> None:
    """The quantizer's default; a pair for each reader changes nothing; uint8, the fix that is printed, does."""
    (f,) = ours(quantized("silu", "QInt8", tmp_path, DedicatedQDQPair=dedicated))
    assert (f.rule, f.level, f.node) == ("QR606", "warning", "Conv_0")
    assert "computes 3 of 3 Conv and 6 other nodes in float on x86 CPUs: int8 tensors that several nodes" in f.message
    assert f.got == "in integers: 0 of 3 Conv, 0 of 3 Sigmoid, 0 of 3 Mul"
    assert "activation_type=QuantType.QUInt8" in f.fix
    other = quantized("silu", "QUInt8", tmp_path, DedicatedQDQPair=dedicated)
    assert ours(other) == []
    assert str(integers(load(other.SerializeToString()))) == "3 of 3 Conv, 3 of 3 Sigmoid, 3 of 3 Mul"


def test_a_stored_operand_of_int8(tmp_path: Path) -> None:
    """Of few nodes that are no products it is a note; the fix that is printed helps."""
    (f,) = ours(quantized("mlp", "QInt8", tmp_path))
    assert (f.rule, f.level, f.node) == ("QR607", "note", "Add_1")
    assert "computes 3 of 3 Add in float on x86 CPUs: its stored operand stays int8" in f.message
    assert "activation_type=QuantType.QUInt8" in f.fix
    assert ours(quantized("mlp", "QUInt8", tmp_path)) == []


def test_int8_of_one_reader_is_no_finding(tmp_path: Path) -> None:
    assert ours(quantized("depthwise", "QInt8", tmp_path)) == []


@pytest.mark.parametrize(
    ("opset", "kind", "more", "found"),
    [(21, "int8", "", 1), (20, "int8", "", 0), (21, "uint8", "", 0), (21, "int8", "q = QuantizeLinear(r, s, z)", 0)],
)
def test_int8_that_is_moved_and_not_quantized(opset: int, kind: str, more: str, found: int) -> None:
    """onnxruntime does not load it: it gives a QuantizeLinear that it adds another zero point than its type has."""
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
    main (float[2,3] x) => (float[3,2] y)
    <float s = {{0.1}}, {kind} z = {{0}}>
    {{
        xq = QuantizeLinear(x, s, z)
        xd = DequantizeLinear(xq, s, z)
        r = Transpose(xd)
        {more}
        y = Relu({"d" if more else "r"})
    }}""".replace("y = Relu(d)", "d = DequantizeLinear(q, s, z)\n        y = Relu(d)")
    model = onnx.parser.parse_model(text)
    assert [f.rule for f in qrun.check(model) if f.rule == "QR218"] == ["QR218"] * found
    assert (judged(model) is None) == bool(found)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("opset", "node", "ran"),
    [
        (11, "MaxPool <kernel_shape = [2, 2]> (d)", False),
        (12, "MaxPool <kernel_shape = [2, 2]> (d)", True),
        (11, "ReduceMax <axes = [2]> (d)", None),
        (12, "ReduceMax <axes = [2]> (d)", True),
        (11, "ReduceMin <axes = [2]> (d)", None),
        (12, "ReduceMin <axes = [2]> (d)", True),
        (10, "DepthToSpace <blocksize = 2> (d)", None),
        (11, "DepthToSpace <blocksize = 2> (d)", True),
        (17, "SpaceToDepth <blocksize = 2> (d)", False),
    ],
)
def test_operators_that_took_no_8_bit_integers(opset: int, node: str, ran: bool | None, kind: str) -> None:
    """In float, or, where onnxruntime lets them run on 8-bit integers all the same, not loaded at all (None)."""
    model = onnx.parser.parse_model(f"""<ir_version: 5, opset_import: ["" : {opset}]>
    main (float[1,4,4,4] x) => (float[N,C,H,W] y)
    <float s = {{0.1}}, {kind} z = {{3}}>
    {{
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        r = {node}
        p = QuantizeLinear(r, s, z)
        e = DequantizeLinear(p, s, z)
        y = Elu(e)
    }}""")
    found = judged(model)
    assert (found is None) == (ran is None)
    assert [(said, did) for n, said, did in found or () if n.op_type == node.split()[0]] == [(ran, ran)] * (
        ran is not None
    )
    assert [f.rule for f in qrun.check(model) if f.rule == "QR218"] == ["QR218"] * (ran is None)


def test_a_float_model_has_no_line(tmp_path: Path) -> None:
    net, y = silu()
    assert integers(load(net.model(y).SerializeToString())) is None


def test_rules_are_whole() -> None:
    """Each rule of each target names operators that ONNX or onnxruntime has in some version."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    contrib = {schema.name for schema in get_all_operator_schema()}
    for name in names():
        for rule in find(name).rules:
            assert all(onnx.defs.has(op) or op in contrib for op in (*rule.operators, *rule.excepted)), rule.id
