"""What counts as equal: steps of what was dequantized, and the noise of sums, at the nodes that sum and as far as
others hand it on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cli import ROOT, call
from helpers.comparing import Changed, told
from helpers.models import make_model
from onnx import helper

import qrun
from qrun.comparing.choices import tolerance
from qrun.comparing.comparison import Comparison
from qrun.comparing.differences import NOISE, Tolerance, difference, magnitude, pair
from qrun.comparing.meanings import TensorScales
from qrun.comparing.runtimes import compare_runtimes, noises
from qrun.comparing.sides import QrunSide
from qrun.io.inputs import Feeds
from qrun.ir import Array, Model
from qrun.report.compare import comparison_fields, verdict
from qrun.report.json import document

f32, f64 = np.float32, np.float64
EPS = np.finfo(f32).eps
DIGITS = ROOT / "models" / "digits"
STRICT = Tolerance(rtol=0, atol=0, eps=NOISE)


def differing(a: np.ndarray, b: np.ndarray, allowed: Tolerance, step: np.ndarray | None = None) -> int:
    """With the noise that sums of this magnitude have."""
    return difference(a, b, allowed, step, allowed.noise(min(magnitude(a), magnitude(b)))).differing


@pytest.mark.parametrize("size", [1e-3, 1.0, 40.0, 1e6])
def test_a_cancelled_sum_is_as_exact_as_the_largest_one(size: float) -> None:
    want = np.array([size, 0, size / 1000], f32)
    got = want + np.array([0, 1, 1], f32) * f32(size * EPS * (NOISE - 1))
    assert differing(got, want, STRICT) == 0
    assert differing(got, want, Tolerance(rtol=0, atol=0)) == 2
    assert differing(want + f32(0), want + np.array([0, size * EPS * (NOISE + 2), 0], f32), STRICT) == 1


@pytest.mark.parametrize("bits", [8, 16])
def test_a_step_of_codes_is_no_noise(bits: int) -> None:
    scale = f32(0.013)
    codes = np.array([0, 1, 2**bits - 1], f32)
    assert differing((codes + np.array([1, 0, 0], f32)) * scale, codes * scale, STRICT) == 1
    assert differing((codes + np.array([0, 0, -1], f32)) * scale, codes * scale, STRICT) == 1


def test_noise_is_of_what_both_reach() -> None:
    """A wild value on one side makes none of the others right; NaN and infinity are no magnitude, and never noise."""
    want, got = np.array([1, 0], f32), np.array([1e9, 1e-4], f32)
    assert differing(got, want, STRICT) == 2
    odd = np.array([np.inf, np.nan, 0, 1], f32)
    assert differing(np.array([1, 1, 1e-4, 1], f32), odd, STRICT) == 3
    assert differing(odd, odd.copy(), STRICT) == 0


def test_steps_of_floats_per_channel() -> None:
    scale = np.array([[0.1], [3.0]], f32)
    codes = np.arange(6, dtype=f32).reshape(2, 3)
    want, one = codes * scale, (codes + 1) * scale
    assert differing(one, want, Tolerance(1, 0, 0), scale) == 0
    assert differing(one, want, Tolerance(0, 0, 0), scale) == 6
    assert differing((codes + 2) * scale, want, Tolerance(1, 0, 0), scale) == 6
    assert differing(one, want, Tolerance(1, 0, 0)) == 6, "only where the step is known"


def test_what_is_usual() -> None:
    assert tolerance("ort") == Tolerance(0, 1e-3, 1e-7, NOISE)
    assert tolerance() == Tolerance(0, 1e-3, 1e-7, 0), "files and two models: nothing is known of sums"
    assert tolerance("native", lsb=2) == Tolerance(2, 0, 0, 0)
    assert tolerance("ort", atol=0.5) == Tolerance(0, 1e-3, 0.5, 0), "a number given is the number meant"
    assert tolerance("ort", rtol=0) == Tolerance(0, 0, 1e-7, NOISE)


def moved() -> Model:
    """x -> QuantizeLinear -> DequantizeLinear d -> Transpose t -> Relu r;
    c: dequantized with a scale per channel, and moved."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Transpose", ["d"], ["t"]),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("DequantizeLinear", ["q", "many", "zeros"], ["c"], axis=1),
        helper.make_node("Transpose", ["c"], ["m"]),
    ]
    stored = {"s": f32(0.5), "z": np.uint8(3), "many": np.array([1, 2, 4], f32), "zeros": np.zeros(3, np.uint8)}
    model = make_model(nodes, {"x": [2, 3]}, "r m", stored, opset=13)
    return qrun.load(model.SerializeToString())


