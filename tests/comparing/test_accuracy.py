"""Float against quantized: noise per tensor, the ranking with its reasons, and what to keep in float."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.accuracy import Arrays, by_hand, ranges_of, renamed, sentences, transformer
from helpers.comparing import sheet_text
from helpers.models import make_model
from onnx import helper

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MODELS = SCRIPTS.parent / "models/digits"
sys.path.insert(0, str(SCRIPTS))
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import _digits  # noqa: E402
import _quantizer  # noqa: E402

import qrun  # noqa: E402
from qrun.comparing.accuracy import Accuracy, _hint, accuracy  # noqa: E402
from qrun.comparing.differences import ErrorSums, Tolerance, sqnr  # noqa: E402
from qrun.errors import CallError, MemoryLimitError  # noqa: E402
from qrun.report.accuracy import accuracy_fields, accuracy_sheet  # noqa: E402
from qrun.report.json import document  # noqa: E402


@cache
def digits(form: str) -> onnx.ModelProto:
    return onnx.load(MODELS / form / "model.onnx")


@cache
def images() -> np.ndarray:
    return _digits.digits()[2]


@cache
def digit_ranges() -> dict[str, tuple[float, float]]:
    return _digits.ranges(_digits.parameters_of(digits("float")), _digits.digits()[0][:256])


def batches(count: int = 2, size: int = 8) -> list[Arrays]:
    return [{"images": images()[at * size : (at + 1) * size]} for at in range(count)]


def compared(
    first: onnx.ModelProto, second: onnx.ModelProto, feeds: Sequence[Mapping[str, np.ndarray]], **options: Any
) -> Accuracy:
    return accuracy(qrun.load(first), qrun.load(second), feeds, **options)


def scaled(kind: str, tensor: str, factor: float) -> onnx.ModelProto:
    """The digits model quantized with one tensor's range as wrong as this, by onnxruntime's quantizer."""
    ranges = {name: (low * factor, high * factor) if name == tensor else (low, high)
              for name, (low, high) in digit_ranges().items()}  # fmt: skip
    return _quantizer.static(digits("float"), kind, ranges=ranges)


# The ranking

SCALES = [
    *((kind, tensor) for kind in ("qop", "qdq") for tensor in ("images", "c1", "dw", "pw", "c2", "sum", "logits")),
    ("qop", "mean"),
]
"""Every scale of an activation in both forms. pool and features have those of pw and mean, whose values they hold;
in QDQ form mean has that of sum. (onnxruntime's quantizer gives c1.raw and the like no scale: Relu is in the range.)"""


def test_all_scales_are_tried() -> None:
    for kind in ("qop", "qdq"):
        model = _quantizer.static(digits("float"), kind, ranges=digit_ranges())
        names = {t.name for t in model.graph.initializer if t.name.endswith("_scale") and not t.dims}
        own = {name.removesuffix("_scale").removesuffix(".raw") for name in names}
        assert own - {"pool", "features"} <= {tensor for form, tensor in SCALES if form == kind}


@pytest.mark.parametrize(("kind", "tensor"), SCALES)
def test_a_range_eight_times_too_narrow_comes_first(kind: str, tensor: str) -> None:
    found = compared(digits("float"), scaled(kind, tensor, 1 / 8), batches(1))
    first = found.costs[0]
    assert first.target == tensor
    assert first.reason == "clipped"
    assert first.spread.beyond > 0.01 * first.spread.count
    assert first.local.clipped > 10 * (first.local.rounding + first.local.weights)
    assert f"{first.spread.beyond / first.spread.count * 100:.2f} %" in first.why


@pytest.mark.parametrize(("kind", "tensor"), SCALES)
def test_a_range_eight_times_too_wide_comes_first(kind: str, tensor: str) -> None:
    """Except for the images: their seventeen grey levels, sixteenths, are two codes apart in a range of [0, 8], so the
    wide range costs little; the ranking must not blame it. In QDQ form sum and mean share a scale, and the mean's
    rounding costs more as no average comes after it.
    """
    found = compared(digits("float"), scaled(kind, tensor, 8), batches(1))
    if tensor == "images":
        alone = next(cost for cost in found.costs if cost.target == "images")
        assert alone.sqnr > found.costs[0].sqnr
        assert alone.sqnr > 40
        return
    first = found.costs[0]
    assert first.target == tensor or (kind, tensor, first.target) == ("qdq", "sum", "mean")
    assert first.reason == "range-unused"
    assert first.spread.range is not None
    assert first.spread.codes(np.inf) <= 0.15 * first.spread.range.codes
    assert first.share > 0.5
    assert found.suggestion is not None
    assert found.suggestion.tried[1][1] > found.suggestion.tried[0][1] + 2


class Reader:
    def __init__(self, feeds: Sequence[Arrays]) -> None:
        self.feeds: Iterator[Arrays] = iter(feeds)

    def get_next(self) -> Arrays | None:
        return next(self.feeds, None)


def by_onnxruntime(model: onnx.ModelProto, feeds: Sequence[Arrays], exclude: Sequence[str] = ()) -> onnx.ModelProto:
    """Calibrated and quantized in QDQ form by onnxruntime."""
    from onnxruntime import quantization

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in.onnx"), Path(folder, "out.onnx")
            onnx.save(model, source)
            quantization.quantize_static(
                source, target, Reader(feeds), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
                activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
                nodes_to_exclude=list(exclude),
            )  # fmt: skip
            return onnx.load(target)
    finally:
        logging.disable(level)


def in_hand(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> onnx.ModelProto:
    return by_hand(model, ranges_of(model, feeds))


SIZES = [(0, 16, 2, 8), (1, 32, 4, 12), (2, 8, 1, 6), (3, 40, 4, 9), (4, 24, 3, 5)]


@pytest.mark.parametrize(("seed", "width", "heads", "length"), SIZES)
@pytest.mark.parametrize("quantize", [by_onnxruntime, in_hand])
def test_the_mask_in_front_of_a_softmax_comes_first(
    quantize: Any, seed: int, width: int, heads: int, length: int
) -> None:
    """-10000 for hidden places takes the whole range; the scores that matter share a code."""
    model = transformer(seed, width, heads, length)
    quantized = quantize(model, sentences(seed + 10, 4, width, length))
    found = compared(model, quantized, sentences(seed + 20, 2, width, length))
    first = found.costs[0]
    assert [node.label for node in first.floats] == ["Add_hiding"]
    assert first.reason == "far-values"
    assert first.share > 0.9
    assert first.spread.near is not None
    assert first.spread.codes(first.spread.near) <= 3
    assert found.suggestion is not None
    assert found.suggestion.count == 1
    assert [n.label for n in (*found.suggestion.nodes, *found.suggestion.around)] == ["Add_hiding", "Softmax_shares"]
    assert all(one.inside for one in found.left)


@pytest.mark.parametrize(("seed", "width", "heads", "length"), SIZES[:3])
def test_the_suggested_list_brings_what_it_promises(seed: int, width: int, heads: int, length: int) -> None:
    """onnxruntime's quantizer, told to leave these nodes out, makes a model as accurate as was measured."""
    model, calibration = transformer(seed, width, heads, length), sentences(seed + 10, 4, width, length)
    feeds = sentences(seed + 20, 2, width, length)
    kept = compared(model, by_onnxruntime(model, calibration), feeds).suggestion
    assert kept is not None
    again = by_onnxruntime(model, calibration, [node.label for node in (*kept.nodes, *kept.around)])
    got = compared(model, again, feeds).outputs[0].noise.sqnr
    assert got == pytest.approx(dict(kept.tried)[kept.count], abs=1.5)


def test_coarse_weights_are_named() -> None:
    """One scale for channels of very different size."""
    rng = np.random.default_rng(5)
    weights = (rng.normal(size=(16, 8)) * np.where(np.arange(8) == 3, 300, 1)).astype(np.float32)
    scale = np.array(np.abs(weights).max() / 127, np.float32)
    codes = np.rint(weights / scale).astype(np.int8)
    source = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "m")], {"x": ["N", 16]}, {"y": ["N", 8]}, {"w": weights}
    )
    nodes = [helper.make_node("DequantizeLinear", ["c", "s"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["p"], "m"),
             helper.make_node("Identity", ["p"], ["y"])]  # fmt: skip
    model = make_model(nodes, {"x": ["N", 16]}, {"y": ["N", 8]}, {"c": codes, "s": scale})
    (cost,) = compared(source, model, [{"x": rng.normal(size=(50, 16)).astype(np.float32)}]).costs
    assert cost.reason == "weights-per-tensor"
    assert cost.local.rounding == cost.local.clipped == 0
    assert cost.local.weights == pytest.approx(cost.local.noise.ratio)


@pytest.mark.parametrize(("tail", "reason"), [([150, 149], "far-values"), ([6, 11, 20, 38, 70, 130], "outliers")])
def test_outliers_are_named(tail: list[float], reason: str) -> None:
    """Far from all other values, or with some in between."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(100, 100)).astype(np.float32)
    x[0, : len(tail)] = tail
    nodes = [helper.make_node("Neg", ["x"], ["n"], "neg"), helper.make_node("Tanh", ["n"], ["y"], "tanh")]
    source = make_model(nodes, {"x": ["N", 100]}, {"y": ["N", 100]})
    first = compared(source, by_hand(source, ranges_of(source, [{"x": x}]), ("Neg",)), [{"x": x}]).costs[0]
    assert first.reason == reason
    assert first.spread.bulk < 7
    assert first.spread.most == pytest.approx(max(tail)) or first.spread.least == pytest.approx(-max(tail))


def test_a_range_in_front_of_one_reader_belongs_to_that_reader() -> None:
    """x is read as it is by Add, and by MatMul behind a quantizer whose range is too narrow."""
    rng = np.random.default_rng(8)
    inputs: dict[str, Sequence[int | str]] = {"x": ["N", 16]}
    outputs: dict[str, Sequence[int | str] | None] = {"y": ["N", 16]}
    weights = {"w": rng.normal(size=(16, 16)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Add", ["p", "x"], ["y"], "sum"),
    ]
    quantizers = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                  helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
                  helper.make_node("MatMul", ["d", "w"], ["p"], "product")]  # fmt: skip
    scale = {"s": np.array(0.5 / 128, np.float32), "z": np.array(128, np.uint8)}
    model = make_model([*quantizers, nodes[1]], inputs, outputs, {**weights, **scale})
    found = compared(
        make_model(nodes, inputs, outputs, weights), model, [{"x": rng.normal(size=(50, 16)).astype(np.float32)}]
    )
    (cost,) = found.costs
    assert (cost.node.label, cost.reason) == ("product", "clipped")
    assert cost.why.startswith("s 0.003906 is too small: 0.02546 fits; its input clips 59.38 % of the values")
    assert cost.local.input == pytest.approx(cost.local.noise.ratio)
    assert cost.local.weights == cost.local.rounding == cost.local.clipped == 0


def test_weights_and_input_of_a_dynamic_product_are_told_apart() -> None:
    for cost in compared(digits("float"), digits("dynamic"), batches(1)).costs:
        assert cost.local.weights > 0
        assert cost.local.input > 0
        assert cost.local.weights + cost.local.input == pytest.approx(cost.local.noise.ratio, rel=0.5)


@pytest.mark.parametrize("form", ["qoperator", "qdq"])
def test_operators_that_move_codes_cost_nothing(form: str) -> None:
    """MaxPool and Flatten round what is rounded so already."""
    found = compared(digits("float"), digits(form), batches(1))
    assert {cost.target for cost in found.costs} == {"images", "c1", "dw", "pw", "c2", "sum", "mean", "logits"}
    assert {row.reference for row in found.tensors if row.local is None} == {"pool", "features"}


# Noise


@pytest.mark.parametrize("form", ["qoperator", "qdq", "dynamic"])
def test_groups_together_are_the_quantized_model(form: str) -> None:
    """All groups in place of the float model's nodes: the outputs are as accurate as those of the quantized model's
    run."""
    found = compared(digits("float"), digits(form), batches(3))
    assert found.suggestion is not None
    assert found.suggestion.tried[0] == (0, pytest.approx(found.outputs[0].noise.sqnr, abs=0.05))
    assert found.measured == found.quantizing > 4


def test_noise_is_that_of_the_runs() -> None:
    """Summed over the batches, as if they were one; from the two models' own runs."""
    found = compared(digits("float"), digits("qdq"), batches(3))
    feeds = {"images": images()[:24]}
    names = {"c1": "c1_DequantizeLinear_Output", "sum": "sum_DequantizeLinear_Output", "logits": "logits"}
    want = qrun.Session(digits("float")).run(feeds, list(names))
    got = qrun.Session(digits("qdq"), fuse=False).run(feeds, list(names.values()))
    for row in found.tensors:
        if row.reference in names:
            a, b = got[names[row.reference]], want[row.reference]
            assert row.cumulated is not None
            assert row.cumulated.sqnr == pytest.approx(sqnr(a, b), abs=0.01)
            x, y = (side.astype(np.float64).reshape(-1) for side in (a, b))
            assert row.cumulated.cosine == pytest.approx(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), abs=1e-9)
            assert row.cumulated.largest == pytest.approx(float(np.abs(a - b).max()), rel=1e-3)
    same = got["logits"].argmax(1) == want["logits"].argmax(1)
    assert (found.outputs[0].agreed, found.outputs[0].decided) == (same.sum(), 24)


