"""Whole models as exporters, quantizers and optimizers write them, on both backends and onnxruntime, run after run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call
from helpers.native import OBJECTS
from helpers.support import assert_equal, run_ort, with_all_outputs
from helpers.whole import Array, Case, quantized
from helpers.whole_heads import detector, pipeline
from helpers.whole_recurrent import tagger, translator, voice_activity
from helpers.whole_transformers import STEPS, blocks_decoder, encoder, merged_decoder

import qrun
from qrun.ir.compound import to_runtime

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

CASES: dict[str, Callable[[], Case]] = {
    "LSTM tagger": lambda: tagger("LSTM"),
    "LSTM tagger, 8 bits": lambda: quantized(tagger("LSTM"), 1e-5),
    "GRU tagger": lambda: tagger("GRU"),
    "GRU tagger, 8 bits": lambda: quantized(tagger("GRU"), 1e-5),
    "voice activity": voice_activity,
    "voice activity, 8 bits": lambda: quantized(voice_activity(), 1e-4, inside=True),
    "translator": translator,
    "translator, 8 bits": lambda: quantized(translator(), 1e-5, inside=True),
    "merged decoder": merged_decoder,
    "merged decoder, 8 bits": lambda: quantized(merged_decoder(), 1e-5, inside=True),
    "decoder of 4 bits": lambda: blocks_decoder(0),
    "decoder of 4 bits, level 4": lambda: blocks_decoder(4),
    "encoder": lambda: encoder(False),
    "encoder, 8 bits": lambda: encoder(True),
    "detector": lambda: detector(False),
    "detector, QDQ": lambda: detector(True),
    "pipeline": lambda: pipeline(False),
    "pipeline with maps": lambda: pipeline(True),
}
UNIMPORTED = {"voice activity, 8 bits"}
"""Files without an import of com.microsoft, though they have nodes of it."""
HOLDS = {
    "LSTM tagger, 8 bits": {"DynamicQuantizeLSTM", "MatMulInteger"},
    "GRU tagger, 8 bits": {"GRU", "MatMulInteger"},
    "voice activity": {"If", "LSTM", "Conv"},
    "voice activity, 8 bits": {"If", "DynamicQuantizeLSTM", "ConvInteger"},
    "translator": {"Loop", "GRU"},
    "merged decoder, 8 bits": {"If", "MatMulInteger", "DynamicQuantizeLinear"},
    "decoder of 4 bits": {"MatMulNBits", "GroupQueryAttention", "SimplifiedLayerNormalization"},
    "encoder": {"Attention", "EmbedLayerNormalization", "SkipLayerNormalization", "BiasGelu"},
    "encoder, 8 bits": {"QAttention", "QEmbedLayerNormalization", "SkipLayerNormalization", "BiasGelu"},
    "detector, QDQ": {"NonMaxSuppression", "DequantizeLinear"},
    "pipeline with maps": {"Scaler", "TreeEnsembleClassifier", "ZipMap"},
}
"""Operators that a model is there for: other versions of onnxruntime might leave others."""


@cache
def built(name: str) -> Case:
    return CASES[name]()


def tensors(model: onnx.ModelProto) -> list[str]:
    """All tensors of the graph, outputs first."""
    return [value.name for value in with_all_outputs(model).graph.output]


def close(got: Any, want: Any, within: float, message: str) -> None:
    """Equal, but for floats within a share of the largest, and codes of 8 bits that are next to each other.

    Maps are compared as their keys and their values.
    """
    if isinstance(want, list):
        got, want = ([[list(row), *row.values()] for row in rows] for rows in (got, want))
        assert [row[0] for row in got] == [row[0] for row in want], message
        got, want = (np.array([row[1:] for row in rows], np.float32) for rows in (got, want))
    assert (got.dtype, got.shape) == (want.dtype, want.shape), message
    if got.dtype.kind == "f" and got.size:
        reach = within * max(float(np.abs(want).max()), 1e-3)
        np.testing.assert_allclose(got, want, rtol=0, atol=reach, err_msg=message)
    elif got.dtype in (np.int8, np.uint8):
        assert np.abs(got.astype(int) - want.astype(int)).max(initial=0) <= 1, message
    elif got.dtype == np.int32:
        assert np.abs(got.astype(int) - want.astype(int)).max(initial=0) <= 512, message
    else:
        np.testing.assert_array_equal(got, want, err_msg=message)


@pytest.mark.parametrize("name", CASES)
def test_both_backends_and_onnxruntime(name: str) -> None:
    """Each run after the one before: the native results are the reference's bits, onnxruntime's within the bound."""
    case = built(name)
    reference = qrun.Session(case.model, backend="reference", cache=False)
    native = qrun.Session(case.model, backend="native", cache=OBJECTS)
    names = tensors(case.model) if case.inner else [value.name for value in case.model.graph.output]
    shown = with_all_outputs(case.model) if case.inner else case.model
    made: Mapping[str, Array] | None = None
    for place in range(len(case.feeds)):
        feeds = case.next_feeds(place, made)
        made = reference.run(feeds)
        every = reference.run(feeds, names)
        observed = {n: to_runtime(value) for n, value in native.execute(feeds, names).outputs.items()}
        runs = [native.run(feeds), native.run(feeds), native.run(feeds, names), observed]
        for number, got in enumerate(runs):
            for tensor, array in got.items():
                told = f"{name}, inputs {place}, run {number}: {tensor}"
                if isinstance(array, np.ndarray):
                    assert_equal(array, every[tensor], told)
                else:
                    assert array == every[tensor], told
        for tensor, want in zip(names, run_ort(shown, feeds, names), strict=True):
            close(every[tensor], want, case.within, f"{name}, inputs {place}: {tensor}")


@pytest.mark.parametrize("name", HOLDS)
def test_the_models_have_what_they_are_there_for(name: str) -> None:
    found = {node.op_type for node, _ in qrun.load(built(name).model).everywhere()}
    assert HOLDS[name] <= found


def test_the_decoders_remember() -> None:
    """What is seen of one word depends on those before, which only the cache has."""
    case = built("decoder of 4 bits")
    assert len(case.feeds) == STEPS
    session = qrun.Session(case.model, backend="reference", cache=False)
    made = session.run(case.next_feeds(0, None))
    right = session.run(case.next_feeds(1, made))["logits"]
    other = {name: -array if name.startswith("present") else array for name, array in made.items()}
    assert (session.run(case.next_feeds(1, other))["logits"] != right).any()


@pytest.mark.parametrize("name", CASES)
def test_commands_take_them(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """run, check, profile and compare answer, and find no error."""
    monkeypatch.chdir(tmp_path)
    case = built(name)
    onnx.save(case.model, "m.onnx")
    feeds: dict[str, Any] = case.next_feeds(0, None)
    np.savez("x.npz", **feeds)
    given = ["m.onnx", "-i", "x.npz"]
    for words in (
        ["run", *given, "-o", "y.npz"],
        ["run", *given, "-v"],
        ["check", "m.onnx", *(["--ignore", "QR118"] if name in UNIMPORTED else [])],
        ["profile", *given, "-n", "2"],
        ["compare", *given, "--against", "reference"],
        ["compare", *given, "--against", "ort", "--rtol", "0.1", "--atol", "0.1"],
    ):
        answer = call(*words)
        assert "Traceback" not in answer.err, answer.err
        assert answer.code == 0, f"{words}: {answer.code}\n{answer.out[-2000:]}{answer.err[-2000:]}"


@pytest.mark.parametrize("name", ["merged decoder", "translator", "LSTM tagger", "GRU tagger"])
def test_a_quantized_model_is_compared_with_the_float_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where graphs inside nodes differ, which are then computed with what is around them."""
    monkeypatch.chdir(tmp_path)
    case = built(name)
    onnx.save(case.model, "m.onnx")
    onnx.save(built(f"{name}, 8 bits").model, "q.onnx")
    np.savez("x.npz", **case.feeds[0])  # type: ignore[arg-type]
    answer = call("compare", "m.onnx", "q.onnx", "-i", "x.npz", "--json")
    assert answer.code in (0, 1), answer.err
    assert "Traceback" not in answer.err
    outputs = answer.json["outputs"]
    assert [row["name"] for row in outputs] == [value.name for value in case.model.graph.output]


def test_nodes_of_com_microsoft_that_are_not_imported(tmp_path: Path) -> None:
    """onnxruntime's quantizer writes them inside other nodes, and onnxruntime runs them."""
    path = tmp_path / "m.onnx"
    model = onnx.ModelProto()
    model.CopyFrom(built("voice activity, 8 bits").model)
    imports = [opset for opset in model.opset_import if opset.domain != "com.microsoft"]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    onnx.save(model, path)
    np.savez(tmp_path / "x.npz", **built("voice activity, 8 bits").feeds[0])  # type: ignore[arg-type]
    assert call("run", path, "-i", tmp_path / "x.npz").code == 0
    told = call("check", path, "--json").json
    (finding,) = [f for f in told["models"][0]["findings"] if f["rule"] == "QR118"]
    assert (finding["level"], "not imported" in finding["message"]) == ("error", True)
