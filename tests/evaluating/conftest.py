"""Samples for evaluations: scikit-learn's digits, as the committed models take them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from helpers.cli import ROOT

from qrun.ir import Array

MODELS = ROOT / "models" / "digits"


class Digits(NamedTuple):
    folder: Path
    images: Array
    labels: Array

    @property
    def options(self) -> list[str]:
        return ["-i", str(self.folder / "x.npy"), "--labels", str(self.folder / "y.npy")]


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """All 1,797 images and their labels, in x.npy and y.npy."""
    from sklearn.datasets import load_digits

    data, folder = load_digits(), tmp_path_factory.mktemp("digits")
    images = (data.images[:, None] / 16).astype(np.float32)
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", data.target)
    return Digits(folder, images, data.target)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
