"""Real network graphs, every tensor: the bits of onnxruntime in its arithmetic,
the correctly rounded value in exact."""

from __future__ import annotations

import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import exact_pairs

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
MODELS = SCRIPTS.parent / "models"
sys.path.insert(0, str(SCRIPTS))

import _exact_values  # noqa: E402
import compare_ort  # noqa: E402
import make_networks  # noqa: E402

import qrun  # noqa: E402
from qrun.ops import Context  # noqa: E402
from qrun.running.plan import plan  # noqa: E402

Case = tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]]
QOPERATOR = ("squeezenet", "mobilenetv2", "shufflenet", "digits")
SIZES = {"squeezenet": 64, "mobilenetv2": 64, "shufflenet": 224}


def with_exact_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    for stored in model.graph.initializer:
        stored.CopyFrom(onnx.numpy_helper.from_array(exact_pairs(onnx.numpy_helper.to_array(stored)), stored.name))
    return model


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("networks")

    @cache
    def built(name: str, kind: str) -> Case:
        if platform.machine().lower() not in ("x86_64", "amd64"):
            pytest.skip(f"the ort arithmetic is that of x86, this is {platform.machine()}")
        if name == "digits":
            model = with_exact_pairs(onnx.load(MODELS / "digits/qoperator/model.onnx"))
            feeds = {"images": np.load(MODELS / "digits/x.npy")}
        else:
            (path,) = make_networks.make(name, folder, SIZES[name], (kind,), reduce_range=True)
            model = onnx.load(path)
            feeds = {model.graph.input[0].name: np.load(folder / f"{name}-x.npy")}
        return model, feeds, compare_ort.all_tensors(model, feeds)

    return built


@pytest.mark.parametrize("name", QOPERATOR)
def test_whole_network_has_the_bits_of_onnxruntime(case: Any, name: str) -> None:
    model, feeds, theirs = case(name, "qop")
    assert len(theirs) >= len(model.graph.node)
    assert [str(d) for d in compare_ort.whole(model, feeds, theirs)] == []


@pytest.mark.parametrize("name", QOPERATOR)
def test_exact_differs_only_beside_ties(case: Any, name: str) -> None:
    for difference in compare_ort.each(*case(name, "qop")):
        assert difference.integer, difference
        assert difference.wrong == 0, difference
        assert difference.margin <= compare_ort.MARGIN, difference


@pytest.mark.parametrize("name", QOPERATOR)
def test_every_node_is_correctly_rounded(case: Any, name: str) -> None:
    model, feeds, theirs = case(name, "qop")
    loaded = qrun.load(model)
    values = {**loaded.constants, **feeds, **theirs}
    rng = np.random.default_rng(5)
    checked = set()
    for step in plan(loaded).steps:
        node = step.node
        if node.op_type not in _exact_values.PARAMETERS:
            continue
        inputs = [values[i] if i else None for i in node.inputs]
        ctx = Context(version=node.version)
        y = step.definition(*inputs, **step.kwargs, ctx=ctx)
        for flat in rng.integers(0, y.size, 12):
            at = tuple(int(i) for i in np.unravel_index(flat, y.shape))
            value, zero = _exact_values.quotient(node, inputs, at)
            want = _exact_values.nearest(value, zero, y.dtype)
            assert int(y[at]) == want, f"seed 5, {node.op} {node.label} at {at}: {float(value)} + {zero}"
        checked.add(node.op_type)
    assert {"QLinearConv", "QuantizeLinear"} <= checked


def test_qdq_network_differs_only_in_float_sums(case: Any) -> None:
    for difference in compare_ort.each(*case("squeezenet", "qdq")):
        assert not difference.integer, difference
        assert difference.op in ("Conv", "GlobalAveragePool", "Softmax"), difference
        assert difference.step <= 4e-6 * difference.scale, difference


def test_comparison_finds_a_planted_error(case: Any) -> None:
    model, feeds, theirs = case("squeezenet", "qop")
    node = next(n for n in model.graph.node if n.op_type == "QLinearConv")
    planted = {**theirs, node.output[0]: theirs[node.output[0]].copy()}
    planted[node.output[0]][0, 3, 5, 7] ^= 4
    found = [d for d in compare_ort.each(model, feeds, planted) if d.op == "QLinearConv"]
    assert [(d.output, d.count, d.step, d.wrong) for d in found[:1]] == [(node.output[0], 1, 4.0, 0)]
    assert found[0].margin > 0.001
