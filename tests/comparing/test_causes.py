"""The causes that compare names, against the live onnxruntime and onnx.reference where those are known to disagree."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.disagreements import CASES, Case, i8, i32, u8
from helpers.models import make_model, typed
from helpers.support import MS, node_model
from onnx import helper

import qrun
from qrun.comparing.causes import CAUSES
from qrun.comparing.comparison import Comparison
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import PeerSide, QrunSide
from qrun.report.explain import page

f32 = np.float32
TESTED = {"ort": ("onnxruntime", "1.32.0"), "onnx-ref": ("onnx", "1.23.2")}
"""The versions whose disagreements are known."""
WANT = {
    "O1": "empty-sum", "O2": "crashed", "O2-same-shapes": "crashed", "O3": "empty-sum", "O3b": "empty-sum", "O4": "empty-sum",
    "O9": "float8-overflow", "O10": "float8-overflow",
    "O13": "reciprocal-floor", "O14": "crashed", "O15": "refused", "O16": "saturation", "O17": "saturation",
    "O18": "zero-point-before-rounding", "O19": "refused", "O20": "refused", "O21": "refused", "O22": "refused",
    "O23": "wrap-around", "O25": "wrong-parameter", "O26": "refused", "O29": "negative-padding",
    "R1": "zero-point-before-rounding", "R2": "zero-point-before-rounding", "R3": "wrong-scale-axis",
    "R4": "wrong-scale-axis", "R5": "refused", "R6": "wrong-scale-axis", "R7": "saturation", "R8": "saturation",
    "R9": "float32-arithmetic", "R10": "refused", "R10-opset-10": "refused", "R11": "wrong-shape", "R12": "division-type",
    "R16": "refused", "R17": "special-value",
}  # fmt: skip
"""Case to cause. Those that qrun refuses (O27, R13, S1) have none."""
MENDED = ("O5", "O5b", "O6", "O7", "O8", "O11", "O12", "O24", "O28")
"""Where onnxruntime 1.31 disagreed and 1.32 does not."""
KNOWN = {case.id: case for case in CASES}
CONSTANT = {"O6": (2,), "O7": (2,)}
"""Inputs that onnxruntime's Python cannot feed: the zero points of packed types."""


def skip_other_versions(backend: str) -> None:
    package, tested = TESTED[backend]
    try:
        found = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if found.split("+")[0] != tested:
        pytest.skip(f"{package} is {found}; the disagreements are those of {tested}")


def compared(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], backend: str) -> Comparison:
    data = proto.SerializeToString()
    model = qrun.load(data)
    return compare_runtimes(QrunSide(model), PeerSide(model, backend, data=data), feeds)


def causes(found: Comparison) -> list[str]:
    return [t.guilt.reason.cause for t in found.tensors if t.guilt]


def model_of(case: Case) -> tuple[onnx.ModelProto, dict[str, Any]]:
    return node_model(
        case.op, case.inputs, case.attributes, opset=case.opset, domain=case.domain, outputs=case.types,
        constants=CONSTANT.get(case.id, False),
    )  # fmt: skip


@pytest.mark.parametrize("id", WANT)
def test_named(id: str) -> None:
    backend = "ort" if id.startswith("O") else "onnx-ref"
    skip_other_versions(backend)
    found = compared(*model_of(KNOWN[id]), backend)
    assert not found.equal
    assert causes(found) == [WANT[id]], [t.guilt for t in found.tensors]
    guilt = found.tensors[0].guilt
    assert guilt is not None
    pair = guilt.pair.difference
    if WANT[id] not in ("refused", "missing-output", "crashed", "empty-sum", "wrong-shape") and pair.form is None:
        assert guilt.reason.explained == pair.differing > 0


@pytest.mark.parametrize("id", MENDED)
def test_mended(id: str) -> None:
    skip_other_versions("ort")
    assert compared(*model_of(KNOWN[id]), "ort").equal


def test_every_case_is_told_apart() -> None:
    """At least 15 cases, by more than refusals."""
    assert len(WANT) >= 30
    assert len(set(WANT.values())) >= 12
    assert set(WANT.values()) <= set(CAUSES)
    without = {"O27", "R13", "S1"}
    assert set(KNOWN) == {*WANT, *MENDED, *without}


@pytest.mark.parametrize(
    ("x", "want"), [(np.zeros(2, f32), ["special-value"]), (np.zeros(0, f32), ["refused"] * 3)], ids=["R14", "R15"]
)
def test_dynamic_quantization_of_nothing(x: np.ndarray, want: list[str]) -> None:
    skip_other_versions("onnx-ref")
    proto, feeds = node_model("DynamicQuantizeLinear", [x], opset=11, outputs=(u8, f32, u8))
    assert causes(compared(proto, feeds, "onnx-ref")) == want


