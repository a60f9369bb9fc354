"""Parsed models that are kept: the same as parsed now, and parsed again where anything is different."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from ir.test_wire import model as unusual
from ir.test_wire import same

import qrun
from qrun.ir import Model
from qrun.ir.load import load
from qrun.ir.wire import read_ahead
from qrun.running.kept.models import load_kept
from qrun.running.kept.versions import SUFFIX

DIGITS = Path(__file__).parents[1] / "models" / "digits"


def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are parsed from now on."""
    found: list[str] = []
    parsed = load

    def counted(path: Path, **given: object) -> Model:
        found.append(str(path))
        return parsed(path, **given)  # type: ignore[arg-type]

    monkeypatch.setattr("qrun.ir.load.load", counted)
    return found


def equal(a: Model, b: Model) -> None:
    same(a, b)
    assert (a.name, a.opsets, a.types, a.defaults, a.path, a.label) == (
        b.name,
        b.opsets,
        b.types,
        b.defaults,
        b.path,
        b.label,
    )
    assert (a.ir_version, a.was_sorted, a.sha256) == (b.ir_version, b.was_sorted, b.sha256)
    assert a.content is not None
    assert b.content is not None
    assert a.content.digest == b.content.digest


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("kind", ["qdq", "qoperator", "unusual"])
def test_a_kept_model_is_the_parsed_one(
    kind: str, ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "m.onnx", tmp_path / "cache"
    if kind == "unusual":
        onnx.save(unusual(producer_name="p"), path)
    else:
        shutil.copy(DIGITS / kind / "model.onnx", path)
    made, found = load(path), parses(monkeypatch)
    for _ in range(3):
        if ahead:
            read_ahead(str(path))
        equal(load_kept(path, cache), made)
    assert found == [str(path)]


def test_what_is_no_file_or_not_kept_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = DIGITS / "qdq" / "model.onnx"
    found = parses(monkeypatch)
    load_kept(path, False)
    load_kept(path.read_bytes(), tmp_path / "cache")
    assert len(found) == 2
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))


def test_a_model_with_external_data_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = tmp_path / "m.onnx", parses(monkeypatch)
    proto = unusual()
    kept = proto.graph.initializer[0]
    onnx.external_data_helper.set_external_data(kept, "weights")
    (tmp_path / "weights").write_bytes(kept.raw_data)
    kept.ClearField("raw_data")
    path.write_bytes(proto.SerializeToString())
    before = load_kept(path, tmp_path / "cache").constants["w"]
    (tmp_path / "weights").write_bytes(bytes(before.nbytes))
    assert not load_kept(path, tmp_path / "cache").constants["w"].any()
    assert len(found) == 2


def test_a_changed_or_damaged_file_is_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = tmp_path / "m.onnx", tmp_path / "cache"
    proto = unusual()
    onnx.save(proto, path)
    load_kept(path, cache)
    found = parses(monkeypatch)
    data = bytearray(path.read_bytes())
    at = data.index(np.arange(-3000, -2900, dtype=np.float32).tobytes())
    data[at + 4000] ^= 1
    path.write_bytes(data)
    equal(load_kept(path, cache), load(path))
    assert len(found) == 1, "another weight"
    for image in cache.glob(f"*{SUFFIX}"):
        body = bytearray(image.read_bytes())
        body[len(body) // 2] ^= 16
        image.write_bytes(body)
    equal(load_kept(path, cache), load(path))
    assert len(found) == 2, "a damaged image"
    monkeypatch.setattr("qrun.running.kept.versions.version", lambda: "another")
    equal(load_kept(path, cache), load(path))
    assert len(found) == 3, "other sources"


def test_a_file_that_is_read_ahead_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(unusual(), path)
    read_ahead(str(path))
    path.unlink()
    assert load_kept(path, tmp_path / "cache").constants["w"].shape == (60, 100)
    with pytest.raises(qrun.CallError, match="cannot read"):
        load_kept(path, tmp_path / "cache")
    read_ahead(str(path))  # there is nothing
    read_ahead(str(tmp_path))
    (tmp_path / "text").write_text("no model")
    read_ahead(str(tmp_path / "text"))
    with pytest.raises(qrun.ModelError):
        load_kept(tmp_path / "text", tmp_path / "cache")
