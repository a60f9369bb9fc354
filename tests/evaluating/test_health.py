"""``qrun eval --health``: what the values inside say over all samples, not over one."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from evaluating.conftest import MODELS, Digits
from helpers.cli import call
from helpers.models import make_model
from onnx import helper

import qrun
from qrun.documents.record import Item
from qrun.errors import CallError
from qrun.evaluating.health import InnerCounts, plain, restore_counts

SCHEMA = json.loads(files("qrun").joinpath("schemas/eval-1.0.json").read_text())


def narrow(scale: float) -> Any:
    """x [1,8] quantized with a scale, two nodes later in float again."""
    stored = {"scale": np.float32(scale), "zero": np.int8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"], "quantize"),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["y"], "dequantize"),
    ]
    return make_model(nodes, {"x": [1, 8]}, {"y": [1, 8]}, stored, opset=17)


def test_a_scale_that_fitted_the_first_samples_only(tmp_path: Path) -> None:
    """The first 100 samples fit, of the others a tenth of all elements does not: no single sample shows it."""
    (tmp_path / "m.onnx").write_bytes(narrow(1 / 100).SerializeToString())
    x = np.random.default_rng(2).uniform(-1, 1, (1000, 8)).astype(np.float32)
    wide = np.random.default_rng(3).random((1000, 8)) < 0.1
    wide[:100] = False
    x[wide] = 3
    np.save("x.npy", x)
    found = call("eval", "m.onnx", "-i", "x.npy", "--health", "--json", "-j", "1").json
    jsonschema.validate(found, SCHEMA)
    health = found["models"][0]["health"]
    (finding,) = health["findings"]
    assert (finding["rule"], finding["node"]) == ("QR402", "quantize")
    assert f"{wide.sum()} of 8000" in finding["message"]
    (tensor,) = health["tensors"]
    codes = np.clip(np.rint(x / np.float32(0.01)), -128, 127)
    assert tensor["unused"] == 256 - len(np.unique(codes))
    assert (tensor["at_low"], tensor["at_high"]) == ((codes == -128).sum(), (codes == 127).sum())
    assert tensor["used"] == [codes.min(), codes.max()]
    shown = call("eval", "m.onnx", "-i", "x.npy", "--health", "-j", "1")
    assert "QR402 warning  node 0 quantize" in shown.out
    np.save("fits.npy", x[:100])
    fits = call("eval", "m.onnx", "-i", "fits.npy", "--health", "--json").json["models"][0]["health"]
    assert fits["findings"] == []


def test_counts_do_not_depend_on_who_works(digits: Digits, tmp_path: Path) -> None:
    args = ["eval", MODELS / "dynamic" / "model.onnx", *digits.options, "--limit", "300", "--health", "--json"]
    want = call(*args, "-j", "1").json["models"]
    assert call(*args, "-j", "2").json["models"] == want
    assert call(*args, "-o", "out", "-j", "1").json["models"] == want
    (tmp_path / "out" / "chunk-000001.npz").unlink()
    assert call(*args, "-o", "out", "--resume").json["models"] == want
    plain = call("eval", MODELS / "dynamic" / "model.onnx", *digits.options, "--limit", "300", "--json").json["models"]
    assert plain[0]["scores"] == want[0]["scores"]


def test_sums_are_the_largest_of_all_samples(digits: Digits) -> None:
    model = MODELS / "dynamic" / "model.onnx"
    found = call("eval", model, *digits.options, "--limit", "20", "--health", "--json", "-j", "1").json
    session = qrun.Session(model, fuse=False)
    sums = [n.outputs[0] for n in session.model.nodes if n.op_type in ("ConvInteger", "MatMulInteger")]
    assert sums
    peaks = dict.fromkeys(sums, 0)
    for image in digits.images[:20]:
        for name, value in session.run({"images": image[None]}, sums).items():
            peaks[name] = max(peaks[name], int(np.abs(value.astype(np.int64)).max()))
    told = {one["name"]: one["largest"] for one in found["models"][0]["health"]["accumulators"]}
    assert {name: told.get(name) for name in sums} == peaks


@pytest.mark.parametrize(
    "rest",
    [
        [["0", {}, {}, [], []]],
        [[0, [], {}, [], []]],
        [[0, {"q": 3}, {}, [], []]],
        [[0, {}, {"q": -1}, [], []]],
        [[0, {}, {}, [[0, "saturated", 4]], []]],
        [[0, {}, {}, []]],
        {},
        None,
    ],
)
def test_counts_that_are_not_as_they_were_kept_are_an_error(rest: Any) -> None:
    with pytest.raises((CallError, ValueError)):
        restore_counts({}, Item(rest, "chunk.json"))


def test_counts_are_kept() -> None:
    codes = np.arange(256)
    made = {1: InnerCounts({"a/b": codes}, {"a/b": "uint8"}, {"acc": 2**31}, {(3, "saturated", "y"): 7}, {3: 64})}
    arrays, rest = plain(made)
    (model, found), *others = restore_counts(arrays, Item(json.loads(json.dumps(rest)), "chunk.json")).items()
    assert (model, others) == (1, [])
    assert found.codes.pop("a/b") is codes
    assert (found.types, found.peaks, found.observed, found.elements) == (
        {"a/b": "uint8"}, {"acc": 2**31}, {(3, "saturated", "y"): 7}, {3: 64},
    )  # fmt: skip
