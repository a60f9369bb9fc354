"""scripts/targets.py: its random models, what it reads of runtimes, and the disagreements that it prints."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from qrun.checking.targets import find
from qrun.ir import Model
from qrun.ir.load import load

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import _targets_oracle  # noqa: E402
import targets  # noqa: E402
from _targets_compare import Foretold, Tally, changes, differences, foretell  # noqa: E402
from _targets_models import random_model, random_models  # noqa: E402
from _targets_oracle import Oracle, Seen, is_wrong, of_openvino, of_qnn  # noqa: E402

SEEDS = range(40)


def conv(extra: str = "") -> onnx.ModelProto:
    """A QDQ convolution; `extra` replaces its result."""
    return onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["":17]>
    main (float[1,1,4,4] x) => (float[1,1,4,4] y)
    <float s = {{0.1}}, uint8 z = {{128}}, int8[1,1,1,1] w = {{1}}, int8 wz = {{0}}, float ws = {{0.1}}> {{
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, ws, wz)
        c = Conv(d, v)
        {extra or "r = QuantizeLinear(c, s, z)"}
        y = DequantizeLinear(r, s, z)
    }}""")


def loaded(proto: onnx.ModelProto) -> Model:
    return load(proto.SerializeToString())


def test_a_seed_makes_one_model() -> None:
    assert random_model(3).SerializeToString() == random_model(3).SerializeToString()
    assert random_model(3).SerializeToString() != random_model(4).SerializeToString()


def test_random_models_vary() -> None:
    """All three forms, every type, scales of tensors and of channels, zero points in the middle and elsewhere."""
    nodes, types, sizes, zeros = Counter[str](), Counter[int](), set[int](), set[int]()
    for name, model in random_models(SEEDS):
        onnx.checker.check_model(model)
        assert model.graph.output, name
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        types.update(tensor.data_type for tensor in model.graph.initializer)
        nodes.update(node.op_type for node in model.graph.node)
        for node in model.graph.node:
            if node.op_type == "DequantizeLinear":
                sizes.add(int(np.prod(stored[node.input[1]].dims)))
                zeros.update(onnx.numpy_helper.to_array(stored[z]).ravel()[0] for z in node.input[2:] if z in stored)
    assert {"Conv", "MatMul", "Gemm", "Add", "MaxPool", "DynamicQuantizeLinear", "QLinearConv"} <= nodes.keys()
    assert {
        onnx.TensorProto.UINT8,
        onnx.TensorProto.INT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.INT16,
    } <= types.keys()
    assert len(sizes) > 2
    assert len(zeros) > 10


@pytest.mark.parametrize(
    ("got", "step", "wrong"),
    [
        ([1.0, 2.0, 3.0], 0.0, False),
        ([1.0, 2.0, 3.1], 0.0, False),
        ([1.0, 2.0, 4.0], 0.0, True),
        ([1.0, 2.0, 4.0], 0.3, False),
        ([1.0, 2.0, np.nan], 0.0, True),
        ([1.0, 2.0], 0.0, True),
    ],
)
def test_wrong_numbers(got: list[float], step: float, wrong: bool) -> None:
    """Beyond 4 steps of the output's quantization and a tenth of its size; another shape; nan for a number."""
    assert is_wrong(np.array(got), np.array([1.0, 2.0, 3.0]), step) is wrong


def test_nan_where_nan_is_exact() -> None:
    assert not is_wrong(np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), 0.0)


def found(told: Foretold, seen: Seen) -> list[tuple[str, str, str]]:
    return [(d.what, d.foretold, d.seen) for d in differences("m", loaded(conv()), told, seen)]


def test_differences() -> None:
    """Of nodes that both have a verdict on; of the whole model; of its numbers."""
    told = Foretold("", {3: "int"}, False, {3: ""})
    assert found(told, Seen("", {3: "int"})) == []
    assert found(told, Seen("", {3: "float", 4: "float"})) == [("Conv", "int", "float")]
    assert found(told, Seen("", {})) == []
    assert found(told, Seen("", {3: "int"}, ("y",))) == [("numbers", "right", "wrong")]
    assert found(told, Seen("crash")) == [("model", "loads", "crash")]
    refused = Foretold("refused", {3: "float"}, False, {3: ""}, "some-rule")
    assert found(refused, Seen("refused", error="no")) == []
    assert found(refused, Seen("", {3: "int"})) == [("model", "refused", "loads")]