def test_sets_of_inputs_count_as_one() -> None:
    """Sixteen images in two sets: each cost and its facts are those of all in one."""
    model = scaled("qop", "c1", 1 / 8)
    two, one = (compared(digits("float"), model, feeds) for feeds in (batches(), batches(1, 16)))
    for a, b in zip(two.costs, one.costs, strict=True):
        assert (a.target, a.spread.beyond, a.spread.count) == (b.target, b.spread.beyond, b.spread.count)
        assert a.local.weights == pytest.approx(b.local.weights, rel=1e-6)
        assert a.ratio == pytest.approx(b.ratio, rel=1e-6)


def test_local_noise_is_only_the_nodes_own() -> None:
    """A wrong range at the beginning leaves the local noise of later nodes as it is, but not the cumulated one."""
    good, bad = (compared(digits("float"), scaled("qop", "c1", f), batches()) for f in (1, 1 / 8))
    for a, b in zip(good.tensors[2:], bad.tensors[2:], strict=True):
        assert a.cumulated is not None
        assert b.cumulated is not None
        assert b.cumulated.sqnr < a.cumulated.sqnr - 20
        assert (a.local is None) == (b.local is None)
        if a.local is not None and b.local is not None:
            assert b.local.noise.sqnr == pytest.approx(a.local.noise.sqnr, abs=0.2)


