"""Operators of ai.onnx.ml that onnx.reference lacks or computes differently: it has no CategoryMapper, ZipMap and
CastMap; it does not find LabelEncoder's keys that are NaN; it changes the type of DictVectorizer's result if a key is
missing; and it takes Normalizer's MAX for the greatest magnitude."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir.compound import Compound, maps
from qrun.ir.schema import ML
from qrun.ir.types import MAP, shape_text, type_name
from qrun.ops._op import Array, Context, misfit, one_of, op, refuse
from qrun.ops._reduce import sum_over
from qrun.ops._shape import claim

_TEXT, _WHOLE, _SINGLE = np.dtype(object), np.dtype(np.int64), np.dtype(np.float32)
Floats = tuple[float, ...]
Ints = tuple[int, ...]
Texts = tuple[str, ...]


@op("LabelEncoder", since=1, domain=ML, types={"T": ("string int64", "X")})
def label_encoder_1(
    X: Array,
    *,
    classes_strings: Texts = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
    ctx: Context,
) -> Array:
    """Map a string to its position in classes_strings (int64), or a position to its string; else to the default.

    Source: ONNX-ML operators, LabelEncoder-1.
    """
    return _paired_values(X, range(len(classes_strings)), classes_strings, default_int64, default_string, ctx)


@op("CategoryMapper", since=1, domain=ML, types={"T1": ("string int64", "X")})
def category_mapper(
    X: Array,
    *,
    cats_int64s: Ints = (),
    cats_strings: Texts = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
    ctx: Context,
) -> Array:
    """Map a text in cats_strings to the number at the same position in cats_int64s, or such a number to its text.

    The default if there is none; of several the last one counts. Raises OperatorError for lists of other lengths.
    """
    if len(cats_int64s) != len(cats_strings):
        got = f"{len(cats_int64s)} and {len(cats_strings)}"
        raise refuse("cats_int64s and cats_strings differ in length", "cats_int64s", "one length", got, code="QR204")
    return _paired_values(X, cats_int64s, cats_strings, default_int64, default_string, ctx)


def _paired_values(x: Array, numbers: Sequence[int], texts: Texts, number: int, text: str, ctx: Context) -> Array:
    """The number paired with each text, or the text paired with each number; a default if it is not listed."""
    if x.dtype == _TEXT:
        return _look_up(x, texts, numbers, number, _WHOLE, ctx)
    return _look_up(x, numbers, texts, text, _TEXT, ctx)


@op("LabelEncoder", since=2, domain=ML, types={"T": ("string int64 float int32 int16 double", "X")})
def label_encoder(
    X: Array,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Floats | None = None,
    keys_int64s: Ints | None = None,
    keys_strings: Texts | None = None,
    keys_tensor: Array | None = None,
    values_floats: Floats | None = None,
    values_int64s: Ints | None = None,
    values_strings: Texts | None = None,
    values_tensor: Array | None = None,
    ctx: Context,
) -> Array:
    """The value at the place of each element among the keys, or the default of the values' type; of a key that is there
    twice the last. NaN is the key NaN. Keys have X's type; exact.

    Raises OperatorError for no keys or values, both forms of them, and lists of different length.
    Source: ONNX-ML operators, LabelEncoder-4.
    """
    keys, kind = _choose_list("keys", keys_tensor, keys_strings, keys_int64s, keys_floats)
    values, dtype = _choose_list("values", values_tensor, values_strings, values_int64s, values_floats)
    if len(keys) != len(values):
        expected = f"{len(keys)}, as keys"
        raise refuse("keys and values differ in number", "keys_tensor", expected, str(len(values)), code="QR204")
    if kind != X.dtype:
        raise refuse("keys have another type than X", "X", type_name(kind), type_name(X.dtype), code="QR203")
    default: Any = default_string if dtype == _TEXT else default_float if dtype.kind == "f" else default_int64
    if default_tensor is not None:
        default = default_tensor.reshape(-1)[0]
    return _look_up(X, keys, values, default, dtype, ctx)


def _choose_list(name: str, tensor: Array | None, *lists: Sequence[Any] | None) -> tuple[Sequence[Any], np.dtype[Any]]:
    """The one list that is given, of texts, integers or floats, or a tensor's elements, and their type."""
    kinds: tuple[np.dtype[Any], ...] = (_TEXT, _WHOLE, _SINGLE)
    given = [(v, kind) for v, kind in zip(lists, kinds, strict=True) if v is not None]
    given += [] if tensor is None else [(tensor.reshape(-1).tolist(), tensor.dtype)]
    if len(given) != 1:
        expected = f"one of {name}_strings, {name}_int64s, {name}_floats, {name}_tensor"
        got = str(len(given))
        raise refuse(f"there are {got} lists of {name}", f"{name}_tensor", expected, got, code="QR204")
    return given[0]


