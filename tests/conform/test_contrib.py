"""The cases of com.microsoft."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from helpers.support import MS
from onnx import numpy_helper

from qrun.conform.suite import EITHER, Suite


def test_each_operator_has_twenty_cases_and_more() -> None:
    counts = Counter(info.op for info in Suite().cases if info.domain == MS)
    assert len(counts) >= 22
    assert min(counts.values()) >= 20, counts
    assert counts.total() >= 1200


def test_parameters_of_one_tensor_have_one_shape() -> None:
    """QLinearConv's scale and zero point of w, but in the forms that a runtime may refuse."""
    suite = Suite()
    mixed = 0
    for info in suite.select(["com.microsoft::QLinearConv"]):
        model = onnx.load_from_string(suite.load(info).model)
        stored = {tensor.name: numpy_helper.to_array(tensor).shape for tensor in model.graph.initializer}
        alike = stored["i4"] == stored["i5"]
        assert alike == (info.expects != EITHER), info.id
        mixed += not alike
    assert mixed == 6


def test_sizes_enter_the_vector_paths() -> None:
    """One element, and one more or less than vectors of 8, 16, 32, 64 and 128 have."""
    suite = Suite()
    for op in ("QLinearAdd", "QLinearMul", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearWhere"):
        sizes = {int(np.max(case.expected["y0"].shape, initial=0)) for case in map(suite.load, suite.select([op]))}
        assert sizes >= {1, 7, 9, 15, 17, 31, 33, 65, 129}, (op, sizes)
