"""Layer normalizations that onnxruntime writes, of com.microsoft and of ai.onnx:
against decimals, beside onnxruntime."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, qrun_node
from helpers.placed import same_everywhere
from helpers.support import MS, assert_equal, node_model

import qrun
from qrun.checking.rules import check
from qrun.ops._float import narrow

F, H, BF, D = np.float32, np.float16, ml_dtypes.bfloat16, np.float64
SKIP, SIMPLIFIED = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
Arrays = list[Any]


def case(seed: int, op_type: str, dtype: Any = F) -> Arrays:
    """The node's inputs; the seed chooses its shapes, and what is left out."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    shape = (2, 3, n) if seed % 3 else (4, n)
    x, skip = rng.normal(size=shape).astype(dtype), rng.normal(size=shape).astype(dtype)
    skip = [skip, skip[:1], skip[0], skip][seed % 4]
    gamma, beta, bias = (rng.normal(size=n).astype(dtype) for _ in range(3))
    weights = [gamma, *([beta] if op_type == SKIP else []), bias]
    if op_type == SKIP and seed % 5 == 0:
        weights[1] = None
    return [x, skip, *(weights[:-1] if seed % 2 else weights)]


def oracle(op_type: str, inputs: Arrays, total: np.ndarray, epsilon: float) -> list[np.ndarray]:
    """The real output, mean and 1 / deviation of rows of the sum, in 50 digits and then float64."""
    gamma = inputs[2].astype(D)
    beta = (
        inputs[3].astype(D) if op_type == SKIP and len(inputs) > 3 and inputs[3] is not None else np.zeros(gamma.shape)
    )
    rows, found = total.reshape(-1, total.shape[-1]).astype(D), []
    with localcontext() as digits:
        digits.prec = 50
        for row in rows.tolist():
            numbers = [Decimal(v) for v in row]
            mean = sum(numbers) / len(row) if op_type == SKIP else Decimal(0)
            apart = [v - mean for v in numbers]
            inverse = 1 / (sum(v * v for v in apart) / len(row) + Decimal(epsilon)).sqrt()
            weights = zip(apart, gamma.tolist(), beta.tolist(), strict=True)
            found.append(
                ([float(v * inverse * Decimal(g) + Decimal(b)) for v, g, b in weights], float(mean), float(inverse))
            )
    lead = (*total.shape[:-1], 1)
    return [
        np.array([f[0] for f in found]).reshape(total.shape),
        *(np.array([f[i] for f in found]).reshape(lead) for i in (1, 2)),
    ]


def near(got: np.ndarray, want: np.ndarray, dtype: Any) -> bool:
    """The real value rounded to the type, or a neighbour of a hair more or less."""
    assert got.dtype == dtype
    hair = 1e-12 * (1 + np.abs(want))
    low, high = (narrow(want + sign * hair, np.dtype(dtype)) for sign in (-1, 1))
    return bool(((low <= got) & (got <= high)).all())


@pytest.mark.parametrize("op_type", [SKIP, SIMPLIFIED])
@pytest.mark.parametrize("dtype", [F, H, BF])
def test_against_the_oracle(op_type: str, dtype: Any) -> None:
    for seed in range(20):
        inputs = case(seed, op_type, dtype)
        bias = inputs[4 if op_type == SKIP else 3] if seed % 2 == 0 else None
        total = inputs[0] + inputs[1]
        total = total if bias is None else total + bias
        for epsilon in (None, 0.25):
            attributes = {} if epsilon is None else {"epsilon": epsilon}
            want = oracle(op_type, inputs, total, float(F(1e-12)) if epsilon is None else epsilon)
            outputs = [dtype, F, F, dtype]
            if op_type == SIMPLIFIED:
                model, feeds = node_model(op_type, inputs, attributes, domain=MS, outputs=outputs)
                model.graph.node[0].output[1] = ""
                del model.graph.output[1]
                y, inverse, kept = qrun.Session(model, backend="reference").run(feeds).values()
            else:
                y, mean, inverse, kept = qrun_node(op_type, inputs, attributes, domain=MS, outputs=outputs)
                assert near(mean, want[1], F)
            assert_equal(kept, total, f"seed {seed}")
            assert near(inverse, want[2], F), f"seed {seed}"
            assert near(y, want[0], dtype), f"seed {seed}"


@pytest.mark.parametrize("dtype", [F, H, BF, D])
def test_those_of_onnxruntime_in_the_domain_of_onnx(dtype: Any) -> None:
    """LayerNormalization before opset 17, and SimplifiedLayerNormalization; weights of another type give Y theirs."""
    for seed in range(12):
        x, _, gamma, beta = case(2 * seed + 1, SKIP, dtype)[:4]
        weights = F if seed % 4 == 3 else dtype
        gamma, beta = gamma.astype(weights), None if beta is None else beta.astype(weights)
        for op_type, inputs in (("LayerNormalization", [x, gamma, beta]), ("SimplifiedLayerNormalization", [x, gamma])):
            centred = op_type == "LayerNormalization"
            outputs = [weights, F, F] if centred else [weights, F]
            y, *states = qrun_node(op_type, inputs, {"epsilon": 0.25}, opset=12, outputs=outputs)
            told = [x, None, gamma, beta] if centred else [x, None, gamma]
            want = oracle(SKIP if centred else SIMPLIFIED, told, x, 0.25)
            assert near(y, want[0], weights), f"{op_type} {seed}"
            for state, number in zip(states, want[1 if centred else 2 :], strict=True):
                assert near(state, number, F), f"{op_type} {seed}"


