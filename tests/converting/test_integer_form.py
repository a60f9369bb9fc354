"""qrun convert --to integer: whole networks in onnxruntime and in qrun are the plain integers of the family, and the
stated deviations are those of random sums."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from converting.test_converting import DOUBLE, written
from helpers.devices import device_values, model_file

import qrun
from qrun.arithmetics.family import Scales
from qrun.converting.convert import ConversionOptions, Converter
from qrun.converting.integer import deviation
from qrun.converting.verdicts import Values, product_sums, quantized_tensors

Array = np.ndarray[Any, Any]
CNNS = (
    "digits, QOperator",
    "CNN, QDQ int8 per channel",
    "depthwise, QDQ int8 per channel",
    "SqueezeNet-like, int8",
    "mobile, QDQ uint8 per channel",
)


@pytest.mark.parametrize("name", CNNS)
def test_networks_are_the_plain_integers(name: str, tmp_path: Path) -> None:
    """All codes of onnxruntime and qrun are those of the family's plain integers from the sums of the network."""
    ort = pytest.importorskip("onnxruntime")
    source, feeds = model_file(name)
    made = Converter(source, ConversionOptions("integer", DOUBLE))
    groups = [group.output for group in made.conversion.groups]
    assert len(groups) >= 4
    new = written(made, tmp_path)
    want = device_values(qrun.load(source), feeds, lambda node: DOUBLE)
    ours = qrun.Session(str(tmp_path / "new.onnx")).run(feeds, groups)
    new.graph.output.extend(
        onnx.ValueInfoProto(name=each) for each in {*groups}.difference(v.name for v in new.graph.output)
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(new.SerializeToString(), options)
    theirs = dict(zip(groups, session.run(groups, feeds), strict=True))
    for output in groups:
        np.testing.assert_array_equal(ours[output], want[output], output)
        np.testing.assert_array_equal(theirs[output], want[output], output)


@pytest.mark.parametrize("name", CNNS)
def test_no_sum_deviates_more_than_proved(name: str, tmp_path: Path) -> None:
    """In 10^5 random sums of each layer, half of them next to ties, the largest deviation from the fractions is the
    stated one."""
    source, _ = model_file(name)
    made = Converter(source, ConversionOptions("qoperator", DOUBLE)).conversion
    rng = np.random.default_rng(1)
    values = Values(made.model.constant, lambda name: None)
    for node in made.model.nodes:
        if node.op_type not in ("QLinearConv", "QLinearMatMul", "QGemm"):
            continue
        x, w, y = quantized_tensors(node, values)
        sums = product_sums(node, (), values)
        ends = np.iinfo(y.zero.dtype)
        limits = int(ends.min), int(ends.max)
        stated = deviation(DOUBLE, (x, w, y), sums.low, sums.high, limits)
        channel = rng.integers(0, len(sums.low), 100_000)
        scales = np.broadcast_to(w.scale.reshape(-1), len(sums.low))[channel]
        acc = rng.integers(sums.low[channel].astype(np.int64), sums.high[channel].astype(np.int64), endpoint=True)
        near = acc[::2]
        unit = float(x.scale.item()) * scales[::2].astype(np.float64) / float(y.scale.item())
        ties = rng.integers(*limits, near.size, endpoint=True) - int(y.zero.item()) - 0.5
        beside = np.rint(ties / unit).astype(np.int64) + rng.integers(-1, 2, near.size)
        acc[::2] = np.clip(beside, sums.low[channel[::2]], sums.high[channel[::2]])
        exact = np.clip(_rounded(acc, x.scale, scales, y.scale) + int(y.zero.item()), *limits)
        codes = DOUBLE.codes(acc, Scales(x.scale.reshape(()), scales, y.scale.reshape(())), int(y.zero.item()), *limits)
        assert np.abs(codes - exact).max() == stated, node.label


def _rounded(acc: Array, x: Array, w: Array, y: Array) -> Array:
    """acc * x * w / y, rounded half to even: in float64, and in fractions where that is near to a tie."""
    real = acc * (float(x.item()) * w.astype(np.float64)) / float(y.item())
    found = np.rint(real).astype(np.int64)
    for at in np.flatnonzero(np.abs(real - np.floor(real) - 0.5) < 1e-6):
        found[at] = round(int(acc[at]) * Fraction(float(x.item())) * Fraction(float(w[at])) / Fraction(float(y.item())))
    return found
