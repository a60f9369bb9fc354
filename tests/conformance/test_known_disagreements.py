"""What qrun answers where onnxruntime or onnx.reference is known to disagree with the specification."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.disagreements import CASES, REFUSED, Case, f32, u8
from helpers.support import node_model, run_qrun

import qrun


def run(case: Case) -> list[np.ndarray]:
    model, feeds = node_model(
        case.op, case.inputs, case.attributes, opset=case.opset, domain=case.domain, outputs=case.types
    )
    return run_qrun(model, feeds)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_known_disagreement(case: Case) -> None:
    if case.want is REFUSED:
        with pytest.raises(qrun.QrunError) as caught:
            run(case)
        assert caught.value.code not in ("QR201", "QR210"), str(caught.value)
        return
    got, want = run(case)[0], np.asarray(case.want)
    assert got.dtype == case.types[0]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize(("id", "x"), [("R14", np.zeros(2, f32)), ("R15", np.zeros(0, f32))])
def test_dynamic_quantization_of_nothing(id: str, x: np.ndarray) -> None:
    """Scale 1 and zero point 0; the page divides 0 by 0 (R14: 0, 1/255 and 1 are all in use; R15: reference raises)."""
    y, scale, zero = run(Case(id, "DynamicQuantizeLinear", [x], None, (u8, f32, u8), opset=11))
    assert (y.tolist(), scale.tolist(), zero.tolist()) == ([0] * len(x), 1.0, 0)
    assert (y.dtype, scale.dtype, zero.dtype, scale.shape, zero.shape) == (u8, f32, u8, (), ())
