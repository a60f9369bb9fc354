"""Real networks as onnxruntime's quantizer writes them: no error, and no warning that is not true of the model."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from planted.network import image, resnet50

import qrun
from qrun.checking.rules import Finding

pytest.importorskip("onnxruntime", reason="onnxruntime, whose quantizer writes the networks, is not installed")
ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "models/digits"
sys.path.insert(0, str(ROOT / "scripts"))

import make_networks  # noqa: E402
from _quantizer import static  # noqa: E402

Array = np.ndarray[Any, Any]
SIZES = {"squeezenet": 64, "mobilenetv2": 64, "shufflenet": 224, "resnet50": 96}
"""Pixels: the graphs and widths are those of the real networks, the image is as small as they take."""
PAIRS, SHARED, TIES, BATCH = "QR409", "QR604", "QR605", "QR410"
FOUND = {
    ("digits", "qoperator"): {PAIRS},
    ("digits", "qdq"): {PAIRS, SHARED, TIES},  # an average of 2 by 2 elements between equal scales
    ("digits", "dynamic"): {PAIRS, BATCH},  # the batch has no fixed size
    ("squeezenet", "qop"): {PAIRS},
    ("squeezenet", "qdq"): {PAIRS, SHARED},
    ("shufflenet", "qop"): {PAIRS},
    ("shufflenet", "qdq"): {PAIRS, SHARED},
    ("mobilenetv2", "qop"): {PAIRS},
    ("mobilenetv2", "qdq"): {PAIRS, SHARED},
    ("resnet50", "qop"): {PAIRS},
    ("resnet50", "qdq"): {PAIRS, SHARED},
}


def network(name: str, form: str) -> tuple[Path, Array]:
    """The file and an input; networks are made once for all processes of a test run."""
    if name == "digits":
        return DIGITS / form / "model.onnx", np.load(DIGITS / "x.npy")
    folder = Path(os.environ["QRUN_TEST_OBJECTS"]) / "clean"
    file = folder / f"{name}-{form}.onnx"
    if not file.exists():
        folder.mkdir(exist_ok=True)
        part = folder / f"{os.getpid()}.onnx"
        onnx.save(quantized(name, form), part)
        part.replace(file)
    return file, sample(name, 0)


def sample(name: str, index: int) -> Array:
    return image(index, SIZES[name]) if name == "resnet50" else make_networks.image(name, SIZES[name], index)


def quantized(name: str, form: str) -> onnx.ModelProto:
    size = SIZES[name]
    made = resnet50(64, size, 1000) if name == "resnet50" else make_networks.float_network(name, size)
    return static(made, form, [sample(name, 1), sample(name, 2)])


@pytest.mark.parametrize(("name", "form"), [pytest.param(*key, id="-".join(key)) for key in FOUND])
def test_only_what_is_true(name: str, form: str) -> None:
    path, x = network(name, form)
    session = qrun.Session(path)
    feeds = {session.inputs[0].name: x}
    found = qrun.check(session.model, session.execute(feeds), feeds)
    assert {f.rule for f in found} == FOUND[name, form], found
    assert [f.rule for f in found if f.level == "error"] == []
    assert [f.rule for f in found if f.level == "warning"] == [PAIRS]
    model = onnx.load(path)
    by_rule = {f.rule: f for f in found}
    verify_pairs(model, by_rule[PAIRS])
    if SHARED in by_rule:
        verify_shared(model, by_rule[SHARED])
    if TIES in by_rule:
        verify_ties(model, by_rule[TIES])
    if BATCH in by_rule:
        assert not model.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")


def stored(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


WEIGHTS = {"QLinearConv": 3, "QGemm": 3, "MatMulInteger": 1, "QLinearMatMul": 3, "Conv": 1, "Gemm": 1, "MatMul": 1}
"""Operators with kernels for uint8 * int8, and the input that holds the weights."""


def weight_rows(model: onnx.ModelProto) -> Iterator[tuple[str, Array]]:
    """Node, and its weights as [channels, terms], input channels innermost;
    depthwise convolutions have other kernels."""
    values, makers = stored(model), {n.output[0]: n for n in model.graph.node}
    for node in model.graph.node:
        name = node.input[WEIGHTS[node.op_type]] if node.op_type in WEIGHTS else ""
        name = makers[name].input[0] if name in makers and makers[name].op_type == "DequantizeLinear" else name
        if name not in values or values[name].dtype != np.int8:
            continue
        w, given = values[name].astype(int), {a.name: a.i for a in node.attribute}
        if w.ndim == 4:
            if not (w.shape[1] == 1 and given.get("group", 1) == len(w)):
                yield node.name, w.transpose(0, 2, 3, 1).reshape(len(w), -1)
        else:
            yield node.name, w if given.get("transB") else w.T


def verify_pairs(model: onnx.ModelProto, finding: Finding) -> None:
    """Two neighbouring weights whose products with 255 leave int16; which nodes have such, and which the worst."""
    worst = {}
    for name, rows in weight_rows(model):
        sums = rows[:, : rows.shape[1] // 2 * 2].reshape(len(rows), -1, 2).sum(2) * 255
        if sums.max() > 2**15 - 1 or sums.min() < -(2**15):
            worst[name] = max(sums.max(), sums.min(), key=abs)
    most = max(map(abs, worst.values()))
    assert abs(int(worst[finding.node])) == most
    told = re.match(r"255 \* (\S+) \+ 255 \* (\S+) = (\S+) in output channel", finding.got)
    assert told is not None
    assert 255 * int(told[1]) + 255 * int(told[2]) == int(told[3])
    assert abs(int(told[3])) == most
    nodes = re.search(r"\((\d+) nodes\)$", finding.message)
    assert len(worst) == (int(nodes[1]) if nodes else 1)


def verify_shared(model: onnx.ModelProto, finding: Finding) -> None:
    """DequantizeLinear nodes whose output several nodes read."""
    nodes = model.graph.node
    shared = [n for n in nodes if n.op_type == "DequantizeLinear" and sum(n.output[0] in r.input for r in nodes) > 1]
    assert finding.message.startswith(f"{len(shared)} DequantizeLinear with several readers")
    assert finding.node in [n.name for n in shared]


def verify_ties(model: onnx.ModelProto, finding: Finding) -> None:
    """Between equal scales, the mean of 4 codes is half a code off in one of 4 cases, if all sums are as frequent."""
    values, makers = stored(model), {n.output[0]: n for n in model.graph.node}
    node = next(n for n in model.graph.node if n.name == finding.node)
    (kernel,) = (a.ints for a in node.attribute if a.name == "kernel_shape")
    reader = next(n for n in model.graph.node if node.output[0] in n.input)
    assert list(kernel) == [2, 2]
    assert values[makers[node.input[0]].input[1]] == values[reader.input[1]]
    assert sum((total / 4) % 1 == 0.5 for total in range(1021)) == pytest.approx(1021 / 4, abs=1)
