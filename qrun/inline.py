"""Values written on the command line: ``ids=[[101,2023,102]]``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from qrun.arrays import integer_range
from qrun.errors import CallError
from qrun.ir import Array, Model, TensorType
from qrun.ir.types import type_name


def cut(text: str, size: int = 40) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."


NOTHING: Any = object()


def parse(text: str) -> Any:
    """The JSON value in the text, or NOTHING if it names a file."""
    if text == "-" or Path(text).suffix in (".npy", ".npz", ".pb"):
        return NOTHING
    try:
        value = json.loads(text)
    except RecursionError:
        return [[]]
    except ValueError:
        return NOTHING
    return NOTHING if isinstance(value, dict) or value is None else value


def to_array(model: Model, value: TensorType, data: Any, text: str) -> Array:
    """JSON numbers as the input's type: integers into any integer type that holds them, any number into floats."""

    def refuse(got: str, fix: str = "") -> CallError:
        return CallError(
            "QR003",
            "input-mismatch",
            f"{cut(text)} does not fit input {value.name!r}",
            where=[model.label, f"input {value.name}"],
            facts=[("expected", str(value)), ("got", got)],
            fixes=[fix] if fix else [],
        )

    dtype = value.dtype
    if dtype is None:
        raise refuse("JSON for an input whose type the model does not state", "give a .npy file")
    flat: list[Any] = []
    shape = _json_shape(data, flat)
    if shape is None:
        raise refuse("a list with rows of different lengths", "every row needs the same number of elements")
    kinds = {type(item) for item in flat}
    name = type_name(dtype)
    if dtype.kind == "O":
        if kinds - {str}:
            raise refuse("values that are not text")
        array = np.empty(len(flat), object)
        array[:] = flat
        return array.reshape(shape)
    if dtype.kind == "b":
        if kinds - {bool}:
            raise refuse("values other than true and false")
        return np.array(flat, bool).reshape(shape)
    if kinds - {int, float}:
        raise refuse("values that are not numbers")
    if "int" in name:
        low, high = integer_range(dtype)
        wrong = next((v for v in flat if type(v) is not int or not low <= v <= high), None)
        if wrong is not None:
            raise refuse(str(wrong), f"{name} holds whole numbers from {low} to {high}")
        return np.array(flat, np.uint64 if dtype == np.uint64 else np.int64).astype(dtype).reshape(shape)
    if dtype.kind == "c":
        raise refuse("JSON, which has no complex numbers", "give a .npy file")
    try:
        wide = np.array([float(v) for v in flat], np.float64)
    except OverflowError:
        raise refuse("a number beyond float64") from None
    with np.errstate(all="ignore"):
        array = wide.astype(dtype)
        if (np.isfinite(wide) & ~np.isfinite(array.astype(np.float64))).any():
            raise refuse(f"a number that {name} cannot hold")
    return array.reshape(shape)


def _json_shape(data: Any, flat: list[Any]) -> tuple[int, ...] | None:
    """The shape of nested lists, their items appended to `flat`; None if ragged."""
    if not isinstance(data, list):
        flat.append(data)
        return ()
    shapes = {_json_shape(item, flat) for item in data}
    if not shapes:
        return (0,)
    if len(shapes) > 1 or None in shapes:
        return None
    (inner,) = shapes
    assert inner is not None
    return (len(data), *inner)
