"""Large tensors of external data: read when they are needed, not held, and never from a file that has changed."""

from __future__ import annotations

import gc
import os
import pickle
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import qrun
from qrun.declare.stored import Reloadable, StoredArray, StoredConstants, parts
from qrun.errors import ModelError
from qrun.ir import external

FORMS = {
    "float": ("MatMul(x, w)", {"w": (np.float32, (512, 1025))}),
    "int8": ("MatMulInteger(q, w, zero)", {"w": (np.int8, (512, 2051))}),
    "4 bits": (
        "com.microsoft.MatMulNBits<K = 512, N = 16392, bits = 4, block_size = 32>(x, w, s)",
        {"w": (np.uint8, (16392, 16, 16)), "s": (np.float32, (16392 * 16,))},
    ),
}


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are as old as if their last change were long ago."""
    monkeypatch.setattr(external, "_TICK", -(1 << 62))


def saved(path: Path, form: str = "float", files: str = "weights") -> Path:
    """A model with external data at this path."""
    rng, (call, stored) = np.random.default_rng(3), FORMS[form]
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> main (float[M, 512] x) => (y)'
    proto = onnx.parser.parse_model(f"{header} {{ q, scale, zero = DynamicQuantizeLinear(x) y = {call} }}")
    for name, (dtype, shape) in stored.items():
        values = rng.integers(-99, 99, shape).astype(dtype) if np.dtype(dtype).kind in "iu" else rng.normal(size=shape)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, dtype), name))
    onnx.save(proto, path, save_as_external_data=True, location=files)
    return path


def feeds(rows: int = 4) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).normal(size=(rows, 512)).astype(np.float32)}


def stored(session: qrun.Session) -> list[StoredArray]:
    return [part for part in parts(session.model.constants).values() if isinstance(part, StoredArray)]


def held(found: list[StoredArray]) -> bool:
    """Whether one of these is in memory for more than a moment."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        gc.collect()
        if not any(part._seen() is not None for part in found):
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("form", FORMS)
def test_packed_weights_are_not_held_as_they_were_stored(form: str, tmp_path: Path) -> None:
    """In a session that plans the model, in one that finds a program, and after runs of other shapes."""
    path = saved(tmp_path / "model.onnx", form)
    want = {rows: qrun.Session(onnx.load(path), cache=False).run(feeds(rows))["y"] for rows in (1, 4, 40)}
    for _ in range(2):
        with qrun.Session(path, cache=tmp_path / "cache") as session:
            found = stored(session)
            assert len(found) == len(FORMS[form][1])
            for rows in (4, 1, 40, 4):
                np.testing.assert_array_equal(session.run(feeds(rows))["y"], want[rows])
                session.run_observed(feeds(rows))
                assert not held(found)
    kept = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*.model"))
    assert kept < (tmp_path / "weights").stat().st_size // 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kept", [False, True])
def test_a_file_that_changes_is_named(form: str, kept: bool, tmp_path: Path) -> None:
    """Between loading and packing, and before weights are packed for other shapes."""
    path, weights = saved(tmp_path / "model.onnx", form), tmp_path / "weights"
    data = weights.read_bytes()
    if kept:
        with qrun.Session(path, cache=tmp_path / "cache") as session:
            session.run(feeds())
    for change in ("cut", "longer", "other bytes"):
        session = qrun.Session(path, cache=tmp_path / "cache")
        changed = {"cut": data[: len(data) // 2], "longer": data + b"x", "other bytes": bytes(len(data))}[change]
        weights.write_bytes(changed)
        os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
        for _ in range(2):
            with pytest.raises(ModelError) as caught:
                session.run(feeds())
            assert caught.value.code == "QR104"
            assert "'w'" in str(caught.value) or "'s'" in str(caught.value)
            assert "weights in the folder" in str(caught.value)
            assert "a file that has changed since the model was loaded" in str(caught.value)
        weights.write_bytes(data)


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    path, weights = saved(tmp_path / "model.onnx"), tmp_path / "weights"
    times, session = weights.stat(), qrun.Session(path, cache=tmp_path / "cache")
    while weights.stat().st_ctime_ns == times.st_ctime_ns:
        weights.write_bytes(bytes(times.st_size))
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ModelError, match="'w'"):
        session.run(feeds())


@pytest.mark.parametrize("event", ["removed", "replaced", "linked"])
def test_a_file_that_loses_its_name_is_still_there(event: str, tmp_path: Path) -> None:
    path, weights = saved(tmp_path / "model.onnx"), tmp_path / "weights"
    want = qrun.Session(onnx.load(path), cache=False).run(feeds())["y"]
    session = qrun.Session(path, cache=tmp_path / "cache")
    if event == "linked":
        os.link(weights, tmp_path / "other")
    elif event == "removed":
        weights.unlink()
    else:
        (tmp_path / "other").write_bytes(bytes(weights.stat().st_size))
        os.replace(tmp_path / "other", weights)
    np.testing.assert_array_equal(session.run(feeds())["y"], want)


def test_files_that_just_changed_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "_TICK", 1 << 62)
    path = saved(tmp_path / "model.onnx")
    session = qrun.Session(path, cache=tmp_path / "cache")
    assert not stored(session)
    want = session.run(feeds())["y"]
    (tmp_path / "weights").write_bytes(b"")
    assert session.run(feeds(5))["y"].shape == (5, *want.shape[1:])