def _look_up(
    x: Array, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: np.dtype[Any], ctx: Context
) -> Array:
    """The value for each element that is among the keys (of several, the last), else the default."""
    table, missing = ctx.memo.once(("table", x.dtype), lambda: _table(keys, values, default))
    made = np.empty(claim(ctx, x.shape, dtype, "X"), dtype)
    known = x.reshape(-1).tolist()
    made.reshape(-1)[:] = [table.get(key, default) if key == key else missing for key in known]
    return made


def _table(keys: Sequence[Any], values: Sequence[Any], default: Any) -> tuple[dict[Any, Any], Any]:
    """The values by key, and the value of NaN."""
    pairs = list(zip(keys, values, strict=True))
    return dict(pairs), next((value for key, value in reversed(pairs) if key != key), default)


_LONGEST = 64
"""Bytes that a number written as text takes in a Python string, at most."""


@op("ZipMap", since=1, domain=ML, types={"T": ("float", "X")}, compounds="makes")
def zip_map(
    X: Array,
    *,
    classlabels_int64s: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    ctx: Context,
) -> Array:
    """Return a sequence of maps, one per row of X [N,C] or [C], from the C labels to the row's numbers.

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
    """The one of the two lists that is given, as an array; refuses both, and neither."""
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
    Exactly one vocabulary is given, of the keys' type. Raises OperatorError otherwise.
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
    """Return the values of the map X, sorted by key, as [1,n] of float32, int64 or text, as cast_to says.

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
    """A value in another type. Raises OperatorError if it has no such number."""
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
    """The keys and values of a map. Raises OperatorError for anything else."""
    if not isinstance(value, Compound) or value.dtype != MAP or value.ndim:
        raise refuse("X is not a map", "X", "a map", type_name(value.dtype), code="QR203")
    keys, values = value.elements
    return keys, values


@op("Normalizer", since=1, domain=ML, types={"T": ("float double int64 int32", "X")})
def normalizer(X: Array, *, norm: str = "MAX", ctx: Context) -> Array:
    """Rows [N,C] or [C] divided by their greatest element (MAX),
    the sum of |x| (L1) or sqrt of the sum of x**2 (L2), float32.

    A row whose divisor is 0 stays. In float64 and rounded once. Raises OperatorError for another rank and norm.
    """
    one_of("norm", norm, ("MAX", "L1", "L2"))
    if X.ndim not in (1, 2):
        raise misfit("X is not a table", "X", "[N,F] or [F]", X)
    ctx.claim(X.shape, 28)
    rows = np.atleast_2d(X).astype(np.float64)
    with np.errstate(all="ignore"):
        if norm == "MAX":
            size = rows.max(axis=1, keepdims=True, initial=-np.inf)
        else:
            size = sum_over(abs(rows), (1,), True) if norm == "L1" else np.sqrt(sum_over(rows * rows, (1,), True))
        return np.where(size == 0, rows, rows / size).astype(np.float32).reshape(X.shape)
