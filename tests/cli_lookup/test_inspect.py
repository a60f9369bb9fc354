"""qrun inspect: facts, tables, nodes, stored tensors, JSON; on models that qrun cannot run, too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from qrun.child.process import Crash, Slow
from qrun.cli import main
from qrun.ir import infer
from qrun.ir.load import load
from qrun.report.modelfacts import ModelFacts

CONV = """
<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1], producer_name: "maker", producer_version: "1.2">
main (uint8[N,1,4,4] x) => (uint8[N,2,4,4] y)
<float s = {0.5}, uint8 z = {128}, int8[2,1,1,1] w = {-3, 4}, float[2] ws = {0.5, 0.25}, int8[2] wz = {0, 0},
 uint8[N,2,4,4] t, float[40] long = {LONG}>
{
    [first] t = QLinearConv(x, s, z, w, ws, wz, s, z)
    y = com.microsoft.QLinearAdd(t, s, z, t, s, z, s, z)
}
""".replace("LONG", ", ".join(map(str, range(40))))
QDQ = """
<ir_version: 10, opset_import: ["" : 21]>
main (float[2,4] x) => (float[2,3] y)
<float s = {0.5}, int8 z = {0}, int4[4,3] w = {33, 67, 101, 7, 33, 67}, float[2,3] ws = {1, 1, 1, 1, 1, 1}>
{
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    wd = DequantizeLinear<axis = 0, block_size = 2>(w, ws)
    y = MatMul(d, wd)
}
"""
STRANGE = """
<ir_version: 8, opset_import: ["" : 20, "com.acme" : 1]>
main (float[2] x) => (float[2] y)
{
    t = com.acme.Frobnicate(x)
    y = Decode(t)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save(tmp_path, CONV)


def save(folder: Path, text: str) -> str:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


def facts(text: str) -> ModelFacts:
    return ModelFacts(load(onnx.parser.parse_model(text)))


def run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    assert main(["inspect", *argv]) == code
    out = capsys.readouterr()
    return out.err if code else out.out


def test_overview(capsys: pytest.CaptureFixture[str], model: str) -> None:
    text = run(capsys, model)
    lines = text.splitlines()
    assert lines[0].startswith(f"  file       {model}, ")
    assert lines[0].endswith(", no external data")
    assert lines[1] == "  made by    maker 1.2, IR 8, opset ai.onnx 13, com.microsoft 1"
    assert lines[2] == "  size       2 nodes, 48 parameters, 3.2e-05 MMAC (N=1)"
    assert lines[3] == "  quantized  QOperator; activations uint8 per tensor, weights int8 per channel"
    assert lines[4] == "  runs here  yes"
    assert "  in   x     uint8  [N,1,4,4]" in lines
    assert "  out  y     uint8  [N,2,4,4]" in lines
    rows = {row.split()[0]: row.split() for row in lines if "QLinear" in row}
    assert rows["QLinearConv"] == ["QLinearConv", "1", "10", "uint8", "x", "int8", "12", "B", "yes"]
    assert rows["com.microsoft::QLinearAdd"][1:3] == ["1", "1"]
    assert not any(sign in text for sign in "│╭─\x1b…")


def test_macs_need_every_shape() -> None:
    known = facts(CONV)
    assert known.macs == 32
    assert known.symbols == ("N",)
    unknown = facts(CONV.replace("uint8[N,2,4,4] t, ", ""))
    assert unknown.macs is None
    assert unknown.uncounted == "no static shape for t"
    assert facts(CONV.replace("uint8[N,2,4,4] t, ", "uint8[N,2,H,4] t, ")).macs is None


def test_macs_count_what_the_run_counts() -> None:
    import qrun

    session = qrun.Session(onnx.parser.parse_model(CONV))
    events = session.execute({"x": np.zeros((1, 1, 4, 4), np.uint8)}).events
    assert facts(CONV).macs == sum(e.macs for e in events)


def test_forms_of_quantization() -> None:
    assert facts(QDQ).form == "QDQ"
    assert facts(QDQ).quantized == (("int8 per tensor",), ("int4 in blocks of 2",))
    only_weights = QDQ.replace("q = QuantizeLinear(x, s, z)\n", "").replace(
        "d = DequantizeLinear(q, s, z)", "d = Relu(x)"
    )
    assert facts(only_weights).form == "weight only"
    assert facts(STRANGE).form == "float"
    dynamic = QDQ.replace("q = QuantizeLinear(x, s, z)", "q, qs, qz = DynamicQuantizeLinear(x)")
    assert facts(dynamic.replace("(q, s, z)", "(q, qs, qz)")).form.startswith("dynamic")


def node(op: str, inputs: str, stored: str, attributes: str = "", domain: str = "com.microsoft") -> str:
    return f"""
<ir_version: 8, opset_import: ["" : 13, "{domain}" : 1]>
main ({inputs}) => (float[N,M] y)
<{stored}>
{{
    y = {domain}.{op} {attributes}
}}
"""


ATTENTION = node(
    "QAttention",
    "uint8[1,2,1] x",
    "int8[1,3] w = {1, 2, 3}, float[3] b = {0.0, 0.0, 0.0}, float s = {0.5}, uint8 z = {128}, int8 wz = {0}",
    "<num_heads = 1> (x, w, b, s, s, , z, wz)",
)
GATHER = node(
    "GatherBlockQuantized", "int64[n] i", f"uint8[1,16] w = {{{', '.join('0' * 16)}}}, float[1,1] s = {{0.5}}",
    "<block_size = 32, quantize_axis = 1, gather_axis = 0> (w, i, s)",
)  # fmt: skip
QONNX_NODES = node(
    "Quant",
    "float[4] x",
    "float s = {0.5}, float z = {0.0}, float b = {4.0}",
    '<signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)',
    "qonnx.custom_op.general",
)
QUARK_NODES = node(
    "ExtendedQuantizeLinear", "float[4] x", "float s = {0.5}, uint16 z = {0}", "(x, s, z)", "com.amd.quark"
).replace("float[N,M] y", "uint16[4] y")
CACHE = node(
    "GroupQueryAttention",
    "float[1,1,16] q, float[1,1,8] k, float[1,1,8] v, int8[1,1,P,8] pk, int8[1,1,P,8] pv, int32[1] l, int32 t",
    "float[1] ks = {0.5}, float[1] vs = {0.5}",
    '<num_heads = 2, kv_num_heads = 1, k_quant_type = "PER_TENSOR", v_quant_type = "PER_TENSOR", kv_cache_bit_width = 8> '
    "(q, k, v, pk, pv, l, t, , , , , , ks, vs)",
)


@pytest.mark.parametrize(
    ("text", "form", "quantized"),
    [
        (ATTENTION, "QOperator", (("uint8 per tensor",), ("int8 per tensor",))),
        (GATHER, "weight only", ((), ("4-bit in blocks of 32",))),
        (CACHE, "quantized cache", ((), ())),
        (QUARK_NODES, "QDQ", (("uint16 per tensor",), ())),
        (QONNX_NODES, "QONNX", (("4-bit per tensor",), ())),
        (QONNX_NODES.replace("qonnx.custom_op.general", "onnx.brevitas"), "QONNX", (("4-bit per tensor",), ())),
    ],
    ids=["QAttention", "GatherBlockQuantized", "GroupQueryAttention", "Quark", "QONNX", "QONNX by its former name"],
)
def test_forms_beside_those_of_ai_onnx(text: str, form: str, quantized: tuple[tuple[str, ...], ...]) -> None:
    found = facts(text)
    assert (found.form, found.quantized) == (form, quantized)
    assert found.brief.startswith(form)


def test_models_that_qrun_cannot_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = run(capsys, save(tmp_path, STRANGE))
    assert "  runs here  no: 2 operators missing: Decode, com.acme::Frobnicate" in text
    assert "no, unknown domain" in text
    found = json.loads(run(capsys, save(tmp_path, STRANGE), "--json"))
    assert (found["runs"], found["obstacle"]) == (False, "2 operators missing: Decode, com.acme::Frobnicate")
    assert "MMAC unknown (no cost is known for com.acme::Frobnicate)" in text, "what cannot run cannot be profiled"


def test_a_node_that_cannot_be_planned_is_named() -> None:
    bad = facts(CONV.replace("(x, s, z, w, ws, wz, s, z)", "(x, s, , w, ws, wz, s, z)"))
    assert bad.obstacle == "input 'x_zero_point' is missing (QR205, node 0 first (QLinearConv-10))"


def test_nodes(capsys: pytest.CaptureFixture[str], model: str) -> None:
    lines = run(capsys, model, "--nodes").splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:3] == ["0", "first", "QLinearConv"]
    assert lines[1].endswith("-> t uint8 [N,2,4,4]")
    assert "w int8 [2,1,1,1]" in lines[1]
    assert lines[2].split()[:3] == ["1", "QLinearAdd_1", "QLinearAdd"]