def test_which_tensors_have_steps() -> None:
    codes, like = TensorScales(moved(), {}), np.zeros((2, 3), f32)
    steps = {name: codes.step(name, like) for name in ("x", "d", "t", "r", "c", "m")}
    assert [name for name, step in steps.items() if step is not None] == ["d", "t", "c"]
    assert steps["t"] == 0.5
    np.testing.assert_array_equal(steps["c"], [[1, 2, 4]])


def test_fused_groups_are_equal_within_a_step_as_explain_says() -> None:
    """Also the model's output, which is float: it is the codes times their scale."""
    words = ("compare", DIGITS / "qdq/model.onnx", "--against", "fused", "-i", DIGITS / "x.npy")
    assert call(*words).code == 1
    for exact in ((), ("--rtol", "0", "--atol", "0")):
        ended = call(*words, "--lsb", "1", *exact)
        assert ended.code == 0, ended.out
        assert "within lsb 1" in ended.out
    assert "--lsb 1 --isolate" in call("explain", "fused-requantization").out


f32 = np.float32
EPSILON = float(np.finfo(f32).eps)
LOWEST = np.finfo(f32).min
Node = tuple[str, list[str], str, dict[str, Any]]
"""Operator, inputs, output, attributes."""


def written(nodes: list[Node], stored: Mapping[str, Array], shape: list[int]) -> bytes:
    """A model with the input x of this shape, of which the last node makes the output."""
    made = make_model(
        [helper.make_node(op, read, [made], made, **more) for op, read, made, more in nodes],
        {"x": shape},
        {nodes[-1][2]: None},
        stored,
        opset=17,
    )
    return made.SerializeToString()


def attention(mask: float) -> tuple[Model, dict[str, Array]]:
    """Scores x @ w, each about 1, and a causal mask added to them."""
    rng = np.random.default_rng(3)
    masked = np.triu(np.full((4, 4), mask, f32), 1)
    nodes: list[Node] = [("MatMul", ["x", "w"], "m", {}), ("Add", ["m", "mask"], "scores", {})]
    stored = {"w": rng.standard_normal((8, 4)).astype(f32), "mask": masked}
    return qrun.load(written(nodes, stored, [4, 8])), {"x": rng.standard_normal((4, 8)).astype(f32)}


def against(of: Model, feeds: dict[str, Array], changes: Mapping[str, Array], isolate: bool = False) -> Comparison:
    return compare_runtimes(QrunSide(of), Changed(of, changes), feeds, tolerance("ort"), isolate=isolate)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("mask", [LOWEST, -1e4, -np.inf])
def test_a_mask_on_both_sides_hides_no_difference(mask: float, isolate: bool) -> None:
    of, feeds = attention(mask)
    scores = np.asarray(QrunSide(of).run(feeds)["scores"])
    wrong = scores + np.tril(np.full((4, 4), 0.01, f32))
    found = against(of, feeds, {"scores": wrong}, isolate)
    assert told(found) == {"m": (False, None), "scores": (True, "unknown")}
    assert found.differing[0].pair.difference.differing == 10, "all that are not masked"


def test_a_mask_keeps_the_noise_of_the_sums_under_it() -> None:
    of, feeds = attention(LOWEST)
    product = np.asarray(QrunSide(of).run(feeds)["m"]).copy()
    product[3, 0] += f32((NOISE - 2) * EPSILON * np.abs(product).max())
    found = against(of, feeds, {"m": product})
    assert found.equal
    assert [t.pair.identical for t in found.tensors] == [False, False]
    fields = json.loads(document("compare", [], comparison_fields(found, Feeds(feeds))))
    assert fields["tensors"][1]["noise"] < 1e-3


def convolution() -> tuple[Model, dict[str, Array], Array]:
    """A convolution with a result of 40 and one that cancels to nothing, then what networks do with it."""
    nodes: list[Node] = [
        ("Conv", ["x", "w"], "c", {}),
        ("BatchNormalization", ["c", "two", "zero", "zero", "quarter"], "b", {"epsilon": 0.0}),
        ("Relu", ["b"], "r", {}),
        ("Concat", ["r", "r"], "d", {"axis": 1}),
        ("Reshape", ["d", "flat"], "f", {}),
        ("Add", ["f", "one"], "a", {}),
        ("Sub", ["a", "f"], "u", {}),
        ("Mul", ["u", "eight"], "v", {}),
        ("Div", ["v", "eight"], "q", {}),
        ("Mul", ["q", "q"], "p", {}),
        ("Exp", ["q"], "e", {}),
    ]
    stored = {
        "w": np.array([1, -1], f32).reshape(1, 2, 1, 1), "two": f32([2]), "zero": f32([0]), "quarter": f32([0.25]),
        "flat": np.array([1, -1]), "one": f32(1), "eight": f32(8),
    }  # fmt: skip
    x = np.array([[[[40, 7, 3]], [[0, 7, 1]]]], f32)
    return qrun.load(written(nodes, stored, [1, 2, 1, 3])), {"x": x}, np.array([[[[40, 0, 2]]]], f32)


