"""Features of ai.onnx.ml: Binarizer, Imputer, LabelEncoder, CategoryMapper, OneHotEncoder,
ArrayFeatureExtractor, FeatureVectorizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text, type_name
from qrun.ops._float import is_integer, single
from qrun.ops._ml import ML, NUMBERS, Floats, per_feature, rows_of, single_results
from qrun.ops._op import Array, Context, check_range, misfit, op, refuse
from qrun.ops._shape import claim


@op("Binarizer", since=1, domain=ML, types={"T": (NUMBERS, "X")}, form="pointwise")
def binarizer(X: Array, *, threshold: float = 0.0) -> Array:
    """1 where X > threshold, else 0, of X's type; exact."""
    return np.asarray(single(threshold) < X).astype(X.dtype)


@op("Imputer", since=1, domain=ML, types={"T": (NUMBERS, "X")})
def imputer(
    X: Array,
    *,
    imputed_value_floats: Floats | None = None,
    imputed_value_int64s: tuple[int, ...] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
    ctx: Context,
) -> Array:
    """X with other values in place of those that equal replaced_value (NaN: of NaN): one, or one for each place along
    the last axis. Floats take those of floats, integers those of integers; exact.

    Raises OperatorError where they are missing, or other in number.
    """
    whole = is_integer(X.dtype)
    name = "imputed_value_int64s" if whole else "imputed_value_floats"
    given: Any = imputed_value_int64s if whole else imputed_value_floats
    if not given:
        raise refuse(f"{name} is missing", name, f"{name}, as X is {type_name(X.dtype)}", "nothing", code="QR204")
    values = np.asarray(given, np.int64 if whole else np.float32).astype(X.dtype)
    per_feature(values, X.shape[-1] if X.ndim else 1, name)
    ctx.claim(X.shape, X.itemsize + 1)
    if whole:
        wrong = np.equal(X, replaced_value_int64)
    else:
        value = np.float32(replaced_value_float).astype(X.dtype)
        wrong = np.isnan(X) if np.isnan(value) else np.equal(X, value)
    return np.asarray(np.where(wrong, values, X))


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
    keys_floats: Floats | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_strings: tuple[str, ...] | None = None,
    keys_tensor: Array | None = None,
    values_floats: Floats | None = None,
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


@op("OneHotEncoder", since=1, domain=ML, types={"T": ("string int64 int32 float double", "X")})
def one_hot_encoder(
    X: Array,
    *,
    cats_int64s: tuple[int, ...] | None = None,
    cats_strings: tuple[str, ...] | None = None,
    zeros: int = 1,
    ctx: Context,
) -> Array:
    """A new last axis, as long as the categories: 1 at that of the element, else 0, float32; exact.

    Numbers are cut to integers first. Raises OperatorError for no categories or both lists, strings where X has none,
    and, unless `zeros`, an element that is no category.
    """
    text = X.dtype == np.dtype(object)
    if bool(cats_int64s) == bool(cats_strings) or text != bool(cats_strings):
        expected = f"{'cats_strings' if text else 'cats_int64s'}, as X is {type_name(X.dtype)}"
        raise refuse("the categories do not fit X", "cats_strings", expected, "others", code="QR204")
    names: Any = cats_strings or cats_int64s
    table = ctx.memo.once("places", lambda: {name: at for at, name in reversed(list(enumerate(names)))})
    made = np.zeros(claim(ctx, (*X.shape, len(names)), np.dtype(np.float32), "X"), np.float32)
    rows = made.reshape(X.size, len(names))
    if not text and X.dtype.kind == "f" and not np.isfinite(X).all():
        raise refuse("an element is no number", "X", "finite numbers", "NaN or infinity")
    for place, key in enumerate((X if text else X.astype(np.int64)).reshape(-1).tolist()):
        found = table.get(key)
        if found is not None:
            rows[place, found] = 1
        elif not zeros:
            raise refuse(f"{key!r} is no category", "X", "one of the categories, as zeros is 0", repr(key))
    return made


@op(
    "ArrayFeatureExtractor",
    since=1,
    domain=ML,
    types={"T": ("float double int64 int32 string", "X"), "I": ("int64", "Y")},
)
def array_feature_extractor(X: Array, Y: Array, *, ctx: Context) -> Array:
    """Elements of X at the places Y along the last axis; [N] gives [1,places]; exact.

    Y int64 [places] or [1,places], 0 to n - 1. Raises OperatorError for no places, others, and a scalar X.
    """
    places = Y.reshape(-1)
    if not X.ndim or not places.size:
        raise misfit("there is nothing to select", "Y", "1 place or more, of X with axes", Y)
    check_range(places, X.shape[-1], "Y", "place")
    lead = X.shape[:-1] or (1,)
    claim(ctx, (*lead, places.size), X.dtype, "Y")
    return np.take(X, places, axis=-1).reshape(*lead, places.size)


@op("FeatureVectorizer", since=1, domain=ML, types={"T1": ("int32 int64 float double", "X")})
def feature_vectorizer(*X: Array, inputdimensions: tuple[int, ...] | None = None, ctx: Context) -> Array:
    """The inputs [N,C] one beside the other, float32; [C] counts as [1,C]. inputdimensions: how many columns each has.

    Rounded once. Raises OperatorError for other shapes, and other columns than inputdimensions says.
    """
    if not X or any(x is None for x in X):
        raise refuse("an input is missing", "X", "one tensor or more", "nothing", code="QR205")
    tables = [rows_of(x) for x in X]
    widths = tuple(t.shape[1] for t in tables)
    if len({len(t) for t in tables}) > 1:
        raise misfit("the inputs differ in rows", "X", f"{len(tables[0])} rows", shape_text(tuple(map(len, tables))))
    if inputdimensions is not None and tuple(inputdimensions) != widths:
        expected = shape_text(tuple(inputdimensions))
        raise misfit("the inputs have other columns", "inputdimensions", expected, shape_text(widths))
    ctx.claim((len(tables[0]), sum(widths)), 8)
    return single_results(np.concatenate(tables, axis=1), ctx)
