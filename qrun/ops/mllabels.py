"""CategoryMapper, which onnx.reference has not, and LabelEncoder, whose keys it does not find where they are NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.schema import ML
from qrun.ir.types import type_name
from qrun.ops._op import Array, Context, op, refuse
from qrun.ops._shape import claim

_KINDS = "string int64 float int32 int16 double"


@op("LabelEncoder", since=1, domain=ML, types={"T": ("string int64", "X")})
def label_encoder_1(
    X: Array,
    *,
    classes_strings: tuple[str, ...] | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
    ctx: Context,
) -> Array:
    """The place of a string in classes_strings, int64, or the string at a place; else the default.

    Source: ONNX-ML operators, LabelEncoder-1.
    """
    words = classes_strings or ()
    return _translated(X, words, range(len(words)), (default_int64, default_string), ctx)


@op("CategoryMapper", since=1, domain=ML, types={"T1": ("string int64", "X")})
def category_mapper(
    X: Array,
    *,
    cats_int64s: tuple[int, ...] | None = None,
    cats_strings: tuple[str, ...] | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
    ctx: Context,
) -> Array:
    """The number of cats_int64s for a text that stands in the same place of cats_strings, or the text for a number.

    The default where there is none; of several the last one counts. Raises OperatorError for lists of other lengths.
    """
    numbers, words = cats_int64s or (), cats_strings or ()
    if len(numbers) != len(words):
        got = f"{len(numbers)} and {len(words)}"
        raise refuse("cats_int64s and cats_strings differ in length", "cats_int64s", "one length", got, code="QR204")
    return _translated(X, words, numbers, (default_int64, default_string), ctx)


def _translated(
    x: Array, words: Sequence[str], numbers: Sequence[int], defaults: tuple[int, str], ctx: Context
) -> Array:
    """The number beside each text, or the text beside each number; a default where there is none."""
    text = x.dtype == np.dtype(object)
    keys, values = (words, numbers) if text else (numbers, words)
    codes = ctx.memo.once(("codes", text), lambda: _Codes.of(keys, values, defaults[not text]))
    return codes.of_elements(x, np.dtype(np.int64 if text else object), ctx)


@op("LabelEncoder", since=2, domain=ML, types={"T": (_KINDS, "X")})
def label_encoder(
    X: Array,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: tuple[float, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_strings: tuple[str, ...] | None = None,
    keys_tensor: Array | None = None,
    values_floats: tuple[float, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_strings: tuple[str, ...] | None = None,
    values_tensor: Array | None = None,
    ctx: Context,
) -> Array:
    """The value at the place of each element among the keys, or the default of the values' type; of a key that is there
    twice the last. NaN is the key NaN. Keys have X's type; exact.

    Raises OperatorError for no keys or values, both forms of them, and lists of different length.
    Source: ONNX-ML operators, LabelEncoder-4.
    """

    def codes() -> tuple[_Codes, np.dtype[Any], np.dtype[Any]]:
        keys = _chosen("keys", keys_tensor, keys_strings, keys_int64s, keys_floats)
        values = _chosen("values", values_tensor, values_strings, values_int64s, values_floats)
        if len(keys) != len(values):
            expected = f"{len(keys)}, as keys"
            raise refuse("keys and values differ in number", "keys_tensor", expected, str(len(values)), code="QR204")
        default: Any = default_string if values.dtype == np.dtype(object) else default_int64
        if values.dtype.kind == "f":
            default = default_float
        if default_tensor is not None:
            default = default_tensor.reshape(-1)[0]
        return _Codes.of(keys.tolist(), values.tolist(), default), keys.dtype, values.dtype

    made, kind, dtype = ctx.memo.once("codes", codes)
    if kind != X.dtype:
        raise refuse("keys have another type than X", "X", type_name(kind), type_name(X.dtype), code="QR203")
    return made.of_elements(X, dtype, ctx)


def _chosen(name: str, tensor: Array | None, *lists: Any) -> Array:
    given = [
        (v, kind)
        for v, kind in zip((tensor, *lists), (None, object, np.int64, np.float32), strict=True)
        if v is not None
    ]
    if len(given) != 1:
        expected = f"one of {name}_strings, {name}_int64s, {name}_floats, {name}_tensor"
        raise refuse(
            f"there are {len(given)} lists of {name}", f"{name}_tensor", expected, str(len(given)), code="QR204"
        )
    value, kind = given[0]
    if kind is None:
        return np.asarray(value).reshape(-1)
    made = np.empty(len(value), kind)
    made[:] = list(value)
    return made


@frozen
class _Codes:
    """What stands for keys: by key; for NaN; for all others."""

    table: Mapping[Any, Any]
    missing: Any
    default: Any

    @classmethod
    def of(cls, keys: Sequence[Any], values: Sequence[Any], default: Any) -> _Codes:
        pairs = list(zip(keys, values, strict=True))
        return cls(dict(pairs), next((v for k, v in reversed(pairs) if k != k), default), default)

    def of_elements(self, x: Array, dtype: np.dtype[Any], ctx: Context) -> Array:
        """What stands for each element, of this type."""
        made = np.empty(claim(ctx, x.shape, dtype, "X"), dtype).reshape(-1)
        for place, key in enumerate(x.reshape(-1).tolist()):
            made[place] = self.table.get(key, self.default) if key == key else self.missing
        return made.reshape(x.shape)