def test_foretell() -> None:
    """A group in integers; without QuantizeLinear behind it in float."""
    known = find("onnxruntime-cpu")
    assert foretell(known, loaded(conv())).nodes == {3: "int"}
    told = foretell(known, loaded(conv("e = Elu(c)\n r = QuantizeLinear(e, s, z)")))
    assert (told.nodes[3], told.whole, told.wrong) == ("float", "", False)


def test_a_model_that_is_refused_does_not_crash() -> None:
    """Both are foretold, each of a node."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["":17]>
    main (float[1,2,4,4] x) => (float[1,2,1,1] y, float[1,2,4,4] v)
    <float s = {0.1}, uint8 z = {128}, float[2] t = {0.1, 0.2}, uint8[2] u = {128, 128}> {
        q = QuantizeLinear <axis = 1> (x, t, u)
        d = DequantizeLinear <axis = 1> (q, t, u)
        g = GlobalAveragePool(d)
        a = QuantizeLinear(g, s, z)
        y = DequantizeLinear(a, s, z)
        e = DequantizeLinear <axis = 1> (q, t, u)
        f = Sigmoid(e)
        b = QuantizeLinear(f, s, z)
        v = DequantizeLinear(b, s, z)
    }""")
    told = foretell(find("onnxruntime-cpu"), loaded(proto))
    assert (told.whole, told.rule) == ("refused", "curves-per-tensor")


def test_report() -> None:
    """Shares, counts, false alarms, and each group of disagreements with its smallest model."""
    tally, large = Tally(), loaded(conv("n = Neg(c)\n m = Neg(n)\n r = QuantizeLinear(m, s, z)"))
    told = Foretold("", {3: "float"}, False, {3: "a-rule"})
    tally.add("large", large, told, Seen("", {3: "int"}))
    tally.add("small", loaded(conv()), told, Seen("", {3: "int"}))
    tally.add("equal", loaded(conv()), Foretold("", {3: "int"}, False, {3: ""}), Seen("", {3: "int"}))
    tally.add("away", loaded(conv()), told, Seen("refused", error="message of the runtime"))
    lines = "\n".join(tally.report())
    assert "models with every verdict equal  1 of 4 (25.0 %)" in lines
    assert "nodes with equal verdicts        1 of 3, in 3 models that load" in lines
    assert "Conv in integers                 1 foretold, 3 seen, of 3" in lines
    assert "false alarms                     2 of 3 models that run wholly in integers" in lines
    assert "2  Conv: foretold float, seen int  a-rule\n        smallest: small, 6 nodes  " in lines
    assert "1  model: foretold loads, seen refused" in lines
    assert "message: message of the runtime" in lines


def test_changes_between_releases() -> None:
    verdicts = {
        "1.0": Seen("refused", error="No kernel for Conv(11) at 7"),
        "1.1": Seen("", {3: "float"}),
        "1.2": Seen("", {3: "float"}),
        "1.3": Seen("", {3: "int"}, ("y",)),
    }
    assert list(changes(loaded(conv()), verdicts)) == [
        ("1.1", "refused -> loads: No kernel for at"),
        ("1.3", "Conv float -> int"),
        ("1.3", "numbers of Conv right -> wrong"),
    ]


