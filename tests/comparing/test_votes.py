"""The arithmetic of a device, named from all integer nodes of a model, and the cause of a single node."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files

import numpy as np
import pytest
from helpers.comparing import sheet_text
from helpers.devices import (
    DEVICES,
    LARGE,
    NETWORKS,
    PRODUCTS,
    Writer,
    assert_true_of,
    compared_sides,
    device_values,
    first_different,
    network,
)
from helpers.models import make_model, typed
from onnx import TensorProto, helper

import qrun
from qrun.arithmetics import FAMILIES, Arithmetic, Scales
from qrun.arithmetics.groups import name_users
from qrun.comparing.comparison import Comparison
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import QrunSide
from qrun.declare.frozen import replace
from qrun.documents.record import encode
from qrun.io.inputs import Feeds
from qrun.ir import Array, Node
from qrun.report.compare import comparison_fields, comparison_sheet


def compared(name: str, arithmetic: Callable[[Node], Arithmetic]) -> tuple[Comparison, dict[str, Array]]:
    model, feeds = network(name)
    values = device_values(model, feeds, arithmetic)
    return compare_runtimes(*compared_sides(model, values), feeds), values


def judged(name: str, family: str) -> tuple[int, int]:
    """Large nodes whose group is named, and all large nodes. Fails for a false name or another first node."""
    truth = FAMILIES[family]
    found, values = compared(name, lambda node: truth)
    first = first_different(name, values)
    assert (found.first.name if found.first else None) == first, (name, family)
    named = large = 0
    for claim in found.arithmetic:
        assert not claim.unlike, (name, family)
        if claim.named:
            assert truth.name in claim.families, (name, family, claim.text)
            assert_true_of(truth, claim.text)
        for vote in claim.votes:
            large += vote.elements >= LARGE
            named += vote.elements >= LARGE and claim.named
    return named, large


FEW = (
    ("CNN, QDQ int8 per channel", "tfl-double"),
    ("MLP, QGemm", "tfl-halfup2"),
    ("SqueezeNet-like, int8", "fp32"),
)


@pytest.mark.parametrize(("name", "family"), FEW)
def test_the_group_of_families_is_named(name: str, family: str) -> None:
    named, large = judged(name, family)
    assert named == large > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_ten_networks_on_six_devices(name: str) -> None:
    counts = [judged(name, family) for family in DEVICES]
    named, large = map(sum, zip(*counts, strict=True))
    print(f"{name}: {named} of {large} nodes of {LARGE} elements or more")
    assert named >= 0.95 * large


def test_every_family_is_a_device() -> None:
    counts = {family: judged("SqueezeNet-like, powers of two", family) for family in FAMILIES}
    named, large = map(sum, zip(*counts.values(), strict=True))
    print({family: count for family, count in counts.items() if count[0] < count[1]})
    assert named >= 0.95 * large


def sentences(found: Comparison) -> str:
    return sheet_text(comparison_sheet(found, 5)).partition("\n\n")[2].partition("\n\n")[0]


def test_operators_of_different_arithmetics_are_told_apart() -> None:
    """As in LiteRT's reference kernels, where FULLY_CONNECTED rounds a float64 product."""

    def arithmetic(node: Node) -> Arithmetic:
        return FAMILIES["tfl-double" if node.op_type == "QLinearConv" else "f64-away"]

    net = (
        Writer((4, 8, 12, 12), seed=8).conv(16).conv(16, act="Relu").flat().product(1500, "Gemm").product(1200, "Gemm")
    )
    model, feeds = net.done()
    found = compare_runtimes(*compared_sides(model, device_values(model, feeds, arithmetic)), feeds)
    kinds = {claim.kind: claim for claim in found.arithmetic}
    assert set(kinds) == {"Conv", "MatMul"}
    assert "tfl-double" in kinds["Conv"].families
    assert "f64-away" in kinds["MatMul"].families
    assert kinds["Conv"].text.startswith("two roundings, ")
    assert kinds["MatMul"].text.startswith("one rounding, ")