def test_few_files_stay_open(tmp_path: Path) -> None:
    values = np.zeros((512, 513), np.float32)
    names = [f"w{place}" for place in range(external._OPEN + 3)]
    for name in names:
        values[:] = float(name[1:])
        values.tofile(tmp_path / name)
    found = external.External(tmp_path)
    fills = [found.read_later(name, name, 0, values.nbytes) for name in names]
    assert [fill is not None for fill in fills] == [True] * external._OPEN + [False] * 3
    assert found.read_later(names[0], "again", 0, values.nbytes), "the same bytes"
    assert not found.read_later(names[0], "overlapping", 4, values.nbytes - 4)
    handles = [file.open._handle for file in found.files.values() if file.open is not None]
    assert len({os.fstat(handle).st_ino for handle in handles}) == external._OPEN
    del found, fills
    gc.collect()
    for handle in handles:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


def counted(shape: tuple[int, ...] = (4, 6)) -> tuple[StoredArray, list[int]]:
    """A stored array of numbers in order, and a list that grows with each time it is read."""
    reads: list[int] = []

    def fill(block: memoryview) -> None:
        reads.append(len(block))
        block[:] = np.arange(np.prod(shape), dtype=np.int32).tobytes()

    return StoredArray(np.dtype(np.int32), shape, fill), reads


def test_constants_are_held_once_they_were_asked_for() -> None:
    part, reads = counted()
    constants = StoredConstants({"w": part, "b": np.ones(2)})
    assert list(constants) == ["w", "b"]
    assert "w" in constants
    assert len(constants) == 2
    assert not reads
    for _ in range(2):
        assert part.read().sum() == 276
    assert len(reads) == 2, "nobody held it"
    assert constants["w"] is constants["w"] is part.read()
    assert len(reads) == 3
    assert not constants["w"].flags.writeable
    assert {name: array.tolist() for name, array in pickle.loads(pickle.dumps(constants)).items()} == {
        name: array.tolist() for name, array in constants.items()
    }


def test_views_of_what_is_stored_are_read_again() -> None:
    views = [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[1:, ::2],
        lambda a: a.reshape(2, 12)[:, 3:].T,
        lambda a: a[:, :4].view(np.uint8),
        lambda a: np.lib.stride_tricks.as_strided(a[1:], (2, 2), (4, 24)),
        lambda a: np.broadcast_to(a[0], (3, 6)),
    ]
    for view in views:
        part, reads = counted()
        want = view(part.read()).tolist()
        lent = Reloadable(view(part.read()))
        del reads[:]
        assert lent.stored is part
        assert lent.array.tolist() == want
        assert lent.array.dtype == lent.dtype
        assert len(reads) == 2
        assert lent.key == Reloadable(view(part.read())).key
    own = np.arange(3)
    assert Reloadable(own).array is own
    assert Reloadable(own[1:]).stored is None
