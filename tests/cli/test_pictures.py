"""Screens at three widths, in colour, are the pictures that were looked at."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from helpers.pictures import COMMANDS, FOLDER, WIDTHS, every, made_with, picture, texts


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from screens import fill

    folder = tmp_path_factory.mktemp("pictures")
    fill(folder)
    return folder


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_is_its_picture(name: str, width: int, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its colours, where rich is the version that made the picture.
    ``cd tests; python -m helpers.pictures`` makes them."""
    monkeypatch.chdir(filled)
    kept = (FOLDER / f"{name}-{width}.svg").read_text("utf-8")
    made = picture(name, width)
    assert texts(made) == texts(kept)
    if made_with(kept) == version("rich"):
        assert made == kept


def test_there_are_no_other_pictures() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(path for _, _, path in every())


def test_pictures_load_nothing() -> None:
    for _, _, path in every():
        svg = path.read_text("utf-8")
        assert not any(sign in svg for sign in ("url(http", 'url("', "@import", "@font-face", "href"))
