"""Images of models: what they hold is what is made without them, and damaged ones are made again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.native import ISAS

import qrun
from qrun import passes
from qrun.ir import Model
from qrun.native.machine.cache import ObjectCache
from qrun.running.images import SUFFIX
from qrun.running.packed import Bundle, Unstorable, packed_mapping, unpacked, unpacked_mapping

DIGITS = Path(__file__).parents[1] / "models" / "digits"
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(DIGITS / "qdq" / "model.onnx", tmp_path))


def images(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def plain(value: Any) -> Any:
    """A value in a form in which equal means equal in all bits."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return type(value), repr(value)


def told(model: Model) -> Iterator[Any]:
    """All of a model that a run depends on."""
    for node in model.nodes:
        yield node.index, node.name, node.op, node.version, node.inputs, node.outputs
        yield [(name, plain(value)) for name, value in node.attributes.items()]
    yield [(name, plain(array)) for name, array in model.constants.items()]
    yield list(model.types.items()), list(model.opsets.items()), model.inputs, model.outputs, model.defaults


@pytest.mark.parametrize("observe", [True, False], ids=["observing", "with tables"])
def test_an_optimized_model_is_made_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observe: bool
) -> None:
    cache = tmp_path / "cache"
    qrun.Session(model, cache=cache)._prepared((), observe)
    monkeypatch.setattr(passes, "_optimize", lambda *_: pytest.fail("made again"))
    found = qrun.Session(model, cache=cache)._prepared((), observe)
    monkeypatch.undo()
    made = qrun.Session(model, cache=False)._prepared((), observe)
    assert list(told(found.plan.model)) == list(told(made.plan.model))
    assert (found.groups, found.reasons) == (made.groups, made.reasons)


def test_another_model_has_another_image(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    qrun.Session(model, cache=cache)
    before = images(cache)
    proto = onnx.load(model)
    scale = next(t for t in proto.graph.initializer if t.name.endswith("scale"))
    scale.float_data[:] = [] if scale.raw_data else [2 * scale.float_data[0]]
    if scale.raw_data:
        scale.raw_data = (2 * np.frombuffer(scale.raw_data, np.float32)).tobytes()
    onnx.save(proto, model)
    other = qrun.Session(model, cache=cache)
    assert len(images(cache)) == 2 * len(before)
    assert list(told(other._prepared((), False).plan.model)) == list(
        told(qrun.Session(model, cache=False)._prepared((), False).plan.model)
    )


def test_external_data_is_part_of_a_model(model: Path, tmp_path: Path) -> None:
    cache, weights = tmp_path / "cache", tmp_path / "weights"
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="weights", size_threshold=64)
    qrun.Session(model, cache=cache)
    before = images(cache)
    qrun.Session(model, cache=cache)
    assert images(cache) == before
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    qrun.Session(model, cache=cache)
    assert len(images(cache)) == 2 * len(before)


def test_no_image_is_made_where_nothing_is_kept(model: Path, tmp_path: Path) -> None:
    qrun.Session(model, cache=False)
    qrun.Session(model.read_bytes(), cache=tmp_path / "cache")
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))


def test_no_damaged_byte_is_believed(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache")
    bundle = Bundle()
    index = "index", bundle.array(np.arange(40, dtype=np.int16)), bundle.array(np.float32(2).reshape(()))
    cache.save_parts("key", bundle.parts(index), SUFFIX)
    (file,) = images(tmp_path / "cache")
    good = file.read_bytes()
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes((good[place] ^ 1 << place % 8,)) + good[place + 1 :])
        assert cache.mapped("key", SUFFIX) is None, place
    for size in range(len(good)):
        file.write_bytes(good[:size])
        assert cache.mapped("key", SUFFIX) is None, size
    file.write_bytes(good)
    assert cache.mapped("another key", SUFFIX) is None
    body = cache.mapped("key", SUFFIX)
    assert body is not None
    found, arrays = unpacked(body)
    assert found == index
    assert [plain(array) for array in arrays] == [plain(np.arange(40, dtype=np.int16)), plain(np.array(2, "f4"))]


def test_pieces_of_any_size_have_the_checks_of_the_whole(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "cache")
    data = np.random.default_rng(0).bytes(5 << 19)
    cache.save_parts("key", [data[:7], b"", data[7 : 1 << 20], data[1 << 20 :]], SUFFIX)
    assert cache.mapped("key", SUFFIX) == data


def test_attributes_come_back_as_they_were() -> None:
    values = {"a": 1, "b": -0.0, "c": float("nan"), "d": "é", "e": b"\xff", "f": (1, 2.0, "x"), "g": np.arange(3),
              "h": (np.zeros((0, 2), np.int8), np.array(True)), "i": ()}  # fmt: skip
    bundle = Bundle()
    index, arrays = unpacked(memoryview(b"".join(bundle.parts(packed_mapping(values, bundle)))))
    assert plain(tuple(unpacked_mapping(index, arrays).items())) == plain(tuple(values.items()))
    for value in (np.array(["text"], object), object()):
        with pytest.raises(Unstorable):
            packed_mapping({"x": value}, bundle)