def test_a_node_that_contradicts_is_told_and_nothing_is_named() -> None:
    name = "SqueezeNet-like, int8"
    third = [node for node in network(name)[0].nodes if node.op_type in PRODUCTS][2].outputs[0]
    found, _ = compared(name, lambda node: FAMILIES["tfl-single" if node.outputs[0] == third else "tfl-double"])
    (claim,) = found.arithmetic
    assert not claim.named
    assert [vote.tensor for vote in claim.contradicting] == [third]
    told = sentences(found)
    assert "undecided" in told
    assert "fits 5 of 6 integer nodes" in told
    assert f"{third} (" in told


def test_a_node_with_another_defect_does_not_vote() -> None:
    name = "SqueezeNet-like, int8"
    model, feeds = network(name)
    values = device_values(model, feeds, lambda node: FAMILIES["tfl-double"])
    last = next(iter(model.outputs)).name
    values[last] = np.roll(values[last], 1, -1)
    found = compare_runtimes(*compared_sides(model, values), feeds)
    (claim,) = found.arithmetic
    assert claim.named
    assert [vote.tensor for vote in claim.unlike] == [last]
    assert "differ by more than rounding" in sentences(found)


def test_small_models_are_undecided() -> None:
    model, feeds = Writer((1, 2, 4, 4), seed=1).conv(4).conv(4).done()
    values = device_values(model, feeds, lambda node: FAMILIES["tfl-double"])
    found = compare_runtimes(*compared_sides(model, values), feeds)
    (claim,) = found.arithmetic
    assert not claim.named
    assert "tfl-double" in claim.families
    assert "undecided" in sentences(found)
    assert "qrun probe" in sentences(found)


UNKNOWN = (
    replace(FAMILIES["tfl-single"], name="a", ties="down"),
    replace(FAMILIES["tfl-double"], name="b", ties="even"),
    replace(FAMILIES["fp32"], name="c", ties="zero"),
    replace(FAMILIES["tfl-single"], name="d", hold="20 bits"),
    replace(FAMILIES["tfl-single"], name="e", hold="14 bits"),
)


@pytest.mark.parametrize("truth", UNKNOWN, ids=lambda row: row.name)
@pytest.mark.parametrize("name", ["SqueezeNet-like, powers of two", "SqueezeNet-like, int8"])
def test_an_arithmetic_that_nobody_has_described_gets_no_wrong_name(name: str, truth: Arithmetic) -> None:
    for claim in compared(name, lambda node: truth)[0].arithmetic:
        if claim.named:
            assert_true_of(truth, claim.text)


def test_the_sentence_and_the_cause() -> None:
    found, _ = compared("CNN, QDQ int8 per channel", lambda node: FAMILIES["tfl-double"])
    told = " ".join(sentences(found).split())
    assert (
        "Arithmetic of device: two roundings, ties away from zero, 31-bit multiplier (TFLite reference, CMSIS-NN"
        in told
    )
    assert "0 of 32,336 elements in 5 integer nodes differ; next family " in told
    assert {t.cause for t in found.tensors if t.cause} == {"requantization"}
    assert found.first is not None
    assert found.first.guilt is not None
    text = found.first.guilt.reason.text
    assert text.startswith("computes with two roundings, 31-bit multiplier (TFLite reference, CMSIS-NN, ")
    assert "tfl-double" in text
    assert found.first.guilt.reason.also == ()


def test_a_graph_as_written_votes_too() -> None:
    """Groups are fused for the vote, whatever qrun's side runs."""
    model, feeds = network("MLP, QDQ MatMul")
    values = device_values(model, feeds, lambda node: FAMILIES["tfl-double"])
    found = compare_runtimes(QrunSide(model), compared_sides(model, values)[1], feeds)
    (claim,) = found.arithmetic
    assert claim.named
    assert claim.nodes == 4
    assert "tfl-double" in claim.families
    assert {t.cause for t in found.tensors if t.cause} == {"requantization"}


