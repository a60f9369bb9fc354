"""What reports say about the kernels of a node."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.models import make_model, typed
from onnx import helper

from qrun import Session
from qrun.documents.answers import RanNode
from qrun.native.emit.isa import available
from qrun.ops.lowering.kernel import NativeSection
from qrun.report.nodes import ran as ran_as


def kernel_text(*sections: NativeSection, backend: str = "native", why: str = "") -> str:
    return RanNode(0, backend=backend, why=why, kernels=sections).kernel_text


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ((), "native"),
        ((("y32", 0, 64, ""),), "native y32"),
        ((("y32", 0, 64, ""), ("y32", 64, 16, "")), "native y32"),
        ((("f64", 0, 64, "exact ties"), ("f64", 64, 16, "exact ties")), "native f64 (exact ties)"),
        (
            (("y32", 0, 64, ""), ("f64", 64, 16, "exact ties (2 of 16 channels)")),
            "native y32 0..63, f64 64..79 (exact ties (2 of 16 channels))",
        ),
    ],
)
def test_forms_and_reasons(sections: tuple[tuple[str, int, int, str], ...], text: str) -> None:
    made = [NativeSection("k", form, first, channels, why) for form, first, channels, why in sections]
    assert kernel_text(*made) == text


def test_why_the_reference_ran() -> None:
    assert kernel_text(backend="reference", why="w is not constant") == "reference: w is not constant"
    assert kernel_text(backend="reference") == "reference"


@pytest.mark.skipif(not available(), reason="no native kernels for this machine")
def test_the_reason_comes_from_the_proof() -> None:
    constants = {"xs": np.float32(3), "xz": np.uint8(0), "w": np.ones((16, 8), np.int8), "ws": np.float32(1), "wz": np.int8(0),
                 "ys": np.float32(82), "yz": np.uint8(0)}  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", *constants], ["y"], name="product")
    model = make_model([node], {"x": typed(np.uint8, [4, 16])}, {"y": typed(np.uint8, [4, 8])}, constants)
    session = Session(model, backend="native", cache=False)
    for _ in range(3):
        (ran,) = session.execute({"x": np.ones((4, 16), np.uint8)}).events
        assert ran_as(session.model, ran).kernel_text == "native table (exact ties, which float64 misses)"
