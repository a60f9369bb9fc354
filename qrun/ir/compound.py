"""Values that are no tensors: sequences of tensors, empty optionals, and maps.

Each is an array with an element type of its own, so that code that checks types and shapes can tell it from a tensor:
no operator for tensors takes one by accident. Its parts are in `elements`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from qrun.ir.model import Array, TensorType
from qrun.ir.types import MAP, OPTIONAL, SEQUENCE, describe, texts

_UNFIT = ValueError, TypeError, OverflowError
"""Exceptions of numpy for values that a type cannot have."""


class Compound(np.ndarray):
    """A value that is no tensor; `dtype` tells its kind.

    SEQUENCE: shape [n], `elements` are n tensors of one type, `element`, and of any shapes.
    OPTIONAL: a scalar: an empty optional value; a non-empty one is represented by its tensor or sequence itself.
    MAP:      `elements` are keys [k] and values; values [k] and a scalar for a map, values [n,k] and shape [n] for a
              sequence of n maps with the same keys.
    """

    elements: tuple[Array, ...]
    element: np.dtype[Any] | None

    def __array_finalize__(self, other: Any) -> None:
        self.elements = getattr(other, "elements", ())
        self.element = getattr(other, "element", None)

    def with_elements(self, elements: Iterable[Array]) -> Compound:
        """This value with other elements in place of its own."""
        made = self.view(Compound)
        made.elements = tuple(elements)
        return made


def _build(shape: tuple[int, ...], kind: np.dtype[Any], elements: Iterable[Array]) -> Compound:
    """A compound value from its elements."""
    made = np.zeros(shape, kind).view(Compound)
    made.elements = tuple(elements)
    return made


def sequence(elements: Iterable[Array], element: np.dtype[Any] | None = None) -> Compound:
    """A sequence of tensors. element: their type; None for the type of the first one."""
    parts = tuple(elements)
    made = _build((len(parts),), SEQUENCE, parts)
    made.element = element if element is not None or not parts else parts[0].dtype
    return made


def empty_optional() -> Compound:
    """An empty optional value."""
    return _build((), OPTIONAL, ())


def maps(keys: Array, values: Array) -> Compound:
    """A map from keys [k] to values [k], or a sequence of maps, values [n,k]."""
    return _build(values.shape[:-1], MAP, (keys, values))


def is_compound(value: Array) -> bool:
    """Whether a value is a sequence, map or optional."""
    return isinstance(value, Compound)


def to_runtime(value: Array) -> Any:
    """The value as onnxruntime returns it: an array, a list of arrays, a dict, a list of dicts, or None."""
    if not isinstance(value, Compound):
        return value
    if value.dtype == SEQUENCE:
        return list(value.elements)
    if value.dtype == OPTIONAL:
        return None
    keys, rows = value.elements
    names = keys.tolist()
    if not value.ndim:
        return dict(zip(names, rows.tolist(), strict=True))
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()]


def elements_of(value: Array) -> tuple[Array, ...]:
    """The elements of a sequence of tensors; none for other values."""
    return value.elements if isinstance(value, Compound) and value.dtype == SEQUENCE else ()


def tensors(values: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors in values, by name: ``y[0]``, ``y[1]`` for a sequence, an empty ``y[]`` for a sequence without
    elements, ``y.keys`` and ``y.values`` for maps, nothing for an empty optional. A tensor keeps its own name; a part
    whose name is taken gets ``'`` appended."""
    found: dict[str, Array] = {}
    for name, value in values.items():
        for ending, part in _parts(value).items():
            own = name + ending
            while ending and (own in values or own in found):
                own += "'"
            found[own] = part
    return found


def _parts(value: Array) -> dict[str, Array]:
    """The tensors in a value, by the suffix that is added to its name."""
    if not isinstance(value, Compound):
        return {"": value}
    if value.dtype == MAP:
        return dict(zip((".keys", ".values"), value.elements, strict=True))
    if value.dtype == SEQUENCE and not value.elements:
        return {"[]": np.zeros(0, value.element or np.float32)}
    return {f"[{index}]": element for index, element in enumerate(value.elements)}


