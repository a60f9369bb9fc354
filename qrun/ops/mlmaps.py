"""Maps of ai.onnx.ml: ZipMap and CastMap, which onnx.reference has not, and DictVectorizer, to whose result it gives
another type where a key is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir.compound import Compound, maps
from qrun.ir.schema import ML
from qrun.ir.types import MAP, shape_text, type_name
from qrun.ops._op import Array, Context, misfit, one_of, op, refuse

_TEXT: np.dtype[Any] = np.dtype(object)
_LONGEST = 64
"""Characters of a number that is written as text, at most, in bytes of a Python string."""


@op("ZipMap", since=1, domain=ML, types={"T": ("float", "X")}, compounds="makes")
def zip_map(
    X: Array,
    *,
    classlabels_int64s: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    ctx: Context,
) -> Array:
    """A sequence of maps, one for each row of X [N,C] or [C]: from the C labels to the row's numbers.

    Exactly one list of labels is given. Raises OperatorError for another number of them, for labels that come twice and
    for another rank.
    """
    names = "classlabels_int64s", "classlabels_strings"
    keys = ctx.memo.once("keys", lambda: _keys(classlabels_int64s, classlabels_strings, names))
    if X.ndim not in (1, 2):
        raise misfit("X has another rank", "X", "[N,C] or [C]", X)
    if X.shape[-1] != keys.size:
        what = f"{keys.size} labels for rows of {X.shape[-1]}"
        raise misfit(what, "X", f"{keys.size} columns", shape_text(X.shape))
    if ctx.memo.once("different", lambda: len(set(keys.tolist()))) < keys.size:
        raise refuse("a label comes twice", "classlabels", "different labels", f"{keys.size} labels", code="QR204")
    return maps(keys.copy(), X.reshape(-1, keys.size) if X.ndim == 2 else X[None])


def _keys(numbers: Sequence[int] | None, words: Sequence[str] | None, names: tuple[str, str]) -> Array:
    """Whichever of the two lists is given, as an array; refuses both, and none."""
    if bool(numbers) == bool(words):
        got = "both" if numbers else "neither"
        raise refuse(f"{names[0]} and {names[1]}: {got} given", names[0], "one of them", got, code="QR204")
    return np.array(numbers, np.int64) if numbers else np.array(words, _TEXT)


@op("DictVectorizer", since=1, domain=ML, compounds="makes")
def dict_vectorizer(
    X: Array,
    *,
    int64_vocabulary: tuple[int, ...] | None = None,
    string_vocabulary: tuple[str, ...] | None = None,
    ctx: Context,
) -> Array:
    """The numbers, or texts, of the map X in the order of the vocabulary:
    [1,n] of the values' type, as onnxruntime shapes it.

    0, or an empty text, where X has no such key; keys that the vocabulary lacks are left out.
    Exactly one vocabulary is given, of the keys' type. Raises OperatorError where it is not.
    """
    keys, values = _map(X)
    names = "int64_vocabulary", "string_vocabulary"
    words = ctx.memo.once("words", lambda: _keys(int64_vocabulary, string_vocabulary, names))
    if words.dtype != keys.dtype:
        name = "int64_vocabulary" if words.dtype == np.int64 else "string_vocabulary"
        raise refuse(f"the keys are {type_name(keys.dtype)}", name, f"{type_name(keys.dtype)} keys", name, code="QR203")
    ctx.claim((1, words.size), values.itemsize)
    found = dict(zip(keys.tolist(), values.tolist(), strict=True))
    none: Any = "" if values.dtype == _TEXT else 0
    return np.array([[found.get(word, none) for word in words.tolist()]], values.dtype)


@op("CastMap", since=1, domain=ML, compounds="makes")
def cast_map(X: Array, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1, ctx: Context) -> Array:
    """The values of the map X by rising key, [1,n]: float32, int64 or text, as cast_to says.

    With map_form SPARSE [1,max_map], each value in the place that its key names, and 0 or an empty text between them.
    Texts are read as numbers, floats become integers towards 0, and texts of six decimals. Keys are int64.
    Raises OperatorError for other keys and attributes, a key outside 0 to max_map - 1,
    and a text that is no such number.
    """
    keys, values = _map(X)
    targets: dict[str, np.dtype[Any]] = {
        "TO_FLOAT": np.dtype(np.float32),
        "TO_INT64": np.dtype(np.int64),
        "TO_STRING": _TEXT,
    }
    one_of("cast_to", cast_to, targets)
    one_of("map_form", map_form, ("DENSE", "SPARSE"))
    if keys.dtype != np.int64:
        raise refuse(f"the keys are {type_name(keys.dtype)}", "X", "int64 keys", type_name(keys.dtype), code="QR203")
    order = np.argsort(keys, kind="stable")
    target, sparse = targets[cast_to], map_form == "SPARSE"
    ctx.claim((1, max(max_map, 0) if sparse else keys.size), _LONGEST if target == _TEXT else target.itemsize)
    made = [_cast(value, target) for value in values[order].tolist()]
    if not sparse:
        return np.array([made], target).reshape(1, keys.size)
    if max_map < 1 or (keys.size and not (keys.min() >= 0 and keys.max() < max_map)):
        raise refuse("a key is outside the map", "max_map", f"keys from 0 to {max_map - 1}", str(keys.tolist()[:12]))
    full = np.zeros((1, max_map), target)
    if target == _TEXT:
        full[...] = ""
    full[0, keys[order]] = made
    return full


def _cast(value: float | str, target: np.dtype[Any]) -> Any:
    try:
        if target == _TEXT:
            return value if isinstance(value, str) else f"{value:f}"
        if target == np.int64:
            return np.int64(int(value))
        with np.errstate(all="ignore"):
            return np.float32(float(value))
    except (ValueError, OverflowError):
        raise refuse("a value has no such number", "X", type_name(target), repr(value)[:60]) from None


def _map(value: Array) -> tuple[Array, Array]:
    if not isinstance(value, Compound) or value.dtype != MAP or value.ndim:
        raise refuse("X is no map", "X", "a map", type_name(value.dtype), code="QR203")
    keys, values = value.elements
    return keys, values