def test_names_do_not_matter() -> None:
    feeds = batches(1)
    plain, strange = (
        compared(digits("float"), m, feeds) for m in (digits("qoperator"), renamed(digits("qoperator"), 4))
    )
    assert [(c.target, c.ratio, c.why) for c in plain.costs] == [(c.target, c.ratio, c.why) for c in strange.costs]


def test_sums_leave_out_what_is_not_finite() -> None:
    sums = ErrorSums()
    sums.add(
        np.array([1, np.nan, np.inf, 2, -np.inf], np.float32), np.array([1, np.nan, np.inf, 4, np.inf], np.float32)
    )
    found = sums.result()
    assert (found.count, found.outliers, found.largest) == (5, 1, 2.0)
    assert found.ratio == np.inf
    assert ErrorSums().result().cosine == 1.0
    assert np.isnan(ErrorSums().result().sqnr)


# Models of all kinds


def test_a_model_against_itself_has_no_ranking() -> None:
    found = compared(digits("float"), digits("float"), batches(1))
    assert found.equal
    assert found.costs == ()
    assert found.suggestion is None
    assert all(row.cumulated is not None and row.cumulated.sqnr == np.inf for row in found.tensors)


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_quantization_without_loss_has_no_ranking(value: float) -> None:
    """Multiples of the scale, and constant tensors, stay what they are."""
    x = np.full((2, 4), value, np.float32)
    source = make_model([helper.make_node("Neg", ["x"], ["y"], "neg")], {"x": ["N", 4]}, {"y": ["N", 4]})
    model = make_model(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
         helper.make_node("Neg", ["d"], ["y"], "neg")],
        {"x": ["N", 4]}, {"y": ["N", 4]}, {"s": np.array(0.5, np.float32), "z": np.array(3, np.uint8)},
    )  # fmt: skip
    found = compared(source, model, [{"x": x}, {"x": x}])
    assert found.equal
    assert found.costs == ()


