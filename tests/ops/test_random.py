"""RandomNormal, RandomUniform, those like a tensor, Bernoulli and Multinomial: against the published generator."""

from __future__ import annotations

import math
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest
from helpers.cli import call
from helpers.float import assert_close, qrun_node
from helpers.support import assert_equal, node_model, run_ort, run_qrun
from oracle.mersenne import Mersenne

import qrun
from qrun.checking.rules.drawn import DRAWING
from qrun.ops import REGISTRY, find
from qrun.ops._float import narrow

F, H, BF, D = np.float32, np.float16, ml_dtypes.bfloat16, np.float64
CODES = {F: 1, H: 10, D: 11, BF: 16}
Seed = Any


def drawn(kind: str, seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """normal or uniform numbers, in order."""
    state = Mersenne(seed)
    return np.array([getattr(state, kind)() for _ in range(math.prod(shape))]).reshape(shape)


def test_the_oracle_is_the_published_generator() -> None:
    state = Mersenne(5489)
    assert [state.word() for _ in range(10000)][-1] == 4123659995


@pytest.mark.parametrize("dtype", [F, H, BF, D])
@pytest.mark.parametrize("opset", [7, 22])
def test_against_the_published_generator(dtype: Any, opset: int) -> None:
    if dtype == BF and opset < 22:
        return
    for seed, shape in ((0.0, (3, 5)), (7.0, (400, 2)), (-3.0, ()), (2.5, (0, 4)), (16777216.0, (2, 1, 3))):
        whole = int(seed)
        x = np.zeros(shape, dtype)
        normal = narrow(0.5 + 2.0 * drawn("normal", whole, shape), dtype)
        uniform = narrow(-1.0 + 4.0 * drawn("uniform", whole, shape), dtype)
        around, between = {"mean": 0.5, "scale": 2.0, "seed": seed}, {"low": -1.0, "high": 3.0, "seed": seed}
        more = {"shape": list(shape), "dtype": CODES[dtype]}
        if shape:
            assert_equal(qrun_node("RandomNormal", [], {**around, **more}, opset=opset, outputs=[dtype]), normal)
            assert_equal(qrun_node("RandomUniform", [], {**between, **more}, opset=opset, outputs=[dtype]), uniform)
        assert_equal(qrun_node("RandomNormalLike", [x], around, opset=opset), normal)
        assert_equal(qrun_node("RandomUniformLike", [x], between, opset=opset), uniform)
        codes = np.zeros(shape, np.int8)
        got = qrun_node("RandomUniformLike", [codes], {**between, "dtype": CODES[dtype]}, opset=opset, outputs=[dtype])
        assert_equal(got, uniform)


@pytest.mark.parametrize("dtype", [F, H, D])
def test_bernoulli(dtype: Any) -> None:
    p = np.random.default_rng(3).uniform(size=(40, 20)).astype(dtype)
    p[0, :4] = 0, 1, np.nan, 2
    want = drawn("uniform", 9, p.shape) < p.astype(D)
    for code, made in ((None, dtype), (9, np.bool_), (2, np.uint8), (7, np.int64), (1, F)):
        attributes = {"seed": 9.0, **({} if code is None else {"dtype": code})}
        assert_equal(qrun_node("Bernoulli", [p], attributes, opset=15, outputs=[made]), want.astype(made))
    assert want[0, :4].tolist() == [False, True, False, True]


def test_multinomial() -> None:
    rng = np.random.default_rng(4)
    logs = rng.normal(size=(3, 6)).astype(F)
    logs[1, 4:] = -np.inf
    logs[2] = [-np.inf, 800, -np.inf, 800, -np.inf, 0]
    us = drawn("uniform", 5, (3, 200))
    parts = [[math.exp(float(v) - max(map(float, row))) for v in row] for row in logs]
    for code, dtype in ((6, np.int32), (7, np.int64)):
        attributes = {"seed": 5.0, "sample_size": 200, "dtype": code}
        made = qrun_node("Multinomial", [logs], attributes, opset=15, outputs=[dtype])
        for row, part, got in zip(us, parts, made, strict=True):
            want = [next(i for i in range(6) if sum(part[: i + 1]) > u * sum(part)) for u in row]
            assert got.tolist() == want
    assert set(made[2].tolist()) == {1, 3}


def test_the_numbers_are_those_of_onnx_reference() -> None:
    """In float64, which it does not round in several steps."""
    for op_type, attributes in (
        ("RandomNormal", {"mean": 1.5, "scale": 0.5}),
        ("RandomUniform", {"low": -2.0, "high": 2.0}),
    ):
        model, _ = node_model(op_type, [], {**attributes, "seed": 3.0, "shape": [4, 3], "dtype": 11}, outputs=[D])
        (want,) = onnx.reference.ReferenceEvaluator(model).run(None, {})
        assert_close(run_qrun(model, {})[0], want, op_type, 1e-15, 1e-15)


def test_beside_onnxruntime() -> None:
    """Its numbers are others; their type, shape, mean and spread are the same.
    Its Bernoulli has the ones and zeros of 1 - p."""
    x = np.full((100, 200), 0.25, F)
    cases: tuple[tuple[str, list[Any], dict[str, Any]], ...] = (
        ("RandomNormal", [], {"mean": 3.0, "scale": 2.0, "shape": [100, 200]}),
        ("RandomUniform", [], {"low": 3.0, "high": 5.0, "shape": [100, 200]}),
        ("RandomNormalLike", [x], {"mean": -1.0}),
        ("RandomUniformLike", [x], {"high": 0.5}),
        ("Bernoulli", [1 - x], {}),
    )
    for op_type, inputs, attributes in cases:
        model, feeds = node_model(op_type, inputs, {**attributes, "seed": 4.0}, opset=15, outputs=[F])
        got, want = run_qrun(model, feeds)[0], run_ort(model, feeds)[0]
        want = 1 - want if op_type == "Bernoulli" else want
        assert (got.dtype, got.shape) == (want.dtype, want.shape), op_type
        assert abs(got.mean() - want.mean()) < 0.05, op_type
        assert abs(got.std() - want.std()) < 0.05, op_type
    logs = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], F))
    model, feeds = node_model("Multinomial", [logs], {"seed": 4.0, "sample_size": 4000}, opset=15, outputs=[np.int32])
    made = [[np.bincount(row, minlength=3) / 4000 for row in rows] for rows in (run_qrun(model, feeds)[0], run_ort(model, feeds)[0])]  # fmt: skip
    assert np.abs(np.array(made[0]) - np.array(made[1])).max() < 0.05