def numbers(value: Array) -> Array:
    """A tensor to compare in place of a value: the numbers of all elements of a sequence, the values of maps, an empty
    tensor for an empty optional."""
    found = compared_tensors(value)
    if not isinstance(value, Compound) or value.dtype == MAP:
        return found[0]
    return np.concatenate([part.reshape(-1) for part in found]) if found else np.zeros(0, value.element or np.float32)


def compared_tensors(value: Array) -> tuple[Array, ...]:
    """The tensors whose numbers are compared: the elements of a sequence, the values of maps, the tensor itself."""
    if not isinstance(value, Compound):
        return (value,)
    return value.elements[1:] if value.dtype == MAP else value.elements


def batch_rows(value: Array, count: int) -> list[Array] | None:
    """The value cut along a batch axis of this size into values with an axis of one; None where it has no such axis: a
    sequence of maps has one, a sequence of tensors has none."""
    if value.shape[:1] != (count,) or (is_compound(value) and value.dtype != MAP):
        return None
    if not isinstance(value, Compound):
        return [value[at : at + 1] for at in range(count)]
    keys, rows = value.elements
    return [maps(keys, rows[at : at + 1]) for at in range(count)]


def form_difference(a: Array, b: Array) -> tuple[str, str] | None:
    """Descriptions of two values, at least one of them no tensor, that differ in more than their numbers: in kind,
    number of elements, an element's type or shape, or a map's key. None if they do not, and for two tensors."""
    if not is_compound(a) and not is_compound(b):
        return None
    left, right, wholes = _parts(a), _parts(b), (describe(a), describe(b))
    if is_compound(a) != is_compound(b) or (a.dtype, a.shape) != (b.dtype, b.shape):
        return wholes
    for ending, one in left.items():
        other, part = right[ending], ending.removeprefix(".")
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{wholes[0]}, {part} {describe(one)}", f"{wholes[1]}, {part} {describe(other)}"
        if ending == ".keys" and (one != other).any():
            at = int(np.argmax(one != other))
            return f"{wholes[0]}, key {one[at]}", f"{wholes[1]}, key {other[at]}"
    return None


def join_tensors(found: Mapping[str, Array]) -> Compound | None:
    """The inverse of `tensors`, from a value's parts by suffix; None where tensors are missing, or differ in type."""
    if found.keys() == {".keys", ".values"}:
        keys, values = found[".keys"], found[".values"]
        fits = keys.ndim == 1 and values.ndim in (1, 2) and values.shape[-1] == keys.size
        return maps(keys, values) if fits else None
    if found.keys() == {"[]"}:
        return sequence((), found["[]"].dtype)
    if found.keys() != {f"[{index}]" for index in range(len(found))} or len({a.dtype for a in found.values()}) > 1:
        return None
    return sequence(found[f"[{index}]"] for index in range(len(found)))


def copy_shared(value: Array, from_: Iterable[Array]) -> Array:
    """The value; elements of a compound that may share memory with these arrays are copied."""
    if not isinstance(value, Compound) or not value.elements:
        return value
    others = [array for array in from_ if not isinstance(array, Compound)]
    return value.with_elements(
        element.copy() if any(np.may_share_memory(element, other) for other in others) else element
        for element in value.elements
    )


def parts(value: Array) -> tuple[Array, ...]:
    """The tensors of a value: its elements, or itself."""
    return value.elements if isinstance(value, Compound) else (value,)


def of_type(value: Array, stated: TensorType) -> bool:
    """Whether a value may have this type; shapes do not count."""
    if stated.kind == "tensor":
        return stated.dtype is None or stated.dtype == value.dtype
    if stated.kind == "optional":
        return value.dtype == OPTIONAL or stated.element is None or of_type(value, stated.element)
    if not isinstance(value, Compound):
        return False
    held = stated.element
    if value.dtype == MAP:
        kind = held if stated.kind == "map" else held.element if held else None
        keys, values = value.elements
        known = stated.kind == "map" or (held is not None and held.kind == "map" and value.ndim == 1)
        return known and (kind is None or kind.dtype in (None, values.dtype)) and _keys(stated) in (None, keys.dtype)
    plain = stated.kind == "sequence" and value.dtype == SEQUENCE
    return plain and (held is None or (held.kind == "tensor" and held.dtype in (None, value.element)))