def test_nan_and_infinity() -> None:
    feeds = batches(1)[0]["images"].copy()
    feeds[0, 0, 0, 0], feeds[1, 0, 2, 2] = np.nan, np.inf
    found = compared(digits("float"), digits("qdq"), [{"images": feeds}, *batches(1)])
    assert not found.equal
    assert found.outputs[0].noise.outliers > 0
    json.loads(document("compare", [], accuracy_fields(found)))


def test_no_elements() -> None:
    found = compared(digits("float"), digits("qdq"), [{"images": np.zeros((0, 1, 8, 8), np.float32)}])
    assert found.equal
    assert found.outputs[0].noise.count == 0
    assert found.costs == ()


def test_several_outputs() -> None:
    """The effect is the mean over the outputs; each has a row."""
    source, model = (onnx.ModelProto.FromString(digits(form).SerializeToString()) for form in ("float", "qdq"))
    for one, name in ((source, "sum"), (model, "sum_DequantizeLinear_Output")):
        one.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    found = compared(source, model, batches(1))
    assert [(o.name, o.other) for o in found.outputs] == [("logits", "logits"), ("sum", "sum_DequantizeLinear_Output")]
    both = next(cost for cost in found.costs if cost.target == "sum")
    alone = next(cost for cost in compared(digits("float"), digits("qdq"), batches(1)).costs if cost.target == "sum")
    assert both.ratio == pytest.approx((alone.ratio + both.local.noise.ratio) / 2)


