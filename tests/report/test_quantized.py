"""Counting the codes of quantized tensors: exact for every type, in blocks, on a run that keeps nothing."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from helpers.cli import conv_model, deep_model
from helpers.models import make_model, typed
from onnx import TensorProto, helper

import qrun
from qrun.checking import codes as quantized
from qrun.checking.codes import CodeCounter, count_codes
from qrun.documents.record import encode

TYPES = [np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2,
         ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn]  # fmt: skip


def every_code(dtype: type) -> np.ndarray:
    """All numbers of a type, in a random order, each several times."""
    bits = 16 if np.dtype(dtype).itemsize == 2 else 8
    patterns = np.arange(1 << bits, dtype=f"u{bits // 8}")
    values = np.unique(patterns.view(dtype).astype(np.float32))
    values = values[np.isfinite(values)]
    seed = 3
    return np.random.default_rng(seed).choice(values, 5000).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: np.dtype(t).name)
def test_every_type_is_counted_exactly(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "BLOCK", 777)
    array = every_code(dtype).reshape(50, 100)
    found = count_codes(array)
    assert found is not None
    values = Counter(float(v) for v in array.astype(np.float64).ravel())
    low, high = found.limits
    assert (found.at_low, found.at_high) == (values[low], values[high])
    assert found.used == (min(values), max(values))
    assert sum(found.bins) + found.at_low + found.at_high == found.size == array.size
    info = (
        ml_dtypes.finfo(dtype)
        if array.astype(np.float32).dtype.kind == "f" and "float" in np.dtype(dtype).name
        else ml_dtypes.iinfo(dtype)
    )
    assert found.limits == (float(info.min), float(info.max))


def test_bins_are_parts_of_the_codes() -> None:
    found = count_codes(np.array([0, 1, 11, 127, 128, 254, 255], np.uint8))
    assert found is not None
    assert len(found.bins) == quantized.BINS
    assert (found.bins[0], found.bins[9], found.bins[10], found.bins[-1], sum(found.bins)) == (2, 1, 1, 1, 5)
    four = count_codes(np.arange(-8, 8, dtype=np.int8).astype(ml_dtypes.int4))
    assert four is not None
    assert four.bins == (0, *[1] * 14, 0)
    assert four.codes == (0, *[1] * 14, 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn])
def test_every_code_once_gives_as_many_elements_as_codes(dtype: type) -> None:
    found = count_codes(np.unique(every_code(dtype).astype(np.float32)).astype(dtype))
    assert found is not None
    if np.dtype(dtype).itemsize == 1:
        assert found.bins == found.codes
    assert sum(found.codes) + 2 == (len(np.unique(every_code(dtype))) if found.bins == found.codes else 1 << 16)


def test_wide_parts_are_of_whole_codes() -> None:
    few = count_codes(np.arange(-3, 4, dtype=np.int32))
    assert few is not None
    assert (few.bins, few.codes) == ((1,) * 7, (1,) * 7)
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        info = np.iinfo(dtype)
        whole = count_codes(np.array([info.min, info.min + 1, info.max], dtype))
        assert whole is not None
        assert sum(whole.codes) == 2**info.bits - 2
        assert (whole.bins[0], sum(whole.bins)) == (1, 1)


def test_wide_types_over_the_used_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "BLOCK", 10)
    array = np.arange(-50, 50, dtype=np.int32)
    found = count_codes(array)
    assert found is not None
    assert found.used == (-50, 49)
    assert sum(found.bins) == 100
    edge = count_codes(np.array([-(2**31), 5, 2**31 - 1], np.int32))
    assert edge is not None
    assert (edge.at_low, edge.at_high, sum(edge.bins)) == (1, 1, 1)


def test_nothing_to_count() -> None:
    empty = count_codes(np.zeros(0, np.uint8))
    assert empty is not None
    assert (empty.size, empty.used, sum(empty.bins)) == (0, None, 0)
    assert count_codes(np.zeros(3, np.float32)) is None
    assert count_codes(np.zeros(3, bool)) is None
    scalar = count_codes(np.uint8(7).reshape(()))
    assert scalar is not None
    assert scalar.used == (7, 7)


def test_values_that_are_no_number_are_not_codes() -> None:
    found = count_codes(np.array([np.nan, 1, 448], np.float32).astype(ml_dtypes.float8_e4m3fn))
    assert found is not None
    assert (found.size, found.at_high, found.used) == (3, 1, (1, 448))


def run(model: object, feeds: dict[str, np.ndarray], **options: object) -> dict[str, dict]:
    session = qrun.Session(model.SerializeToString(), **options)  # type: ignore[attr-defined, arg-type]
    codes = CodeCounter(session.model)
    for name, array in feeds.items():
        codes.see(name, array)
    session.watch(feeds, codes.see, codes.made)
    return {record.name: encode(record) for record in codes.records()}


def test_activations_weights_and_inputs() -> None:
    image = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)
    model = conv_model(b=np.arange(16, dtype=np.int32), w_scale=np.linspace(0.01, 0.02, 16, dtype=np.float32))
    found = run(model, {"image": image})
    assert [(r["name"], r["kind"], r["type"]) for r in found.values()] == [
        ("image", "activation", "uint8"), ("w", "weight", "int8"), ("y", "activation", "uint8"),
    ]  # fmt: skip
    assert found["image"]["at_low"] == int((image == 0).sum())
    assert found["w"]["scale"] == pytest.approx([0.01, 0.02])
    y = qrun.Session(model.SerializeToString()).run({"image": image})["y"]
    assert (found["y"]["at_low"], found["y"]["at_high"]) == (int((y == 0).sum()), int((y == 255).sum()))
    assert found["y"]["zero_point"] == [120, 120]


def test_dynamic_scales_are_seen() -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dyn")
    model = make_model([node], {"x": [4]}, {"q": typed(TensorProto.UINT8)}, opset=13)
    found = run(model, {"x": np.array([-1, 0, 1, 4], np.float32)})["q"]
    assert found["scale"] == pytest.approx([5 / 255] * 2)
    assert (found["at_low"], found["at_high"]) == (1, 1)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_watching_keeps_nothing(backend: str) -> None:
    if backend == "native":
        pytest.importorskip("llvmlite")
    session = qrun.Session(deep_model(12).SerializeToString(), backend=backend)
    image = np.zeros((64, 3, 8, 8), np.uint8)
    seen: list[str] = []
    names = [node.outputs[0] for node in session.model.nodes]
    result = session.watch({"image": image}, lambda name, array: seen.append(name), names)
    assert seen == names
    kept = session.execute({"image": image}, names)
    assert result.peak_bytes <= kept.peak_bytes - 8 * image.nbytes
    assert list(result.outputs) == ["logits"]
    assert np.array_equal(result.outputs["logits"], kept.outputs["logits"])


def test_watching_respects_the_memory_limit() -> None:
    session = qrun.Session(deep_model().SerializeToString(), max_memory=1000)
    with pytest.raises(qrun.RunError, match="memory"):
        session.watch({"image": np.zeros((64, 3, 8, 8), np.uint8)}, lambda name, array: None)