def test_verdicts_from_openvino() -> None:
    """A layer's precision; a product with real inputs and narrow weights; elementwise layers compute in float."""
    product = loaded(
        onnx.parser.parse_model("""<ir_version: 9, opset_import: ["":17]>
    main (float[2,2] x, float[2,2] w) => (float[2,2] y) { y = MatMul(x, w) }""")
    )
    for inputs, verdict in (("u8", "int"), ("f32", "weight-only")):
        answer = {"layers": [["FullyConnected", "i8", "qrun.0;,qrun.0;0;", [inputs, "i8"]]]}
        assert of_openvino(product, answer) == {0: verdict}
    layers = [
        ["Convolution", "u8", "qrun.3;/WithoutBiases,qrun.4;", ["u8", "i8"]],
        ["Subgraph", "u8", "qrun.3;", ["u8"]],
    ]
    assert of_openvino(loaded(conv()), {"layers": layers}) == {3: "int"}


def test_verdicts_from_qnn() -> None:
    """The provider, and the types of the HTP operator's inputs."""
    for provider, kind, verdict in (("QNN", 0x408, "int"), ("QNN", 0x232, "float"), ("CPU", 0x408, "cpu")):
        answer = {
            "assigned": [[f"{provider}ExecutionProvider", "Conv", "qrun.3;_token_1"]],
            "operators": [["Conv2d", "qrun.3;_token_1", [kind, 0x308], [kind]]],
        }
        assert of_qnn(loaded(conv()), answer) == {3: verdict}


def test_a_runtime_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again in a new process, and lives on for the next model."""
    child = tmp_path / "child.py"
    child.write_text('import sys\nprint(\'{"version": "1"}\', flush=True)\nsys.stdin.readline()\nsys.exit(3)\n')
    monkeypatch.setattr(_targets_oracle, "CHILD", child)
    oracle = Oracle("onnxruntime", sys.executable)
    assert oracle.look(conv(), execute=False) == Seen("crash")
    assert oracle.look(conv(), execute=False) == Seen("crash")
    oracle.close()


def test_a_runtime_that_does_not_start() -> None:
    with pytest.raises(RuntimeError, match="openvino does not start in /bin/true"):
        Oracle("openvino", "/bin/true")


def test_environments_by_version(tmp_path: Path) -> None:
    for name in ("onnxruntime-1.9.0", "onnxruntime-1.31.1", "onnxruntime-qnn-2.7.0", "other"):
        (tmp_path / name).mkdir()
    assert list(targets.environments(tmp_path, targets.RUNTIMES["onnxruntime-cpu"])) == ["1.9.0", "1.31.1"]
    assert list(targets.environments(tmp_path, targets.RUNTIMES["qnn-htp"])) == ["2.7.0"]


def test_no_environment(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "targets.py"), "qnn-htp", "--venvs", str(tmp_path), "--seeds", "0:1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no onnxruntime-qnn-VERSION; --make makes it" in done.stdout


def test_weights_alone_in_onnxruntime() -> None:
    """Four bits of weights, decompressed in MatMulNBits, are not computed on codes."""
    pytest.importorskip("onnxruntime")
    text = """<ir_version: 10, opset_import: ["":21]> main (float[2,32] x) => (float[2,4] y) {
        d = DequantizeLinear<axis = 0, block_size = 32>(w, s)
        y = MatMul(x, d)
    }"""
    model = onnx.parser.parse_model(text)
    weights = helper.make_tensor("w", onnx.TensorProto.INT4, (32, 4), [1] * 128)
    scales = helper.make_tensor("s", onnx.TensorProto.FLOAT, (1, 4), [0.1] * 4)
    model.graph.initializer.extend([weights, scales])
    oracle = Oracle("onnxruntime", sys.executable)
    assert oracle.look(model) == Seen("", {1: "weight-only"})
    oracle.close()


@pytest.fixture(scope="module")
def tally() -> Any:
    pytest.importorskip("onnxruntime")
    oracle = Oracle("onnxruntime", sys.executable)
    made = targets.compare(find("onnxruntime-cpu"), oracle, random_models(SEEDS), None, True)
    oracle.close()
    return made


def test_the_file_of_onnxruntime_is_what_it_does(tally: Tally) -> None:
    """On seeds that the rules were made with."""
    assert tally.models == len(SEEDS)
    assert tally.nodes > 60
    assert tally.equal >= 0.97 * tally.models, list(tally.report())
    assert tally.alarms == []