def test_two_quantized_models() -> None:
    found = compared(digits("qdq"), digits("qoperator"), batches(1))
    assert found.outputs[0].noise.sqnr > 30
    assert len(found.tensors) == 10
    assert compared(digits("qoperator"), digits("qoperator"), batches(1)).equal


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int16])
def test_other_codes(dtype: type) -> None:
    model = transformer(7)
    feeds = sentences(8, 2)
    made = by_hand(model, ranges_of(model, feeds), dtype=dtype)
    made.opset_import[0].version = 21
    source = onnx.ModelProto.FromString(model.SerializeToString())
    source.opset_import[0].version = 21
    found = compared(source, made, feeds)
    assert found.outputs[0].noise.sqnr > (25 if dtype != np.int8 else 0)
    assert found.suggestion is not None
    assert found.suggestion.tried[0][1] == pytest.approx(found.outputs[0].noise.sqnr, abs=0.5)


def test_the_time_for_effects_is_bounded() -> None:
    """Without time for each node, sets of nodes are measured and halved: the dearest is found all the same."""
    model, feeds = transformer(3), sentences(1, 2)
    quantized = in_hand(model, feeds)
    slow, fast = (compared(model, quantized, feeds, seconds=seconds) for seconds in (1000, 0))
    assert slow.measured == slow.quantizing == fast.quantizing == 26
    assert 0 < fast.measured < 26
    assert (fast.costs[0].target, fast.costs[0].measured) == ("hiding", True)
    assert fast.costs[0].ratio == pytest.approx(slow.costs[0].ratio)
    assert len(fast.costs) == len(slow.costs)
    assert fast.suggestion is not None
    assert fast.suggestion.runs == 1
    assert f"{26 - fast.measured} of 26 nodes not measured alone" in shown(fast, None, None)
    assert "~" in shown(fast, None, None)


# Calls


