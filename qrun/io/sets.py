"""Groups the SPECs of ``--inputs`` into sets of inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from qrun.io import polygraphy
from qrun.io.inputs import IMAGES, split_name
from qrun.ir import Model

_ARRAYS = (".npy", ".pb", *IMAGES)


def input_sets(model: Model, specs: Sequence[str]) -> list[tuple[str, ...]]:
    """The specs of each set, in order. Several specs are one set each if each gives all inputs; otherwise all specs are
    one set.

    A folder means the folders in it that have an input_0.pb; if there are none, its .npz files; if there are none
    either, and the model has one input, its .npy and .pb files (except output_*) and its images.
    """
    parts = [part for spec in specs for part in _members(model, spec)]
    if len(parts) > 1 and all(_gives_all_inputs(model, part) for part in parts):
        return [(part,) for part in parts]
    return [tuple(specs)]


def _members(model: Model, spec: str) -> list[str]:
    """The sets in a folder, sorted naturally by name; for other specs, the spec itself."""
    folder = Path(spec)
    if folder.suffix.lower() == ".json" and folder.is_file():
        count = len(polygraphy.parse(spec))
        return [spec] if count == 1 else [f"{spec}[{number}]" for number in range(count)]
    if split_name(model, spec)[0] or spec == "-" or not folder.is_dir() or (folder / "input_0.pb").exists():
        return [spec]
    inside = sorted(
        folder.iterdir(), key=lambda path: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", path.name)]
    )
    for kind in (_is_set, _is_archive, _is_array):
        if (kind is not _is_array or len(model.inputs) == 1) and (
            found := [str(path) for path in inside if kind(path)]
        ):
            return found
    return [spec]


def _is_set(path: Path) -> bool:
    """Whether a folder holds the inputs of one sample."""
    return (path / "input_0.pb").exists()


def _is_archive(path: Path) -> bool:
    """Whether a file is an .npz archive."""
    return path.suffix.lower() == ".npz"


def _is_array(path: Path) -> bool:
    """Whether a file is an array that can be an input."""
    return path.suffix.lower() in _ARRAYS and not path.name.startswith("output_")


def _gives_all_inputs(model: Model, spec: str) -> bool:
    """Does this spec give every input of the model?"""
    if spec == "-" or split_name(model, spec)[0]:
        return False
    path = Path(spec)
    if polygraphy.TURN.fullmatch(spec):
        return True
    if path.suffix.lower() != ".npz":
        return _is_set(path) or (len(model.inputs) == 1 and path.suffix.lower() in _ARRAYS)
    try:
        with ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, BadZipFile):
        return False
    return names >= {value.name for value in model.inputs}