def test_json_says_the_same() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found, _ = compared("MLP, QGemm", lambda node: FAMILIES["tfl-halfup2"])
    fields = json.loads(json.dumps(encode(comparison_fields(found, Feeds(network("MLP, QGemm")[1]))["arithmetic"])))
    schema = json.loads(files("qrun").joinpath("schemas/compare-1.0.json").read_text())
    part = {"$defs": schema["$defs"], **schema["$defs"]["runtimes"]["properties"]["arithmetic"]}
    jsonschema.validate(fields, part)
    (claim,) = fields
    assert claim["named"]
    assert "tfl-halfup2" in claim["families"]
    assert "tfl-double" not in claim["families"]
    assert claim["elements"] == sum(vote["elements"] for vote in claim["votes"])
    assert claim["next"]["differing"] > 0


def test_qrun_itself_does_not_vote() -> None:
    model, feeds = network("MLP, QGemm")
    side = compared_sides(model, {})[0]
    assert compare_runtimes(side, side, feeds).arithmetic == ()


def test_large_tensors_have_a_cause() -> None:
    model, feeds = Writer((2, 4, 96, 96), seed=9).conv(8).done()
    values = device_values(model, feeds, lambda node: FAMILIES["tfl-double"])
    found = compare_runtimes(*compared_sides(model, values), feeds)
    assert found.first is not None
    assert found.first.pair.difference.total == 147456
    assert found.first.cause == "requantization"
    assert found.first.guilt is not None
    assert "tfl-double" in found.first.guilt.reason.text


ISSUE = Scales(np.float32(0.05296124517917633), np.float32(0.024093778803944588), np.float32(0.11484327912330627))
"""tensorflow issue 102943: the sum 585 gives -120 in TFLite, and -119 by the reporter's fixed-point formula."""
RUN_IN_LITERT = {"tfl-double": -119, "tfl-halfup2": -119, "f64-away": -119, "tfl-halfup2-fc": -119, "fp32": -120}
"""LiteRT 2.3.0: reference and optimized kernels of CONV_2D and FULLY_CONNECTED, then XNNPACK's."""


def test_tensorflow_issue_102943() -> None:
    codes = {name: int(row.codes(np.array([585]), ISSUE, -126, -128, 127)[0]) for name, row in FAMILIES.items()}
    assert {name: codes[name] for name in RUN_IN_LITERT} == RUN_IN_LITERT
    low = {name for name, code in codes.items() if code == -120}
    assert not any(FAMILIES[name].hold in ("31 bits", "float64") for name in low)


def test_the_issue_is_named_by_compare() -> None:
    """As the issue has it, one input pixel at its zero point and the sum in the bias, with other sums beside it."""
    sums = np.arange(0, 22500, 5, dtype=np.int32)
    parameters = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    stored = {"sx": ISSUE.x, "zx": np.int8(-124), "w": np.ones((sums.size, 4, 1, 1), np.int8), "sw": ISSUE.w}
    stored |= {"zw": np.int8(0), "sy": ISSUE.y, "zy": np.int8(-126), "b": sums}
    kind, node = TensorProto.INT8, helper.make_node("QLinearConv", parameters, ["y"], "conv")
    ends = {"x": typed(kind, [1, 4, 1, 1])}, {"y": typed(kind, [1, sums.size, 1, 1])}
    model = qrun.load(make_model([node], *ends, stored, opset=17).SerializeToString())
    feeds = {"x": np.full((1, 4, 1, 1), -124, np.int8)}

    def told(family: str) -> Comparison:
        values = device_values(model, feeds, lambda node: FAMILIES[family])
        assert int(values["y"][0, 117, 0, 0]) == RUN_IN_LITERT[family]
        return compare_runtimes(*compared_sides(model, values), feeds)

    reference, xnnpack = told("tfl-double"), told("fp32")
    assert xnnpack.first is not None
    assert xnnpack.first.cause == "float32-multiplier"
    left = {family for claim in xnnpack.arithmetic for family in claim.families}
    assert "fp32" in left
    assert not left & {"tfl-double", "tfl-halfup2", "f64-away"}
    left = {family for claim in reference.arithmetic for family in claim.families}
    assert "tfl-double" in left
    assert "fp32" not in left


def test_users_of_a_group() -> None:
    assert name_users([FAMILIES["exact"]]) == "qrun"
    assert name_users([FAMILIES["exact"], FAMILIES["fp32"]]) == "onnxruntime, XNNPACK"
    assert not any("(" in row.users and "," in row.users.partition("(")[2] for row in FAMILIES.values())