def changed(**parts: Any) -> onnx.ModelProto:
    model = onnx.ModelProto.FromString(digits("qdq").SerializeToString())
    if "name" in parts:
        model.graph.input[0].name = parts["name"]
        for node in model.graph.node:
            node.input[:] = [parts["name"] if name == "images" else name for name in node.input]
    if "size" in parts:
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = parts["size"]
    return model


@pytest.mark.parametrize(("parts", "said"), [({"name": "pixels"}, "pixels"), ({"size": 9}, "float32 [N,1,9,8]")])
def test_models_with_other_inputs_are_refused(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(CallError) as caught:
        compared(digits("float"), changed(**parts), batches(1))
    assert said in dict(caught.value.facts)["second"]


def test_calls_without_inputs_or_with_wrong_ones_are_refused() -> None:
    with pytest.raises(CallError, match="no inputs"):
        compared(digits("float"), digits("qdq"), [])
    with pytest.raises(CallError, match="QR002"):
        compared(digits("float"), digits("qdq"), [{"pixels": images()[:1]}])


def test_memory_is_bounded() -> None:
    fed = sum(array.nbytes for array in next(iter(batches(1))).values())
    with pytest.raises(MemoryLimitError) as caught:
        compared(digits("float"), digits("qdq"), batches(1), max_memory=fed + 2000)
    assert caught.value.where == ("digits", "node 0 Conv_c1.raw (Conv-11)")


def test_equal_means_within_the_tolerance() -> None:
    assert not compared(digits("float"), digits("qdq"), batches(1)).equal
    assert compared(digits("float"), digits("qdq"), batches(1), tolerance=Tolerance(0, 0.0, 1.0)).equal


# The report


def shown(found: Accuracy, width: int | None, top: int | None, encoding: str = "utf-8", markdown: bool = False) -> str:
    return sheet_text(accuracy_sheet(found, top), width, markdown, encoding=encoding)


@cache
def masked() -> Accuracy:
    model, feeds = transformer(0), sentences(20, 2)
    return compared(model, in_hand(model, sentences(10, 4)), feeds)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("top", [5, None])
def test_the_report_fits(width: int, top: int | None) -> None:
    lines = shown(masked(), width, top).splitlines()
    assert max(map(len, lines)) <= width


def test_the_report_says_what_matters() -> None:
    text = shown(masked(), None, 5)
    assert not any(sign in text for sign in "│╭")
    for said in ("2 sets of inputs", "Add_hiding", "share 1 of 256 codes", 'nodes_to_exclude=["Add_hiding", "Softmax_shares"]',
                 " dB SQNR against "):  # fmt: skip
        assert said in text
    assert "share 1 of 256 codes" in shown(masked(), None, 5, markdown=True)
    assert shown(masked(), 80, 5, "ascii").isascii()


def test_all_rows_are_in_graph_order() -> None:
    text = shown(masked(), None, None)
    rows = text[text.index("Tensors, in graph order") :].splitlines()[2:]
    places = [row.split()[0] for row in rows[: rows.index("")] if ":" not in row]
    assert len(places) == len(masked().tensors)
    assert [int(p) for p in places if p != "-"] == sorted(int(p) for p in places if p != "-")


def test_the_json_has_all_numbers() -> None:
    found = json.loads(document("compare", [], accuracy_fields(masked())))
    assert [cost["name"] for cost in found["costs"]] == [cost.node.label for cost in masked().costs]
    assert found["keep_in_float"]["exclude"] == ["Add_hiding", "Softmax_shares"]
    assert len(found["tensors"]) == len(masked().tensors)
    assert found["outputs"][0]["sqnr_db"] == masked().outputs[0].noise.sqnr
    assert found["equal"] is False


def test_what_a_group_that_departs_is_told_to_look_at() -> None:
    def group(whole: bool) -> Any:
        return SimpleNamespace(region=SimpleNamespace(operators=()), whole=whole)

    assert _hint(SimpleNamespace(), group(True)) == "look at its scales and zero points"  # type: ignore[arg-type]
    assert _hint(SimpleNamespace(), group(False)) == "its inputs have no counterpart in the first model"  # type: ignore[arg-type]
