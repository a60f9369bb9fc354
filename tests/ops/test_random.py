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
from helpers.float import qrun_node
from helpers.support import assert_equal, node_model, run_ort, run_qrun
from oracle.mersenne import Mersenne

import qrun
from qrun.checking.rules.choices import DRAWING
from qrun.ops import find, operators

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


@pytest.mark.parametrize("dtype", [F, H, D])
@pytest.mark.parametrize("opset", [7, 22])
def test_against_the_published_generator(dtype: Any, opset: int) -> None:
    """Each number of mean + scale * z is rounded in its type up to three times."""
    rounding = float(4 * np.finfo(dtype).eps)
    for seed, shape in ((0.0, (3, 5)), (7.0, (400, 2)), (2.5, (0, 4)), (16777216.0, (2, 1, 3))):
        whole, x = int(seed), np.zeros(shape, dtype)
        normal, uniform = 0.5 + 2.0 * drawn("normal", whole, shape), -1.0 + 4.0 * drawn("uniform", whole, shape)
        around, between = {"mean": 0.5, "scale": 2.0, "seed": seed}, {"low": -1.0, "high": 3.0, "seed": seed}
        more = {"shape": list(shape), "dtype": CODES[dtype]}
        for op_type, inputs, attributes, want in (
            ("RandomNormal", [], {**around, **more}, normal),
            ("RandomUniform", [], {**between, **more}, uniform),
            ("RandomNormalLike", [x], around, normal),
            ("RandomUniformLike", [x], between, uniform),
            ("RandomUniformLike", [np.zeros(shape, np.int8)], {**between, "dtype": CODES[dtype]}, uniform),
        ):
            got = qrun_node(op_type, inputs, attributes, opset=opset, outputs=[dtype])
            np.testing.assert_allclose(got, want.astype(dtype), rounding, 8 * rounding, err_msg=op_type)


def test_bernoulli() -> None:
    p = np.random.default_rng(3).uniform(size=(400, 20)).astype(F)
    p[0, :2] = 0, 1
    for code, made in ((None, F), (9, np.bool_), (2, np.uint8), (7, np.int64)):
        attributes = {"seed": 9.0, **({} if code is None else {"dtype": code})}
        got = qrun_node("Bernoulli", [p], attributes, opset=15, outputs=[made])
        assert got.dtype == made
        assert got[0, :2].tolist() == [0, 1]
        assert abs(got.astype(D).mean() - p.mean()) < 0.02
        assert_equal(got, qrun_node("Bernoulli", [p], attributes, opset=15, outputs=[made]))


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
        assert_equal(y, drawn("normal", crc32(b"RandomNormalLike_0") % 2**24, (2, size)).astype(F))
        assert_equal(z, drawn("normal", crc32(b"noise") % 2**24, (2, size)).astype(F))
        assert_equal(w, drawn("normal", 0, (2, size)).astype(F))


@pytest.mark.parametrize(
    ("text", "op_type", "inputs", "attributes"),
    [
        ("negative", "RandomNormal", [], {"shape": [2, -1]}),
        ("Cannot cast", "RandomUniform", [], {"shape": [2], "dtype": 6}),
        ("KeyError", "RandomUniform", [], {"shape": [2], "dtype": 99}),
        ("Seed must be between", "RandomUniform", [], {"shape": [2], "seed": -1.0}),
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
    assert sorted(name for home, name in operators() if (found := find(home, name, 22)) and found.draws) == list(
        DRAWING
    )
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