def test_noise_of_a_convolution_is_within_and_more_is_not() -> None:
    of, feeds, exact = convolution()
    for eps, equal in ((NOISE - 1, True), (NOISE + 2, False)):
        other = exact + np.array([0, eps * EPSILON * 40, 0], f32)
        found = against(of, feeds, {"c": other})
        assert (not found.differing or found.differing[0].name != "c") is equal
    within = against(of, feeds, {"c": exact + np.array([0, 15 * EPSILON * 40, 0], f32)})
    assert within.equal, verdict(within)
    assert not any(t.pair.identical for t in within.tensors[:5])


def test_what_is_handed_on() -> None:
    of, feeds, _ = convolution()
    run = QrunSide(of).run(feeds)
    allowed = noises(of, (run, run), Tolerance(eps=NOISE))
    one = NOISE * EPSILON * 40
    shares = {name: pytest.approx(share * one) for name, share in {
        "c": 1, "b": 4, "r": 4, "d": 4, "f": 4, "a": 4, "u": 8, "v": 64, "q": 8, "p": 16,
    }.items()}  # fmt: skip
    assert allowed == shares, "nothing for Exp, which is not linear"
    assert noises(of, (run, run), Tolerance()) == {}


def test_noise_is_of_what_both_sides_reach_and_finite() -> None:
    of, feeds, exact = convolution()
    for wild, largest in ((1e30, 40.0), (np.inf, 2.0), (np.nan, 2.0)):
        other = exact.copy()
        other[..., 0] = wild
        allowed = noises(of, ({"c": exact}, {"c": other}), Tolerance(eps=NOISE))
        assert allowed["c"] == pytest.approx(NOISE * EPSILON * largest)
    assert noises(of, ({"c": np.full((1, 1, 1, 3), np.inf, f32)},), Tolerance(eps=NOISE)) == {}
    assert noises(of, ({},), Tolerance(eps=NOISE)) == {}


def test_files_have_no_noise(tmp_path: Path) -> None:
    """A .npz file does not say what sums."""
    for name, small in (("a", 0.1), ("b", 5.0)):
        np.savez(tmp_path / f"{name}.npz", scores=np.array([small, LOWEST], f32))
    ended = call("compare", tmp_path / "a.npz", tmp_path / "b.npz")
    assert (ended.code, ended.out.splitlines()[0]) == (1, "differ: 1 of 1 array, first scores.")


def test_two_models_have_no_noise_and_steps_only_where_they_are(tmp_path: Path) -> None:
    mask = np.triu(np.full((4, 4), LOWEST, f32), 1)
    for name, factor in (("a", 1), ("b", 3)):
        nodes: list[Node] = [("Mul", ["x", "k"], "s", {}), ("Add", ["s", "mask"], "scores", {})]
        (tmp_path / f"{name}.onnx").write_bytes(written(nodes, {"k": f32(factor), "mask": mask}, [4, 4]))
    np.save(tmp_path / "x.npy", np.arange(16, dtype=f32).reshape(4, 4))
    ended = call("compare", tmp_path / "a.onnx", tmp_path / "b.onnx", "-i", tmp_path / "x.npy", "--lsb", "1")
    told = ended.out.splitlines()[0]
    assert (ended.code, told.split(";")[0]) == (1, "differ: scores over rtol 0.001, atol 1e-07")


@pytest.mark.parametrize(
    ("kind", "unit"), [(np.int8, "step"), (np.uint64, "step"), (np.float16, "absolute"), (f64, "absolute")]
)
def test_the_unit_of_a_difference(kind: type, unit: str) -> None:
    a, b = np.array([1, 2], kind), np.array([1, 4], kind)
    found = pair(a, b, Tolerance(rtol=0, atol=0))
    assert (found.unit, found.difference.largest, found.where) == (unit, 2, (1,))


def test_what_is_not_a_number_on_both_sides_is_no_difference() -> None:
    """The values shown are those of the largest difference inside the tolerance."""
    a, b = np.array([np.nan, np.inf, 1, 2], f32), np.array([np.nan, np.inf, 1.25, 2], f32)
    found = pair(a, b, Tolerance(rtol=0, atol=1))
    assert (found.equal, found.identical, found.a, found.b) == (True, False, 1.0, 1.25)
