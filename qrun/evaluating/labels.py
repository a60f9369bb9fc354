"""The right class of each sample: its number, or, where a model returns texts, its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qrun.errors import CallError
from qrun.io.arrays import bad_file
from qrun.io.rows import row_files
from qrun.ir import Array, Model
from qrun.ir.types import describe
from qrun.memory import Budget

Label = int | str
_NUMBER = "the number of the right class for each sample, 0, 1, 2 ..."
_HOW = "write the place of each sample's class among the model's scores in place of its name"


def are_names(model: Model) -> bool:
    """Are the labels of this model's samples names of classes? So they are where its first output is of texts."""
    first = next(iter(model.outputs), None)
    return first is not None and first.dtype is not None and first.dtype.kind == "O"


def as_label(value: Any, names: bool) -> Label:
    """A label that Python gives. names: see `are_names`; without them what is no class number raises CallError."""
    plain = value.item() if hasattr(value, "item") else value
    if names:
        return str(plain)
    try:
        number = int(plain)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(plain, str) or number != plain:
        raise CallError(
            "QR003", "a label is no class number", facts=[("expected", _NUMBER), ("got", repr(plain))], fixes=[_HOW]
        )
    return number


def as_labels(values: Sequence[Any] | Array, names: bool) -> Array:
    """Labels that Python gives, as int64 or, of names, str [samples]. Raises CallError as `as_label`."""
    found = [as_label(value, names) for value in np.asarray(values).reshape(-1)]
    return np.array(found, object if names else np.int64)


def read_labels(path: str, names: bool, budget: Budget) -> Array:
    """int64, or of names str, [samples]: of a .npy file, or of a text file with one in each line. Raises CallError."""
    if path.lower().endswith((".npy", ".npz")):
        found = row_files(Path(path), budget)
        if len(found) != 1:
            raise bad_file(path, f"{len(found)} arrays", "one array of labels")
        file = next(iter(found.values()))
        labels = file.read(0, len(file))
        if labels.dtype.kind not in ("iuU" if names else "iu") or labels.size != len(labels):
            raise bad_file(path, describe(labels), "a name for each sample" if names else _NUMBER, fix=_fix(labels))
        return as_labels(labels, names)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise bad_file(path, str(error), "a label for each sample, in a .npy file or line by line") from None
    if names:
        return as_labels([line.strip() for line in text.splitlines() if line.strip()], names)
    found_numbers = []
    for word in text.split():
        try:
            found_numbers.append(int(word))
        except ValueError:
            raise bad_file(path, repr(word), _NUMBER, fix=_HOW) from None
    return np.array(found_numbers, np.int64)


def _fix(labels: Array) -> str:
    return _HOW if labels.dtype.kind == "U" else "np.save(path, labels.astype(np.int64)), one for each sample"
