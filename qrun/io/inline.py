"""Parses input values written on the command line: ``ids=[[101,2023,102]]``."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qrun.errors import CallError
from qrun.io import fitting
from qrun.ir import Array, Model, TensorType
from qrun.ir.compound import empty_optional, sequence, wrap_value
from qrun.ir.types import integer_range, type_name
from qrun.shapes import MOST_AXES


def shorten(text: str, size: int = 40) -> str:
    """The beginning of a text."""
    return text if len(text) <= size else text[: size - 3] + "..."


NOTHING: Any = object()


def parse(text: str, objects: bool = False) -> Any:
    """The JSON value in the text, or NOTHING if it names a file. Raises CallError for a list that is not JSON.

    objects: do objects and null count as values?
    """
    if text == "-" or Path(text).suffix in (".npy", ".npz", ".pb"):
        return NOTHING
    try:
        value = json.loads(text)
    except RecursionError:
        return _too_deep()
    except json.JSONDecodeError as error:
        if text.startswith("[") and not os.path.exists(text):
            raise _not_json(text, error) from None
        return NOTHING
    except ValueError:
        return NOTHING
    return NOTHING if not objects and (isinstance(value, dict) or value is None) else value


def _not_json(text: str, error: json.JSONDecodeError) -> CallError:
    """The QR005 error of an inline value that is not JSON."""
    ends = error.pos >= len(text.rstrip())
    return CallError(
        "QR005",
        f"{shorten(text)} is {'incomplete JSON' if ends else 'not JSON'}, and no file has that name",
        facts=[
            ("expected", "a list such as [[1,2],[3,4]]"),
            (
                "got",
                "the end of the text inside the list" if ends else f"{shorten(text[error.pos :], 20)!r}: {error.msg}",
            ),
        ],
        fixes=["close every bracket, and quote the whole list for the shell"]
        if ends
        else ["""quote strings in the list, and quote the whole list for the shell: -i 'x=["a","b"]'"""]
        if text[error.pos].isalpha()
        else [],
    )


def _too_deep() -> Any:
    """A replacement for a list nested too deep for Python to parse: a list that `to_array` refuses."""
    data: Any = []
    for _ in range(MOST_AXES):
        data = [data]
    return data


class _Unfit(Exception):
    """Raised for JSON that does not fit an input. got: what was given; fix: what helps."""

    def __init__(self, got: str, fix: str = "") -> None:
        super().__init__(got)
        self.got, self.fixes = got, [fix] if fix else []


def to_value(model: Model, stated: TensorType, data: Any, text: str) -> Array:
    """Convert JSON to an input's value: as `to_array`, but also lists of tensors, objects as maps,
    and null as an absent optional value."""
    held = stated.element and replace(stated.element, name=stated.name)
    if stated.kind == "optional" and held is not None:
        return empty_optional() if data is None else to_value(model, held, data, text)
    if stated.kind == "sequence" and held is not None and held.kind == "tensor" and isinstance(data, list):
        return sequence([to_array(model, held, item, text) for item in data], held.dtype)
    if stated.kind == "tensor":
        return to_array(model, stated, data, text)
    return wrap_value(_convert_keys(data, stated), stated)


def _convert_keys(data: Any, stated: TensorType) -> Any:
    """JSON objects with the keys of this map type: JSON keys are strings, so integer keys are converted."""
    if isinstance(data, list) and stated.element is not None:
        return [_convert_keys(row, stated.element) for row in data]
    if not isinstance(data, dict) or stated.key is None or stated.key.kind not in "iu":
        return data
    return {_integer(key): value for key, value in data.items()}


def _integer(key: str) -> int | str:
    """The integer, if the key is its usual decimal form (no plus sign, no leading zeros); else the key itself."""
    try:
        return int(key) if str(int(key)) == key else key
    except ValueError:
        return key


def to_array(model: Model, value: TensorType, data: Any, text: str) -> Array:
    """Convert JSON to an array of the input's type: integers to any integer type that holds them, numbers to floats.
    Raises CallError if it does not fit."""
    try:
        flat: list[Any] = []
        shape = _json_shape(data, flat)
        if value.dtype is None:
            raise _Unfit("JSON for an input whose type the model does not state", "give a .npy file")
        if shape is None:
            raise _Unfit("a list with rows of different lengths", "every row needs the same number of elements")
        if len(shape) > MOST_AXES:
            raise _Unfit(f"a list nested {len(shape)} deep", f"an array has at most {MOST_AXES} axes")
        if value.dtype == bool and set(flat) <= {0, 1} and {type(item) for item in flat} - {bool}:
            truths = np.array(flat, bool).reshape(shape).tolist()
            raise _Unfit(
                "0 and 1, not true and false",
                fitting.option(value.name, truths) if len(flat) <= fitting.MOST_WRITTEN else "write true and false",
            )
        return _flat_array(value.dtype, flat).reshape(shape)
    except RecursionError:
        return to_array(model, value, _too_deep(), text)
    except _Unfit as error:
        what = f"{shorten(text)} does not fit input {value.name!r}"
        where = [model.label, f"input {value.name}"]
        facts = [("expected", str(value)), ("got", error.got)]
        raise CallError("QR003", what, where=where, facts=facts, fixes=error.fixes) from None


def _flat_array(dtype: np.dtype[Any], flat: list[Any]) -> Array:
    """Values of an inline list as an array. Raises _Unfit if they do not fit the type."""
    kinds = {type(item) for item in flat}
    if dtype.kind == "O":
        if kinds - {str}:
            raise _Unfit("values that are not text")
        array: Array = np.empty(len(flat), object)
        array[:] = flat
        return array
    if dtype.kind == "b":
        if kinds - {bool}:
            raise _Unfit("values other than true and false")
        return np.array(flat, bool)
    if kinds - {int, float}:
        raise _Unfit("values that are not numbers")
    if dtype.kind == "c":
        raise _Unfit("JSON, which has no complex numbers", "give a .npy file")
    return _integer_array(dtype, flat) if "int" in type_name(dtype) else _floats(dtype, flat)


def _integer_array(dtype: np.dtype[Any], flat: list[Any]) -> Array:
    """Integers as an array. Raises _Unfit if they do not fit the type."""
    low, high = integer_range(dtype)
    wrong = next((v for v in flat if type(v) is not int or not low <= v <= high), None)
    if wrong is not None:
        raise _Unfit(str(wrong), f"{type_name(dtype)} holds whole numbers from {low} to {high}")
    return np.array(flat, np.uint64 if dtype == np.uint64 else np.int64).astype(dtype)


def _floats(dtype: np.dtype[Any], flat: list[Any]) -> Array:
    """Numbers as an array. Raises _Unfit if they do not fit the type."""
    try:
        wide = np.array([float(v) for v in flat], np.float64)
    except OverflowError:
        raise _Unfit("a number beyond float64") from None
    with np.errstate(all="ignore"):
        array = wide.astype(dtype)
        if (np.isfinite(wide) & ~np.isfinite(array.astype(np.float64))).any():
            raise _Unfit(f"a number that {type_name(dtype)} cannot hold")
    return np.asarray(array)


def _json_shape(data: Any, flat: list[Any]) -> tuple[int, ...] | None:
    """The shape of nested lists, None if they are ragged. Appends their items to `flat`."""
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