TWO = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[2,N] x) => (float[2,N] y, float[2,N] z, float[2,N] w)
{
    a = RandomNormalLike(x)
    y = Identity(a)
    [noise] z = RandomNormalLike(x)
    s = Constant<value = float {1}>()
    b = RandomNormalLike<seed = 0.0>(x)
    w = Mul(b, s)
}
"""


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("fuse", [True, False])
def test_a_node_without_a_seed_has_its_own(backend: Any, fuse: bool) -> None:
    """The same in every run, of every form of the model; nodes of other names draw other numbers."""
    session = qrun.Session(onnx.parser.parse_model(TWO), backend=backend, fuse=fuse)
    for size in (3, 3, 3, 5):
        y, z, w = session.run({"x": np.zeros((2, size), F)}).values()
        assert_equal(y, drawn("normal", crc32(b"RandomNormalLike_0"), (2, size)).astype(F))
        assert_equal(z, drawn("normal", crc32(b"noise"), (2, size)).astype(F))
        assert_equal(w, drawn("normal", 0, (2, size)).astype(F))


@pytest.mark.parametrize(
    ("text", "op_type", "inputs", "attributes"),
    [
        ("shape is", "RandomNormal", [], {"shape": [2, -1]}),
        ("dtype is 6", "RandomUniform", [], {"shape": [2], "dtype": 6}),
        ("dtype is 99", "RandomUniform", [], {"shape": [2], "dtype": 99}),
        ("the type of the output is not known", "RandomNormalLike", [np.zeros(2, np.int8)], {}),
        ("dtype is 3", "RandomUniformLike", [np.zeros(2, F)], {"dtype": 3}),
        ("dtype is 8", "Bernoulli", [np.zeros(2, F)], {"dtype": 8}),
        ("seed is inf", "Bernoulli", [np.zeros(2, F)], {"seed": float("inf")}),
        ("seed is nan", "RandomNormal", [], {"shape": [2], "seed": float("nan")}),
        ("input has shape", "Multinomial", [np.zeros(2, F)], {}),
        ("sample_size is 0", "Multinomial", [np.zeros((2, 2), F)], {"sample_size": 0}),
        ("row 1 has no", "Multinomial", [np.array([[0, 1], [-np.inf, -np.inf]], F)], {}),
        ("row 0 has no", "Multinomial", [np.array([[0, np.nan]], F)], {}),
        ("row 0 has no", "Multinomial", [np.zeros((1, 0), F)], {}),
    ],
)
def test_refusals(text: str, op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    output = np.int32 if op_type == "Multinomial" else F
    with pytest.raises(qrun.QrunError, match=text):
        qrun_node(op_type, inputs, attributes, opset=15, outputs=[output])


def test_large_shapes_meet_the_memory_limit() -> None:
    with pytest.raises(qrun.MemoryLimitError):
        qrun_node("RandomNormal", [], {"shape": [1 << 20, 1 << 20]}, outputs=[F], max_memory=1 << 24)


def test_every_operator_that_draws_is_noted(tmp_path: Any) -> None:
    assert sorted(name for home, name in REGISTRY if (found := find(home, name, 22)) and found.draws) == list(DRAWING)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y) {
        a = RandomNormalLike(x)
        b = If <then_branch = t () => (float[2] u) { u = RandomUniform<shape = [2], seed = 1.0>() },
                else_branch = e () => (float[2] v) { v = Identity(x) }> (c)
        y = Add(a, b) }""")
    (finding,) = qrun.check(model)
    assert (finding.rule, finding.level, finding.node) == ("QR219", "note", "RandomNormalLike_0")
    assert finding.message.startswith("2 nodes draw random numbers; qrun's are the same in every run")
    assert finding.got == "2 nodes, 1 without a seed"
    path = str(tmp_path / "m.onnx")
    onnx.save(model, path)
    ended = call(path, "--random")
    assert "note: 2 nodes draw random numbers" in ended.err
    assert ended.err.count("QR219") == 1
    assert "QR219" not in ended.out
    assert call(path, "--random", "--quiet").err == ""
    assert "QR219" not in call(path, "--random", "--backend", "ort").err
