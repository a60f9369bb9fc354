"""Which tensor stands for which: quantized models of any form, renamed, folded and rearranged."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.accuracy import by_hand, ranges_of, renamed, sentences, transformer
from helpers.models import make_model, typed
from onnx import helper

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MODELS = SCRIPTS.parent / "models/digits"
sys.path.insert(0, str(SCRIPTS))

import qrun  # noqa: E402
from qrun.comparing.matching.graph import Reals  # noqa: E402
from qrun.comparing.matching.match import Matching, likeness, match  # noqa: E402
from qrun.comparing.matching.products import NativeProducts  # noqa: E402

DIGITS = {"images", "c1", "dw", "pw", "pool", "c2", "sum", "mean", "features", "logits"}


def digits(form: str) -> onnx.ModelProto:
    return onnx.load(MODELS / form / "model.onnx")


def matched(first: onnx.ModelProto, second: onnx.ModelProto) -> Matching:
    return match(Reals(qrun.load(first)), Reals(qrun.load(second)))


def partners(found: Matching) -> list[tuple[str, str]]:
    return [(m.other, m.how) for m in found.matches]


@pytest.mark.parametrize("form", ["qoperator", "qdq", "dynamic"])
def test_every_tensor_of_a_quantized_model_is_matched(form: str) -> None:
    found = matched(digits("float"), digits(form))
    assert {m.other for m in found.matches} >= DIGITS
    assert all(one.inside for one in found.left)


def test_an_activation_in_the_range_is_part_of_the_convolution() -> None:
    """QLinearConv has no Relu of its own: its result stands for the Relu's, and the Conv's is inside."""
    found = matched(digits("float"), digits("qoperator"))
    assert {(one.tensor, one.inside) for one in found.left if one.side == "reference"} == {
        (f"{name}.raw", f"Conv_{name}.raw_quant") for name in ("c1", "dw", "pw", "c2")
    }


def test_a_bias_that_became_a_node_is_part_of_the_product() -> None:
    found = matched(digits("float"), digits("dynamic"))
    assert {m.other: m.value for m in found.matches}["c1.raw"] == "c1.raw"
    assert {(one.tensor, one.inside) for one in found.left if one.side == "quantized"} >= {
        ("c1.rawquant_scaled_output", "Conv_c1.raw")
    }


@pytest.mark.parametrize("form", ["qoperator", "qdq", "dynamic"])
@pytest.mark.parametrize("seed", range(3))
def test_names_do_not_matter(form: str, seed: int) -> None:
    model = digits(form)
    assert partners(matched(digits("float"), renamed(model, seed))) == partners(matched(digits("float"), model))


@pytest.mark.parametrize("seed", range(3))
def test_names_do_not_matter_in_a_transformer(seed: int) -> None:
    """Three products read one tensor: only their weights tell query, key and value."""
    source = transformer(seed)
    model = by_hand(source, ranges_of(source, sentences(seed, 2)))
    found = matched(source, renamed(model, seed))
    assert partners(found) == partners(matched(source, model))
    want = {name for node in source.graph.node for name in node.output} | {"x", "mask"}
    assert {m.other for m in found.matches} == want
    plain = matched(source, model)
    assert [(m.other, m.value.removesuffix(".d")) for m in plain.matches] == [(m.other, m.other) for m in plain.matches]


def test_outputs_with_other_names_pair_by_place() -> None:
    model = digits("qdq")
    model.graph.output[0].name = "scores"
    for node in model.graph.node:
        node.output[:] = ["scores" if name == "logits" else name for name in node.output]
    assert ("logits", "output") in partners(matched(digits("float"), model))


def conv_relu(seed: int, normalized: bool, folded: bool, product: str = "Gemm") -> onnx.ModelProto:
    """Conv, BatchNormalization (in the weights if `folded`), Relu, Dropout, Flatten,
    a dense layer of one or two nodes."""
    rng = np.random.default_rng(seed)
    weights, bias = rng.normal(size=(6, 3, 3, 3)), rng.normal(size=6)
    gain, shift, mean, variance = rng.uniform(0.5, 2, 6), rng.normal(size=6), rng.normal(size=6), rng.uniform(0.5, 2, 6)
    constants = {"dense": rng.normal(size=(24, 5)), "offset": rng.normal(size=5)}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["conv"], "conv")]
    last = "conv"
    if folded:
        factor = gain / np.sqrt(variance + 1e-5)
        weights, bias = weights * factor[:, None, None, None], (bias - mean) * factor + shift
    elif normalized:
        constants |= {"gain": gain, "shift": shift, "mean": mean, "variance": variance}
        nodes.append(
            helper.make_node("BatchNormalization", ["conv", "gain", "shift", "mean", "variance"], ["normal"], "bn")
        )
        last = "normal"
    nodes.append(helper.make_node("Relu", [last], ["relu"], "relu"))
    if not folded:
        nodes.append(helper.make_node("Dropout", ["relu"], ["kept"], "dropout"))
    nodes.append(helper.make_node("Flatten", ["relu" if folded else "kept"], ["flat"], "flatten"))
    if product == "Gemm":
        nodes.append(helper.make_node("Gemm", ["flat", "dense", "offset"], ["y"], "gemm"))
    else:
        nodes.append(helper.make_node("MatMul", ["flat", "dense"], ["product"], "matmul"))
        nodes.append(helper.make_node("Add", ["product", "offset"], ["y"], "add"))
    constants |= {"w": weights, "b": bias}
    single = {name: array.astype(np.float32) for name, array in constants.items()}
    return make_model(nodes, {"x": ["N", 3, 4, 4]}, {"y": ["N", 5]}, single)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("product", ["Gemm", "MatMul"])
def test_folded_normalization_and_rearranged_products(seed: int, product: str) -> None:
    """What quantizers do to a graph before they quantize:
    fold the normalization, drop the Dropout, join or split Gemm."""
    source = conv_relu(seed, True, False, "MatMul" if product == "Gemm" else "Gemm")
    changed = conv_relu(seed, True, True, product)
    feeds = [{"x": np.random.default_rng(seed).normal(size=(2, 3, 4, 4)).astype(np.float32)}]
    found = matched(
        source, renamed(by_hand(changed, ranges_of(changed, feeds), ("Conv", "Relu", "Gemm", "MatMul", "Add")), seed)
    )
    assert [m.other for m in found.matches] == ["x", "normal", "relu", "flat", "y"]
    assert all(one.inside for one in found.left)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_is_itself_with_scaled_output_channels(groups: int) -> None:
    """A folded BatchNormalization scales each output channel; the cosines between these stay 1."""
    rng = np.random.default_rng(groups)
    weights = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    scales = np.repeat(rng.uniform(0.1, 9, (groups, 1, 3)), 4 // groups, axis=1).reshape(4, 3, 1, 1).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=groups)
    one, other = (
        Reals(qrun.load(make_model([node], {"x": [1, 4, 5, 5]}, "y", {"w": w}))) for w in (weights, weights * scales)
    )
    assert likeness(one, 0, other, 0) == pytest.approx(1, abs=1e-6)


def test_two_quantized_models() -> None:
    found = matched(digits("qoperator"), renamed(digits("qdq"), 1))
    assert [how for _, how in partners(found)] == ["input"] + ["weights"] * 3 + ["operator"] + ["weights"] + [
        "operator"
    ] * 3 + ["output"]
    assert not found.left


def test_what_has_no_counterpart_is_listed() -> None:
    """A node that only the second model has; behind it the walk starts anew, from weights and outputs."""
    source, model = digits("float"), digits("float")
    at = next(i for i, node in enumerate(model.graph.node) if node.op_type == "MaxPool")
    model.graph.node.insert(at, helper.make_node("Sigmoid", ["pw"], ["squashed"], "new"))
    model.graph.node[at + 1].input[0] = "squashed"
    found = matched(source, renamed(model, 0))
    assert [(one.inside, one.index) for one in found.left if one.side == "quantized"] == [("", at)]
    assert {m.other for m in found.matches} == {v.name for v in source.graph.input} | {
        name for node in source.graph.node for name in node.output
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_products_are_those_of_the_reference_kernels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: with constant weights, with others in their place, without a bias, and where nothing is native."""
    rng = np.random.default_rng(seed)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 8, 8), (5, 3, 3, 3), (5,)))
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["c", "m"], ["p"]),
        helper.make_node("MatMul", ["p", "c"], ["y"]),
    ]
    m = rng.standard_normal((8, 8)).astype(np.float32)
    proto = make_model(
        nodes, {"x": typed(np.float32, [2, 3, 8, 8])}, {"y": typed(np.float32, None)}, {"w": w, "b": b, "m": m}
    )
    reals = Reals(qrun.load(proto.SerializeToString()))
    cases = [(0, [x, w, b]), (0, [x, w * 2, b]), (0, [x, w, None]), (0, [x[:1], w * 3, b]), (0, [x, w, b])]
    cases += [(1, [rng.standard_normal((2, 5, 8, 8)).astype(np.float32), array]) for array in (m, -m)]
    cases += [(2, [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2)]) for _ in range(2)]
    for backend in ("native", "reference"):
        if backend == "reference":
            monkeypatch.setattr(NativeProducts, "_engine", None)
            reals = Reals(reals.model)
        for place, args in cases:
            (got,) = reals.compute(place, args)
            (want,) = reals.apply(reals.nodes[place], args)
            np.testing.assert_array_equal(got, want, f"seed {seed}, {backend}, node {place}")