def _keys(stated: TensorType) -> np.dtype[Any] | None:
    """The type of a map's keys; None for other types."""
    return stated.key if stated.kind == "map" or stated.element is None else stated.element.key


def wrap_value(value: Any, stated: TensorType) -> Array:
    """Convert a Python value to this type: the inverse of `to_runtime`. A value that does not fit becomes an array.

    Numbers, lists and tuples become arrays of the stated element type, unless that would change them: a text is no
    number, and 1.5 no integer.
    """
    if isinstance(value, Compound):
        return value
    held = stated.element
    if stated.kind == "optional":
        if value is None:
            return empty_optional()
        if held is None or held.kind == "tensor":
            return texts(np.asarray(value), held.dtype if held else None)
        return wrap_value(value, held)
    if stated.kind == "sequence" and isinstance(value, (list, tuple)):
        if held is not None and held.kind == "map":
            return _table(value, held)
        dtype = held.dtype if held else None
        try:
            found = [texts(e, dtype) if isinstance(e, np.ndarray) else _as_type(e, dtype) for e in value]
        except _UNFIT:
            return _array(value)
        if len({element.dtype for element in found}) < 2 and not any(map(is_compound, found)):
            return sequence(found, None if found else dtype)
    if stated.kind == "map" and isinstance(value, Mapping):
        return _table([value], stated, single=True)
    return _array(value)


def as_input(value: Any, stated: TensorType) -> Array:
    """Convert a Python input to this type: as `wrap_value`; for a tensor to an array, with texts as str."""
    return texts(np.asarray(value), stated.dtype) if stated.kind == "tensor" else wrap_value(value, stated)


def _array(value: Any) -> Array:
    """A value as an array; empty if it makes none."""
    try:
        return np.asarray(value)
    except ValueError:  # the elements make no array
        return np.empty((), object)


def _as_type(values: Any, dtype: np.dtype[Any] | None) -> Array:
    """These values as an array of this type, or of their own type if it is None. Raises one of `_UNFIT` for texts in
    place of numbers, anything but texts in place of texts, empty lists, and numbers that are not such integers."""
    own = np.asarray(values)
    if dtype is None:
        return own
    with np.errstate(all="ignore"):
        made = np.asarray(values, dtype)
    whole = dtype.kind == "b" or "int" in dtype.name
    if dtype.kind == "O":
        fits = all(isinstance(text, str) for text in made.reshape(-1))
    elif whole:
        fits = own.dtype == dtype or (own.dtype.kind in "biuf" and made.tolist() == own.tolist())
    else:
        fits = own.dtype == dtype or own.dtype.kind in "biufc"
    if not fits and own.size:
        raise ValueError(f"not of type {dtype}")
    return made


def from_runtime(value: Any, stated: TensorType | None) -> Array:
    """Convert a value from another runtime: the inverse of `to_runtime`. stated: its type, if the model states it."""
    if stated is not None and stated.kind != "tensor":
        return wrap_value(value, stated)
    if isinstance(value, list):
        held = TensorType("", None, None, "map" if value and isinstance(value[0], Mapping) else "tensor")
        return wrap_value(value, TensorType("", None, None, "sequence", held))
    return np.asarray(value)


def _table(rows: Iterable[Any], stated: TensorType, single: bool = False) -> Array:
    """Maps with the same keys as one value; anything else becomes an array of objects."""
    given = list(rows)
    names = list(given[0]) if given and isinstance(given[0], Mapping) else []
    if not all(isinstance(row, Mapping) and list(row) == names for row in given):
        return np.empty((), object)
    held = stated.element.dtype if stated.element else None
    try:
        keys = _as_type(names, stated.key)
        values = _as_type([list(row.values()) for row in given], held).reshape(len(given), len(names))
    except _UNFIT:
        return np.empty((), object)
    if keys.ndim != 1:
        return np.empty((), object)
    return maps(keys, values[0] if single else values)
