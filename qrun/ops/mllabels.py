"""CategoryMapper, which onnx.reference has not, and LabelEncoder, whose keys it does not find where they are NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir.schema import ML
from qrun.ir.types import type_name
from qrun.ops._op import Array, Context, op, refuse
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
    """The place of a string in classes_strings, int64, or the string at a place; else the default.

    Source: ONNX-ML operators, LabelEncoder-1.
    """
    return _beside(X, range(len(classes_strings)), classes_strings, default_int64, default_string, ctx)


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
    """The number of cats_int64s for a text that stands in the same place of cats_strings, or the text for a number.

    The default where there is none; of several the last one counts. Raises OperatorError for lists of other lengths.
    """
    if len(cats_int64s) != len(cats_strings):
        got = f"{len(cats_int64s)} and {len(cats_strings)}"
        raise refuse("cats_int64s and cats_strings differ in length", "cats_int64s", "one length", got, code="QR204")
    return _beside(X, cats_int64s, cats_strings, default_int64, default_string, ctx)


def _beside(x: Array, numbers: Sequence[int], texts: Texts, number: int, text: str, ctx: Context) -> Array:
    """The number beside each text, or the text beside each number; a default where there is none."""
    if x.dtype == _TEXT:
        return _found(x, texts, numbers, number, _WHOLE, ctx)
    return _found(x, numbers, texts, text, _TEXT, ctx)


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
    keys, kind = _chosen("keys", keys_tensor, keys_strings, keys_int64s, keys_floats)
    values, dtype = _chosen("values", values_tensor, values_strings, values_int64s, values_floats)
    if len(keys) != len(values):
        expected = f"{len(keys)}, as keys"
        raise refuse("keys and values differ in number", "keys_tensor", expected, str(len(values)), code="QR204")
    if kind != X.dtype:
        raise refuse("keys have another type than X", "X", type_name(kind), type_name(X.dtype), code="QR203")
    default: Any = default_string if dtype == _TEXT else default_float if dtype.kind == "f" else default_int64
    if default_tensor is not None:
        default = default_tensor.reshape(-1)[0]
    return _found(X, keys, values, default, dtype, ctx)


def _chosen(name: str, tensor: Array | None, *lists: Sequence[Any] | None) -> tuple[Sequence[Any], np.dtype[Any]]:
    """The one list that is given, of texts, integers or floats, or a tensor's elements, and their type."""
    kinds: tuple[np.dtype[Any], ...] = (_TEXT, _WHOLE, _SINGLE)
    given = [(v, kind) for v, kind in zip(lists, kinds, strict=True) if v is not None]
    given += [] if tensor is None else [(tensor.reshape(-1).tolist(), tensor.dtype)]
    if len(given) != 1:
        expected = f"one of {name}_strings, {name}_int64s, {name}_floats, {name}_tensor"
        got = str(len(given))
        raise refuse(f"there are {got} lists of {name}", f"{name}_tensor", expected, got, code="QR204")
    return given[0]


def _found(
    x: Array, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: np.dtype[Any], ctx: Context
) -> Array:
    """The value beside each element among the keys, of several the last, else the default."""
    table, missing = ctx.memo.once(("table", x.dtype), lambda: _table(keys, values, default))
    made = np.empty(claim(ctx, x.shape, dtype, "X"), dtype)
    known = x.reshape(-1).tolist()
    made.reshape(-1)[:] = [table.get(key, default) if key == key else missing for key in known]
    return made


def _table(keys: Sequence[Any], values: Sequence[Any], default: Any) -> tuple[dict[Any, Any], Any]:
    """Values by key, and that of NaN."""
    pairs = list(zip(keys, values, strict=True))
    return dict(pairs), next((value for key, value in reversed(pairs) if key != key), default)