def test_those_of_the_domain_of_onnx_beside_onnxruntime() -> None:
    peer = Peer()
    for seed in range(16):
        x, _, gamma, beta = case(seed, SKIP, D if seed % 5 == 4 else F)[:4]
        attributes = {"axis": [-1, x.ndim - 1, -1][seed % 3], "epsilon": 0.01, "stash_type": 1}
        for op_type, inputs in (("LayerNormalization", [x, gamma, beta]), ("SimplifiedLayerNormalization", [x, gamma])):
            peer.check(
                op_type, inputs, attributes, message=f"{op_type} {seed}", rtol=1e-4, atol=1e-5, opset=11 + seed % 6
            )
    peer.finish(0.9)


def test_the_domain_of_onnx_natively_and_in_check() -> None:
    for seed in range(6):
        x, _, gamma, beta = case(seed, SKIP)[:4]
        model, feeds = node_model("LayerNormalization", [x, gamma, beta], opset=13, constants=[1, 2])
        assert same_everywhere(model, feeds).events[0].backend == "native"
        assert not [f for f in check(qrun.load(model)) if f.level == "error"]
    model, feeds = node_model("SimplifiedLayerNormalization", [x, gamma], opset=18, constants=[1])
    assert same_everywhere(model, feeds).events[0].backend == "native"
    assert not [f for f in check(qrun.load(model)) if f.level == "error"]
    model, _ = node_model("Mish", [x], opset=13)
    assert [f.rule for f in check(qrun.load(model)) if f.level == "error"] == ["QR211"]


def test_the_same_bits_as_the_nodes_they_were() -> None:
    for seed in range(12):
        x, skip, gamma, beta, bias = (*case(seed, SKIP), None)[:5]
        total = qrun_node("Add", [x, skip])
        total = total if bias is None else qrun_node("Add", [total, bias])
        want = qrun_node("LayerNormalization", [total, gamma, beta], {"epsilon": 1e-12})
        assert_equal(qrun_node(SKIP, [x, skip, gamma, beta, bias], domain=MS), want, f"seed {seed}")


def test_native() -> None:
    for seed in range(12):
        for op_type in (SKIP, SIMPLIFIED):
            inputs = case(seed, op_type)
            model, feeds = node_model(op_type, inputs, domain=MS, constants=range(2, len(inputs)))
            event = same_everywhere(model, feeds).events[0]
            assert event.backend == "native", event.why
    for op_type, asked in ((SKIP, 1), (SKIP, 2), (SIMPLIFIED, 2), (SKIP, 3), (SIMPLIFIED, 3)):
        model, feeds = node_model(op_type, case(1, op_type), domain=MS, constants=[2, 3], outputs=[F, F, F, F])
        for place in {1, 2, 3} - {asked}:
            model.graph.node[0].output[place] = ""
        for place in sorted({1, 2, 3} - {asked}, reverse=True):
            del model.graph.output[place]
        event = same_everywhere(model, feeds).events[0]
        assert ("is asked for" in event.why) == (asked < 3), (op_type, asked)


def test_beside_onnxruntime() -> None:
    peer = Peer()
    for seed in range(12):
        for op_type in (SKIP, SIMPLIFIED):
            inputs = case(seed, op_type)
            inputs[1] = (
                np.broadcast_to(inputs[1], inputs[0].shape) if seed % 4 == 1 and inputs[0].ndim < 3 else inputs[1]
            )
            peer.check(op_type, inputs, {"epsilon": 1e-3}, message=f"{op_type} {seed}", rtol=1e-4, atol=1e-5, domain=MS)
    peer.finish(0.7)


def test_refusals() -> None:
    x, row = np.ones((2, 3), F), np.ones(3, F)
    for text, op_type, inputs in (
        ("skip does not fit", SKIP, [x, x.T, row]),
        ("skip does not fit", SKIP, [x, np.ones((1, 2, 3), F), row]),
        ("gamma does not fit", SKIP, [x, x, x]),
        ("beta does not fit", SKIP, [x, x, row, row[:1]]),
        ("bias does not fit", SKIP, [x, x, row, None, x]),
        ("bias does not fit", SIMPLIFIED, [x, x, row, x]),
        ("is a scalar", SKIP, [x[0, 0], x[0, 0], row]),
    ):
        with pytest.raises(qrun.QrunError, match=text):
            qrun_node(op_type, inputs, domain=MS)
    for attributes in ({"stash_type": 7}, {"axis": 2}):
        with pytest.raises(qrun.QrunError):
            qrun_node("SimplifiedLayerNormalization", [x, row], attributes, opset=13)
    with pytest.raises(qrun.QrunError, match="scale does not fit"):
        qrun_node("SimplifiedLayerNormalization", [x, row[:2]], opset=13)
    with pytest.raises(qrun.QrunError, match="no mean"):
        qrun_node(SIMPLIFIED, [x, x, row], domain=MS, outputs=[F, F])
