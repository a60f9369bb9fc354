"""The committed models: their recorded outputs, their accuracy, and that the script makes the same files again."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import assert_equal
from onnx import numpy_helper

import qrun

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"
SETS = sorted(MODELS.glob("**/test_data_set_*"))
FLOAT = ("digits/float", "digits/qdq", "digits/dynamic")
PINNED = {"onnx": "1.23.2", "onnxruntime": "1.32.0"}
sys.path.insert(0, str(ROOT / "scripts"))

Array = np.ndarray[Any, Any]


def recorded(folder: Path, role: str) -> list[Array]:
    paths = sorted(folder.glob(f"{role}_*.pb"))
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


def name(folder: Path) -> str:
    return folder.relative_to(MODELS).as_posix()


@pytest.mark.parametrize("folder", SETS, ids=name)
def test_recorded_outputs(folder: Path) -> None:
    session = qrun.Session(folder.parent / "model.onnx")
    feeds = dict(zip((v.name for v in session.inputs), recorded(folder, "input"), strict=True))
    wanted = recorded(folder, "output")
    for got, want in zip(session.run(feeds).values(), wanted, strict=True):
        if name(folder.parent) in FLOAT:
            close(got, want)
        else:
            assert_equal(got, want, name(folder))


def close(got: Array, want: Array) -> None:
    """As near as another processor's float32 sums may bring it: a few steps of 8 bits, and the same digits."""
    assert got.dtype == want.dtype
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
    assert (got.argmax(1) == want.argmax(1)).all()


def test_models_are_small() -> None:
    assert len(SETS) >= 30
    assert sum(p.stat().st_size for p in MODELS.rglob("*") if p.is_file()) < 1_000_000


@pytest.mark.parametrize("form", ["float", "qoperator", "qdq", "dynamic"])
def test_accuracy_on_held_back_images(form: str) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, whose digits these are, is not installed")
    import _digits

    _, _, images, labels = _digits.digits()
    session = qrun.Session(MODELS / "digits" / form / "model.onnx")
    (logits,) = session.run({"images": images}).values()
    right = int((logits.argmax(1) == labels).sum())
    assert len(labels) == 359
    assert right == 355 if form == "qoperator" else right >= 352


def test_script_makes_the_same_files() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    found = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    if found != PINNED:
        pytest.skip(f"models/ is made with {PINNED}, this is {found}")
    import make_models

    made = make_models.make()
    committed = {p.relative_to(MODELS).as_posix(): p.read_bytes() for p in MODELS.rglob("*") if p.is_file()}
    assert sorted(made) == sorted(committed)
    different = sorted(path for path in made if made[path] != committed[path])
    for path in different:
        if path == "README.md":
            assert without_onnxruntime(made[path]) == without_onnxruntime(committed[path])
        else:
            assert path.startswith(FLOAT), path
            assert path.endswith("output_0.pb"), path
            close(*(numpy_helper.to_array(onnx.load_tensor_from_string(files[path])) for files in (made, committed)))


def without_onnxruntime(text: bytes) -> list[str]:
    """The README without the last column, which is another program's and depends on the processor."""
    return [line.rsplit("|", 2)[0] if line.startswith("| `digits/") else line for line in text.decode().splitlines()]


def test_training_does_not_depend_on_the_machine() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    import _digits

    digest = hashlib.sha256()
    for parameter, values in _digits.train(epochs=1).items():
        digest.update(parameter.encode() + values.astype("<f8").tobytes())
    assert digest.hexdigest() == "94db21e3abee0dc356a70ec50f604336073a9253d7ea2eae3890bf9ff77c5816"