def test_the_domain_is_shown_where_names_collide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    both = CONV.replace(
        "com.microsoft.QLinearAdd(t, s, z, t, s, z, s, z)", "com.microsoft.QLinearConv(x, s, z, w, ws, wz, s, z)"
    )
    lines = run(capsys, save(tmp_path, both), "--nodes").splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["QLinearConv", "com.microsoft::QLinearConv"]


def test_nodes_stand_above_their_tensors_where_it_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = run(capsys, model, "--nodes")
    assert "  0  first         QLinearConv\n      x uint8 [N,1,4,4], s float32 scalar" in text
    assert "…" not in text
    assert all(len(line) <= 60 for line in text.splitlines())


FLOAT = """
<ir_version: 8, opset_import: ["" : 13]>
main (float[N,1,4,4] x) => (float[M,K] y)
<float[2,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}>
{
    c = Conv<pads = [1, 1, 1, 1]>(x, w)
    r = Relu(c)
    y = Flatten(r)
}
"""


def test_shapes_that_the_file_does_not_state_are_inferred(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = save(tmp_path, FLOAT)
    assert "0.000288 MMAC (N=1)" in run(capsys, path)
    assert "-> c float32 [N,2,4,4]" in run(capsys, path, "--nodes")


def test_inference_that_fails_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from qrun.ir.infer import infer
    from qrun.ops import expansion

    assert infer(b"nonsense", expansion) == {}
    assert infer(b"", expansion) == {}
    turned = CONV.replace("uint8[N,2,4,4] t, ", "").replace(
        "[first] t = QLinearConv(x, s, z, w, ws, wz, s, z)",
        "t = com.microsoft.QLinearAveragePool<channels_last = 1, kernel_shape = [1, 1]>(x, s, z, s, z)",
    )
    turned = turned.replace(
        "y = com.microsoft.QLinearAdd(t, s, z, t, s, z, s, z)", "y = QLinearConv(t, s, z, w, ws, wz, s, z)"
    )
    assert "MMAC unknown (no static shape for t; qrun profile counts them)" in run(capsys, save(tmp_path, turned))


def test_a_crash_of_onnx_inference_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """onnx reads at address 0 where an input has no type, as behind an operator that it does not know."""
    text = """<ir_version: 10, opset_import: ["" : 20, "custom" : 1]>
    g (float[N] x) => (float[N] y) { other = custom.Unknown (x) c = RegexFullMatch <pattern = "a"> (other) y = Relu (x) }"""
    printed = run(capsys, save(tmp_path, text), "--nodes")
    assert "other -> c" in printed
    assert "x float32 [N] -> y float32 [N]" in printed


@pytest.mark.parametrize("error", [Crash("crashed", "SIGSEGV"), Slow(), ValueError("no answer")], ids=repr)
def test_a_crash_of_onnx_inference_of_one_node_tells_nothing(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    from qrun.ir import TensorType
    from qrun.ops import expansion

    def ask(*arguments: Any) -> None:
        raise error

    proto = onnx.helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean"], axis=1)
    graph = onnx.helper.make_graph([proto], "g", [onnx.ValueInfoProto(name=name) for name in "xs"], [])
    node = load(onnx.helper.make_model(graph).SerializeToString()).nodes[0]
    types = {name: TensorType(name, np.dtype(np.float32), (4, 4)) for name in "xs"}
    assert infer.infer_node(node, {"": 18}, types, {}, expansion).keys() == {"y", "mean"}
    monkeypatch.setattr(infer, "_ask", ask)
    assert infer.infer_node(node, {"": 18}, types, {}, expansion) == {}


def test_operators_that_only_qrun_writes_are_inferred_too() -> None:
    from qrun.declare.frozen import replace
    from qrun.ir import TensorType
    from qrun.ir.infer import infer_node
    from qrun.ir.schema import OWN
    from qrun.ops import expansion

    def inferred(op_type: str, inputs: list[str], types: dict[str, TensorType]) -> TensorType:
        proto = onnx.helper.make_node("QLinearMatMul", inputs, ["y"])
        values = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(inputs)]
        model = onnx.helper.make_model(onnx.helper.make_graph([proto], "g", values, []))
        node = replace(load(model.SerializeToString()).nodes[0], op_type=op_type, domain=OWN)
        return infer_node(node, {"": 18}, types, {}, expansion)["y"]

    def typed(name: str, dtype: type, *shape: int | str) -> TensorType:
        return TensorType(name, np.dtype(dtype), shape)

    codes = {"a": typed("a", np.int8, "n", 5, 7), "b": typed("b", np.int8, 7, 3), "z": typed("z", np.uint8)}
    codes |= {"s": typed("s", np.float32), "t": typed("t", np.int8)}
    product = inferred("QLinearMatMul", ["a", "s", "t", "b", "s", "t", "s", "z"], codes)
    assert (product.dtype, product.shape) == (np.uint8, ("n", 5, 3))
    table = inferred("Table", ["a", "b"], {"a": codes["a"], "b": typed("b", np.uint8, 256)})
    assert table.shape == ("n", 5, 7)


def test_run_and_inspect_name_one_form(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dynamic = QDQ.replace("q = QuantizeLinear(x, s, z)", "q, qs, qz = DynamicQuantizeLinear(x)")
    weights = QDQ.replace("q = QuantizeLinear(x, s, z)\n", "").replace("d = DequantizeLinear(q, s, z)", "d = Relu(x)")
    for text, form in ((QDQ, "QDQ int4"), (weights, "weight only int4"), (CONV, "QOperator int8"),
                       (dynamic.replace("(q, s, z)", "(q, qs, qz)"), "dynamic, QDQ int4"), (FLOAT, "not quantized")):  # fmt: skip
        path = save(tmp_path, text)
        assert facts(text).brief == form
        main([path])
        assert form in capsys.readouterr().out.splitlines()[0]
        assert facts(text).form in run(capsys, path)


def test_nodes_of_subgraphs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    main (bool c, float[2] x) => (float[2] y)
    {
        [choose] y = If (c) <
            then_branch = a () => (float[2] ya) { [inner] ya = Relu(x) },
            else_branch = b () => (float[2] yb) { yb = Identity(x) }
        >
    }
    """
    lines = run(capsys, save(tmp_path, text), "--nodes").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["0", "0", "0"]
    assert "choose/then_branch/inner" in lines[2]


def test_stored_tensors(capsys: pytest.CaptureFixture[str], model: str) -> None:
    text = run(capsys, model, "-t", "w*", "-t", "long")
    rows = {line.split()[0]: line for line in text.splitlines()[1:5]}
    assert list(rows) == ["w", "ws", "wz", "long"]
    assert rows["w"].split() == ["w", "int8", "[2,1,1,1]", "-3", "4", "0"]
    assert "  w     [-3, 4]" in text
    assert "  long  [0, 1, 2, … 37, 38, 39]" in text


def test_a_name_with_wildcards_in_it_is_a_name() -> None:
    from qrun.report.inspect import match_stored

    odd = onnx.parser.parse_model(CONV)
    odd.graph.initializer[-1].name = "a[0]"
    assert list(match_stored(ModelFacts(load(odd)), ["a[0]"])) == ["a[0]"]


def test_no_such_tensor(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert "did you mean long?" in run(capsys, model, "-t", "lnog", code=2)
    assert "qrun run -t shows it" in run(capsys, model, "-t", "t", code=2)


def test_json(capsys: pytest.CaptureFixture[str], model: str) -> None:
    report = json.loads(run(capsys, model, "--json", "--nodes", "-t", "w"))
    assert report["schema"] == "qrun/inspect/1.0"
    assert report["model"]["nodes"] == 2
    assert report["macs"] == 32
    assert report["assumed"] == {"N": 1}
    assert report["runs"] is True
    assert report["inputs"] == [
        {"name": "x", "kind": "tensor", "type": "uint8", "shape": ["N", 1, 4, 4], "optional": False}
    ]
    assert report["nodes"][0]["outputs"] == [{"name": "t", "type": "uint8", "shape": ["N", 2, 4, 4]}]
    assert report["tensors"] == [
        {"name": "w", "type": "int8", "shape": [2, 1, 1, 1], "min": -3, "max": 4, "nan": 0, "inf": 0,
         "values": [[[[-3]]], [[[4]]]]}
    ]  # fmt: skip
    assert report["exit_code"] == 0


def test_not_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    assert "QR101" in run(capsys, str(tmp_path / "m.onnx"), code=3)


@pytest.mark.parametrize("width", ["60", "80", "120"])
@pytest.mark.parametrize("option", [(), ("--nodes",), ("-t", "*")], ids=["overview", "nodes", "tensors"])
def test_lines_fit_the_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str, width: str, option: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.chdir(Path(model).parent)
    for line in run(capsys, "m.onnx", *option).splitlines():
        assert len(line) <= int(width), line


QUANTIZED = [
    "y = com.microsoft.QuantizeLinear(f, s, z)",
    "y = com.microsoft.DequantizeLinear(x, s, z)",
    "y = com.microsoft.QLinearAdd(x, s, z, x, s, z, s, z)",
    "y = com.microsoft.QLinearMul(x, s, z, row, s, z, s, z)",
    "y = com.microsoft.QLinearConv<pads = [1, 1, 1, 1]>(x, s, z, w, ws, wz, s, z)",
    "y = com.microsoft.QLinearAveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x, s, z, s, z)",
    "y = com.microsoft.QLinearGlobalAveragePool(x, s, z, s, z)",
    "y = com.microsoft.QLinearSigmoid(x, s, z, s, z)",
    "y = com.microsoft.QLinearLeakyRelu<alpha = 0.1>(x, s, z, s, z)",
    "y = com.microsoft.QLinearSoftmax<axis = 1, opset = 13>(x, s, z, s, z)",
    "y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, row, s, z)",
    "y = com.microsoft.QLinearWhere(c, x, s, z, x, s, z, s, z)",
    "y = com.microsoft.QGemm<transB = 1>(m, s, z, b, s, bz, , s, z)",
    "y = com.microsoft.QGemm<transB = 1>(m, s, z, b, s, bz)",
    "y = com.microsoft.MatMulIntegerToFloat(m, k, s, s)",
    "y = com.microsoft.DynamicQuantizeMatMul(g, k, s)",
    "y = qonnx.custom_op.general.IntQuant(f, ws, none, bits)",
    "y = qonnx.custom_op.general.Quant(f, ws, none, bits)",
    "y = qonnx.custom_op.general.BipolarQuant(f, ws)",
    "y = qonnx.custom_op.general.Trunc(f, ws, none, bits, bits)",
    "y = qonnx.custom_op.general.MultiThreshold(f, steps)",
    "y = com.amd.quark.ExtendedQuantizeLinear(f, s, z)",
    "y = com.amd.quark.ExtendedDequantizeLinear(x, s, z)",
    "y = com.amd.quark.BFPQuantizeDequantize(f)",
    "y = com.amd.quark.MXQuantizeDequantize(f)",
    "y = com.vai.quantize.VitisQuantizeLinear(f, s, z)",
    "y = com.vai.quantize.VitisDequantizeLinear(x, s, z)",
    "y = com.vai.quantize.BFPFixNeuron(f)",
    "y = com.vai.quantize.MXFixNeuron(f)",
    "y = mct_quantizers.ActivationPOTQuantizer<threshold = 2.0, signed = 1, num_bits = 8>(f)",
    "y = mct_quantizers.ActivationSymmetricQuantizer<threshold = 2.5, signed = 1, num_bits = 8>(f)",
    "y = mct_quantizers.ActivationUniformQuantizer<num_bits = 8, min_range = -1.0, max_range = 2.0>(f)",
    "y = mct_quantizers.WeightsPOTQuantizer<num_bits = 8>(f, two)",
    "y = mct_quantizers.WeightsSymmetricQuantizer<num_bits = 8>(f, two)",
    "y = mct_quantizers.WeightsUniformQuantizer<num_bits = 8>(f, low, two)",
    "y = mct_quantizers.WeightsLUTPOTQuantizer<num_bits = 2>(f, table, two)",
    "y = mct_quantizers.WeightsLUTSymmetricQuantizer<num_bits = 2>(f, table, two)",
]
TYPED = """
<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1, "qonnx.custom_op.general" : 1, "com.amd.quark" : 1, "com.vai.quantize" : 1, "mct_quantizers" : 1]>
main (uint8[2,3,5,5] x, uint8[2,3,5,5] row, float[2,3,5,5] f, bool[2,3,5,5] c, uint8[2,4] m, float[2,4] g) => (y)
<float s = {0.5}, uint8 z = {128}, int8[2,3,3,3] w = {WEIGHTS}, float ws = {0.5}, int8 wz = {0}, int8 bz = {0}, float none = {0}, float bits = {4},
 float[1,2] steps = {0.5, 1.5}, float[1] two = {2}, float[1] low = {-1}, float[4] table = {-3, -1, 1, 2},
 int8[3,4] b = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int8[4,3] k = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
{
    NODE
}
""".replace("WEIGHTS", ", ".join("1" * 54))


def operator(node: str) -> str:
    return re.split("[(<]", node)[0].rpartition(".")[2].strip()


@pytest.mark.parametrize("node", QUANTIZED, ids=operator)
def test_shapes_are_inferred_through_quantized_operators(node: str) -> None:
    """The types and shapes that inference gives are those of a run."""
    import qrun
    from qrun.ir.infer import infer
    from qrun.ops import expansion

    model = onnx.parser.parse_model(TYPED.replace("NODE", node))
    session = qrun.Session(model, backend="reference")
    feeds = {v.name: np.ones([int(str(d)) for d in v.shape or ()], v.dtype) for v in session.inputs}
    made = session.run(feeds)["y"]
    found = infer(model.SerializeToString(), expansion)
    assert list(found) == ["y"], "nothing but tensors of the model"
    assert (found["y"].shape, found["y"].dtype) == (made.shape, made.dtype)


def test_every_such_operator_is_tried() -> None:
    from qrun.ops import REGISTRY, expansion

    known = {op_type for domain, op_type in REGISTRY if expansion(domain, op_type, 9)}
    assert set(map(operator, QUANTIZED)) == known


def test_a_malformed_node_ends_the_inference_on_its_own_path_only() -> None:
    from qrun.ir.infer import infer
    from qrun.ops import expansion

    nodes = "r = Relu (g) y = com.microsoft.QLinearAdd (x, s) n = Neg (r)"
    found = infer(onnx.parser.parse_model(TYPED.replace("NODE", nodes)).SerializeToString(), expansion)
    assert (found["r"].shape, found["n"].shape) == ((2, 4), (2, 4))


def test_macs_of_a_quantized_network() -> None:
    import qrun
    from qrun.ir.infer import with_inferred
    from qrun.ops import expansion

    path = Path(__file__).parents[2] / "models" / "digits" / "qoperator" / "model.onnx"
    events = qrun.Session(path).execute({"images": np.zeros((1, 1, 8, 8), np.float32)}).events
    assert ModelFacts(load(path)).macs is None
    assert ModelFacts(with_inferred(load(path), path, expansion)).macs == sum(e.macs for e in events) > 0


@pytest.mark.parametrize("shape", [["N" * 20_000], [1] * 20_000, ["N" * 20] * 60])
@pytest.mark.parametrize("words", [["--nodes"], ["--json", "--nodes"], []])
def test_a_long_shape_is_not_told_with_every_mention(
    shape: list[str | int], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few bytes of the file name a tensor once more; its shape is as long as the file likes."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy")
    node = onnx.helper.make_node("Sum", ["x"] * 3000, ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    assert main(["inspect", str(tmp_path / "m.onnx"), *words]) == 0
    assert 100 < len(capsys.readouterr().out) < 1 << 20


@pytest.mark.parametrize("command", ["inspect", "run", "profile"])
@pytest.mark.parametrize("shape", [["N" * 20_000], [f"n{n}" for n in range(64)]])
def test_names_of_axes_that_are_taken_as_1(
    command: str, shape: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    assert main([command, str(tmp_path / "m.onnx")]) == 0
    told = "".join(capsys.readouterr())
    assert len(told) < 10_000
    assert f"{shape[0][:64]}{'...' * (len(shape) == 1)}=1" in told
    assert len(shape) == 1 or "n63=1" in told.replace("\n", " ")


@pytest.mark.parametrize("shape", [["N" * 20_000, 2], [1] * 20_000])
def test_what_is_inferred_does_not_repeat_a_long_shape(
    shape: list[str | int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = onnx.helper.make_tensor_value_info("t999", onnx.TensorProto.FLOAT, None)
    chain = [onnx.helper.make_node("Relu", [f"t{n - 1}" if n else "x"], [f"t{n}"]) for n in range(1000)]
    model = onnx.helper.make_model(onnx.helper.make_graph(chain, "g", [x], [y]))
    sizes = []

    def told(what: str, *arguments: Any) -> Any:
        found = ask(what, *arguments)
        sizes.append(sum(map(len, found)))
        return found

    ask = infer._ask
    monkeypatch.setattr(infer, "_ask", told)
    found = infer.infer(model.SerializeToString(), lambda *_: None)
    assert 0 < sum(sizes) < 200_000
    if len(shape) == 2:
        assert all(found[f"t{n}"].shape == tuple(shape) for n in range(1000))
