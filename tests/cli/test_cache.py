"""``qrun cache``: what is kept is shown, listed and removed, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.cli import ROOT, call
from helpers.native import ISAS

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
MODEL = ROOT / "models" / "digits" / "qdq" / "model.onnx"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which something is kept."""
    monkeypatch.setenv("QRUN_CACHE_DIR", str(tmp_path / "kept"))
    assert call(MODEL, "-i", MODEL.parents[1] / "x.npy").code == 0
    return tmp_path / "kept"


def test_kinds_and_sizes_are_shown(kept: Path) -> None:
    shown = call("cache")
    files = list(kept.iterdir())
    assert str(kept) in shown.out
    assert "of at most 512.0 MiB" in shown.out
    assert "models" in shown.out
    assert files[0].name not in shown.out
    told = call("cache", "--json").json
    assert told["bytes"] == sum(file.stat().st_size for file in files)
    assert {entry["name"] for entry in told["files"]} == {file.name for file in files}
    assert "others" not in told["kinds"]
    assert told["limit_bytes"] == 512 << 20


def test_files_are_listed_those_used_last_first(kept: Path) -> None:
    files = sorted(kept.iterdir())
    for age, file in enumerate(files):
        os.utime(file, (file.stat().st_mtime - 100 * age,) * 2)
    lines = call("cache", "--list").out.splitlines()
    assert [line.split()[0] for line in lines[-len(files) :]] == [file.name for file in files]
    assert "a moment ago" in lines[-len(files)]
    narrow = call("cache", "--list", env={"COLUMNS": "80"}).out.splitlines()
    assert max(map(len, narrow[-len(files) :])) <= 80
    assert files[0].name[:8] in narrow[-len(files)]


def test_clearing_leaves_the_files_of_others(kept: Path) -> None:
    other = kept / "notes.txt"
    other.write_text("mine")
    unfinished = kept / f".new-{'0' * 16}"
    unfinished.write_text("")
    os.utime(unfinished, (0, 0))
    size = call("cache", "--json").json["bytes"]
    told = call("cache", "--clear", "--json").json
    assert (told["removed_bytes"], told["bytes"], told["files"]) == (size, 0, [])
    assert list(kept.iterdir()) == [other]
    assert call(MODEL, "-i", MODEL.parents[1] / "x.npy").code == 0
    assert call("cache", "--json").json["bytes"] > 0


def test_a_folder_that_is_open_to_others_is_named_and_left(kept: Path) -> None:
    kept.chmod(0o755)
    before = sorted(kept.iterdir())
    told = call("cache", "--clear")
    assert told.code == 0
    assert "not used: it is open to other users" in told.out
    assert sorted(kept.iterdir()) == before