SATURATING: dict[str, tuple[str, list[Any], dict[str, Any], str, Any]] = {
    "MatMulInteger": ("MatMulInteger", [np.full((2, 7), 255, u8), np.full((7, 3), 127, i8)], {}, "", i32),
    "ConvInteger": ("ConvInteger", [np.full((1, 3, 4, 4), 127, i8), np.full((2, 3, 3, 3), 255, u8)], {}, "", i32),
    "QLinearMatMul": ("QLinearMatMul", [np.full((2, 6), 255, u8), f32(1), u8(3), np.full((6, 5), -128, i8), f32(1), i8(1),
                                        f32(2000), u8(200)], {}, "", u8),
    "QLinearConv": ("QLinearConv", [np.arange(1, 241, dtype=u8).reshape(1, 3, 8, 10), f32(1), u8(9),
                                    np.linspace(-128, 127, 5 * 27).astype(i8).reshape(5, 3, 3, 3),
                                    np.linspace(1, 2, 5).astype(f32), np.zeros(5, i8), f32(3000), u8(128),
                                    np.arange(5, dtype=i32)],
                    {"pads": [1, 1, 1, 1], "strides": [2, 1]}, "", u8),
    "QLinearConv groups": ("QLinearConv", [np.full((2, 4, 5), 250, u8), f32(1), u8(9), np.full((6, 2, 3), 100, i8), f32(1),
                                           i8(0), f32(900), u8(0)], {"group": 2}, "", u8),
    "QLinearConv channels last": ("QLinearConv", [np.full((1, 5, 5, 4), 250, u8), f32(1), u8(0), np.full((6, 4, 3, 3), 100, i8),
                                                  f32(1), i8(0), f32(9000), u8(0)], {"channels_last": 1}, MS, u8),
    "QGemm": ("QGemm", [np.full((5, 2), 255, u8), f32(1), u8(0), np.full((3, 5), 127, i8), f32(1), i8(0),
                        np.array([1, 2, 3], i32), f32(2000), u8(0)], {"transA": 1, "transB": 1}, MS, u8),
    "MatMulIntegerToFloat": ("MatMulIntegerToFloat", [np.full((2, 4), 255, u8), np.full((4, 3), 127, i8), f32(0.1), f32(0.3),
                                                      u8(0), i8(0), np.ones(3, f32)], {}, MS, f32),
    "DynamicQuantizeMatMul": ("DynamicQuantizeMatMul", [np.array([[0, 1, 1, 1]], f32), np.full((4, 3), 127, i8), f32(0.3)],
                              {}, MS, f32),
}  # fmt: skip
CONTRIB_OPSET = 17


@pytest.mark.parametrize("name", SATURATING)
def test_saturating_pairs(name: str) -> None:
    """On a CPU with VNNI both are equal; on others the pairs of products that onnxruntime saturates are named."""
    skip_other_versions("ort")
    op, inputs, attributes, domain, kind = SATURATING[name]
    opset = CONTRIB_OPSET if domain else 10
    stored = range(1, len(inputs))
    proto, feeds = node_model(op, inputs, attributes, opset=opset, domain=domain, outputs=(kind,), constants=stored)
    found = compared(proto, feeds, "ort")
    if found.equal:
        pytest.skip("this CPU adds uint8 * int8 products without saturation, or the kernel is another one")
    assert causes(found) in (["pair-saturation"], ["float32-arithmetic"])
    if causes(found) == ["float32-arithmetic"]:
        pytest.skip("this CPU adds uint8 * int8 products without saturation")


def test_onnxruntime_as_users_run_it() -> None:
    """A QDQ addition: node by node it is exact; fused it adds the zero point before rounding (onnxruntime#32132)."""
    skip_other_versions("ort")
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "one", "zero"], ["da"], "left"),
        helper.make_node("DequantizeLinear", ["b", "one", "zero"], ["db"], "right"),
        helper.make_node("Add", ["da", "db"], ["sum"], "add"),
        helper.make_node("QuantizeLinear", ["sum", "two", "odd"], ["y"], "quantize"),
    ]
    stored = {"one": f32(1), "two": f32(2), "zero": u8(0), "odd": u8(1)}
    feeds = {n: np.arange(32, dtype=u8).reshape(4, 8) * u8(k) for n, k in (("a", 1), ("b", 2))}
    data = make_model(nodes, feeds, {"y": typed(u8, [4, 8])}, stored, opset=13).SerializeToString()
    model = qrun.load(data)
    as_written, fused = (
        compare_runtimes(QrunSide(model), PeerSide(model, "ort", data=data, optimize=o), feeds) for o in (False, True)
    )
    assert [t.name for t in as_written.tensors] == ["da", "db", "sum", "y"]
    assert all(t.pair.identical for t in as_written.tensors)
    assert [t.name for t in fused.tensors] == ["y"]
    assert causes(fused) == ["fused-requantization"]
    guilt = fused.tensors[0].guilt
    assert guilt is not None
    assert guilt.reason.explained == guilt.reason.ties == fused.tensors[0].pair.difference.differing == 16


def test_every_cause_is_documented() -> None:
    ranks = [cause.rank for cause in CAUSES.values()]
    assert len(set(ranks)) == len(ranks)
    explained = {field["name"]: field["summary"] for field in page("causes").fields["causes"]}
    for cause in CAUSES.values():
        assert explained[cause.name] == " ".join(cause.summary.split())
        assert cause.summary.endswith("."), cause.name
        assert cause.source, cause.name
        assert cause.name == cause.name.lower(), cause.name
