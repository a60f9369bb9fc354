"""Operators of ONNX that qrun has no kernel for, which onnx.reference runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call
from helpers.support import node_model, run_qrun

import qrun
from qrun.ir.schema import schema, schema_versions, stated_attributes
from qrun.ops import REGISTRY, RUNNER, operators

F, I64 = np.float32, np.int64
TRAINING = "ai.onnx.preview.training"


def momentum(backend: Any = "native", **attributes: Any) -> list[np.ndarray]:
    given = {"alpha": 0.5, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0, **attributes}
    inputs = [F(0.25), np.int64(1), F([1, 2]), F([4, 8]), F([2, 4])]
    model, feeds = node_model("Momentum", inputs, given, domain=TRAINING, outputs=[F, F])
    return run_qrun(model, feeds, backend=backend)


def test_an_operator_that_trains() -> None:
    """V' = alpha * V + beta * G; X' = X - R * V'."""
    for backend in ("native", "reference"):
        x, v = momentum(backend)
        assert v.tolist() == [5, 10]
        assert x.tolist() == [-0.25, -0.5]


def test_attributes_are_those_that_onnx_states() -> None:
    for wrong, text in (({"gamma": 1.0}, "no attribute 'gamma'"), ({"alpha": 1}, "wrong type")):
        with pytest.raises(qrun.OperatorError, match=text):
            momentum(**wrong)


DECODER = '<ir_version: 8, opset_import: ["" : 20]> main (uint8[n] x) => (uint8[h,w,3] y) { y = ImageDecoder(x) }'


def test_what_it_refuses_is_told_at_the_node(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(DECODER), path)
    np.save(tmp_path / "x.npy", np.zeros(3, np.uint8))
    ended = call("run", str(path), "-i", f"x={tmp_path / 'x.npy'}")
    assert ended.code == 5
    assert "QR210 node-failed: onnx.reference cannot compute this node" in ended.err
    assert "node 0 ImageDecoder_0 (ImageDecoder-20)" in ended.err
    assert "Traceback" not in ended.err
    assert "Pillow must be installed" in ended.err or "UnidentifiedImageError" in ended.err


def test_who_ran_a_node_is_told(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 28]> main (float[1,2,3] x) => (float[1,2,3] y) {
        r = Relu(x)
        w = Constant<value = float[2,1,1] {2, 3}>()
        y = CausalConvWithState(r, w) }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    session = qrun.Session(path)
    for _ in range(3):
        result = session.execute({"x": F([[[1, 2, 3], [-1, 4, 5]]])})
        assert result.outputs["y"].tolist() == [[[2, 4, 6], [0, 12, 15]]]
        assert [event.backend for event in result.events] == ["native", RUNNER]
    printed = call("profile", str(path), "--random").out
    row = next(line for line in printed.splitlines() if "CausalConvWithState" in line)
    assert RUNNER in row


def test_a_graph_is_not_handed_over() -> None:
    text = """<ir_version: 10, opset_import: ["" : 28, "ai.onnx.preview" : 1]>
        main (float[1,1,2,2] q) => (float[1,1,2,2] y) {
        y = ai.onnx.preview.FlexAttention<score_mod = g (float[1,1,2,2] s) => (float[1,1,2,2] t) { t = Relu(s) }>(q, q, q) }
        """
    with pytest.raises(qrun.OperatorError, match="score_mod is a graph"):
        qrun.Session(onnx.parser.parse_model(text)).run({"q": np.ones((1, 1, 2, 2), F)})
    bare = text.replace(text[text.index("<score_mod") : text.index(">(q")] + ">", "")
    made = qrun.Session(onnx.parser.parse_model(bare)).run({"q": np.ones((1, 1, 2, 2), F)})["y"]
    assert made.tolist() == [[[[1, 1], [1, 1]]]]


def odd_node(rng: np.random.Generator, domain: str, op_type: str) -> tuple[list[Any], dict[str, Any]]:
    """Inputs of types that the operator takes, and attributes of its kinds, which fit each other by chance only."""
    version = schema_versions(domain, op_type)[-1]
    known = schema(domain, op_type, version)
    assert known is not None
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (2, 3), (1, 2, 5), (1, 2, 4, 4)]
    inputs: list[Any] = []
    for formal in known.inputs:
        if formal.option == "Optional" and rng.random() < 0.4:
            inputs.append(None)
            continue
        dtype = rng.choice(sorted(formal.types or (), key=str))
        shape = shapes[rng.integers(len(shapes))]
        values = np.full(shape, "é", object) if dtype.kind == "O" else rng.normal(size=shape) * rng.choice([0, 1, 1e4])
        inputs.append(values.astype(dtype))
    choices: dict[Any, list[Any]] = {
        int: [-1, 0, 1, 2, 10**6], float: [0.0, 1.5, float("nan"), -1e30], str: ["x", "NONE", "mean", "SUM"],
        tuple[int, ...]: [[-1], [1, 2], [0, 1, 1, 2]], tuple[float, ...]: [[1.0], [1.0, 2.0]],
        tuple[str, ...]: [["a", "LEAF"]], np.ndarray: [onnx.numpy_helper.from_array(np.ones(2, F))],
    }  # fmt: skip
    stated = stated_attributes(domain, op_type, version).items()
    wanted = {name: kind for name, (kind, default) in stated if default is ... or rng.random() < 0.5}
    fitting = {name: choices[kind] for name, kind in wanted.items() if kind in choices}
    return inputs, {name: values[rng.integers(len(values))] for name, values in fitting.items()}


def test_whatever_it_is_given_it_ends_in_a_result_or_an_error() -> None:
    ran = 0
    with np.errstate(all="ignore"):
        for domain, op_type in sorted(set(operators()) - set(REGISTRY)):
            for seed in range(12):
                inputs, attributes = odd_node(np.random.default_rng(seed), domain, op_type)
                version = schema_versions(domain, op_type)[-1]
                known = schema(domain, op_type, version)
                outputs = [F] * min(known.max_outputs, 2) if known else []
                model, feeds = node_model(op_type, inputs, attributes, domain=domain, outputs=outputs, opset=28)
                for imported in model.opset_import:
                    imported.version = version if imported.domain == domain else 28
                try:
                    run_qrun(model, feeds)
                    ran += 1
                except qrun.QrunError:
                    pass
    assert ran > 10
