"""Finds the files of targets that other installed packages bring, and imports none of these packages.

A package has entry points of the group `qrun.targets`: the name of a target, and the path of its file in the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from qrun.errors import CallError


def installed() -> Mapping[str, EntryPoint]:
    """The entry points of targets, by name."""
    return {point.name: point for point in entry_points(group="qrun.targets")}


def resource(point: EntryPoint) -> Path:
    """The file of an entry point: `package/folder/name.json`, or `package:folder/name.json`.

    Raises CallError QR017 if there is no such file in the package.
    """
    package, *rest = Path(point.value.replace(":", "/", 1)).parts
    spec = PathFinder.find_spec(package) if package.isidentifier() and ".." not in rest else None
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        path = Path(folder, *rest)
        if path.is_file():
            return path
    raise CallError(
        "QR017",
        f"the entry point {point.name} names no file",
        facts=[("expected", "package/folder/name.json"), ("got", point.value)],
        why="an entry point of qrun.targets names a file in the package that has it",
    )
